//! The rules an operator writes, checked once when loaded and indexed so that a rule that cannot match costs a
//! call nothing.
//!
//! The file's shape is the contract of `interlock config schema --rules`; unknown fields, unknown actions and duplicate
//! ids are errors that name the rule and the remedy.

mod defaults;
mod fault;
mod file;
mod globs;
mod index;
mod judge;
mod known;
mod rule;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;

use self::defaults::AllDefaults;
use self::index::{Candidates, Index, IndexBuilder};
use self::rule::{Effect, Rule};
use super::limit::Limit;
use super::scope::Scope;

pub use self::defaults::{AgentDefaults, Bias, Defaults};
pub use self::fault::{Fault, place};
pub use self::file::{Action, Author, Denials, Globs, Match, Mode, Phase, PolicyFile, RuleFile};
pub use self::known::Known;
pub use self::rule::{Approval, Field, Limited, Redact};

/// A checked, indexed policy.
#[derive(Debug, Default)]
pub struct Policy {
    defaults: AllDefaults,
    rules: Vec<Rule>,
    agents: OfAll,
    namespaces: OfAll,
    servers: OfAll,
    /// Of [`Phase::Request`], [`Phase::Response`] and [`Phase::List`].
    phases: [Messages; 3],
    /// Rules that are also about what cannot be read.
    of_connection: Scope,
    /// Rules about answers and lists.
    of_answers: Scope,
    pub reads: Reads,
}

/// How the ids of rules of the API server begin, so that no rule of the file has the same.
const RESERVED: [&str; 2] = ["AgentPolicy/", "ClusterAgentPolicy/"];

/// What rules with `action: deny_drift` look at, named like the variables of conditions.
pub const STANDING: &str = "standing";

/// What conditions look at that costs something to know.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    pub user: bool,
    pub annotations: bool,
    pub recent: bool,
    /// Rules with `action: deny_drift` look at how far what a call uses can be trusted.
    pub standing: bool,
}

/// One field over all rules.
#[derive(Debug, Default)]
struct OfAll {
    index: Index,
    /// Rules that do not ask for it.
    any: Scope,
}

/// What the rules of a phase look at in a message. Each rule is found in one way.
#[derive(Debug, Default)]
struct Messages {
    by_tool: Index,
    /// Rules that name no tool, or allow some.
    by_method: Index,
    /// Rules that name neither.
    any: Scope,
}

impl Policy {
    /// Checks and compiles a rules file. The error names the rule, by id and position, and what to do.
    pub fn compile(file: PolicyFile) -> Result<Policy, Fault> {
        if file.version != 1 {
            let error = format!("version {} is not known; this interlock reads version 1", file.version);
            return Err(Fault::of_file(error));
        }
        let mut ids = HashSet::new();
        let mut rules = Vec::with_capacity(file.rules.len());
        for (position, rule) in file.rules.iter().enumerate() {
            let fault = |error: String| Fault { rule: Some((position, rule.id.clone())), error };
            if rule.id.is_empty() {
                return Err(fault("`id` is empty; give it a name".to_owned()));
            }
            if rule.author == Author::File && RESERVED.iter().any(|kind| rule.id.starts_with(kind)) {
                return Err(fault(
                    "`id` is like one of the API server's; begin it with something else".to_owned(),
                ));
            }
            if !ids.insert(&rule.id) {
                return Err(fault("`id` is used twice; ids must be unique".to_owned()));
            }
            rules.push(Rule::compile(rule).map_err(fault)?);
        }
        let mut policy = Policy::indexed(&file.rules, rules).map_err(Fault::of_file)?;
        policy.defaults = AllDefaults::compile(file.defaults, file.agent_defaults).map_err(Fault::of_file)?;
        Ok(policy)
    }

