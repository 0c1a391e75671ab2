//! `cargo xtask deb`: interlock as a Debian package. Debian's own tools compute its control file and pack it; debhelper is
//! not needed. The same files of the same commit are the same package.

mod contents;
mod words;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use self::contents::Root;
use crate::scratch::Scratch;
use crate::{release, shell};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Pack this program instead of building one
    #[arg(long)]
    program: Option<PathBuf>,
    /// Version of the package, such as 0.1.0+1, in place of the workspace's
    #[arg(long)]
    version: Option<String>,
    /// The folder to put it in
    #[arg(long)]
    into: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => release::build()?,
    };
    // Of semver's marks only `-` means something else to dpkg: what is before a release sorts behind a `~`.
    let version = options.version.clone().unwrap_or_else(|| env!("CARGO_PKG_VERSION").replacen('-', "~", 1));
    if version.contains('-') {
        bail!("version {version}: there is no revision of Debian's (0.1.0+1 comes after 0.1.0)");
    }
    let into = options.into.clone().unwrap_or_else(|| shell::target().join("deb"));
    let package = pack(&program, &version, &into)?;
    println!("deb: {}", package.display());
    Ok(())
}

fn pack(program: &Path, version: &str, into: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(into).with_context(|| format!("make {}", into.display()))?;
    let scratch = Scratch::make_in(into, "build")?;
    // Where Debian's tools expect a package that is being built.
    let debian = scratch.0.join("debian");
    let root = Root::new(debian.join("interlock"))?;
    let time = words::time()?;
    let tool = |name: &str| {
        let mut command = Command::new(name);
        command.current_dir(&scratch.0).env("LC_ALL", "C").env("SOURCE_DATE_EPOCH", time.to_string());
        command
    };
    let source = crate::root().join("deploy/debian");
    let maintainer = words::maintainer();
    let control = read(&source.join("control"))?;
    fs::write(debian.join("control"), words::with_maintainer(&control, maintainer.as_deref()))
        .context("write the control file")?;
    let changelog = words::changelog(&control, version, time, maintainer.as_deref())?;
    fs::write(debian.join("changelog"), &changelog).context("write the changelog")?;

    root.fill(program, &changelog)?;
    output(tool("dpkg-shlibdeps").args(["-Tdebian/substvars", "debian/interlock/usr/bin/interlock"]))?;
    let control = output(tool("dpkg-gencontrol").args(["-fdebian/files", "-Pdebian/interlock", "-O"]))?;
    root.describe(&control)?;
    // The same files are the same package, whoever packs them and when.
    let touch = ["-exec", "touch", "--no-dereference", &format!("--date=@{time}"), "{}", "+"];
    output(tool("find").arg("debian/interlock").args(touch))?;
    output(tool("dpkg-deb").args(["--root-owner-group", "--build", "debian/interlock", "."]))?;

    // It names what it packs.
    let mut made =
        fs::read_dir(&scratch.0).context("list what was made")?.flatten().map(|entry| entry.path());
    let made = made.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let made = made.context("dpkg-deb made no package")?;
    let place = into.join(made.file_name().context("a package has a name")?);
    fs::rename(&made, &place).with_context(|| format!("move to {}", place.display()))?;
    Ok(place)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// What a command prints, or what it says when it fails. What it warns of is shown.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| {
        format!("run {name} (on Debian and Ubuntu dpkg-dev and coreutils have all it takes)")
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}", said.trim());
    said.lines().for_each(|line| eprintln!("deb: {line}"));
    String::from_utf8(output.stdout).with_context(|| format!("{name}: no UTF-8"))
}
