//! interlock: a kill switch and policy gate for AI agents.
//!
//! The map of this folder, in the order in which things happen:
//! [`app`] builds every part once, [`hold`] holds agents before all else, [`daemon`] is its life · [`kernel`] holds agents and redirects their connections · [`selectors`] and
//! [`agents`] say who is an agent · [`accept`] listens in every network namespace that has one · [`conn`] is the
//! path of a connection · [`decode`] reads it, [`judge`] and [`decide`] give the verdict, [`forward`] moves the
//! bytes · [`session`], [`workflow`] and [`user`] name what goes on between an agent and a server, [`channels`] where it is answered, [`catalogue`] what its tools are like, [`fingerprint`], [`baseline`] and [`trust`] whether they are still what was trusted, [`limits`] and [`recent`] count it · [`ledger`] and [`book`] know what is in flight, [`approvals`] what waits for a person, [`rounds`] which calls go on with one before, [`tripwires`] and [`orders`] make and carry out stops, [`spool`] keeps those that were ordered with no daemon · [`record`] is the
//! evidence · [`control`] and [`cli`] are the operator's side, [`author`] that of whoever
//! writes rules.
#![deny(unsafe_code)]

pub mod accept;
pub mod agents;
pub mod app;
pub mod approvals;
pub mod author;
pub mod baseline;
pub mod book;
pub mod catalogue;
pub mod channels;
pub mod cli;
pub mod config;
pub mod conn;
pub mod control;
pub mod daemon;
pub mod decide;
pub mod decode;
pub mod doctor;
#[cfg(test)]
#[cfg(feature = "loom")]
mod exact;
pub mod fate;
pub mod fingerprint;
pub mod fleet;
pub mod forward;
pub mod gate;
pub mod hold;
pub mod identity;
pub mod judge;
#[expect(unsafe_code, reason = "raw bpf(2), netlink and setns calls; nowhere else")]
pub mod kernel;
pub mod kubernetes;
pub mod ledger;
pub mod limits;
pub mod orders;
pub mod parts;
pub mod phase;
pub mod place;
pub mod recent;
pub mod record;
pub mod reload;
pub mod room;
pub mod rounds;
pub mod selectors;
pub mod session;
pub mod spool;
pub mod state;
pub mod sync;
pub mod tasks;
pub mod tripwires;
pub mod trust;
pub mod user;
pub mod workflow;
