//! What to do where no rule can say, for everybody and for single agents.

use globset::GlobSet;
use schemars::JsonSchema;
use serde::Deserialize;

use super::file::Globs;
use super::globs::compile_globs;

/// What to do where no rule can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// A call of a tool that no list of its server showed to this agent since the daemon began.
    pub unseen_tool: Bias,
    /// A message of a protocol revision that is not known.
    pub unknown_revision: Bias,
    /// Bytes that no two readers would understand alike: broken JSON, duplicate members, unknown content codings.
    pub undecodable: Bias,
    /// Connections whose content cannot be read: TLS, HTTP/2 and anything else that is neither HTTP nor JSON-RPC in lines.
    pub opaque: Bias,
    /// UDP other than DNS, which may be QUIC. Of the host as a whole.
    pub quic: Bias,
    /// JSON messages and events over their limit.
    pub oversized: Bias,
}

impl Default for Defaults {
    fn default() -> Defaults {
        Defaults {
            unseen_tool: Bias::Allow,
            unknown_revision: Bias::Allow,
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

/// Other defaults for some agents. Of several entries that name an agent the first one that sets a default counts.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentDefaults {
    /// Name of the agent.
    pub agent: Globs,
    #[serde(default)]
    pub unseen_tool: Option<Bias>,
    #[serde(default)]
    pub unknown_revision: Option<Bias>,
    #[serde(default)]
    pub undecodable: Option<Bias>,
    #[serde(default)]
    pub opaque: Option<Bias>,
    #[serde(default)]
    pub oversized: Option<Bias>,
}

/// The defaults of a policy, ready to be asked for.
#[derive(Debug, Default)]
pub(super) struct AllDefaults {
    pub(super) general: Defaults,
    of_agents: Vec<(Option<GlobSet>, AgentDefaults)>,
}

impl AllDefaults {
    /// Errors name the entry.
    pub(super) fn compile(general: Defaults, entries: Vec<AgentDefaults>) -> Result<AllDefaults, String> {
        let compile = |(position, entry): (usize, AgentDefaults)| {
            let globs = compile_globs(Some(&entry.agent), "agent");
            Ok((globs.map_err(|error| format!("agent_defaults {}: {error}", position + 1))?, entry))
        };
        let of_agents = entries.into_iter().enumerate().map(compile).collect::<Result<_, String>>()?;
        Ok(AllDefaults { general, of_agents })
    }

    pub(super) fn of(&self, agent: &str) -> Defaults {
        let mut defaults = self.general;
        let named = |(globs, _): &&(Option<GlobSet>, AgentDefaults)| {
            globs.as_ref().is_some_and(|globs| globs.is_match(agent))
        };
        // The first one that sets a default is the last to be written.
        for (_, entry) in self.of_agents.iter().filter(named).rev() {
            let set = |slot: &mut Bias, bias: Option<Bias>| *slot = bias.unwrap_or(*slot);
            set(&mut defaults.unseen_tool, entry.unseen_tool);
            set(&mut defaults.unknown_revision, entry.unknown_revision);
            set(&mut defaults.undecodable, entry.undecodable);
            set(&mut defaults.opaque, entry.opaque);
            set(&mut defaults.oversized, entry.oversized);
        }
        defaults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_that_sets_a_default_counts() {
        let entries = "[{agent: 'pay/*', opaque: deny}, {agent: '*', opaque: allow, oversized: allow}]";
        let entries: Vec<AgentDefaults> = serde_saphyr::from_str(entries).unwrap();
        let general = Defaults { opaque: Bias::Deny, ..Defaults::default() };
        let all = AllDefaults::compile(general, entries).unwrap();
        let biases = |agent| (all.of(agent).opaque, all.of(agent).oversized, all.of(agent).undecodable);
        assert_eq!(biases("pay/1"), (Bias::Deny, Bias::Allow, Bias::Deny));
        assert_eq!(biases("coder"), (Bias::Allow, Bias::Allow, Bias::Deny));
    }

    #[test]
    fn quic_is_of_the_host() {
        let error = serde_saphyr::from_str::<AgentDefaults>("{agent: a, quic: deny}").unwrap_err();
        assert!(error.to_string().contains("quic"), "{error}");
    }
}
