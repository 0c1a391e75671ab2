//! The images of the test cluster: BusyBox for pauses and small things, the official SDKs with the tests' peers for
//! agents and servers, and interlock itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::files::Files;
use crate::image::{copy, fresh};
use crate::oci::pack;
use crate::{apt, image, release, sdk, shell};

pub(super) const BUSYBOX: &str = "localhost/busybox:1";
const SDK: &str = "localhost/sdk:1";
const INTERLOCK: &str = "localhost/interlock:test";

/// The Python of the image's Debian.
const PYTHON: &str = "3.11";
const SUITE: &str = "bookworm";

pub(super) fn provision(files: &Files) -> anyhow::Result<()> {
    busybox(files)?;
    sdk_image(files)
}

/// The file in which an image made ready lies.
pub(super) fn all(files: &Files) -> [PathBuf; 3] {
    ["busybox", "sdk", "interlock"].map(|name| tar_of(files, name))
}

fn tar_of(files: &Files, name: &str) -> PathBuf {
    files.images().join(format!("{name}.tar"))
}

fn busybox(files: &Files) -> anyhow::Result<()> {
    let tar = tar_of(files, "busybox");
    if tar.exists() {
        return Ok(());
    }
    println!("kube: image {BUSYBOX}");
    let root = fresh(&files.dir.join("roots/busybox"))?;
    for folder in ["bin", "dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(root.join(folder)).context("make the root of BusyBox")?;
    }
    copy(&files.debian().join("bin/busybox"), &root.join("bin/busybox"))?;
    let list = Command::new(root.join("bin/busybox")).arg("--list").output().context("run busybox")?;
    for applet in String::from_utf8_lossy(&list.stdout).lines().filter(|&applet| applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).context("link an applet")?;
    }
    // As the image of a pod's sandbox it is what keeps the namespaces and reaps orphans.
    let config = json!({"Cmd": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]});
    pack(BUSYBOX, &root, &config, &tar)
}

/// Debian with Python and Node, the SDKs as `tests/sdk/` pins them below `/sdk`, and the peers built on them.
fn sdk_image(files: &Files) -> anyhow::Result<()> {
    let (tar, made_from) = (tar_of(files, "sdk"), files.images().join("sdk.pins"));
    let pins = crate::root().join("tests/sdk");
    let sources = sources(&pins)?;
    if tar.exists() && fs::read_to_string(&made_from).is_ok_and(|before| before == sources) {
        return Ok(());
    }
    println!("kube: image {SDK}");
    sdk::provision()?;
    let base = debian(files)?;
    let root = files.dir.join("roots/sdk");
    let _ = fs::remove_dir_all(&root);
    // Hard links: the base is only added to.
    shell::run(Command::new("cp").args(["-al", "--"]).arg(&base).arg(&root))?;
    for venv in ["py1", "py2"] {
        python(&root, venv, &pins)?;
    }
    node(&root.join("sdk/node"))?;
    for program in programs(&pins)? {
        let folder = if has_extension(&program, "mjs") { "sdk/node" } else { "sdk" };
        copy(&program, &root.join(folder).join(program.file_name().context("a program has a name")?))?;
    }
    let config =
        json!({"Cmd": ["/bin/sleep", "infinity"], "Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/sdk"});
    pack(SDK, &root, &config, &tar)?;
    fs::write(made_from, sources).context("write what the image was made from")
}

/// All that the image is made from, but Debian.
fn sources(pins: &Path) -> anyhow::Result<String> {
    let mut files = programs(pins)?;
    files.extend(
        ["requirements-py1.txt", "requirements-py2.txt", "package-lock.json"].map(|name| pins.join(name)),
    );
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Ok(format!("{}\n{text}", path.display()))
    };
    files.iter().map(read).collect()
}

fn programs(pins: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(pins).with_context(|| format!("read {}", pins.display()))?;
    let mut programs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| has_extension(path, "py") || has_extension(path, "mjs"))
        .collect();
    programs.sort();
    Ok(programs)
}

/// A Debian with Python and what Node's binary is linked to.
fn debian(files: &Files) -> anyhow::Result<PathBuf> {
    let root = files.dir.join("roots/debian");
    if root.exists() {
        return Ok(root);
    }
    sdk::need("debootstrap", &["debootstrap", "--version"], &["debootstrap"])?;
    let unfinished = fresh(&files.dir.join("roots/unfinished"))?;
    let site = apt::debian_sites()?.remove(0);
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include=python3,libstdc++6", SUITE]).arg(&unfinished).arg(site);
    let log = files.dir.join("debootstrap.log");
    println!("kube: debootstrap of {SUITE} (a minute; log in {})", log.display());
    let output = fs::File::create(&log).context("create the log of debootstrap")?;
    let status = debootstrap.stdout(output).status().context("run debootstrap")?;
    ensure!(status.success(), "debootstrap: {status}, see {}", log.display());
    // Lists and packages that it fetched: no part of what an agent runs.
    for folder in ["var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"]
    {
        let _ = fs::remove_dir_all(unfinished.join(folder));
    }
    fs::rename(&unfinished, &root).context("move the Debian to its place")?;
    Ok(root)
}

/// A venv of the image's own Python. What goes into it is fetched from outside, by the machine's pip and its settings.
fn python(root: &Path, venv: &str, pins: &Path) -> anyhow::Result<()> {
    let inside = format!("/sdk/{venv}");
    shell::run(Command::new("chroot").arg(root).args(["python3", "-m", "venv", "--without-pip", &inside]))?;
    let packages = root.join(&inside[1..]).join(format!("lib/python{PYTHON}/site-packages"));
    let mut pip = Command::new(shell::target().join("sdk").join(venv).join("bin/pip"));
    pip.args(["--quiet", "install", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON]);
    pip.arg("--target").arg(packages).arg("--requirement").arg(pins.join(format!("requirements-{venv}.txt")));
    shell::run(&mut pip)
}

/// What `cargo xtask sdk` has made, with links that hold inside of the image.
fn node(into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into).with_context(|| format!("make {}", into.display()))?;
    let made = shell::target().join("sdk/node");
    shell::run(Command::new("cp").args(["-a", "--"]).arg(made.join("node_modules")).arg(into))?;
    copy(&made.join("package.json"), &into.join("package.json"))?;
    let runtime = fs::read_link(made.join("node")).context("cargo xtask sdk links to a Node")?;
    symlink(runtime.strip_prefix(&made).context("the Node is one of the packages")?, into.join("node"))?;
    Ok(())
}

/// interlock as it is in this tree.
pub(super) fn interlock(files: &Files) -> anyhow::Result<()> {
    image::build(INTERLOCK, &release::build()?, &tar_of(files, "interlock"))
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}
