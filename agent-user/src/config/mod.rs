//! The daemon's configuration file, read once and checked. Every default is here.

mod agents;
mod keepalive;
mod kubernetes;
mod limits;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use globset::{Glob, GlobSet, GlobSetBuilder};
use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use self::agents::AgentSelector;
pub use self::keepalive::Keepalive;
pub use self::kubernetes::{Kubernetes, PodSelector, Unclassified};
pub use self::limits::Limits;
use crate::workflow::Extractor;

/// The configuration of a host.
pub const CONFIG: &str = "/etc/interlock/config.yaml";
/// Where CLI commands look for the daemon unless told otherwise.
pub const RUNTIME_DIR: &str = "/run/interlock";
const STATE_DIR: &str = "/var/lib/interlock";
const PIN_DIR: &str = "/sys/fs/bpf/interlock";
const RECORDS: &str = "/var/log/interlock/records.jsonl";
const METRICS_ADDR: &str = "127.0.0.1:9464";
const EXEC_CGROUP: &str = "/interlock/agents";

/// `/etc/interlock/config.yaml`, as written. Relative paths are relative to the file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Version of the file format: 1.
    pub version: u32,
    /// Cgroups, below the cgroup v2 root, on which the kernel programs sit. They must contain every agent, the
    /// daemon, and whoever may hand an agent a socket. Empty: every cgroup right below the root.
    #[serde(default)]
    pub attach: Vec<String>,
    /// Who is an agent.
    #[serde(default)]
    pub agents: Vec<AgentSelector>,
    /// Where pods are heard of; for agents that are pods.
    #[serde(default)]
    pub kubernetes: Kubernetes,
    /// The rules file; without one only the defaults apply.
    #[serde(default)]
    pub rules: Option<PathBuf>,
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Holds `control.sock`.
    #[serde(default = "default_runtime_dir")]
    pub runtime_dir: PathBuf,
    /// On a bpffs.
    #[serde(default = "default_pin_dir")]
    pub pin_dir: PathBuf,
    #[serde(default)]
    pub records: Records,
    #[serde(default = "default_metrics_addr")]
    pub metrics_addr: SocketAddr,
    #[serde(default)]
    pub fail: Fail,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub keepalive: Keepalive,
    /// How long a stop goes on reading what a server still answers to a call it had received.
    #[serde(default = "default_evidence_window")]
    #[schemars(with = "String")]
    pub evidence_window: SignedDuration,
    /// Servers (globs over host, `host:port`, address or `address:port`) from which a stop reads on for
    /// `evidence_window` even where closing the connection would cancel the call (MCP 2026-07-28). From all others such a
    /// call is cancelled.
    #[serde(default)]
    pub watch: Vec<String>,
    /// A stop is released only when two different persons have ordered it.
    #[serde(default)]
    pub require_two: bool,
    /// Where the workflow of a call is looked for. The first of these that yields one wins.
    ///
    /// Whatever the agent sends, or sets in its own environment, is its claim: it may leave it out. What two readers
    /// could read differently (a header or key that is there twice, a malformed baggage) yields nothing, and so does
    /// what is longer than 256 bytes or has other characters than letters, digits, spaces and ASCII's signs.
    #[serde(default)]
    pub workflow: Vec<Extractor>,
    /// How the bearer tokens that agents send are checked. Absent: they are read and not believed.
    #[serde(default)]
    pub tokens: Option<Tokens>,
    /// What of the tools, prompts and instructions of servers is trusted.
    #[serde(default)]
    pub tools: Tools,
    /// Lets operators on other machines give orders. Absent: nobody can.
    #[serde(default)]
    pub remote: Option<Remote>,
    /// Cgroup in which `interlock exec` makes one for each command, below the cgroup v2 root.
    #[serde(default = "default_exec_cgroup")]
    pub exec_cgroup: String,
}

/// What of the tools, prompts and instructions of servers is trusted. Rules with `action: deny_drift` go by it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tools {
    /// What is shown for the first time is trusted; otherwise an operator has to approve of it. True where it is left out.
    pub trust_first_use: bool,
    /// A file of `interlock tools export`. With it that file alone says what is trusted, and in a cluster each `ToolBaseline`:
    /// nothing is on first use, and nothing is approved but by changing these.
    pub baseline: Option<PathBuf>,
}

