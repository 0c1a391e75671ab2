//! Tools for the author of rules, which need no daemon: what a rules file would warn of, why it decides as it does, and
//! what would have been different with it.

pub mod case;
pub mod check;
pub mod explain;
pub mod replay;
