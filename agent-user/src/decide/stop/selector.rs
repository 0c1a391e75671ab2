//! Whom a stop is for: terms, ANDed, each a glob. A term that is left out matches everything.

use std::collections::BTreeMap;
use std::fmt;

use globset::{Glob, GlobMatcher};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Level;
use crate::session::{Session, SessionPattern};

/// By key.
pub type Labels = BTreeMap<String, String>;

/// The terms as an operator writes them: in orders, answers, records and the state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// Everything of every agent; no other term may stand beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all: bool,
    /// Name of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Labels that the agent must have, each with a glob over its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub label: Labels,
    /// What `workflow:` in the configuration finds in a message or its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// Digest of a session as records show it, or an MCP session id, which is kept as its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Host, `host:port`, address or `address:port`, without case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Tool, prompt, resource or task that a call names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

/// The names of the terms that are there once at most, in the order in which they are shown.
const TERMS: [&str; 5] = ["agent", "workflow", "session", "server", "tool"];
const LABEL: &str = "label";

impl Terms {
    /// Reads `name=glob` words of the command line. Errors name the word and the remedy.
    pub fn parse(words: &[String], all: bool) -> Result<Terms, String> {
        let mut terms = Terms { all, ..Terms::default() };
        for word in words {
            let (name, text) = word
                .split_once('=')
                .ok_or_else(|| format!("{word:?}: write a selector as {}", TERMS.join("=… or ") + "=…"))?;
            if name == LABEL {
                let (key, value) = text.split_once('=').unwrap_or((text, "*"));
                if terms.label.insert(key.to_owned(), value.to_owned()).is_some() {
                    return Err(format!("label={key}: given twice; use a glob, or two stops"));
                }
                continue;
            }
            let slot = match name {
                "agent" => &mut terms.agent,
                "workflow" => &mut terms.workflow,
                "session" => &mut terms.session,
                "server" => &mut terms.server,
                "tool" => &mut terms.tool,
                _ => return Err(format!("{word:?}: the selectors are {}, {LABEL}", TERMS.join(", "))),
            };
            if slot.replace(text.to_owned()).is_some() {
                return Err(format!("{name}=: given twice; use a glob, or two stops"));
            }
        }
        Ok(terms)
    }

    fn named(&self) -> [(&'static str, Option<&str>); 5] {
        let texts = [&self.agent, &self.workflow, &self.session, &self.server, &self.tool];
        std::array::from_fn(|index| (TERMS[index], texts[index].as_deref()))
    }

    /// Only terms that the kernel can act on: whole agents.
    pub fn is_whole_agents(&self) -> bool {
        self.named().iter().all(|(name, text)| *name == "agent" || text.is_none())
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.all {
            return f.write_str("all");
        }
        let mut gap = "";
        for (name, text) in self.named() {
            if let Some(text) = text {
                write!(f, "{gap}{name}={text}")?;
                gap = " ";
            }
        }
        for (key, value) in &self.label {
            write!(f, "{gap}{LABEL}={key}={value}")?;
            gap = " ";
        }
        Ok(())
    }
}

/// An agent, as stops tell it from others.
#[derive(Clone, Copy, Debug)]
pub struct Whom<'a> {
    pub name: &'a str,
    pub labels: &'a Labels,
}

/// Of an agent of which no labels are known.
static NO_LABELS: Labels = Labels::new();

impl<'a> From<&'a str> for Whom<'a> {
    fn from(name: &'a str) -> Whom<'a> {
        Whom { name, labels: &NO_LABELS }
    }
}

impl Default for Whom<'_> {
    fn default() -> Self {
        Whom::from("")
    }
}

/// What is known of a message, or of a connection that carries none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts<'a> {
    pub agent: Whom<'a>,
    pub workflow: Option<&'a str>,
    pub session: Option<Session>,
    /// Another one it may be part of.
    pub other_session: Option<Session>,
    /// Every name and address of the server, in lower case.
    pub servers: &'a [String],
    /// What a call names, and the tool behind that.
    pub tools: [Option<&'a str>; 2],
    /// It is about a task, and the tool behind that is not known: a stop of any tool holds for it.
    pub is_tool_unknown: bool,
}

