//! The kernel side of interlock. It parses no application bytes: it tags, redirects and obeys the stop word.
//!
//! `connect` holds the hooks that run in an agent's system calls, `egress` is the packet filter behind them, and
//! `handover` tells the daemon the original destination of what it accepts. What they decide is in
//! `agent-abi`, as pure functions. Bias: a map miss refuses, for whoever is known to be an agent.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(target_arch = "bpf")]
mod connect;
#[cfg(target_arch = "bpf")]
mod egress;
#[cfg(target_arch = "bpf")]
mod handover;
#[cfg(target_arch = "bpf")]
mod maps;
#[cfg(target_arch = "bpf")]
mod owner;
#[cfg(target_arch = "bpf")]
mod refuse;

/// The kernel lends its GPL-only helpers to programs with this word in this section.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {
    panic!("agent-ebpf runs in the kernel; build it with `cargo xtask ebpf`");
}
