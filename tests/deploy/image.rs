//! The image that `cargo xtask image` packs, around the program under test, and that of `deploy/Dockerfile`: both say the same
//! of themselves and have the same files. No engine builds the latter here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use agent_tests::app::interlock;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::cluster::said;
use crate::{container, object, read};

fn xtask_image(options: &[&str], place: &Path) {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    said(cargo.args(["xtask", "image", "--program", &interlock()]).args(options).arg(place));
}

/// Everything in a folder, with its mode and its size.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let list = said(Command::new("find").args([".", "-printf", "%P %M %s %U:%G\n"]).current_dir(folder));
    // The size of a folder says nothing.
    let entry = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [path, mode, size, owner] = words[..] else { panic!("{line}") };
        let size = if mode.starts_with('d') { "" } else { size };
        (path.to_owned(), format!("{mode} {size} {owner}"))
    };
    list.lines().map(entry).collect()
}

/// An OCI layout, unpacked.
struct Layout(TempDir);

impl Layout {
    fn blob(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().expect("a digest").replace(':', "/");
        self.0.path().join("blobs").join(digest)
    }

    fn json(&self, path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).expect("a file of the layout")).expect("JSON")
    }
}

/// One instruction of a Dockerfile, and what it is given.
type Instruction = (String, String);

/// The instructions of the stage that is the image, after its `FROM`.
fn last_stage(dockerfile: &str) -> Vec<Instruction> {
    let lines = dockerfile.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let instruction = |line: &str| {
        let (name, rest) = line.trim().split_once(' ')?;
        Some((name.to_owned(), rest.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    let all: Vec<Instruction> = joined.lines().filter_map(instruction).collect();
    let from = all.iter().rposition(|(name, _)| name == "FROM").expect("it has stages");
    all[from..].to_vec()
}

/// The configuration that an engine makes of these instructions, and those that it is not made of.
fn config(stage: &[Instruction]) -> (Value, Vec<Instruction>) {
    let (mut config, mut labels, mut others) = (Map::new(), Map::new(), Vec::new());
    for (name, given) in stage {
        match name.as_str() {
            "ENTRYPOINT" => {
                config.insert("Entrypoint".into(), serde_json::from_str(given).expect("the form in JSON"));
            }
            "ENV" => _ = config.insert("Env".into(), json!([given])),
            "USER" => _ = config.insert("User".into(), json!(given)),
            "LABEL" => labels.extend(pairs(given)),
            _ => others.push((name.clone(), given.clone())),
        }
    }
    config.insert("Labels".into(), labels.into());
    (config.into(), others)
}

/// `a="one two" b="three"`.
fn pairs(mut text: &str) -> Map<String, Value> {
    let mut pairs = Map::new();
    while let Some((key, rest)) = text.split_once("=\"") {
        let (value, rest) = rest.split_once('"').expect("a quote that ends");
        pairs.insert(key.trim().to_owned(), value.into());
        text = rest;
    }
    assert_eq!(text.trim(), "", "all of it is pairs");
    pairs
}

#[test]
fn dockerfile_makes_the_image_that_xtask_packs() {
    let scratch = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let tar = scratch.path().join("interlock.oci.tar");
    xtask_image(&["--into"], &tar);
    let layout = Layout(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder"));
    said(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(layout.0.path()));
    let index = layout.json(&layout.0.path().join("index.json"));
    let manifest = layout.json(&layout.blob(&index["manifests"][0]));
    let packed = layout.json(&layout.blob(&manifest["config"]))["config"].clone();

    let dockerfile = read("Dockerfile");
    let (built, others) = config(&last_stage(&dockerfile));
    assert_eq!(built, packed);
    // Nothing comes into it but what is laid out, and that is what is packed.
    let expect = [("FROM", "scratch"), ("COPY", "--from=builder /image/ /")];
    assert_eq!(others, expect.map(|(name, given)| (name.to_owned(), given.to_owned())));
    assert!(dockerfile.contains("cargo xtask image --files /image\n"));
    let laid_out = scratch.path().join("image");
    xtask_image(&["--files"], &laid_out);
    let [layer] = &manifest["layers"].as_array().expect("layers")[..] else { panic!("{manifest}") };
    let unpacked = scratch.path().join("unpacked");
    fs::create_dir(&unpacked).expect("a folder");
    said(Command::new("tar").arg("-xpf").arg(layout.blob(layer)).arg("-C").arg(&unpacked));
    assert_eq!(files(&laid_out), files(&unpacked));

    // What the manifests start, and of this version.
    let entry = packed["Entrypoint"][0].as_str().expect("an entry point");
    for command in [container()["command"].clone(), fleet_command()] {
        assert_eq!(command[0], entry);
    }
    assert_eq!(packed["Labels"]["org.opencontainers.image.version"], env!("CARGO_PKG_VERSION"));
}

fn fleet_command() -> Value {
    let fleet = object("fleet.yaml", "Deployment", "interlock-fleet");
    fleet["spec"]["template"]["spec"]["containers"][0]["command"].clone()
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "only root changes its root")]
fn the_program_runs_with_what_is_in_the_image_and_nothing_else() {
    let scratch = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let root = scratch.path().join("image");
    xtask_image(&["--files"], &root);
    let text = said(Command::new("chroot").arg(&root).args(["/usr/local/bin/interlock", "--version"]));
    assert_eq!(text.trim(), concat!("interlock ", env!("CARGO_PKG_VERSION")));
}
