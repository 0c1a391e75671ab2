//! `cargo xtask image`: interlock as a container image, an OCI layout in a tar file for `ctr image import` or `skopeo`. No
//! registry and no engine takes part. `deploy/Dockerfile` makes the same where there is an engine: it packs the files that
//! are laid out here, and a test holds what else it says against this.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::oci::pack;
use crate::{release, shell};

/// As `deploy/kubernetes` names it.
const NAME: &str = concat!("docker.io/library/interlock:", env!("CARGO_PKG_VERSION"));
/// Below the image's root.
const PROGRAM: &str = "usr/local/bin/interlock";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Pack this program instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
    /// The file to write, in place of target/image/interlock.oci.tar
    #[arg(long)]
    into: Option<PathBuf>,
    /// Only lay the image's files out, in this new folder: for deploy/Dockerfile
    #[arg(long, conflicts_with = "into")]
    files: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => release::build()?,
    };
    if let Some(folder) = &options.files {
        ensure!(!folder.exists(), "{} is there already: name a folder that is not", folder.display());
        lay_out(&program, folder)?;
        println!("image: its files are in {}", folder.display());
        return Ok(());
    }
    let tar = options.into.clone().unwrap_or_else(|| shell::target().join("image/interlock.oci.tar"));
    build(NAME, &program, &tar)?;
    println!("image: {NAME} is in {}", tar.display());
    Ok(())
}

/// Packs this program as an image, unless that was done since it was built, and this program that packs.
pub(crate) fn build(name: &str, program: &Path, tar: &Path) -> anyhow::Result<()> {
    let built = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let is_older = |path: &Path| built(path).is_ok_and(|path| built(tar).is_ok_and(|tar| path < tar));
    if is_older(program) && std::env::current_exe().is_ok_and(|own| is_older(&own)) {
        return Ok(());
    }
    println!("image: {name}");
    let root = tar.with_extension("root");
    lay_out(program, &root)?;
    pack(name, &root, &config(), tar)?;
    fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))
}

/// What the image says of itself. The daemon needs root, and its manifest says which of root's capabilities; that of the
/// controller names another user.
fn config() -> Value {
    json!({
        "Entrypoint": [format!("/{PROGRAM}")],
        "Env": ["PATH=/usr/local/bin"],
        "User": "0:0",
        "Labels": {
            "org.opencontainers.image.title": "interlock",
            "org.opencontainers.image.description": "A kill switch and policy gate for AI agents",
            "org.opencontainers.image.version": env!("CARGO_PKG_VERSION"),
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    })
}

/// The files of the image: the program and the libraries it is linked to, and nothing else.
fn lay_out(program: &Path, root: &Path) -> anyhow::Result<()> {
    let root = fresh(root)?;
    let place = root.join(PROGRAM);
    copy(program, &place)?;
    release::strip(&place)?;
    let ldd = Command::new("ldd").arg(program).output().context("run ldd")?;
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
    Ok(())
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
