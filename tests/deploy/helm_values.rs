//! The values of the chart, through the real helm: each goes where it belongs and nowhere else, and what cannot be meant is
//! refused.

use serde_json::{Value, json};

use crate::cluster::{provided, said, tool};
use crate::helm::{Objects, assert_same, built, chart, rendered};
use crate::program::Folder;
use crate::{read, yaml};

/// Each value another one than in values.yaml, but for `observe`, beside which no `rules` may stand.
const CHANGED: &str = r#"
image:
  repository: registry.internal:5000/security/interlock
  tag: "0.1.0-2"
  digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  pullPolicy: Always
  pullSecrets: [registry, other]
config: "version: 1 # config\n"
rules: "version: 1 # rules {{ not a template }}\n"
observe: false
daemon:
  resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {memory: 2Gi, cpu: "2"}}
  nodeSelector: {agents: "yes"}
  tolerations: [{key: agents, operator: Equal, value: "yes", effect: NoExecute, tolerationSeconds: 60}]
  podLabels: {team: security}
  podAnnotations: {prometheus.io/scrape: "false", note: d}
fleet:
  resources: {requests: {cpu: 20m, memory: 64Mi}, limits: {memory: 512Mi}}
  nodeSelector: {pool: system}
  tolerations: [{key: pool, operator: Exists}]
  podLabels: {team: fleet}
  podAnnotations: {note: f}
monitoringNamespace: observability
podMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: rules}}
"#;

#[test]
#[cfg_attr(not(all(feature = "root-tests", target_arch = "x86_64")), ignore = "needs helm")]
fn values_that_cannot_be_meant_are_refused() {
    for (values, place) in [
        ("{imagee: {tag: x}}", "'imagee'"),
        ("{image: {registry: x}}", "'registry'"),
        ("{image: {repository: ''}}", "/image/repository"),
        ("{image: {tag: 1.0}}", "/image/tag"),
        ("{image: {tag: 'sha256:1'}}", "/image/tag"),
        ("{image: {digest: 'sha256:1'}}", "/image/digest"),
        ("{image: {pullPolicy: always}}", "/image/pullPolicy"),
        ("{image: {pullSecrets: [{name: x}]}}", "/image/pullSecrets/0"),
        ("{config: {version: 1}}", "/config"),
        ("{rules: {version: 1}}", "/rules"),
        ("{observe: true, rules: 'version: 1'}", "/rules"),
        ("{observe: 'true'}", "/observe"),
        ("{daemon: {resources: {limit: {cpu: 1}}}}", "'limit'"),
        ("{daemon: {resources: {limits: {cpu: [1]}}}}", "/daemon/resources/limits/cpu"),
        ("{daemon: {nodeSelector: {agents: true}}}", "/daemon/nodeSelector/agents"),
        ("{daemon: {tolerations: [{operator: exists}]}}", "/daemon/tolerations/0/operator"),
        ("{daemon: {podLabels: {app.kubernetes.io/name: x}}}", "'app.kubernetes.io/name'"),
        ("{fleet: {podLabels: {app.kubernetes.io/name: x}}}", "'app.kubernetes.io/name'"),
        ("{fleet: {podAnnotations: {a: 1}}}", "/fleet/podAnnotations/a"),
        ("{fleet: {replicas: 2}}", "'replicas'"),
        ("{monitoringNamespace: ''}", "/monitoringNamespace"),
        ("{podMonitor: true}", "/podMonitor"),
        ("{podMonitor: {enabled: 'yes'}}", "/podMonitor/enabled"),
        ("{prometheusRule: {labels: {release: 1}}}", "/prometheusRule/labels/release"),
    ] {
        let scratch = Folder::with(&[("values.yaml", values)]);
        let mut helm = provided("helm/helm");
        helm.args(["template", "x"]).arg(chart()).arg("--values").arg(scratch.path().join("values.yaml"));
        let output = helm.output().expect("helm runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{values} is taken");
        assert!(
            said.contains("the specifications of the schema") && said.contains(place),
            "{values}: {said}"
        );
    }
}

/// Every path to something that is no map, or to an empty one.
fn leaves(value: &Value, path: &str) -> Vec<(String, Value)> {
    match value {
        Value::Object(members) if !members.is_empty() => {
            members.iter().flat_map(|(key, member)| leaves(member, &format!("{path}/{key}"))).collect()
        }
        _ => vec![(path.to_owned(), value.clone())],
    }
}

