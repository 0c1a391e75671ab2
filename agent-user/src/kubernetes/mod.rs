//! Agents that are pods: which pods this node has, as its API server says, and which cgroups are theirs.
//!
//! The API server is asked by one watch that is filtered to this node; nothing here is on the path of a connection. Without
//! it what was known last holds, restarts included.

mod directory;
mod place;
mod pod;
mod watch;

pub use directory::{ByUid, Directory};
pub use place::{Kubelet, Place, Uid, container_in};
pub use pod::{Container, Pod, Pods};
pub use watch::{client, heard, watch};
