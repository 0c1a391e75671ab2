//! Installs what the kernel object needs: the sources of `core`, and bpf-linker. Does only what is missing and
//! says what it does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, ensure};

use crate::apt::{Apt, unpack};

#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Say what is missing, install nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if has_rust_src()? {
        eprintln!("rust-src: there");
    } else if options.dry_run {
        eprintln!("rust-src: missing");
    } else {
        install_rust_src()?;
    }
    match linker() {
        Some(path) => eprintln!("bpf-linker: {}", path.display()),
        None if options.dry_run => eprintln!("bpf-linker: missing"),
        None => install_linker()?,
    }
    Ok(())
}

/// Whether this toolchain has the sources of `core`.
pub(crate) fn has_rust_src() -> anyhow::Result<bool> {
    Ok(library_dir()?.join("core/Cargo.toml").exists())
}

/// bpf-linker, wherever it is.
pub(crate) fn linker() -> Option<PathBuf> {
    let path = path_with_tools().ok()?;
    env::split_paths(&path).map(|folder| folder.join("bpf-linker")).find(|file| file.is_file())
}

/// `PATH` with the folders in which `setup` and `cargo install` put tools.
pub(crate) fn path_with_tools() -> anyhow::Result<OsString> {
    let mut folders = vec![tools_dir().join("bin")];
    folders.extend(env::home_dir().map(|home| home.join(".cargo/bin")));
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    env::join_paths(folders).context("a folder in PATH has a colon in its name")
}

fn install_rust_src() -> anyhow::Result<()> {
    eprintln!("rust-src: asking rustup");
    let rustup = Command::new("rustup").args(["component", "add", "rust-src"]).status();
    if rustup.is_ok_and(|status| status.success()) && has_rust_src()? {
        return Ok(());
    }
    let version = rustc_version()?;
    eprintln!("rust-src: rustup cannot; trying Debian's package of rustc {version}");
    install_debian_source(&version)?;
    ensure!(has_rust_src()?, "rust-src: installed, but not found at {}", library_dir()?.display());
    Ok(())
}

/// Unpacks Debian's `rust-src` of the same upstream version into the toolchain.
fn install_debian_source(version: &str) -> anyhow::Result<()> {
    let dir = crate::root().join("target/setup");
    let apt = Apt::prepare(dir.join("apt"), &SOURCES)?;
    let listed = apt.output("cache", &["madison", "rust-src"])?;
    let wanted = listed
        .lines()
        .filter_map(|line| line.split('|').nth(1).map(str::trim))
        .find(|package| package.split(['+', '-']).next() == Some(version))
        .with_context(|| format!("no Debian suite has rust-src {version}; install it by hand"))?
        .to_owned();
    eprintln!("rust-src: fetching {wanted}");
    let packages = dir.join("apt/packages");
    apt.download(&[&format!("rust-src={wanted}")], &packages)?;
    let unpacked = dir.join("apt/unpacked");
    unpack(&packages, &unpacked)?;
    let library = library_dir()?;
    let parent = library.parent().context("the library folder has a parent")?;
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let source = unpacked.join(format!("usr/src/rustc-{version}/library"));
    check(Command::new("cp").arg("-a").arg("--").arg(&source).arg(parent))
}

fn install_linker() -> anyhow::Result<()> {
    let root = tools_dir();
    eprintln!("bpf-linker: building {LINKER_VERSION} into {}", root.display());
    check(
        Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--no-default-features"])
            // The LLVM that rustc itself ships: no system LLVM is needed.
            .args(["--features", "llvm-22,rust-llvm-22", "--root"])
            .arg(&root),
    )
}

fn library_dir() -> anyhow::Result<PathBuf> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library"))
}

fn rustc_version() -> anyhow::Result<String> {
    let verbose = rustc(&["--version", "--verbose"])?;
    let release = verbose.lines().find_map(|line| line.strip_prefix("release: "));
    Ok(release.context("rustc names no release")?.to_owned())
}

fn rustc(args: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("rustc").args(args).current_dir(crate::root()).output().context("run rustc")?;
    ensure!(output.status.success(), "rustc {}: {}", args.join(" "), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn check(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("run {}", command.get_program().display()))?;
    ensure!(status.success(), "{}: {status}", command.get_program().display());
    Ok(())
}

fn tools_dir() -> PathBuf {
    crate::root().join("target/tools")
}

/// The newest that needs no system LLVM.
const LINKER_VERSION: &str = "0.10.4";
/// Suites that carry a rustc near stable.
const SOURCES: [&str; 3] = ["deb trixie-backports", "deb forky", "deb sid"];
