//! The manifests of `deploy/kubernetes/base/`, read file by file.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use interlock::config::Config;
use interlock::reload;
use serde_json::{Value, json};

use crate::program::Folder;
use crate::{CAPABILITIES, METRICS_PORT, configs, container, deploy, documents, object, read, strings, yaml};

#[test]
fn every_file_is_in_the_kustomization() {
    let kustomization = yaml(&read("kubernetes/base/kustomization.yaml"));
    let mut named = strings(&kustomization["resources"]);
    named.extend(strings(&kustomization["configMapGenerator"][0]["files"]));
    named.insert("kustomization.yaml");
    let entries = fs::read_dir(deploy("kubernetes/base")).unwrap();
    let files: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files.iter().map(String::as_str).collect::<BTreeSet<_>>(), named);
    // Rules are read again in place, which a name with a hash would never let happen.
    assert_eq!(kustomization["configMapGenerator"][0]["options"]["disableNameSuffixHash"], true);
}

#[test]
fn manifests_name_each_other_rightly() {
    let namespace = object("namespace.yaml", "Namespace", "interlock")["metadata"]["name"].clone();
    let set = object("daemonset.yaml", "DaemonSet", "interlock");
    let fleet = object("fleet.yaml", "Deployment", "interlock-fleet");
    for manifest in [&set, &fleet] {
        let pod = &manifest["spec"]["template"];
        assert_eq!(manifest["metadata"]["namespace"], namespace);
        assert_eq!(manifest["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
        let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
        let account = object("serviceaccount.yaml", "ServiceAccount", account);
        // Agents that get into this namespace by mistake get no token.
        assert_eq!(account["automountServiceAccountToken"], false);
        assert_eq!(pod["spec"]["automountServiceAccountToken"], true);
    }
    assert_ne!(set["spec"]["selector"], fleet["spec"]["selector"]);
    for (kind, file) in [("Service", "service.yaml"), ("NetworkPolicy", "networkpolicy.yaml")] {
        let spec = &object(file, kind, "interlock")["spec"];
        let chosen = if kind == "Service" { &spec["selector"] } else { &spec["podSelector"]["matchLabels"] };
        assert_eq!(chosen, &set["spec"]["selector"]["matchLabels"], "{kind}");
    }
    let volumes = set["spec"]["template"]["spec"]["volumes"].as_array().unwrap().clone();
    let config = volumes.iter().find(|volume| volume["name"] == "config").unwrap();
    let map = yaml(&read("kubernetes/base/kustomization.yaml"))["configMapGenerator"][0].clone();
    assert_eq!((&config["configMap"]["name"], &map["namespace"]), (&map["name"], &namespace));
    let named: BTreeSet<&str> = volumes.iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    let mounts = container()["volumeMounts"].clone();
    let mounted = mounts.as_array().unwrap().iter().map(|mount| mount["name"].as_str().unwrap()).collect();
    assert_eq!(named, mounted, "every volume is mounted and every mount has a volume");
    // The controller counts the nodes of just this DaemonSet.
    let command = fleet["spec"]["template"]["spec"]["containers"][0]["command"].clone();
    let (space, name) = (&set["metadata"]["namespace"], &set["metadata"]["name"]);
    let expect = json!(["/usr/local/bin/interlock", "fleet", "--namespace", space, "--daemon-set", name]);
    assert_eq!(command, expect);
}

#[test]
fn node_is_seen_and_is_named() {
    let set = object("daemonset.yaml", "DaemonSet", "interlock");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!((&pod["hostPID"], &pod["hostNetwork"]), (&json!(true), &json!(false)));
    let node = json!([{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]);
    assert_eq!(pod["containers"][0]["env"], node);
    // Longer than the daemon lets open calls end.
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > 5 + 5);
    assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"], 1);
}

#[test]
fn controller_has_no_hold_on_its_node() {
    let fleet = object("fleet.yaml", "Deployment", "interlock-fleet");
    let pod = &fleet["spec"]["template"]["spec"];
    for absent in ["hostPID", "hostNetwork", "hostIPC", "volumes"] {
        assert_eq!(pod[absent], Value::Null, "{absent}");
    }
    assert_eq!(
        (&pod["securityContext"]["runAsUser"], &fleet["spec"]["replicas"]),
        (&json!(65532), &json!(1))
    );
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let context = &pod["containers"][0]["securityContext"];
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!((&context["readOnlyRootFilesystem"], &context["privileged"]), (&json!(true), &json!(false)));
}

#[test]
fn daemon_may_do_what_the_kernel_asks_for() {
    let context = container()["securityContext"].clone();
    assert_eq!(strings(&context["capabilities"]["add"]), BTreeSet::from(CAPABILITIES));
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!((&context["privileged"], &context["readOnlyRootFilesystem"]), (&json!(false), &json!(true)));
    assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
}

#[test]
fn probes_and_scrapes_find_the_metrics_port() {
    let container = container();
    let port = &container["ports"][0];
    assert_eq!(port["containerPort"], METRICS_PORT);
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": port["name"]}));
    }
    let set = object("daemonset.yaml", "DaemonSet", "interlock");
    let scraped = &set["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"];
    assert_eq!(scraped.as_str().unwrap(), METRICS_PORT.to_string());
    let service = object("service.yaml", "Service", "interlock");
    assert_eq!(service["spec"]["clusterIP"], "None");
    let served = json!([{"name": "metrics", "port": METRICS_PORT, "targetPort": port["name"]}]);
    assert_eq!(service["spec"]["ports"], served);
    let policy = object("networkpolicy.yaml", "NetworkPolicy", "interlock")["spec"].clone();
    // With Egress it could not reach the API server.
    assert_eq!(policy["policyTypes"], json!(["Ingress"]));
    let monitoring =
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}});
    let open = json!([{"from": [monitoring], "ports": [{"protocol": "TCP", "port": port["name"]}]}]);
    assert_eq!(policy["ingress"], open);
    for (place, config) in configs() {
        let address: std::net::SocketAddr = config["metrics_addr"].as_str().unwrap().parse().unwrap();
        assert_eq!(u64::from(address.port()), METRICS_PORT, "{place}");
        // Only a pod has an address that a NetworkPolicy guards.
        assert_eq!(address.ip().is_loopback(), place == "systemd", "{place}");
    }
}

