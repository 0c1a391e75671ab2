//! interlock.
#![deny(unsafe_code)]

#[expect(unsafe_code, reason = "raw bpf(2), netlink and setns calls; nowhere else")]
pub mod kernel;
