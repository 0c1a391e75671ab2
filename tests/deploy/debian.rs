//! The Debian package, packed by `cargo xtask deb` around the program under test, and put into a folder and taken out again
//! by dpkg itself. systemd, which a folder has none of, is not in play here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use agent_tests::app::interlock;
use tempfile::TempDir;

use crate::{deploy, read};

/// Two of the same, in places of their own, for all tests. None where the tools are not Debian's.
fn packages() -> Option<&'static [PathBuf; 2]> {
    static PACKAGES: OnceLock<Option<[PathBuf; 2]>> = OnceLock::new();
    let made = PACKAGES.get_or_init(|| {
        if Command::new("dpkg-shlibdeps").arg("--version").output().is_err() {
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deb");
        let _ = fs::remove_dir_all(&folder);
        Some(["one", "other"].map(|name| pack(&folder.join(name))))
    });
    if made.is_none() {
        eprintln!("skipped: this machine has no dpkg-dev");
    }
    made.as_ref()
}

fn pack(into: &Path) -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["xtask", "deb", "--program", &interlock(), "--into"]).arg(into);
    // Made to be read once.
    cargo.env("DPKG_DEB_COMPRESSOR_TYPE", "gzip").env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    said(&mut cargo);
    let made: Vec<PathBuf> =
        fs::read_dir(into).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    let [package] = &made[..] else { panic!("{made:?}") };
    package.clone()
}

/// What a command prints, which must go well.
#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("run a command");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &errors;
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

fn field(package: &Path, name: &str) -> String {
    said(Command::new("dpkg-deb").arg("--field").arg(package).arg(name)).trim().to_owned()
}

/// The package's files and control files, as they are.
fn unpacked(package: &Path) -> TempDir {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    said(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(folder.path()));
    folder
}

/// Everything in the package, with its mode in letters.
fn contents(package: &Path) -> BTreeMap<String, String> {
    let list = said(Command::new("dpkg-deb").arg("--contents").arg(package));
    let parse = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], "root/root", "{line}");
        (words[5].trim_start_matches("./").to_owned(), words[0].to_owned())
    };
    let mut contents: BTreeMap<String, String> = list.lines().map(parse).collect();
    contents.remove("").expect("the folder itself");
    contents
}

#[test]
fn the_same_files_are_the_same_package() {
    let Some([one, other]) = packages() else { return };
    assert_eq!(one.file_name(), other.file_name());
    assert!(
        fs::read(one).expect("a package") == fs::read(other).expect("a package"),
        "{} differs",
        other.display()
    );
}

#[test]
fn everything_is_where_it_belongs_and_what_is_private_is() {
    let Some([package, _]) = packages() else { return };
    let modes = contents(package);
    let mut expect: BTreeSet<String> = [
        "etc/interlock/config.yaml",
        "etc/interlock/rules.yaml",
        "usr/bin/interlock",
        "usr/lib/systemd/system-preset/50-interlock.preset",
        "usr/lib/systemd/system/interlock-hold.service",
        "usr/lib/systemd/system/interlock.service",
        "usr/share/doc/interlock/README.md.gz",
        "usr/share/doc/interlock/changelog.gz",
        "usr/share/doc/interlock/copyright",
        "usr/share/doc/interlock/examples",
        "usr/share/interlock/systemd/agent-service.conf",
        "usr/share/interlock/systemd/agent-unit.conf",
        "usr/share/lintian/overrides/interlock",
    ]
    .map(str::to_owned)
    .into();
    for policy in fs::read_dir(deploy("policies")).unwrap() {
        expect.insert(format!("usr/share/interlock/policies/{}", policy.unwrap().file_name().display()));
    }
    assert_eq!(modes.keys().filter(|place| !place.ends_with('/')).cloned().collect::<BTreeSet<_>>(), expect);
    for (place, mode) in &modes {
        let expect = match place.as_str() {
            "etc/interlock/" => "drwx------",
            "usr/bin/interlock" => "-rwxr-xr-x",
            "usr/share/doc/interlock/examples" => "lrwxrwxrwx",
            place if place.starts_with("etc/interlock/") => "-rw-------",
            place if place.ends_with('/') => "drwxr-xr-x",
            _ => "-rw-r--r--",
        };
        assert_eq!(mode, expect, "{place}");
    }
}

