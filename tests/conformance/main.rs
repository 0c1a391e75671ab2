//! The official conformance suites, run with and without the program between client and server: they must come to
//! exactly the same results, check by check. Needs root, BPF and `cargo xtask sdk`:
//! `cargo xtask test conformance`.

mod servers;
mod suite;