impl Default for Tools {
    fn default() -> Tools {
        Tools { trust_first_use: true, baseline: None }
    }
}

/// What makes the claims of a JWT in `Authorization: Bearer …` verified: it is signed by one of the keys (RS256 to RS512,
/// PS256 to PS512, ES256, ES384 or EdDSA), has an `exp`, and `exp` and `nbf` hold, give or take 60 s. The claims of any
/// other JWT are there all the same, for rules that ask for `user.verified` to see.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tokens {
    /// File with a JSON Web Key Set (RFC 7517) of up to 64 public keys, as the issuer publishes it. Read again when it
    /// changes; one that cannot be used changes nothing, and the log says so.
    pub jwks: PathBuf,
    /// `iss` must be this. Absent: it may be anything.
    #[serde(default)]
    pub issuer: Option<String>,
    /// `aud` must be this, or have it in its list. Absent: it may be anything, for a token is meant for the server it goes
    /// to.
    #[serde(default)]
    pub audience: Option<String>,
}

/// The HTTPS endpoint for operators on other machines. The files are PEM, and read again on SIGHUP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// `0.0.0.0` stands for every IPv4 address of this host, `[::]` for every address.
    pub listen: SocketAddr,
    /// The daemon's certificate, and behind it those that lead to its CA.
    pub certificate: PathBuf,
    /// Its private key; only root should be able to read it.
    pub key: PathBuf,
    /// Whoever has a certificate of one of these CAs is an operator: the one named by the common name of its subject or,
    /// without one, by its first alternative name. Up to 64 printable ASCII characters.
    pub client_ca: PathBuf,
}

/// Where records go and what they hold.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Records {
    pub path: PathBuf,
    pub arguments: Arguments,
}

impl Default for Records {
    fn default() -> Records {
        Records { path: RECORDS.into(), arguments: Arguments::Digest }
    }
}

/// What a decision record keeps of a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Arguments {
    /// Their SHA-256.
    Digest,
    /// All of them, beside the digest.
    Full,
}

/// What becomes of agents while the daemon is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fail {
    /// Their connects are refused.
    #[default]
    Closed,
    /// Their connects pass unread once the daemon was not heard of for [`STALE_AFTER`]. Isolated agents stay isolated.
    Open,
}

/// Age of the daemon's heartbeat from which on `fail: open` applies.
pub const STALE_AFTER: Duration = Duration::from_secs(5);

fn default_state_dir() -> PathBuf {
    STATE_DIR.into()
}
fn default_runtime_dir() -> PathBuf {
    RUNTIME_DIR.into()
}
fn default_pin_dir() -> PathBuf {
    PIN_DIR.into()
}
fn default_metrics_addr() -> SocketAddr {
    METRICS_ADDR.parse().expect("the default is an address")
}
fn default_exec_cgroup() -> String {
    EXEC_CGROUP.to_owned()
}
fn default_evidence_window() -> SignedDuration {
    SignedDuration::from_secs(30)
}

impl Config {
    /// Reads and checks a configuration file. Errors carry the file, the place in it and the remedy.
    pub fn load(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let mut config: Config = parse_yaml(&text, path)?;
        let base = path.parent().unwrap_or(Path::new("/"));
        for file in
            [&mut config.state_dir, &mut config.runtime_dir, &mut config.pin_dir, &mut config.records.path]
        {
            *file = base.join(&*file);
        }
        if let Some(remote) = &mut config.remote {
            for file in [&mut remote.certificate, &mut remote.key, &mut remote.client_ca] {
                *file = base.join(&*file);
            }
        }
        if let Some(tokens) = &mut config.tokens {
            tokens.jwks = base.join(&tokens.jwks);
        }
        config.kubernetes.kubeconfig = config.kubernetes.kubeconfig.map(|file| base.join(file));
        config.rules = config.rules.map(|rules| base.join(rules));
        config.tools.baseline = config.tools.baseline.map(|file| base.join(file));
        config.check().with_context(|| path.display().to_string())?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        if self.version != 1 {
            bail!("version {} is not known; this interlock reads version 1", self.version);
        }
        for path in self.attach.iter().chain([&self.exec_cgroup]) {
            check_cgroup_path(path)?;
        }
        self.agents.iter().try_for_each(AgentSelector::check)?;
        self.check_labels()?;
        self.watched()?;
        if self.evidence_window.is_negative() {
            bail!("evidence_window: must not be negative");
        }
        self.keepalive.check()?;
        self.limits.check()
    }
}