#[test]
fn units_and_drop_ins_are_ours_with_the_path_of_a_package() {
    let Some([package, _]) = packages() else { return };
    let folder = unpacked(package);
    for (place, name, runs) in [
        ("usr/lib/systemd/system", "interlock.service", true),
        ("usr/lib/systemd/system", "interlock-hold.service", true),
        ("usr/share/interlock/systemd", "agent-service.conf", true),
        ("usr/share/interlock/systemd", "agent-unit.conf", false),
        ("etc/interlock", "config.yaml", false),
        ("etc/interlock", "rules.yaml", false),
    ] {
        let text = fs::read_to_string(folder.path().join(place).join(name)).unwrap();
        let ours = read(&format!("systemd/{name}"));
        assert_eq!(text, ours.replace("/usr/local/bin/interlock", "/usr/bin/interlock"), "{name}");
        assert_eq!(
            (text.contains("/usr/bin/interlock"), text.contains("/usr/local")),
            (runs, false),
            "{name}"
        );
    }
}

#[test]
fn control_says_what_is_so() {
    let Some([package, _]) = packages() else { return };
    let folder = unpacked(package);
    let program = said(Command::new(folder.path().join("usr/bin/interlock")).arg("--version"));
    assert_eq!(program.trim(), format!("interlock {}", field(package, "Version")));
    let architecture = said(Command::new("dpkg").arg("--print-architecture"));
    assert_eq!(field(package, "Architecture"), architecture.trim());
    let depends = field(package, "Depends");
    assert!(depends.contains("libc6 (>= ") && !depends.contains('$'), "{depends}");
    // In KiB; what the files take, and little more.
    let size: u64 = field(package, "Installed-Size").parse().unwrap();
    let program = fs::metadata(folder.path().join("usr/bin/interlock")).unwrap().len() / 1024;
    assert!((program..program + 500).contains(&size), "{size} KiB, the program {program}");
    let control = |name: &str| fs::read_to_string(folder.path().join("DEBIAN").join(name)).unwrap();
    assert_eq!(control("conffiles"), "/etc/interlock/config.yaml\n/etc/interlock/rules.yaml\n");
    said(Command::new("md5sum").args(["--check", "--strict", "DEBIAN/md5sums"]).current_dir(folder.path()));
    let files = contents(package).into_iter().filter(|(_, mode)| mode.starts_with('-')).count();
    assert_eq!(control("md5sums").lines().count(), files - 2, "all but the configuration");
    for name in ["postinst", "prerm", "postrm"] {
        let script = folder.path().join("DEBIAN").join(name);
        said(Command::new("/bin/sh").arg("-n").arg(&script));
        assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o755, "{name}");
    }
}

#[test]
fn lintian_finds_no_fault() {
    let Some([package, _]) = packages() else { return };
    let Ok(_) = Command::new("lintian").arg("--version").output() else {
        eprintln!("skipped: this machine has no lintian");
        return;
    };
    let said = said(Command::new("lintian").args(["--fail-on", "error"]).arg(package));
    // Where one is known by another name, or is not looked for at all, an override says nothing any more.
    let faults: Vec<&str> =
        said.lines().filter(|line| ["E:", "W:"].iter().any(|kind| line.starts_with(kind))).collect();
    assert!(faults.is_empty(), "{said}");
}

/// A system that is nothing but dpkg's books, in which maintainer scripts run as they do when an image is made.
struct Host(TempDir);

impl Host {
    fn new() -> Host {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
        for books in ["info", "updates", "triggers"] {
            fs::create_dir_all(folder.path().join("var/lib/dpkg").join(books)).expect("make a folder");
        }
        fs::write(folder.path().join("var/lib/dpkg/status"), "").expect("write a file");
        Host(folder)
    }

    fn at(&self, place: &str) -> PathBuf {
        self.0.path().join(place)
    }

    fn has(&self, place: &str) -> bool {
        self.at(place).symlink_metadata().is_ok()
    }

    /// The C library is the one of the machine outside.
    #[track_caller]
    fn dpkg(&self, args: &[&str]) -> String {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg("--root").arg(self.0.path()).arg("--log").arg(self.at("dpkg.log"));
        dpkg.args(["--force-script-chrootless", "--force-depends"]).env("LC_ALL", "C");
        said(dpkg.args(args))
    }
}

