//! Container images made by hand: an OCI layout in a tar file, with one layer. No registry and no engine takes part.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::scratch::Scratch;

/// Packs a folder as the image `name`, with this configuration (`Entrypoint`, `Env`, …).
pub(crate) fn pack(name: &str, root: &Path, config: &Value, into: &Path) -> anyhow::Result<()> {
    let made_in = into.parent().context("an image lies in a folder")?;
    fs::create_dir_all(made_in).with_context(|| format!("make {}", made_in.display()))?;
    let scratch = Scratch::make_in(made_in, "image")?;
    let layout = Layout { blobs: scratch.0.join("blobs/sha256") };
    fs::create_dir_all(&layout.blobs).context("make the image's folder")?;
    let layer = scratch.0.join("layer.tar");
    tar(root, &layer)?;
    let layer = layout.add(&layer)?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = layout.add_json(&json!({
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
    }))?;
    let manifest = layout.add_json(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.describe("application/vnd.oci.image.config.v1+json"),
        "layers": [layer.describe("application/vnd.oci.image.layer.v1.tar")],
    }))?;
    let mut manifest = manifest.describe("application/vnd.oci.image.manifest.v1+json");
    manifest["annotations"] = json!({"io.containerd.image.name": name});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(scratch.0.join("index.json"), index.to_string()).context("write index.json")?;
    fs::write(scratch.0.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)
        .context("write oci-layout")?;
    let unfinished = into.with_extension("unfinished");
    tar(&scratch.0, &unfinished)?;
    fs::rename(&unfinished, into).with_context(|| format!("move to {}", into.display()))
}

struct Layout {
    blobs: PathBuf,
}

/// A file by its content.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn describe(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

impl Layout {
    fn add(&self, file: &Path) -> anyhow::Result<Blob> {
        let output = Command::new("sha256sum").arg(file).output().context("run sha256sum")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let hash =
            text.split(' ').next().filter(|hash| hash.len() == 64).context("sha256sum prints a hash")?;
        let size = fs::metadata(file).with_context(|| format!("read {}", file.display()))?.len();
        fs::rename(file, self.blobs.join(hash)).context("move a blob to its name")?;
        Ok(Blob { digest: format!("sha256:{hash}"), size })
    }

    fn add_json(&self, value: &Value) -> anyhow::Result<Blob> {
        let file = self.blobs.join("unnamed");
        fs::write(&file, value.to_string()).context("write a blob")?;
        self.add(&file)
    }
}

fn tar(folder: &Path, into: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    // The same files are the same image, whoever packs them and when.
    tar.args(["--sort=name", "--mtime=@0", "--numeric-owner", "--owner=0", "--group=0", "-C"]).arg(folder);
    let status = tar.arg("-cf").arg(into).arg(".").status().context("run tar")?;
    ensure!(status.success(), "tar of {}: {status}", folder.display());
    Ok(())
}
