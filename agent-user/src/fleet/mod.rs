//! Stops of a whole cluster. An `AgentStop` is an object of the API server: every node carries it out by itself, goes on
//! with it when the API server is gone, and answers with a report of its own; one controller sums the reports up.
//!
//! The stop ends when the object is deleted. Who may make or delete one is the API server's to say (RBAC), and who did is in
//! its audit log.

pub mod controller;
pub mod node;
pub mod resources;
mod sum;
