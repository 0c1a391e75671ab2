//! interlock.

pub mod decode;