impl Config {
    /// Whether any agent is a pod.
    pub fn has_pods(&self) -> bool {
        self.agents.iter().any(|agent| agent.kubernetes.is_some())
    }

    /// An agent is known by its name, and has one set of labels.
    fn check_labels(&self) -> Result<()> {
        let mut by_name = BTreeMap::new();
        for agent in &self.agents {
            if *by_name.entry(&agent.name).or_insert(&agent.labels) != &agent.labels {
                bail!(
                    "agent {:?}: is there more than once with different `labels`; give it the same",
                    agent.name
                );
            }
        }
        Ok(())
    }

    /// The servers of `watch`.
    pub fn watched(&self) -> Result<GlobSet> {
        let mut globs = GlobSetBuilder::new();
        for server in &self.watch {
            let glob = Glob::new(&server.to_ascii_lowercase());
            globs.add(glob.with_context(|| format!("watch: {server:?}"))?);
        }
        Ok(globs.build()?)
    }
}

fn check_cgroup_path(path: &str) -> Result<()> {
    if !path.starts_with('/') || path == "/" || path.split('/').any(|part| part == "..") {
        bail!(
            "cgroup {path:?}: give a path below the cgroup v2 root, such as /agents.slice; the root itself cannot be held"
        );
    }
    Ok(())
}

/// Reads YAML strictly. Errors carry the file and the place in it, and for a misspelt name what may have been meant.
pub fn parse_yaml<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T> {
    serde_saphyr::from_str(text).map_err(|error: serde_saphyr::Error| {
        let said = error.to_string();
        let (place, prefix) = match error.location() {
            Some(at) => {
                let (line, column) = (at.line(), at.column());
                (format!(":{line}:{column}"), format!("error: line {line} column {column}: "))
            }
            None => (String::new(), "error: ".to_owned()),
        };
        let said = said.strip_prefix(&prefix).unwrap_or(&said);
        let meant = meant(said).map(|name| format!("\ndid you mean `{name}`?")).unwrap_or_default();
        anyhow!("{}{place}: {said}{meant}", path.display())
    })
}

