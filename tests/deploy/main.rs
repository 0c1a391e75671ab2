//! What is in `deploy/` parses, agrees with itself and with the program's defaults. Needs no cluster, and root only where
//! dpkg does; a real installation is not tried here.

mod check;
mod cluster;
mod debian;
mod helm;
mod helm_values;
mod image;
mod manifests;
mod policies;
mod program;
mod readme;
mod schemas;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Every object of a file.
fn documents(file: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(&read(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// One object of the base.
#[track_caller]
fn object(file: &str, kind: &str, name: &str) -> Value {
    let all = documents(&format!("kubernetes/base/{file}"));
    let is_wanted = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    all.iter().find(is_wanted).unwrap_or_else(|| panic!("no {kind} {name} in {file}")).clone()
}

fn container() -> Value {
    object("daemonset.yaml", "DaemonSet", "interlock")["spec"]["template"]["spec"]["containers"][0].clone()
}

/// The two configurations that are shipped, by where they are.
fn configs() -> [(&'static str, Value); 2] {
    [("systemd", "systemd"), ("kubernetes", "kubernetes/base")]
        .map(|(place, folder)| (place, yaml(&read(&format!("{folder}/config.yaml")))))
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
fn unit_allows_what_the_kernel_asks_for() {
    let wanted: BTreeSet<&str> = CAPABILITIES.into();
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
    let set = object("daemonset.yaml", "DaemonSet", "interlock");
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
