//! The manifests through the tools of a cluster: kustomize builds them, a validator knows every field of them, and
//! Prometheus finds the alerts to be right.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::program::Folder;
use crate::{deploy, read, yaml};

/// What is applied, and the kinds in it that no validator of Kubernetes' own kinds knows.
const BUILT: [(&str, &[&str]); 3] =
    [("base", &[]), ("overlays/observe", &[]), ("overlays/monitoring", &["PodMonitor", "PrometheusRule"])];

/// A program of the venv `manifests`.
pub(crate) fn tool(name: &str) -> Command {
    provided(&format!("manifests/bin/{name}"))
}

/// A program that `cargo xtask sdk` has made ready.
pub(crate) fn provided(name: &str) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into);
    let path = target.join("sdk").join(name);
    assert!(path.exists(), "{} is missing: cargo xtask sdk", path.display());
    Command::new(path)
}

#[track_caller]
pub(crate) fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs kubectl and kubernetes-validate")]
fn what_is_applied_builds_and_every_field_is_known() {
    for (folder, foreign) in BUILT {
        let text = said(tool("kubectl").arg("kustomize").arg(deploy("kubernetes").join(folder)));
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        let map = objects.iter().find(|object| object["kind"] == "ConfigMap").expect("a ConfigMap");
        assert_eq!(map["metadata"]["name"], "interlock");
        let rules = if folder == "overlays/observe" { folder } else { "base" };
        assert_eq!(map["data"]["rules.yaml"], read(&format!("kubernetes/{rules}/rules.yaml")), "{folder}");
        assert_eq!(map["data"]["config.yaml"], read("kubernetes/base/config.yaml"), "{folder}");
        let (others, known): (Vec<&Value>, Vec<&Value>) =
            objects.iter().partition(|object| foreign.contains(&object["kind"].as_str().expect("a kind")));
        assert_eq!(others.len(), foreign.len(), "{folder}");
        let scratch = Folder::new();
        // JSON is YAML.
        let documents: Vec<String> = known.iter().map(|object| object.to_string()).collect();
        scratch.write("all.yaml", &documents.join("\n---\n"));
        said(tool("kubernetes-validate").arg("--strict").arg(scratch.path().join("all.yaml")));
        scratch.write("all.yaml", &documents.join("\n---\n").replace("\"hostPID\"", "\"hostPid\""));
        let bad = tool("kubernetes-validate").arg("--strict").arg(scratch.path().join("all.yaml")).output();
        assert!(!bad.expect("it runs").status.success(), "it knows no fault");
    }
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs promtool")]
fn alerts_are_raised_when_they_should_be() {
    let folder = "kubernetes/components/prometheus-operator";
    let rules = yaml(&read(&format!("{folder}/prometheusrule.yaml")))["spec"].to_string();
    let tests = read(&format!("{folder}/prometheusrule.test.yaml"));
    let scratch = Folder::with(&[("alerts.yaml", &rules), ("test.yaml", &tests)]);
    for command in [["check", "rules", "alerts.yaml"], ["test", "rules", "test.yaml"]] {
        said(Command::new("promtool").args(command).current_dir(scratch.path()));
    }
}

/// No alert waits for a metric that nobody gives.
#[test]
fn alerts_name_metrics_of_the_program() {
    let rules = read("kubernetes/components/prometheus-operator/prometheusrule.yaml");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent-user/src/record/metrics.rs");
    let source = fs::read_to_string(source).expect("the metrics");
    let words = rules.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let metrics: Vec<&str> = words.filter(|word| word.starts_with("interlock_")).collect();
    assert!(metrics.len() >= 9, "{metrics:?}");
    for metric in metrics {
        let name = metric.trim_end_matches("_bucket").trim_end_matches("_count");
        assert!(source.contains(&format!("\"{name}\"")), "{metric}");
    }
}
