//! interlock.
