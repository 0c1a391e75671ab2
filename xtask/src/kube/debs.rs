//! Programs of the cluster that Debian has: unpacked below `target/kube/debian`, not installed, so that no daemon of
//! theirs starts on the machine.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Context as _;

use super::files::Files;
use crate::apt::{Apt, unpack};

/// All of one suite, so that the libraries fit; but kubectl, of which Debian stable has only the server's age.
const PACKAGES: [&str; 15] = [
    "etcd-server/bookworm",
    "containerd/bookworm",
    "runc/bookworm",
    "containernetworking-plugins/bookworm",
    "busybox-static/bookworm",
    "conntrack/bookworm",
    "iptables/bookworm",
    "libip4tc2/bookworm",
    "libip6tc2/bookworm",
    "libmnl0/bookworm",
    "libnetfilter-conntrack3/bookworm",
    "libnfnetlink0/bookworm",
    "libnftnl11/bookworm",
    "libxtables12/bookworm",
    "kubectl/sid",
];

pub(super) const SOURCES: [&str; 4] = ["deb bullseye", "deb bookworm", "deb-src bookworm", "deb sid"];

pub(super) fn provision(files: &Files) -> anyhow::Result<()> {
    let done = files.debian();
    if done.exists() {
        return Ok(());
    }
    println!("kube: Debian packages ({})", PACKAGES.join(" "));
    let apt = Apt::prepare(files.dir.join("apt"), &SOURCES)?;
    let packages = files.dir.join("apt/packages");
    apt.download(&PACKAGES, &packages)?;
    let unpacked = files.dir.join("apt/unpacked");
    unpack(&packages, &unpacked)?;
    // What update-alternatives would do.
    for name in ["iptables", "iptables-save", "iptables-restore"] {
        for name in [name.to_owned(), name.replacen("ip", "ip6", 1)] {
            let link = unpacked.join("usr/sbin").join(name);
            symlink("xtables-nft-multi", &link).with_context(|| format!("link {}", link.display()))?;
        }
    }
    // Last, so that what is there is whole.
    fs::rename(&unpacked, &done).with_context(|| format!("move to {}", done.display()))?;
    fs::remove_dir_all(files.dir.join("apt")).context("remove the private apt")
}
