//! The rules file, as an operator writes it. Its shape is the contract of `interlock config schema`.

use std::time::Duration;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::defaults::{AgentDefaults, Bias, Defaults};
use crate::decide::drift::DriftFile;
use crate::decide::limit::LimitFile;
use crate::decide::redact::RedactFile;
use crate::decide::stop::Level;
use crate::decide::tripwire::After;

/// The rules file, as written.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// Version of the file format: 1.
    pub version: u32,
    #[serde(default)]
    pub defaults: Defaults,
    #[serde(default)]
    pub agent_defaults: Vec<AgentDefaults>,
    #[serde(default)]
    pub rules: Vec<RuleFile>,
}

impl Default for PolicyFile {
    /// Without rules.
    fn default() -> PolicyFile {
        PolicyFile {
            version: 1,
            defaults: Defaults::default(),
            agent_defaults: Vec::new(),
            rules: Vec::new(),
        }
    }
}

/// Who has written a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Author {
    /// The rules file.
    #[default]
    File,
    /// A `ClusterAgentPolicy`.
    Cluster,
    /// The `AgentPolicy` of a namespace.
    Namespace,
}

/// One rule, as written.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Nobody can claim to be another one.
    #[serde(skip)]
    pub author: Author,
    /// Unique within the file; shown to the agent, in records and in metrics.
    pub id: String,
    pub action: Action,
    /// `request` where it is left out; `hide` has none.
    #[serde(default)]
    pub phase: Option<Phase>,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// A condition in CEL (`interlock config schema --cel` lists its variables): the rule is about messages for which it
    /// holds.
    #[serde(default)]
    pub when: Option<String>,
    /// With `when`: what becomes of a message for which the condition cannot be computed, for instance because an argument
    /// is missing or a text where a number should be. `deny`, where it is left out; `allow` goes on as if the rule were not
    /// there.
    #[serde(default)]
    pub on_error: Option<Bias>,
    /// With `action: redact`: what is taken out.
    #[serde(default)]
    pub redact: Option<RedactFile>,
    /// With `action: limit`: how much is let through.
    #[serde(default)]
    pub limit: Option<LimitFile>,
    /// With `action: deny_drift`: which changes refuse a call.
    #[serde(default)]
    pub drift: Option<DriftFile>,
    /// With `action: stop`: how many denials make the stop. Left out, the first message that matches is refused and
    /// makes it.
    #[serde(default)]
    pub after: Option<Denials>,
    /// With `action: stop`: how far the stop goes, `refuse` where it is left out.
    #[serde(default)]
    pub level: Option<Level>,
    /// With `action: require_approval`: how long a call waits for a person before it is refused, `5m` where it is left out.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub timeout: Option<SignedDuration>,
    /// Shown to the agent and the operator.
    #[serde(default)]
    pub reason: Option<String>,
}

/// What a rule does when it fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Refuse the message.
    Deny,
    /// Refuse whatever is of this kind and is allowed by no such rule. What is allowed is said by `tool` and `when`; by
    /// `method`, where neither is given; by `server`, where that is not given either. All else in the rule says of which
    /// kind: with `tool`, calls of tools unless a method is given.
    AllowOnly,
    /// Take the entry out of lists of tools, prompts and resources, and refuse what uses it anyway.
    Hide,
    /// Take what `redact` says out of arguments (`phase: request`), results (`response`) or entries of lists (`list`).
    Redact,
    /// Let through only so much as `limit` says.
    Limit,
    /// Refuse calls of tools and prompts that are not what was trusted.
    DenyDrift,
    /// Hold the call until a person approves or refuses it.
    RequireApproval,
    /// Stop the agent, as `interlock stop agent=…` does, with the rule as the author.
    Stop,
}

impl Action {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Action::Deny => "deny",
            Action::AllowOnly => "allow_only",
            Action::Hide => "hide",
            Action::Redact => "redact",
            Action::Limit => "limit",
            Action::DenyDrift => "deny_drift",
            Action::RequireApproval => "require_approval",
            Action::Stop => "stop",
        }
    }
}

/// So many denials within so much time.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Denials {
    /// How many messages that match must be refused, by whatever rule, guard or default; what a stop refuses does not
    /// count.
    #[schemars(range(min = 1, max = 1000))]
    pub denials: usize,
    /// The time between the first of them and the last, such as `60s`.
    #[schemars(with = "String")]
    pub within: SignedDuration,
}

/// The time of each denial counted is kept.
const MAX_DENIALS: usize = 1000;
const MAX_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

impl Denials {
    /// Errors name the field and the remedy.
    pub(super) fn check(self) -> Result<After, String> {
        if !(1..=MAX_DENIALS).contains(&self.denials) {
            return Err(format!("after.denials: {}: give 1 to {MAX_DENIALS}", self.denials));
        }
        let within = Duration::try_from(self.within).ok();
        let within = within.filter(|within| !within.is_zero() && *within <= MAX_WITHIN);
        let within = within.ok_or_else(|| {
            format!("after.within: {:#}: give more than nothing and no more than 24h", self.within)
        })?;
        Ok(After { denials: self.denials, within })
    }
}

/// Which messages a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// What is asked: requests and notifications of the agent, and requests of the server to it.
    #[default]
    Request,
    /// What comes back: results and errors, and notifications of the server.
    Response,
    /// The entries of a list of tools, prompts or resources.
    List,
}

/// Whether a rule acts or only speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    #[default]
    Enforce,
    /// Recorded and counted as `would_deny`, never applied.
    Observe,
}

/// Globs, ANDed over the fields; a list is ORed. A field left out matches everything.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// Name of the agent.
    pub agent: Option<Globs>,
    /// Namespace of the agent's pod; one that is in none has the empty name.
    pub namespace: Option<Globs>,
    /// Host, `host:port`, address or `address:port` of the server. A host is what the agent's request says;
    /// an address is where its connection really goes.
    pub server: Option<Globs>,
    /// JSON-RPC method.
    pub method: Option<Globs>,
    /// Name of the tool (or prompt, resource, task) the method names.
    pub tool: Option<Globs>,
    /// What `workflow:` in the configuration finds in the message or its process.
    pub workflow: Option<Globs>,
    /// Digest of the session as records show it.
    pub session: Option<Globs>,
}

/// One glob or a list of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Globs {
    One(String),
    Many(Vec<String>),
}

impl Globs {
    pub fn patterns(&self) -> &[String] {
        match self {
            Globs::One(pattern) => std::slice::from_ref(pattern),
            Globs::Many(patterns) => patterns,
        }
    }
}
