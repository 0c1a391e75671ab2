//! What a whole cluster shares, as objects of its API server: stops, rules, and what is trusted of tools. Every node carries
//! them out by itself and goes on with them when the API server is gone. It answers a stop with a report of its own; one
//! controller sums the reports up, and says of each policy and baseline whether nodes take it.
//!
//! A stop ends when its object is deleted. Who may make or delete what is the API server's to say (RBAC), and who did is in
//! its audit log.

pub mod baselines;
pub mod carry_out;
pub mod controller;
pub mod follow;
pub mod held;
pub mod node;
mod pace;
pub mod policies;
pub mod resources;
mod sum;
mod verdict;
