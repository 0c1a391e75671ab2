//! What whole-program tests share: a world of their own (cgroups, network namespaces, state), the daemon in it, agents
//! and servers as real processes, and eyes on what they did.
//!
//! Everything here panics instead of returning an error: a broken harness is a broken test, with a backtrace.

pub mod agent;
pub mod api_server;
pub mod app;
pub mod certs;
pub mod cgroup;
pub mod cli;
pub mod http;
pub mod mcp;
pub mod metrics;
pub mod netns;
pub mod probe;
pub mod process;
pub mod proxy;
pub mod raw_server;
pub mod records;
pub mod sdk;
pub mod server;
pub mod wait;
pub mod world;

pub use agent::{Agent, RawAgent, Step};
pub use app::Daemon;
pub use sdk::{Client, Era, Sdk};
pub use server::Server;
pub use wait::{DEADLINE, wait_for};
pub use world::World;
