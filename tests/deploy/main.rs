//! What is in `deploy/` parses, agrees with itself and with the program's defaults. Needs no root and no cluster; a
//! real installation is not tried here.

mod check;
mod policies;
mod program;
mod readme;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use interlock::config::Config;
use interlock::reload;
use serde_json::Value;

/// What the program needs from the kernel; the unit says what each is for.
const CAPABILITIES: [&str; 6] = ["BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN", "SYS_PTRACE", "DAC_OVERRIDE"];
const METRICS_PORT: u64 = 9464;
const CONFIG: &str = "/etc/interlock/config.yaml";

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

fn read(file: &str) -> String {
    let path = deploy(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

#[track_caller]
fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

fn container() -> Value {
    yaml(&read("kubernetes/daemonset.yaml"))["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The two configurations that are shipped, by where they are.
fn configs() -> [(&'static str, Value); 2] {
    let map = yaml(&read("kubernetes/configmap.yaml"));
    let text = map["data"]["config.yaml"].as_str().expect("the ConfigMap holds config.yaml");
    [("systemd", yaml(&read("systemd/config.yaml"))), ("kubernetes", yaml(text))]
}

fn strings(value: &Value) -> BTreeSet<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The values of one setting of the daemon's unit, over all lines that set it.
fn unit(setting: &str) -> Vec<String> {
    setting_of("interlock.service", setting)
}

fn setting_of(file: &str, setting: &str) -> Vec<String> {
    let text = read(&format!("systemd/{file}"));
    let values =
        text.lines().filter_map(|line| line.strip_prefix(setting)?.strip_prefix('=').map(str::to_owned));
    values.collect()
}

#[test]
fn every_manifest_is_what_its_name_says() {
    for entry in fs::read_dir(deploy("kubernetes")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let manifest = yaml(&fs::read_to_string(&path).unwrap());
            let name = path.file_stem().unwrap().to_str().unwrap();
            // A kustomization has neither of them, and needs none.
            if name != "kustomization" {
                assert!(
                    manifest["apiVersion"].is_string() && manifest["metadata"]["name"].is_string(),
                    "{name}"
                );
                assert!(manifest["kind"].as_str().unwrap().to_lowercase().starts_with(name), "{name}");
            }
        }
    }
}

#[test]
fn manifests_name_each_other_rightly() {
    let set = yaml(&read("kubernetes/daemonset.yaml"));
    let account = yaml(&read("kubernetes/serviceaccount.yaml"));
    let map = yaml(&read("kubernetes/configmap.yaml"));
    let namespace = yaml(&read("kubernetes/namespace.yaml"))["metadata"]["name"].clone();
    for manifest in [&set, &account, &map] {
        assert_eq!(manifest["metadata"]["namespace"], namespace);
    }
    let pod = &set["spec"]["template"];
    assert_eq!(pod["spec"]["serviceAccountName"], account["metadata"]["name"]);
    assert_eq!(set["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let config = volumes.iter().find(|volume| volume["name"] == "config").unwrap();
    assert_eq!(config["configMap"]["name"], map["metadata"]["name"]);
    let named: BTreeSet<&str> = volumes.iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    let mounts = container()["volumeMounts"].clone();
    let mounted = mounts.as_array().unwrap().iter().map(|mount| mount["name"].as_str().unwrap()).collect();
    assert_eq!(named, mounted, "every volume is mounted and every mount has a volume");
}

#[test]
fn unit_and_daemonset_allow_the_same() {
    let wanted: BTreeSet<&str> = CAPABILITIES.into();
    let context = container()["securityContext"].clone();
    assert_eq!(strings(&context["capabilities"]["add"]), wanted);
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(context["privileged"], false);
    let bounding = unit("CapabilityBoundingSet").join(" ");
    assert_eq!(
        bounding.split(' ').map(|name| name.trim_start_matches("CAP_")).collect::<BTreeSet<_>>(),
        wanted
    );
    let text = read("systemd/interlock.service");
    for name in CAPABILITIES {
        assert!(
            text.lines().any(|line| line.starts_with(&format!("# CAP_{name} "))),
            "CAP_{name}: no word of why"
        );
    }
}

#[test]
fn both_run_the_program_alike() {
    let command = container()["command"].clone();
    let command: Vec<&str> = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(command[1..], ["run", "--config", CONFIG]);
    assert_eq!(unit("ExecStart"), [command.join(" ")]);
}

#[test]
fn folders_of_the_config_can_be_written() {
    for (place, config) in configs() {
        for (key, below) in [
            ("state_dir", "/var/lib/interlock"),
            ("runtime_dir", "/run/interlock"),
            ("pin_dir", "/sys/fs/bpf"),
        ] {
            assert!(config[key].as_str().unwrap().starts_with(below), "{place}: {key}");
        }
        assert!(config["records"]["path"].as_str().unwrap().starts_with("/var/log/interlock/"), "{place}");
        assert!(config["rules"].as_str().unwrap().starts_with("/etc/interlock/"), "{place}");
    }
    for setting in ["StateDirectory", "RuntimeDirectory", "LogsDirectory", "ConfigurationDirectory"] {
        assert_eq!(unit(setting), ["interlock"], "{setting}");
    }
    assert_eq!(unit("ReadWritePaths"), ["/sys/fs/bpf /sys/fs/cgroup"]);
    let set = yaml(&read("kubernetes/daemonset.yaml"));
    let mounts = container()["volumeMounts"].clone();
    for volume in set["spec"]["template"]["spec"]["volumes"].as_array().unwrap() {
        let mount = mounts.as_array().unwrap().iter().find(|mount| mount["name"] == volume["name"]).unwrap();
        if let Some(host) = volume["hostPath"]["path"].as_str() {
            assert_eq!(mount["mountPath"], host, "what the node and the pod call it");
            assert_ne!(mount["readOnly"], true, "{host}");
        }
    }
    for kernel in ["/sys/fs/cgroup", "/sys/fs/bpf"] {
        let mount = mounts.as_array().unwrap().iter().find(|mount| mount["mountPath"] == kernel).unwrap();
        assert_eq!(mount["mountPropagation"], "HostToContainer", "{kernel}");
    }
}

#[test]
fn probes_and_scrapes_find_the_metrics_port() {
    let container = container();
    let port = &container["ports"][0];
    assert_eq!(port["containerPort"], METRICS_PORT);
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"], serde_json::json!({"path": path, "port": port["name"]}));
    }
    let set = yaml(&read("kubernetes/daemonset.yaml"));
    let scraped = &set["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"];
    assert_eq!(scraped.as_str().unwrap(), METRICS_PORT.to_string());
    for (place, config) in configs() {
        let address: std::net::SocketAddr = config["metrics_addr"].as_str().unwrap().parse().unwrap();
        assert_eq!(u64::from(address.port()), METRICS_PORT, "{place}");
        // Only a pod has an address that a NetworkPolicy guards.
        assert_eq!(address.ip().is_loopback(), place == "systemd", "{place}");
    }
}

#[test]
fn node_is_seen_and_agents_are_not_in_reach_of_the_token() {
    let set = yaml(&read("kubernetes/daemonset.yaml"));
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!((&pod["hostPID"], &pod["hostNetwork"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(pod["automountServiceAccountToken"], false);
}

/// The program itself reads what is shipped: the files of the unit as they are, those of the ConfigMap as mounted.
#[test]
fn program_reads_the_shipped_configuration_and_rules() {
    let map = yaml(&read("kubernetes/configmap.yaml"));
    let mounted = tempfile::tempdir().expect("a folder");
    for file in ["config.yaml", "rules.yaml"] {
        fs::write(mounted.path().join(file), map["data"][file].as_str().expect("in the ConfigMap"))
            .expect("write");
    }
    for folder in [deploy("systemd"), mounted.path().to_owned()] {
        let config = Config::load(&folder.join("config.yaml")).unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(config.rules.as_deref(), Some(Path::new("/etc/interlock/rules.yaml")));
        let (policy, _) =
            reload::load(&folder.join("rules.yaml")).unwrap_or_else(|error| panic!("{error:#}"));
        assert!(!policy.is_empty());
    }
}

#[test]
fn unit_keeps_what_the_program_needs() {
    for breaking in [
        "ProtectControlGroups",
        "ProtectKernelTunables",
        "ProtectProc",
        "PrivateUsers",
        "PrivateNetwork",
        "RestrictNamespaces",
        "DynamicUser",
    ] {
        assert_eq!(unit(breaking), Vec::<String>::new(), "{breaking} breaks it");
    }
    assert_eq!((unit("Type"), unit("Restart")), (vec!["exec".to_owned()], vec!["always".to_owned()]));
    // Two sockets for each of `limits.connections`.
    assert!(unit("LimitNOFILE")[0].parse::<u32>().unwrap() > 2 * 20_000);
}

#[test]
fn agents_are_held_before_they_start_and_before_the_daemon_does() {
    let hold = |setting: &str| setting_of("interlock-hold.service", setting);
    assert_eq!(hold("ExecStart"), [format!("/usr/local/bin/interlock hold --config {CONFIG}")]);
    assert_eq!((hold("Type"), hold("RemainAfterExit")), (vec!["oneshot".to_owned()], vec!["yes".to_owned()]));
    let before = hold("Before").join(" ");
    let before: BTreeSet<&str> = before.split(' ').collect();
    let daemon_before = unit("Before").join(" ");
    assert!(before.contains("interlock.service"));
    assert!(
        daemon_before.split(' ').all(|name| before.contains(name)),
        "what starts agents starts after both"
    );
    assert_eq!((unit("Wants"), unit("After")), (hold_name(), hold_name()));
    let agent = |setting: &str| setting_of("agent-unit.conf", setting);
    assert_eq!(agent("Requires"), hold_name());
    assert_eq!(agent("After"), ["interlock-hold.service interlock.service"]);
    let own = setting_of("agent-service.conf", "ExecCondition").concat();
    // With privileges that the agent does not have, and so that the unit fails where it does.
    assert!(own.starts_with("+/bin/sh -c '") && own.ends_with(" || exit 255'"), "{own}");
    assert!(own.contains(&format!(" /usr/local/bin/interlock hold --own --config {CONFIG} ")), "{own}");
    for same in ["CapabilityBoundingSet", "ReadWritePaths", "StateDirectory", "StateDirectoryMode"] {
        assert_eq!(hold(same), unit(same), "{same}");
    }
}

fn hold_name() -> Vec<String> {
    vec!["interlock-hold.service".to_owned()]
}

#[test]
fn systemd_itself_finds_no_fault_with_the_units() {
    let program = ["/usr/bin/systemd-analyze", "/bin/systemd-analyze"]
        .into_iter()
        .find(|file| Path::new(file).exists());
    let Some(program) = program else {
        eprintln!("skipped: this machine has no systemd-analyze");
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unit");
    fs::create_dir_all(folder.join("claude-a.service.d")).unwrap();
    let units = ["interlock.service", "interlock-hold.service", "claude-a.service"];
    for unit in &units[..2] {
        // It also looks for the program, which need not be installed where this test runs.
        let text = read(&format!("systemd/{unit}")).replace("/usr/local/bin/interlock", "/bin/true");
        fs::write(folder.join(unit), text).unwrap();
    }
    fs::write(folder.join(units[2]), "[Service]\nExecStart=/bin/true\n").unwrap();
    fs::write(folder.join("claude-a.service.d/interlock.conf"), read("systemd/agent-unit.conf")).unwrap();
    fs::write(folder.join("claude-a.service.d/interlock-own.conf"), read("systemd/agent-service.conf"))
        .unwrap();
    let files = units.map(|unit| folder.join(unit));
    let output = Command::new(program).args(["verify", "--man=no"]).args(files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Of the host's own units it may complain as it likes.
    let is_ours = |line: &&str| ["interlock", "claude"].iter().any(|name| line.contains(name));
    let ours: Vec<&str> = said.lines().filter(is_ours).collect();
    assert!(ours.is_empty(), "{said}");
}
