//! `cargo xtask image`: interlock as a container image, an OCI layout in a tar file for `ctr image import` or `skopeo`. No
//! registry and no engine takes part.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::json;

use crate::oci::pack;
use crate::{release, shell};

/// As `deploy/kubernetes` names it.
const NAME: &str = concat!("docker.io/library/interlock:", env!("CARGO_PKG_VERSION"));

pub(crate) fn run() -> anyhow::Result<()> {
    let tar = shell::target().join("image/interlock.oci.tar");
    build(NAME, &tar)?;
    println!("image: {NAME} is in {}", tar.display());
    Ok(())
}

/// Packs the program and the libraries it is linked to, and nothing else, unless that was done since it was built.
pub(crate) fn build(name: &str, tar: &Path) -> anyhow::Result<()> {
    let program = release::build()?;
    let built = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    if built(tar).is_ok_and(|tar| built(&program).is_ok_and(|program| program < tar)) {
        return Ok(());
    }
    println!("image: {name}");
    let root = fresh(&tar.with_extension("root"))?;
    let place = root.join("usr/local/bin/interlock");
    copy(&program, &place)?;
    release::strip(&place)?;
    let ldd = Command::new("ldd").arg(&program).output().context("run ldd")?;
    let libraries = String::from_utf8_lossy(&ldd.stdout);
    ensure!(
        ldd.status.success() && !libraries.contains("not found"),
        "ldd {}: {libraries}",
        program.display()
    );
    // `libc.so.6 => /lib/… (0x…)`, and the loader by its path alone.
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]))?;
    }
    for folder in ["etc", "proc", "run", "sys", "tmp", "var/lib", "var/log"] {
        fs::create_dir_all(root.join(folder)).context("make the image's folders")?;
    }
    let config = json!({"Entrypoint": ["/usr/local/bin/interlock"], "Env": ["PATH=/usr/local/bin"]});
    pack(name, &root, &config, tar)?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))
}

/// An empty folder. Whoever it is inside, the root of its files is readable.
pub(crate) fn fresh(folder: &Path) -> anyhow::Result<PathBuf> {
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).context("open the folder")?;
    Ok(folder.to_owned())
}

pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let folder = to.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display())).map(drop)
}
