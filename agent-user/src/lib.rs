//! interlock.
pub mod config;
pub mod decide;
pub mod gate;
pub mod identity;
pub mod ledger;
pub mod record;
pub mod selectors;
pub mod state;
