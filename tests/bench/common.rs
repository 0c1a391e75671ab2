//! What the two bench programs share: one clock, an end that cannot be missed, enough file descriptors.
//! Both are quiet tools of `cargo xtask bench`; neither is part of the product.

use std::io::Read;

/// Nanoseconds of CLOCK_MONOTONIC, which every process on the host reads alike: the stop probe compares them.
pub(crate) fn monotonic_ns() -> u64 {
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    let now = clock.now().unwrap_or(nix::sys::time::TimeSpec::new(0, 0));
    now.tv_sec().unsigned_abs() * 1_000_000_000 + now.tv_nsec().unsigned_abs()
}

/// Lifts the soft limit of open files to the hard one. A refusal is not fatal: small runs do without.
pub(crate) fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Resolves when standard input closes: a parent that dies, however it dies, ends its children.
pub(crate) async fn stdin_closed() {
    let (done, wait) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut sink = [0; 256];
        while matches!(std::io::stdin().read(&mut sink), Ok(n) if n > 0) {}
        let _ = done.send(());
    });
    let _ = wait.await;
}