const WRITE: &[&str] = &["create", "get", "list", "watch", "update", "patch", "delete"];

/// What the code asks the API server for; a request more there needs a line more here, and in rbac.yaml.
const ASKED: [(&str, &str, &str, &[&str]); 22] = [
    // `kubernetes/watch.rs`; every watch begins with a list.
    ("interlock", "", "pods", &["list", "watch"]),
    // `fleet/node.rs`: follows stops, and applies its reports, which makes them where there are none.
    ("interlock", "interlock.dev", "agentstops", &["list", "watch"]),
    ("interlock", "interlock.dev", "agentstopreports", &["create", "patch"]),
    // `fleet/follow.rs`.
    ("interlock", "interlock.dev", "agentpolicies", &["list", "watch"]),
    ("interlock", "interlock.dev", "clusteragentpolicies", &["list", "watch"]),
    ("interlock", "interlock.dev", "toolbaselines", &["list", "watch"]),
    // `fleet/controller.rs`, `fleet/verdict.rs`.
    ("interlock-fleet", "interlock.dev", "agentpolicies", &["list", "watch"]),
    ("interlock-fleet", "interlock.dev", "clusteragentpolicies", &["list", "watch"]),
    ("interlock-fleet", "interlock.dev", "toolbaselines", &["list", "watch"]),
    ("interlock-fleet", "interlock.dev", "toolbaselines/status", &["patch"]),
    ("interlock-fleet", "interlock.dev", "agentpolicies/status", &["patch"]),
    ("interlock-fleet", "interlock.dev", "clusteragentpolicies/status", &["patch"]),
    ("interlock-fleet", "interlock.dev", "agentstops", &["list", "watch"]),
    ("interlock-fleet", "interlock.dev", "agentstopreports", &["list", "watch"]),
    ("interlock-fleet", "interlock.dev", "agentstops/status", &["patch"]),
    ("interlock-fleet", "apps", "daemonsets", &["get"]),
    // `cli/fleet.rs`, as the person that orders a stop, and `kubectl` as the one that looks at it and releases it.
    ("interlock-operator", "interlock.dev", "agentstops", &["create", "get"]),
    ("interlock-operator", "interlock.dev", "agentstops", &["list", "watch", "delete", "patch"]),
    // `kubectl`, as the people that write rules.
    ("interlock-author", "interlock.dev", "agentpolicies", WRITE),
    ("interlock-cluster-author", "interlock.dev", "agentpolicies", WRITE),
    ("interlock-cluster-author", "interlock.dev", "clusteragentpolicies", WRITE),
    // And those that say what is trusted.
    ("interlock-reviewer", "interlock.dev", "toolbaselines", WRITE),
];

