//! Kubernetes from Debian's own source package: the complete upstream tree of 1.20.2 with what it vendors, which is the
//! newest that Debian has whole. It is built with the Go of its time, as later ones refuse a package it vendors.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};

use super::debs::SOURCES;
use super::files::Files;
use crate::apt::{Apt, unpack};
use crate::shell;

const SOURCE: &str = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1";
const VERSION: &str = "v1.20.2";
const GO: [&str; 2] = ["golang-1.15-go", "golang-1.15-src"];
/// The largest last, when what it shares with the others is built.
const PROGRAMS: [&str; 5] =
    ["kubelet", "kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver"];

pub(super) fn provision(files: &Files) -> anyhow::Result<()> {
    let missing: Vec<&str> =
        PROGRAMS.into_iter().filter(|program| !files.bin().join(program).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let started = Instant::now();
    println!("kube: building {} {VERSION} from source; this takes minutes, once", missing.join(", "));
    let tree = Tree::fetch(files)?;
    tree.generate()?;
    fs::create_dir_all(files.bin()).context("make the folder for programs")?;
    for program in missing {
        tree.build(program, &files.bin())?;
    }
    // Go's cache and the tree are 2 GB.
    fs::remove_dir_all(&tree.dir).with_context(|| format!("remove {}", tree.dir.display()))?;
    println!("kube: built in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// The source, the compiler and what they make on the way.
struct Tree {
    dir: PathBuf,
}

impl Tree {
    fn fetch(files: &Files) -> anyhow::Result<Self> {
        let dir = files.dir.join("build");
        let tree = Self { dir };
        if tree.source().join("go.mod").exists() {
            return Ok(tree); // an interrupted build goes on
        }
        let apt = Apt::prepare(tree.dir.join("apt"), &SOURCES)?;
        let packages = tree.dir.join("packages");
        apt.download(&GO, &packages)?;
        apt.download_source(SOURCE, &packages)?;
        unpack(&packages, &tree.dir.join("go"))?;
        for folder in [tree.source(), tree.dir.join("tmp")] {
            fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        }
        let archive = fs::read_dir(&packages)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.to_string_lossy().ends_with(".orig.tar.gz"))
            .context("the source package has no upstream archive")?;
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(tree.source()).args(["--strip-components=1", "-xzf"]).arg(archive);
        shell::run(&mut tar)?;
        Ok(tree)
    }

    fn source(&self) -> PathBuf {
        self.dir.join("gopath/src/k8s.io/kubernetes")
    }

    fn go(&self) -> Command {
        let root = self.dir.join("go/usr/lib/go-1.15");
        let mut go = Command::new("nice");
        go.args(["-n", "5"]).arg(root.join("bin/go")).current_dir(self.source());
        go.env("GOROOT", root).env("GOPATH", self.dir.join("gopath")).env("GOCACHE", self.dir.join("cache"));
        go.env("TMPDIR", self.dir.join("tmp")).env("GO111MODULE", "off").env("CGO_ENABLED", "0");
        go
    }

    /// The OpenAPI definitions are the one thing that upstream generates and does not keep in its tree.
    fn generate(&self) -> anyhow::Result<()> {
        let generator = self.dir.join("openapi-gen");
        let mut build = self.go();
        build.arg("build").arg("-o").arg(&generator).arg("./vendor/k8s.io/kube-openapi/cmd/openapi-gen");
        shell::run(&mut build)?;
        let mut generate = Command::new(generator);
        generate.current_dir(self.source()).env("GOPATH", self.dir.join("gopath")).env("GO111MODULE", "off");
        generate.env("GOROOT", self.dir.join("go/usr/lib/go-1.15"));
        generate.args(["--logtostderr", "-p", "k8s.io/kubernetes/pkg/generated/openapi"]);
        generate.args(["-O", "zz_generated.openapi"]);
        generate.args(["-h", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"]);
        generate.arg("-r").arg(self.dir.join("violations")).arg("-i").arg(self.packages()?.join(","));
        // It lists hundreds of packages and thousands of violations of a style.
        let output = generate.output().context("run openapi-gen")?;
        if !output.status.success() {
            bail!("openapi-gen: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// The packages that say they want such definitions, by the names under which the compiler finds them.
    fn packages(&self) -> anyhow::Result<Vec<String>> {
        let output = Command::new("grep")
            .args(["-rlE", "^// \\+k8s:openapi-gen=", "--include=*.go"])
            .args(["pkg", "plugin", "cmd", "staging/src/k8s.io"])
            .current_dir(self.source())
            .output()
            .context("run grep")?;
        let listed = String::from_utf8(output.stdout).context("names of files are UTF-8")?;
        let packages: BTreeSet<String> = listed.lines().filter_map(package_of).collect();
        ensure!(!packages.is_empty(), "no package wants OpenAPI definitions: the source is not what it was");
        Ok(packages.into_iter().collect())
    }

    fn build(&self, program: &str, bin: &Path) -> anyhow::Result<()> {
        let mut flags = "-s -w".to_owned();
        // Two packages say what version this is, and each is known by two names.
        for package in ["component-base/version", "client-go/pkg/version"] {
            for place in ["k8s.io", "k8s.io/kubernetes/vendor/k8s.io"] {
                for (variable, value) in [("Version", VERSION), ("Major", "1"), ("Minor", "20")] {
                    flags.push_str(&format!(" -X {place}/{package}.git{variable}={value}"));
                }
            }
        }
        let unfinished = self.dir.join(program);
        let mut go = self.go();
        go.args(["build", "-p=2", "-ldflags", &flags, "-o"]).arg(&unfinished).arg(format!("./cmd/{program}"));
        shell::run(&mut go)?;
        fs::rename(&unfinished, bin.join(program)).with_context(|| format!("move {program} to its place"))
    }
}

/// The package that a file is in; `None` for tests, examples and generators.
fn package_of(file: &str) -> Option<String> {
    let (package, _) = file.rsplit_once('/')?;
    if ["testdata", "/examples/", "code-generator", "sample-"].iter().any(|part| package.contains(part)) {
        return None;
    }
    Some(match package.strip_prefix("staging/src/") {
        Some(staged) => format!("k8s.io/kubernetes/vendor/{staged}"),
        None => format!("k8s.io/kubernetes/{package}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_names_under_which_they_are_found() {
        let is = |file: &str, package: Option<&str>| assert_eq!(package_of(file).as_deref(), package);
        is("pkg/apis/core/types.go", Some("k8s.io/kubernetes/pkg/apis/core"));
        is("staging/src/k8s.io/api/core/v1/doc.go", Some("k8s.io/kubernetes/vendor/k8s.io/api/core/v1"));
        is("staging/src/k8s.io/sample-apiserver/pkg/apis/doc.go", None);
    }
}
