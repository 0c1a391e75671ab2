//! What whole-program tests share.

pub mod cgroup;
pub mod netns;
pub mod probe;
