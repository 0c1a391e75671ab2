//! The kernel side against the real kernel: own cgroups, own network namespaces, own pins, nothing of anyone
//! else's. Needs root, BPF and cgroup v2: `cargo test -p agent-tests --features root-tests --test kernel`.

mod attach;
mod bypass;
mod everybody;
mod halt;
mod handover;
mod lab;
mod levels;
mod offline;
mod process;
mod queues;
mod raw;
mod redirect;
mod stop;
