//! The chart through the real helm: it renders the objects that kustomize builds. Nothing is installed here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cluster::{provided, said, tool};
use crate::program::Folder;
use crate::{deploy, read, yaml};

/// Objects by kind and name.
pub(crate) type Objects = BTreeMap<(String, String), Value>;

const OPERATOR: [&str; 2] = ["podMonitor.enabled=true", "prometheusRule.enabled=true"];

fn objects(text: &str) -> Objects {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).expect("YAML");
    let count = all.len();
    let named = all.into_iter().map(|object| {
        let name = |value: &Value| value.as_str().expect("a text").to_owned();
        ((name(&object["kind"]), name(&object["metadata"]["name"])), object)
    });
    let objects: Objects = named.collect();
    assert_eq!(objects.len(), count, "an object is there twice");
    objects
}

/// What kustomize builds, without the Namespace: helm makes that of the release itself, or is told one that is there.
pub(crate) fn built(folder: &str) -> Objects {
    let text = said(tool("kubectl").arg("kustomize").arg(deploy("kubernetes").join(folder)));
    let mut objects = objects(&text);
    objects.remove(&("Namespace".to_owned(), "interlock".to_owned())).expect("the Namespace");
    objects
}

pub(crate) fn chart() -> PathBuf {
    deploy("helm/interlock")
}

/// What helm renders of a chart in a namespace.
#[track_caller]
pub(crate) fn rendered(chart: &Path, namespace: &str, options: &[&str]) -> Objects {
    let mut helm = provided("helm/helm");
    helm.args(["template", "any-name"]).arg(chart).args(["--include-crds", "--namespace", namespace]);
    objects(&said(helm.args(options)))
}

#[track_caller]
pub(crate) fn assert_same(what: &str, found: &Objects, expect: &Objects) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expect.keys().collect::<Vec<_>>(), "{what}");
    for (name, object) in expect {
        assert_eq!(with_one_zero(&found[name]), with_one_zero(object), "{what}: {name:?}");
    }
}

/// All numbers as floats: helm leaves the definitions as they are written, `0.0`, of which kustomize makes `0`.
fn with_one_zero(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(with_one_zero).collect(),
        Value::Object(members) => {
            members.iter().map(|(key, member)| (key.clone(), with_one_zero(member))).collect()
        }
        _ => value.clone(),
    }
}

#[test]
fn chart_is_of_this_version() {
    let chart = yaml(&read("helm/interlock/Chart.yaml"));
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"), "{version}");
    }
}

#[test]
#[cfg_attr(not(all(feature = "root-tests", target_arch = "x86_64")), ignore = "needs helm and kubectl")]
fn helm_renders_what_kustomize_builds() {
    let scratch = Folder::new();
    said(provided("helm/helm").arg("package").arg(chart()).arg("--destination").arg(scratch.path()));
    let package = scratch.path().join(format!("interlock-{}.tgz", env!("CARGO_PKG_VERSION")));
    for (folder, values) in
        [("base", &[][..]), ("overlays/observe", &["observe=true"]), ("overlays/monitoring", &OPERATOR)]
    {
        let options: Vec<&str> = values.iter().flat_map(|value| ["--set", value]).collect();
        let expect = built(folder);
        assert_same(folder, &rendered(&chart(), "interlock", &options), &expect);
        // The links are files in there.
        assert_same(folder, &rendered(&package, "interlock", &options), &expect);
    }
}

#[test]
#[cfg_attr(not(all(feature = "root-tests", target_arch = "x86_64")), ignore = "needs helm")]
fn helm_finds_no_fault_with_the_chart() {
    said(provided("helm/helm").args(["lint", "--strict"]).arg(chart()));
}

#[test]
#[cfg_attr(not(all(feature = "root-tests", target_arch = "x86_64")), ignore = "needs helm and kubectl")]
fn everything_goes_to_the_namespace_of_the_release() {
    let options = OPERATOR.map(|value| ["--set", value]).concat();
    let mut expect = built("overlays/monitoring");
    let mut moved = 0;
    for object in expect.values_mut() {
        move_to_elsewhere(object, &mut moved);
    }
    assert!(moved > 15, "{moved} places");
    assert_same("elsewhere", &rendered(&chart(), "elsewhere", &options), &expect);
}

/// Wherever an object names the namespace: as `namespace`, and in a command behind `--namespace`.
fn move_to_elsewhere(value: &mut Value, moved: &mut usize) {
    let replace = |name: &mut Value, moved: &mut usize| {
        assert_eq!(name, "interlock");
        *name = json!("elsewhere");
        *moved += 1;
    };
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                match (key.as_str(), member.is_string()) {
                    ("namespace", true) => replace(member, moved),
                    _ => move_to_elsewhere(member, moved),
                }
            }
        }
        Value::Array(items) => {
            if let Some(flag) = items.iter().position(|item| item == "--namespace") {
                replace(&mut items[flag + 1], moved);
            }
            items.iter_mut().for_each(|item| move_to_elsewhere(item, moved));
        }
        _ => {}
    }
}
