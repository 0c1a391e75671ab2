//! What is in the package, where, and with which mode. Units and drop-ins are those of `deploy/systemd`, with the path of
//! the program that a package has.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::{output, read, words};
use crate::image::copy;
use crate::release;

/// Where the program is, after an install by hand and from a package.
const BY_HAND: &str = "/usr/local/bin/interlock";
const PACKAGED: &str = "/usr/bin/interlock";

const SYSTEM_UNITS: &str = "usr/lib/systemd/system";
/// What an operator copies from. Not below `doc`, which minimal systems leave out.
const SHARED: &str = "usr/share/interlock";
const DOC: &str = "usr/share/doc/interlock";
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The package's files, as they will lie below `/`.
pub(super) struct Root(PathBuf);

impl Root {
    pub(super) fn new(path: PathBuf) -> anyhow::Result<Self> {
        // By its folder `DEBIAN` the tools know a package that is being built.
        fs::create_dir_all(path.join("DEBIAN")).with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(super) fn at(&self, place: &str) -> PathBuf {
        self.0.join(place)
    }

    pub(super) fn fill(&self, program: &Path, changelog: &str) -> anyhow::Result<()> {
        let deploy = crate::root().join("deploy");
        let place = self.at("usr/bin/interlock");
        copy(program, &place)?;
        release::strip(&place)?;
        mode(&place, 0o755)?;
        let unit = |name: &str| read(&deploy.join("systemd").join(name)).map(|text| packaged(&text));
        for name in ["interlock.service", "interlock-hold.service"] {
            self.put(&format!("{SYSTEM_UNITS}/{name}"), &unit(name)?, 0o644)?;
        }
        for name in ["agent-unit.conf", "agent-service.conf"] {
            self.put(&format!("{SHARED}/systemd/{name}"), &unit(name)?, 0o644)?;
        }
        for name in ["config.yaml", "rules.yaml"] {
            self.put(&format!("etc/interlock/{name}"), &unit(name)?, 0o600)?;
        }
        for entry in fs::read_dir(deploy.join("policies")).context("list the policies")? {
            let policy = entry?.path();
            let name = policy.file_name().context("a policy has a name")?.to_string_lossy().into_owned();
            self.put(&format!("{SHARED}/policies/{name}"), &read(&policy)?, 0o644)?;
        }
        let debian = |name: &str| read(&deploy.join("debian").join(name));
        let preset = "usr/lib/systemd/system-preset/50-interlock.preset";
        self.put(preset, &debian("interlock.preset")?, 0o644)?;
        self.put("usr/share/lintian/overrides/interlock", &debian("lintian-overrides")?, 0o644)?;
        let copyright = debian("copyright")? + &words::crates()?;
        self.put(&format!("{DOC}/copyright"), &copyright, 0o644)?;
        self.compress(&format!("{DOC}/changelog"), changelog)?;
        self.compress(&format!("{DOC}/README.md"), &read(&crate::root().join("README.md"))?)?;
        symlink("../../interlock", self.at(DOC).join("examples")).context("link the examples")?;
        self.open_folders()
    }

    /// The control file, and what dpkg wants to have beside it.
    pub(super) fn describe(&self, control: &str) -> anyhow::Result<()> {
        let debian = crate::root().join("deploy/debian");
        let mut files = self.files()?;
        let conffiles: Vec<String> = files.extract_if(.., |file| file.starts_with("etc/")).collect();
        let sums = output(Command::new("md5sum").current_dir(&self.0).args(&files))?;
        self.put("DEBIAN/control", control, 0o644)?;
        self.put("DEBIAN/md5sums", &sums, 0o644)?;
        let conffiles: String = conffiles.iter().map(|file| format!("/{file}\n")).collect();
        self.put("DEBIAN/conffiles", &conffiles, 0o644)?;
        for name in SCRIPTS {
            self.put(&format!("DEBIAN/{name}"), &read(&debian.join(name))?, 0o755)?;
        }
        Ok(())
    }

    fn put(&self, place: &str, text: &str, bits: u32) -> anyhow::Result<()> {
        let path = self.at(place);
        let folder = path.parent().context("a file lies in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        mode(&path, bits)
    }

    fn compress(&self, place: &str, text: &str) -> anyhow::Result<()> {
        self.put(place, text, 0o644)?;
        output(Command::new("gzip").arg("-9n").arg(self.at(place))).map(drop)
    }

    /// Regular files, in order.
    fn files(&self) -> anyhow::Result<Vec<String>> {
        let list =
            output(Command::new("find").current_dir(&self.0).args([".", "-type", "f", "-printf", "%P\\n"]))?;
        let mut files: Vec<String> = list.lines().map(str::to_owned).collect();
        files.sort();
        Ok(files)
    }

    // Whatever the umask of whoever packs.
    fn open_folders(&self) -> anyhow::Result<()> {
        let chmod = ["-type", "d", "-exec", "chmod", "755", "{}", "+"];
        output(Command::new("find").arg(&self.0).args(chmod))?;
        mode(&self.at("etc/interlock"), 0o700)
    }
}

fn packaged(text: &str) -> String {
    text.replace(BY_HAND, PACKAGED)
}

fn mode(path: &Path, bits: u32) -> anyhow::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(bits))
        .with_context(|| format!("set the mode of {}", path.display()))
}
