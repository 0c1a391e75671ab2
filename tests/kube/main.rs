//! interlock in a real Kubernetes cluster, the one that `cargo xtask kube up` has started (`cargo xtask test kube` does
//! all of it). One node, one cluster for all tests: each makes what it needs and removes it again.

mod alerts;
mod bare;
mod baselines;
mod captured;
mod cluster;
mod deployment;
mod drift;
mod fleet;
mod node;
mod overlays;
mod peers;
mod policies;
mod prometheus;
mod scale;
mod static_pods;
mod unclassified;
