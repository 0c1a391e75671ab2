//! The kernel side of interlock. It parses no application bytes: it tags, redirects and obeys the stop word.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]

#[cfg(not(target_arch = "bpf"))]
fn main() {
    panic!("agent-ebpf runs in the kernel; build it with `cargo xtask ebpf`");
}
