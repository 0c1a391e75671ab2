//! The rules file, as an operator writes it. Its shape is the contract of `interlock config schema`.

use std::time::Duration;

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::Deserialize;

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
    pub rules: Vec<RuleFile>,
}

/// What to do where no rule can say.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// A call of a tool that no `tools/list` showed. Only `allow` for now.
    pub unseen_tool: Bias,
    /// Bytes that no two readers would understand alike: broken JSON, duplicate members, unknown content codings.
    pub undecodable: Bias,
    /// Connections whose content cannot be read: TLS, HTTP/2 and anything that is not HTTP.
    pub opaque: Bias,
    /// UDP other than DNS, which may be QUIC.
    pub quic: Bias,
    /// JSON messages and events over their limit.
    pub oversized: Bias,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            unseen_tool: Bias::Allow,
            undecodable: Bias::Deny,
            opaque: Bias::Allow,
            quic: Bias::Deny,
            oversized: Bias::Deny,
        }
    }
}

/// The two answers a default can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Bias {
    Allow,
    Deny,
}

/// One rule, as written.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Unique within the file; shown to the agent, in records and in metrics.
    pub id: String,
    pub action: Action,
    #[serde(default)]
    pub phase: Phase,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// With `action: stop`: how many denials make the stop. Left out, the first message that matches is refused and
    /// makes it.
    #[serde(default)]
    pub after: Option<Denials>,
    /// With `action: stop`: how far the stop goes, `refuse` where it is left out.
    #[serde(default)]
    pub level: Option<Level>,
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
    /// Stop the agent, as `interlock stop agent=…` does, with the rule as the author.
    Stop,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
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
    /// Host, `host:port`, address or `address:port` of the server. A host is what the agent's request says;
    /// an address is where its connection really goes.
    pub server: Option<Globs>,
    /// JSON-RPC method.
    pub method: Option<Globs>,
    /// Name of the tool (or prompt, resource, task) the method names.
    pub tool: Option<Globs>,
}

/// One glob or a list of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Globs {
    One(String),
    Many(Vec<String>),
}

impl Globs {
    pub(super) fn patterns(&self) -> &[String] {
        match self {
            Globs::One(pattern) => std::slice::from_ref(pattern),
            Globs::Many(patterns) => patterns,
        }
    }
}