/// Compiled [`Terms`].
#[derive(Clone, Debug)]
pub struct Selector {
    terms: Terms,
    agent: Option<GlobMatcher>,
    labels: Vec<(String, GlobMatcher)>,
    workflow: Option<GlobMatcher>,
    session: Option<SessionPattern>,
    server: Option<GlobMatcher>,
    tool: Option<GlobMatcher>,
}

impl Selector {
    /// Compiles terms. Errors name the term.
    pub fn compile(mut terms: Terms) -> Result<Selector, String> {
        let none = terms.label.is_empty() && terms.named().iter().all(|(_, text)| text.is_none());
        match (terms.all, none) {
            (true, false) => return Err("--all stops everything; leave the other selectors out".into()),
            (false, true) => {
                return Err(format!("say whom to stop: {}=…, or --all", TERMS.join("=…, ")));
            }
            _ => {}
        }
        let session = terms.session.as_deref().map(SessionPattern::parse).transpose()?;
        // A session id is a secret: whoever has it can act in the session. It is kept as its digest.
        terms.session = session.as_ref().map(|pattern| pattern.pattern().to_owned());
        let compile = |term, text: &Option<String>| text.as_deref().map(|text| glob(term, text)).transpose();
        let server = terms.server.as_ref().map(|text| text.to_ascii_lowercase());
        let label = |(key, value): (&String, &String)| Ok((key.clone(), glob("label", value)?));
        Ok(Selector {
            labels: terms.label.iter().map(label).collect::<Result<_, String>>()?,
            agent: compile("agent", &terms.agent)?,
            workflow: compile("workflow", &terms.workflow)?,
            session,
            server: compile("server", &server)?,
            tool: compile("tool", &terms.tool)?,
            terms,
        })
    }

    /// Everything of the agent with exactly this name.
    pub fn of_agent(name: &str) -> Result<Selector, String> {
        Selector::compile(Terms { agent: Some(globset::escape(name)), ..Terms::default() })
    }

    /// Checks that a level can be carried out for these terms.
    pub fn permits(&self, level: Level) -> Result<(), String> {
        if level == Level::Refuse || self.is_whole_agents() {
            return Ok(());
        }
        Err(format!(
            "{self}: level {} acts on whole agents; select by agent=… and label=… alone, or --all",
            level.label()
        ))
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Everything the agents it matches do, whatever it is.
    pub fn is_whole_agents(&self) -> bool {
        self.terms.is_whole_agents()
    }

    /// May concern any agent, known or not.
    pub fn is_any_agent(&self) -> bool {
        self.agent.is_none() && self.labels.is_empty()
    }

    /// May concern an agent of this name, if it has the labels.
    pub fn matches_name(&self, agent: &str) -> bool {
        self.agent.as_ref().is_none_or(|glob| glob.is_match(agent))
    }

    /// May concern something of this agent.
    pub fn matches_agent<'a>(&self, agent: impl Into<Whom<'a>>) -> bool {
        let agent = agent.into();
        let has = |(key, glob): &(String, GlobMatcher)| {
            agent.labels.get(key).is_some_and(|value| glob.is_match(value))
        };
        self.matches_name(agent.name) && self.labels.iter().all(has)
    }

    /// May concern something this agent says to this server.
    pub fn matches_server(&self, agent: Whom<'_>, servers: &[String]) -> bool {
        self.matches_agent(agent)
            && self.server.as_ref().is_none_or(|glob| servers.iter().any(|server| glob.is_match(server)))
    }

    /// Concerns this.
    pub fn matches(&self, facts: &Facts<'_>) -> bool {
        let is = |glob: &Option<GlobMatcher>, value: Option<&str>| {
            glob.as_ref().is_none_or(|glob| value.is_some_and(|value| glob.is_match(value)))
        };
        self.matches_server(facts.agent, facts.servers)
            && is(&self.workflow, facts.workflow)
            && self.session.as_ref().is_none_or(|pattern| {
                [facts.session, facts.other_session].iter().flatten().any(|session| pattern.matches(session))
            })
            && (facts.is_tool_unknown || facts.tools.iter().any(|tool| is(&self.tool, *tool)))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.terms.fmt(f)
    }
}