/// The name that is most like the one that is not known, if an error says which ones there are.
fn meant(error: &str) -> Option<&str> {
    let (_, unknown) = error.lines().next()?.split_once("unknown ")?;
    let (name, known) = unknown.split_once("`, expected ")?;
    let (_, name) = name.split_once('`')?;
    let known = known.trim_start_matches("one of ").split(", ").map(|known| known.trim_matches('`'));
    let distance = |known: &str| strsim::damerau_levenshtein(name, known);
    known.filter(|known| distance(known) <= 1 + name.len() / 4).min_by_key(|known| distance(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        Config::load(&path)
    }

    #[track_caller]
    fn check_error(text: &str, expect: &str) {
        let error = format!("{:#}", load(text).unwrap_err());
        assert!(error.contains(expect) && error.contains("config.yaml"), "{error}");
    }

    #[test]
    fn small_config_gets_the_defaults() {
        let config = load("version: 1\nagents: [{name: coder, cgroup: '/agents.slice/coder*'}]").unwrap();
        assert_eq!(config.metrics_addr.port(), 9464);
        assert_eq!(config.limits.message.as_u64(), 4 << 20);
        assert_eq!(config.fail, Fail::Closed);
    }

    #[test]
    fn sizes_times_and_relative_paths_are_understood() {
        let config =
            load("version: 1\nrules: rules.yaml\nlimits: {message: 1MiB}\nevidence_window: 3s").unwrap();
        assert_eq!(config.limits.message.as_u64(), 1 << 20);
        assert_eq!(config.evidence_window, SignedDuration::from_secs(3));
        assert!(config.rules.unwrap().is_absolute());
    }

    #[test]
    fn extractors_keep_their_order() {
        let config = load(
            "version: 1\nworkflow: [{header: X-Workflow-Id}, {meta: workflow}, {traceparent: true}, \
             {baggage: workflow.id}, {context_id: true}, {env: WORKFLOW_ID}, {unit: true}]",
        );
        let expect = [
            Extractor::Header("X-Workflow-Id".into()),
            Extractor::Meta("workflow".into()),
            Extractor::Traceparent,
            Extractor::Baggage("workflow.id".into()),
            Extractor::ContextId,
            Extractor::Env("WORKFLOW_ID".into()),
            Extractor::Unit,
        ];
        assert_eq!(config.unwrap().workflow, expect);
        assert_eq!(load("version: 1").unwrap().workflow, []);
    }

    #[test]
    fn remote_endpoint_is_off_and_its_files_lie_beside_the_configuration() {
        assert!(load("version: 1").unwrap().remote.is_none());
        let text =
            "version: 1\nremote: {listen: '[::]:9465', certificate: me.pem, key: me.key, client_ca: /ca.pem}";
        let remote = load(text).unwrap().remote.unwrap();
        assert!(remote.certificate.is_absolute() && remote.certificate.ends_with("me.pem"));
        assert_eq!(remote.client_ca, Path::new("/ca.pem"));
        check_error(&text.replace("client_ca", "ca"), "ca");
        check_error("version: 1\nremote: {listen: '[::]:9465'}", "certificate");
        check_error(&text.replace("[::]:9465", "9465"), "socket address");
    }

    #[test]
    fn agents_have_labels() {
        let config = load("version: 1\nagents: [{name: a, cgroup: /a, labels: {tier: gold, 'on call': ''}}]");
        let labels = &config.unwrap().agents[0].labels;
        assert_eq!((labels["tier"].as_str(), labels["on call"].as_str()), ("gold", ""));
        load("version: 1\nagents: [{name: a, cgroup: /a, labels: {t: x}}, {name: a, cgroup: /b, labels: {t: x}}]")
            .unwrap();
    }

    #[test]
    fn keys_of_tokens_lie_beside_the_configuration() {
        assert!(load("version: 1").unwrap().tokens.is_none());
        let tokens = load("version: 1\ntokens: {jwks: keys.json, issuer: us}").unwrap().tokens.unwrap();
        assert!(tokens.jwks.is_absolute() && tokens.jwks.ends_with("keys.json"));
        assert_eq!((tokens.issuer.as_deref(), tokens.audience), (Some("us"), None));
        check_error("version: 1\ntokens: {issuer: us}", "jwks");
        check_error("version: 1\ntokens: {jwks: a, key: b}", "key");
    }

    #[test]
    fn mistakes_are_named() {
        check_error("version: 1\nagent: []", "agent");
        check_error("version: 7", "version 7");
        let pods = |entry: &str| format!("version: 1\nagents: [{{{entry}}}]");
        check_error(&pods("name: '{namespace}/{pod}', kubernetes: {}"), "every pod of the node");
        check_error(&pods("name: '{namespace}', kubernetes: {namespaces: [a]}"), "`{pod}`");
        let named = "name: '{namespace}/{pod}', kubernetes: {namespaces: [a]}";
        check_error(&pods(&format!("{named}, labels: {{a: b}}")), "leave them out");
        check_error(&pods(&format!("{named}, cgroup: /a")), "exactly one of");
        check_error("version: 1\nattach: ['/']", "the root itself");
        check_error("version: 1\nagents: [{name: a}]", "exactly one of");
        check_error("version: 1\nagents: [{name: a, cgroup: /a, labels: [gold]}]", "config.yaml:2:");
        check_error(
            "version: 1\nagents: [{name: a, cgroup: /a, labels: {t: 1}}, {name: a, cgroup: /b}]",
            "`labels`",
        );
        check_error("version: 1\nfail: maybe", "maybe");
        check_error("version: 1\nlimits: {depth: 0}", "limits: depth 0");
        check_error("version: 1\nlimits: {mesage: 1MiB}", "did you mean `message`?");
        check_error("version: 1\nwatch: ['a[']", "a[");
        check_error("version: 1\nworkflow: [{label: app}]", "expected one of");
        check_error("version: 1\nworkflow:\n  - {unit: true}\n  - {env: ''}", "config.yaml:4:");
    }
}