    fn indexed(files: &[RuleFile], rules: Vec<Rule>) -> Result<Policy, String> {
        let count = rules.len();
        let field = |globs: fn(&Rule, &RuleFile) -> Option<Globs>| -> Result<OfAll, String> {
            let (mut index, mut any) = (IndexBuilder::default(), Scope::with_rules(count));
            for (position, file) in files.iter().enumerate() {
                match globs(&rules[position], file) {
                    Some(globs) => index.add(position, &globs),
                    None => any.insert(position),
                }
            }
            Ok(OfAll { index: index.build(count)?, any })
        };
        let messages = |phase: Phase| -> Result<Messages, String> {
            let (mut tools, mut methods) = (IndexBuilder::default(), IndexBuilder::default());
            let mut any = Scope::with_rules(count);
            for (position, file) in files.iter().enumerate().filter(|(index, _)| rules[*index].is_of(phase)) {
                match (rules[position].index_tool(file), rules[position].index_method(file)) {
                    (Some(globs), _) => tools.add(position, &globs),
                    (None, Some(globs)) => methods.add(position, &globs),
                    (None, None) => any.insert(position),
                }
            }
            Ok(Messages { by_tool: tools.build(count)?, by_method: methods.build(count)?, any })
        };
        let mut of_connection = Scope::with_rules(count);
        let unread = rules.iter().enumerate().filter(|(_, rule)| rule.is_of_connection());
        unread.for_each(|(position, _)| of_connection.insert(position));
        let mut of_answers = Scope::with_rules(count);
        let answers = rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| [Phase::Response, Phase::List].into_iter().any(|phase| rule.is_of(phase)));
        answers.for_each(|(position, _)| of_answers.insert(position));
        let reads = |name| rules.iter().any(|rule| rule.when.as_ref().is_some_and(|when| when.uses(name)));
        Ok(Policy {
            reads: Reads {
                user: reads("user"),
                annotations: reads("annotations"),
                recent: reads("recent"),
                standing: rules.iter().any(|rule| matches!(rule.effect, Effect::Drift(_))),
            },
            of_answers,
            agents: field(|_, file| file.matches.agent.clone())?,
            namespaces: field(|_, file| file.matches.namespace.clone())?,
            servers: field(Rule::index_server)?,
            phases: [messages(Phase::Request)?, messages(Phase::Response)?, messages(Phase::List)?],
            of_connection,
            defaults: AllDefaults::default(),
            rules,
        })
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What to do for this agent where no rule can say.
    pub fn defaults_of(&self, agent: &str) -> Defaults {
        self.defaults.of(agent)
    }

    /// What to do with UDP of agents other than DNS.
    pub fn quic(&self) -> Bias {
        self.defaults.general.quic
    }

    /// Whether any of these rules is about answers or lists.
    pub fn judges_answers(&self, scope: &Scope) -> bool {
        self.of_answers.meets(scope)
    }

    /// The limits of all rules.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules.iter().filter_map(|rule| match &rule.effect {
            Effect::Limit(limited) => Some(&limited.limit),
            _ => None,
        })
    }

    /// The rules that can fire for this agent, in this namespace, and any of these names of the server.
    pub fn scope(&self, agent: &str, namespace: &str, server_names: &[String]) -> Scope {
        let mut scope = self.agents.any.clone();
        let mut found = self.agents.found([agent].into_iter());
        found.retain(|rule| self.rules[*rule].is_for(agent));
        found.into_iter().for_each(|rule| scope.insert(rule));
        if self.namespaces.is_asked_for() {
            let mut here = self.namespaces.any.clone();
            let mut found = self.namespaces.found([namespace].into_iter());
            found.retain(|rule| self.rules[*rule].is_in(namespace));
            found.into_iter().for_each(|rule| here.insert(rule));
            scope.intersect(&here);
        }
        if self.servers.is_asked_for() {
            let mut servers = Cow::Borrowed(&self.servers.any);
            let mut found = self.servers.found(server_names.iter().map(String::as_str));
            found.retain(|rule| self.rules[*rule].is_at(server_names));
            found.into_iter().for_each(|rule| servers.to_mut().insert(rule));
            scope.intersect(&servers);
        }
        scope
    }
}

impl OfAll {
    /// The rules that can ask for one of these texts.
    fn found<'a>(&self, texts: impl Iterator<Item = &'a str>) -> Vec<usize> {
        let mut candidates = Candidates::default();
        texts.for_each(|text| self.index.find(text, &mut candidates));
        candidates.rules()
    }

    fn is_asked_for(&self) -> bool {
        !self.index.is_empty()
    }
}
