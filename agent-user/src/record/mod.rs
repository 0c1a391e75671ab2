//! What happened, for people and machines: counters in [`metrics`], evidence in [`log`].

pub mod entry;
pub mod log;
pub mod metrics;
pub mod recall;