/// The same package as a later version would be that ships other files of configuration, and no program to speak of.
fn later(package: &Path, into: &Path) -> PathBuf {
    let folder = unpacked(package);
    let control = folder.path().join("DEBIAN/control");
    let version = format!("Version: {}", field(package, "Version"));
    let text =
        fs::read_to_string(&control).expect("the control file").replace(&version, &format!("{version}+1"));
    fs::write(&control, text).expect("write the control file");
    fs::write(folder.path().join("usr/bin/interlock"), "").expect("write a file");
    for name in ["config.yaml", "rules.yaml"] {
        let file = folder.path().join("etc/interlock").join(name);
        fs::write(&file, fs::read_to_string(&file).expect("a conffile") + "# later\n").expect("a conffile");
    }
    let later = into.join("later.deb");
    said(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Znone", "--build"])
            .arg(folder.path())
            .arg(&later),
    );
    later
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "dpkg needs root to put files in place")]
fn dpkg_keeps_what_an_operator_wrote_and_what_is_held() {
    let Some([package, _]) = packages() else { return };
    let host = Host::new();
    let later = later(package, host.0.path());
    let (config, rules) = (host.at("etc/interlock/config.yaml"), host.at("etc/interlock/rules.yaml"));
    let wants = "etc/systemd/system/multi-user.target.wants";

    let said = host.dpkg(&["--install", package.to_str().unwrap()]);
    assert!(
        said.contains("holds nobody yet") && said.contains("enable --now interlock-hold interlock"),
        "{said}"
    );
    assert!(!host.has("etc/systemd"), "nothing is enabled");
    assert_eq!(fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o600);

    // What an operator does, and a daemon.
    fs::create_dir_all(host.at(wants)).unwrap();
    symlink("/usr/lib/systemd/system/interlock.service", host.at(wants).join("interlock.service")).unwrap();
    fs::write(&config, "version: 1\n").unwrap();
    for kept in ["sys/fs/bpf/interlock/v4", "var/lib/interlock", "var/log/interlock"] {
        fs::create_dir_all(host.at(kept)).unwrap();
    }
    fs::write(host.at("var/log/interlock/records.jsonl"), "{}\n").unwrap();

    host.dpkg(&["--force-confold", "--install", later.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&config).unwrap(), "version: 1\n", "edited, so it stays");
    assert!(fs::read_to_string(&rules).unwrap().ends_with("# later\n"), "not edited, so it is replaced");
    assert!(host.has("sys/fs/bpf/interlock/v4") && host.has(&format!("{wants}/interlock.service")));

    let said = host.dpkg(&["--remove", "interlock"]);
    assert!(said.contains("STAYS HELD") && said.contains("interlock detach"), "{said}");
    assert!(said.contains(&format!("rm -r {}", host.at("sys/fs/bpf/interlock").display())), "{said}");
    assert!(!host.has("usr/bin/interlock") && config.exists() && host.has("sys/fs/bpf/interlock/v4"));

    let said = host.dpkg(&["--purge", "interlock"]);
    assert!(!host.has("etc/interlock") && !host.has(&format!("{wants}/interlock.service")), "{said}");
    for kept in ["/var/log/interlock", "/var/lib/interlock"] {
        assert!(said.contains(&format!("{kept} is kept")) && host.has(&kept[1..]), "{said}");
    }
    assert_eq!(fs::read_to_string(host.at("var/log/interlock/records.jsonl")).unwrap(), "{}\n");
    assert!(said.contains("STILL HELD") && host.has("sys/fs/bpf/interlock/v4"), "{said}");

    let said = host.dpkg(&["--install", package.to_str().unwrap()]);
    assert!(said.contains("still held") && !said.contains("holds nobody"), "{said}");
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "dpkg needs root to put files in place")]
fn removal_names_the_pins_that_the_configuration_names() {
    let Some([package, _]) = packages() else { return };
    let host = Host::new();
    let package = later(package, host.0.path());
    for line in ["pin_dir: /sys/fs/bpf/our-own", "pin_dir:  \"/sys/fs/bpf/our-own\"  # said twice"] {
        host.dpkg(&["--force-confold", "--install", package.to_str().unwrap()]);
        fs::write(host.at("etc/interlock/config.yaml"), format!("version: 1\n{line}\n")).unwrap();
        let said = host.dpkg(&["--remove", "interlock"]);
        assert!(!said.contains("HELD"), "nothing is: {said}");
        host.dpkg(&["--force-confold", "--install", package.to_str().unwrap()]);
        fs::create_dir_all(host.at("sys/fs/bpf/our-own/v4")).unwrap();
        let said = host.dpkg(&["--remove", "interlock"]);
        let pins = host.at("sys/fs/bpf/our-own");
        assert!(said.contains(&format!("rm -r {}\n", pins.display())), "{line}: {said}");
        fs::remove_dir_all(&pins).unwrap();
    }
}