#[test]
fn every_value_is_tried() {
    let (shipped, changed) = (yaml(&read("helm/interlock/values.yaml")), yaml(CHANGED));
    for (path, value) in leaves(&shipped, "") {
        let other = changed.pointer(&path).unwrap_or_else(|| panic!("{path} is not tried"));
        assert!(*other != value || path == "/observe", "{path} is as shipped");
    }
}

#[test]
#[cfg_attr(not(all(feature = "root-tests", target_arch = "x86_64")), ignore = "needs helm and its validator")]
fn every_value_goes_where_it_belongs_and_nowhere_else() {
    let scratch = Folder::with(&[("values.yaml", CHANGED)]);
    let values = scratch.path().join("values.yaml");
    let values = values.to_str().expect("UTF-8");
    let found = rendered(&chart(), "interlock", &["--values", values]);
    assert_same("changed", &found, &changed());

    let of_kubernetes =
        found.iter().filter(|((kind, _), _)| kind != "PodMonitor" && kind != "PrometheusRule");
    let documents: Vec<String> = of_kubernetes.map(|(_, object)| object.to_string()).collect();
    scratch.write("all.yaml", &documents.join("\n---\n"));
    said(tool("kubernetes-validate").arg("--strict").arg(scratch.path().join("all.yaml")));
}

#[test]
#[cfg_attr(not(all(feature = "root-tests", target_arch = "x86_64")), ignore = "needs helm")]
fn image_has_the_tag_or_the_digest_that_is_given() {
    let digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let by_digest = format!("image.digest={digest}");
    for (option, expect) in [
        (
            "image.repository=elsewhere.internal/a",
            format!("elsewhere.internal/a:{}", env!("CARGO_PKG_VERSION")),
        ),
        ("image.tag=edge", "interlock:edge".to_owned()),
        (&by_digest, format!("interlock@{digest}")),
    ] {
        let found = rendered(&chart(), "interlock", &["--set", option]);
        for name in [("DaemonSet", "interlock"), ("Deployment", "interlock-fleet")] {
            let object = &found[&(name.0.to_owned(), name.1.to_owned())];
            assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["image"], expect, "{option}");
        }
    }
}

/// What `CHANGED` must make of the overlay `monitoring`.
fn changed() -> Objects {
    let values = yaml(CHANGED);
    let mut objects = built("overlays/monitoring");
    let mut of = |kind: &str, name: &str, change: &dyn Fn(&mut Value)| {
        change(objects.get_mut(&(kind.to_owned(), name.to_owned())).expect("it is there"));
    };
    for (kind, name, key) in
        [("DaemonSet", "interlock", "daemon"), ("Deployment", "interlock-fleet", "fleet")]
    {
        let values = &values[key];
        of(kind, name, &|object| {
            let template = &mut object["spec"]["template"];
            template["metadata"]["labels"]["team"] = values["podLabels"]["team"].clone();
            template["metadata"]["annotations"]["note"] = values["podAnnotations"]["note"].clone();
            for key in ["nodeSelector", "tolerations"] {
                template["spec"][key] = values[key].clone();
            }
            template["spec"]["imagePullSecrets"] = json!([{"name": "registry"}, {"name": "other"}]);
            let container = &mut template["spec"]["containers"][0];
            container["resources"] = values["resources"].clone();
            container["imagePullPolicy"] = json!("Always");
            container["image"] = json!(
                "registry.internal:5000/security/interlock:0.1.0-2\
                 @sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
            );
        });
    }
    of("DaemonSet", "interlock", &|object| {
        let annotations = &mut object["spec"]["template"]["metadata"]["annotations"];
        annotations["prometheus.io/scrape"] = json!("false");
        // SHA-256 of the text: a changed configuration restarts the daemons.
        annotations["interlock.dev/config"] =
            json!("e30c3d0bc8ed5777bddaa70b604bb10a8775f0c16c8ea2b991895ce2150030a0");
    });
    of("ConfigMap", "interlock", &|object| {
        object["data"] = json!({"config.yaml": values["config"], "rules.yaml": values["rules"]});
    });
    of("NetworkPolicy", "interlock", &|object| {
        let selector = &mut object["spec"]["ingress"][0]["from"][0]["namespaceSelector"];
        selector["matchLabels"]["kubernetes.io/metadata.name"] = json!("observability");
    });
    of("PodMonitor", "interlock", &|object| object["metadata"]["labels"]["release"] = json!("prometheus"));
    of("PrometheusRule", "interlock", &|object| object["metadata"]["labels"]["release"] = json!("rules"));
    objects
}
