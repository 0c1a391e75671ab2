//! Programs of the cluster and its tests that Debian has: unpacked below `target/kube/debian`, not installed, so that no daemon of
//! theirs starts on the machine.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::Context as _;

use super::files::Files;
use crate::apt::{Apt, unpack};

/// All of one suite, so that the libraries fit; but kubectl, of which Debian stable has only the server's age.
const PACKAGES: [&str; 16] = [
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
    "prometheus/bookworm",
    "kubectl/sid",
];

/// In the unpacked folder: the packages it was made from.
const MADE_FROM: &str = ".packages";

pub(super) const SOURCES: [&str; 4] = ["deb bullseye", "deb bookworm", "deb-src bookworm", "deb sid"];

pub(super) fn provision(files: &Files) -> anyhow::Result<()> {
    let done = files.debian();
    let packages = PACKAGES.join(" ");
    if fs::read_to_string(done.join(MADE_FROM)).is_ok_and(|made_from| made_from == packages) {
        return Ok(());
    }
    println!("kube: Debian packages ({packages})");
    let apt = Apt::prepare(files.dir.join("apt"), &SOURCES)?;
    let downloaded = files.dir.join("apt/packages");
    apt.download(&PACKAGES, &downloaded)?;
    let unpacked = files.dir.join("apt/unpacked");
    unpack(&downloaded, &unpacked)?;
    // What update-alternatives would do.
    for name in ["iptables", "iptables-save", "iptables-restore"] {
        for name in [name.to_owned(), name.replacen("ip", "ip6", 1)] {
            let link = unpacked.join("usr/sbin").join(name);
            symlink("xtables-nft-multi", &link).with_context(|| format!("link {}", link.display()))?;
        }
    }
    fs::write(unpacked.join(MADE_FROM), packages).context("note the packages")?;
    // Last, so that what is there is whole.
    let _ = fs::remove_dir_all(&done);
    fs::rename(&unpacked, &done).with_context(|| format!("move to {}", done.display()))?;
    fs::remove_dir_all(files.dir.join("apt")).context("remove the private apt")
}