/// Errors name the term.
fn glob(term: &str, text: &str) -> Result<GlobMatcher, String> {
    if text.is_empty() {
        return Err(format!("{term}=: give a name or a glob"));
    }
    let glob = Glob::new(text).map_err(|error| format!("{term}={text}: {}", error.kind()))?;
    Ok(glob.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selector(words: &[&str]) -> Selector {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Selector::compile(Terms::parse(&words, false).unwrap()).unwrap()
    }

    const BANK: &[&str] = &["bank.internal:443", "bank.internal", "10.0.0.7:443", "10.0.0.7"];

    fn check(words: &[&str], expect: bool) {
        let servers: Vec<String> = BANK.iter().map(|&name| name.to_owned()).collect();
        let labels = Labels::from([("tier".to_owned(), "gold".to_owned())]);
        let facts = Facts {
            agent: Whom { name: "payments/bot-1", labels: &labels },
            workflow: Some("w-7"),
            session: Session::of_id(b"secret"),
            other_session: None,
            servers: &servers,
            tools: [Some("t-1"), Some("wire_transfer")],
            is_tool_unknown: false,
        };
        assert_eq!(selector(words).matches(&facts), expect, "{words:?}");
    }

    #[test]
    fn terms_are_globs_over_whole_names_and_anded() {
        check(&["agent=payments/*"], true);
        check(&["agent=payments"], false);
        check(&["server=BANK.internal"], true);
        check(&["server=10.0.0.*", "tool=wire_*"], true);
        check(&["server=10.0.0.*", "tool=read_*"], false);
        check(&["tool=t-1"], true);
        check(&["workflow=w-?", "session=s-*"], true);
        check(&["session=secret"], true);
        check(&["session=p-*"], false);
        check(&["workflow=w", "agent=*"], false);
        check(&["label=tier=g*", "agent=*"], true);
        check(&["label=tier"], true);
        check(&["label=tier=silver"], false);
        check(&["label=tier", "label=team"], false);
    }

    #[test]
    fn what_has_no_value_matches_no_term() {
        let facts = Facts { agent: "a".into(), ..Facts::default() };
        assert!(selector(&["agent=a"]).matches(&facts));
        assert!(!selector(&["agent=a", "tool=*"]).matches(&facts));
        assert!(!selector(&["server=*"]).matches(&facts));
    }

    #[test]
    fn the_id_of_a_session_is_not_kept() {
        assert!(!format!("{:?}", selector(&["session=secret"])).contains("secret"));
    }

    #[test]
    fn an_agent_of_any_name_can_be_selected_exactly() {
        let selector = Selector::of_agent("a[1]*").unwrap();
        assert!(selector.matches_agent("a[1]*") && !selector.matches_agent("a1x"));
    }

    #[track_caller]
    fn check_error(words: &[&str], all: bool, expect: &str) {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let error = Terms::parse(&words, all).and_then(Selector::compile).unwrap_err();
        assert!(error.contains(expect), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        check_error(&["agent=a["], false, "agent=a[");
        check_error(&["agent=a", "agent=b"], false, "given twice");
        check_error(&["label=a", "label=a=b"], false, "given twice");
        check_error(&["label=a=["], false, "label=[");
        check_error(&["coder"], false, "coder");
        check_error(&["pod=x"], false, "the selectors are");
        check_error(&["tool="], false, "tool=");
        check_error(&[], false, "or --all");
        check_error(&["agent=a"], true, "leave the other selectors out");
    }

    #[test]
    fn levels_beyond_refuse_need_whole_agents() {
        assert!(selector(&["agent=a"]).permits(Level::Kill).is_ok());
        assert!(selector(&["agent=a", "tool=x"]).permits(Level::Isolate).unwrap_err().contains("tool=x"));
        assert!(selector(&["tool=x"]).permits(Level::Refuse).is_ok());
    }
}
