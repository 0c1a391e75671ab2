//! Embeds the kernel object that `cargo xtask ebpf` has built, or an empty stub, so that a plain `cargo build`
//! needs no BPF tools. `kernel::load` refuses the stub and names the remedy.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let object = object_path();
    if !object.exists() {
        // An absent file would run this script, and rebuild the crate, on every build.
        let folder = object.parent().expect("the object lies in a folder");
        fs::create_dir_all(folder).expect("the target folder is writable");
        fs::write(&object, []).expect("the target folder is writable");
    }
    let embedded = Path::new(&env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("agent-ebpf");
    fs::copy(&object, embedded).expect("OUT_DIR is writable");
    println!("cargo::rerun-if-changed={}", object.display());
    println!("cargo::rerun-if-env-changed=INTERLOCK_BPF_OBJECT");
}

fn object_path() -> PathBuf {
    match env::var_os("INTERLOCK_BPF_OBJECT") {
        Some(path) => PathBuf::from(path),
        None => {
            let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
            Path::new(&package).join("../target/bpf/agent-ebpf")
        }
    }
}