#[test]
fn roles_allow_what_is_asked_for_and_nothing_else() {
    let all = documents("kubernetes/base/rbac.yaml");
    let of_kind = |kinds: &[&str]| -> Vec<Value> {
        all.iter().filter(|object| kinds.contains(&object["kind"].as_str().unwrap())).cloned().collect()
    };
    let mut allowed = BTreeSet::new();
    for role in of_kind(&["ClusterRole", "Role"]) {
        assert_eq!(role["aggregationRule"], Value::Null);
        let name = role["metadata"]["name"].as_str().unwrap();
        for rule in role["rules"].as_array().unwrap() {
            for group in strings(&rule["apiGroups"]) {
                for resource in strings(&rule["resources"]) {
                    for verb in strings(&rule["verbs"]) {
                        assert!(!format!("{group}{resource}{verb}").contains('*'), "{rule}");
                        allowed.insert([name, group, resource, verb].map(str::to_owned));
                    }
                }
            }
        }
    }
    for (role, group, resource, verbs) in ASKED {
        for verb in verbs {
            let asked = [role, group, resource, verb].map(str::to_owned);
            assert!(allowed.remove(&asked), "{asked:?} is not allowed");
        }
    }
    assert_eq!(allowed, BTreeSet::new(), "allowed, and nobody asks for it");
    // Each is bound to the account of its name; the one for people to nobody.
    let mut bound = BTreeSet::new();
    for binding in of_kind(&["ClusterRoleBinding", "RoleBinding"]) {
        let role = binding["roleRef"]["name"].as_str().unwrap();
        let account = json!([{"kind": "ServiceAccount", "name": role, "namespace": "interlock"}]);
        assert_eq!(binding["subjects"], account);
        bound.insert((binding["roleRef"]["kind"].as_str().unwrap().to_owned(), role.to_owned()));
    }
    let expect =
        [("ClusterRole", "interlock"), ("ClusterRole", "interlock-fleet"), ("Role", "interlock-fleet")];
    assert_eq!(bound, expect.map(|(kind, role)| (kind.to_owned(), role.to_owned())).into());
}

#[test]
fn definitions_are_those_of_the_program() {
    let said = Folder::new().run(&["config", "schema", "--crds"]);
    assert_eq!(said.code, 0, "{}", said.stderr);
    let printed: Value = serde_json::from_str(&said.stdout).expect("JSON");
    let printed = printed["items"].as_array().expect("a list").clone();
    if documents("kubernetes/base/crds.yaml") != printed {
        let texts = printed.iter().map(|definition| serde_saphyr::to_string(definition).unwrap());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("crds.yaml");
        let text = texts.map(|text| format!("---\n{text}")).collect::<String>();
        fs::write(&file, text.trim_start_matches("---\n")).unwrap();
        panic!("they are in {} now; copy them to deploy/kubernetes/base/crds.yaml", file.display());
    }
}

/// Whatever rules of whichever overlay a node gets, the program reads them.
#[test]
fn program_reads_the_shipped_configuration_and_rules() {
    let base = deploy("kubernetes/base");
    for folder in [deploy("systemd"), base.clone()] {
        let config = Config::load(&folder.join("config.yaml")).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(config.rules.as_deref(), Some(Path::new("/etc/interlock/rules.yaml")));
    }
    for folder in [deploy("systemd"), base, deploy("kubernetes/overlays/observe")] {
        let loaded = reload::load(&folder.join("rules.yaml")).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(!loaded.policy.is_empty());
    }
    assert_eq!(read("kubernetes/overlays/observe/rules.yaml"), read("policies/observe.yaml"));
}
