//! Packages of other Debian suites than the machine's own: a private apt configuration with the machine's own mirrors.
//! Nothing outside of its folder is changed, and nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

/// A private apt configuration.
pub(crate) struct Apt {
    dir: PathBuf,
}

impl Apt {
    /// Makes one in `dir`, which is cleared. Each source is such as `deb sid` or `deb-src bookworm`.
    pub(crate) fn prepare(dir: PathBuf, sources: &[&str]) -> anyhow::Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(&dir).with_context(|| format!("clear {}", dir.display()))?;
        }
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(folder)).with_context(|| format!("create {}", dir.display()))?;
        }
        let mut list = String::new();
        for site in debian_sites()? {
            for source in sources {
                let (kind, suite) = source.split_once(' ').context("a source is a kind and a suite")?;
                list.push_str(&format!("{kind} {site} {suite} main\n"));
            }
        }
        fs::write(dir.join("sources.list"), list).context("write the private sources.list")?;
        let apt = Self { dir };
        // A mirror need not have every suite: what is absent is no error as long as one has the package.
        if let Err(error) = apt.output("get", &["update"]) {
            eprintln!("apt: {error:#}");
        }
        Ok(apt)
    }

    /// Fetches packages, each such as `rust-src=1.0` or `runc/bookworm`, into a folder.
    pub(crate) fn download(&self, packages: &[&str], into: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(into).with_context(|| format!("create {}", into.display()))?;
        self.output_in(into, "get", &[&["download"], packages].concat()).map(drop)
    }

    /// Fetches a source package, such as `kubernetes=1.20`, into a folder, and leaves it packed.
    pub(crate) fn download_source(&self, package: &str, into: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(into).with_context(|| format!("create {}", into.display()))?;
        self.output_in(into, "get", &["source", "--download-only", package]).map(drop)
    }

    /// What `apt-get` or `apt-cache` prints.
    pub(crate) fn output(&self, tool: &str, args: &[&str]) -> anyhow::Result<String> {
        self.output_in(&self.dir, tool, args)
    }

    fn output_in(&self, dir: &Path, tool: &str, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(format!("apt-{tool}"));
        command.current_dir(dir).args(args).arg("-oDir::Etc::sourceparts=-");
        for (option, path) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg(format!("-o{option}={}", self.dir.join(path).display()));
        }
        let output = command.output().with_context(|| format!("run apt-{tool}"))?;
        if !output.status.success() {
            bail!("apt-{tool} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Unpacks every package in a folder into another, without installing any.
pub(crate) fn unpack(packages: &Path, into: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(packages).with_context(|| format!("read {}", packages.display()))? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            let status =
                Command::new("dpkg").arg("-x").arg(&package).arg(into).status().context("run dpkg")?;
            ensure!(status.success(), "dpkg -x {}: {status}", package.display());
        }
    }
    Ok(())
}

/// The Debian mirrors that this machine already uses.
pub(crate) fn debian_sites() -> anyhow::Result<Vec<String>> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(SITE)", "Created-By: Packages"])
        .output()
        .context("run apt-get (a machine without apt cannot fetch Debian packages)")?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut sites: Vec<String> = listed
        .lines()
        .filter(|site| !site.is_empty() && !site.contains("security"))
        .map(str::to_owned)
        .collect();
    sites.sort();
    sites.dedup();
    ensure!(!sites.is_empty(), "apt knows no mirror (run `apt-get update` first)");
    Ok(sites)
}
