//! One rule, compiled: what it looks at, and what it does.

use std::sync::Arc;
use std::time::Duration;

use globset::GlobSet;
use jiff::SignedDuration;

use super::super::condition::{Condition, Inputs};
use super::super::drift::{DriftRule, InFlight};
use super::super::limit::Limit;
use super::super::redact::Redaction;
use super::super::stop::Level;
use super::super::subject::Subject;
use super::super::tripwire::Tripwire;
use super::STANDING;
use super::defaults::Bias;
use super::file::{Action, Author, Denials, Globs, Match, Mode, Phase, RuleFile};
use super::globs::{compile_globs, lower};
use crate::session::Session;

/// A compiled rule.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) id: Arc<str>,
    pub(super) author: Author,
    pub(super) mode: Mode,
    pub(super) reason: Arc<str>,
    pub(super) effect: Effect,
    /// `None` for `hide`, which is about what is asked and about lists.
    pub(super) phase: Option<Phase>,
    matches: Matches,
    /// With `allow_only`: the field of `matches` that says what is allowed, [`Field::Tool`] together with `when`.
    allowed: Option<Field>,
    pub(super) when: Option<Condition>,
    /// What becomes of a message for which `when` cannot be computed.
    pub(super) on_error: Bias,
}

/// What a rule does.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Deny,
    AllowOnly,
    Hide,
    Redact(Arc<Redact>),
    Limit(Arc<Limited>),
    Drift(Arc<DriftRule>),
    Approve(Arc<Approval>),
    Stop(Arc<Tripwire>),
}

/// A rule with `action: redact`.
#[derive(Debug)]
pub struct Redact {
    /// Id of the rule.
    pub rule: Arc<str>,
    pub mode: Mode,
    pub redaction: Redaction,
}

/// A rule with `action: limit`.
#[derive(Debug)]
pub struct Limited {
    pub mode: Mode,
    pub reason: Arc<str>,
    pub limit: Limit,
}

/// A rule with `action: require_approval`.
#[derive(Debug)]
pub struct Approval {
    /// Id of the rule.
    pub rule: Arc<str>,
    pub reason: Arc<str>,
    /// How long a call waits.
    pub timeout: Duration,
}

/// The fields that a rule may look at, in the order in which one says more than another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Agent,
    Namespace,
    Server,
    Method,
    Tool,
    Workflow,
    Session,
}

/// Those that differ from message to message; the scope of a connection has looked at the others.
const OF_MESSAGES: [Field; 4] = [Field::Method, Field::Tool, Field::Workflow, Field::Session];

/// Compiled globs; `None` matches everything.
#[derive(Debug)]
struct Matches {
    agent: Option<GlobSet>,
    namespace: Option<GlobSet>,
    server: Option<GlobSet>,
    method: Option<GlobSet>,
    tool: Option<GlobSet>,
    workflow: Option<GlobSet>,
    session: Option<GlobSet>,
}

/// The variables of conditions that only a message has, or whoever sends it.
const OF_MESSAGES_ONLY: [&str; 10] =
    ["method", "tool", "protocol", "revision", "from", "size", "annotations", "args", "params", "user"];
/// The method of a call of a tool, which tasks go on with.
const CALL: &str = "tools/call";
/// Without these no session begins, stays or ends, whatever methods are allowed.
const LIFECYCLE: [&str; 5] =
    ["initialize", "notifications/initialized", "notifications/cancelled", "ping", "server/discover"];
/// How long a call waits for a person where the rule does not say.
const APPROVE_WITHIN: SignedDuration = SignedDuration::from_mins(5);
const MAX_APPROVE_WITHIN: SignedDuration = SignedDuration::from_hours(24);

impl Rule {
    /// Errors name the field and the remedy.
    pub(super) fn compile(file: &RuleFile) -> Result<Rule, String> {
        check_fields(file)?;
        let reason: Arc<str> = file.reason.as_deref().unwrap_or("not allowed by policy").into();
        let phase = phase(file)?;
        Ok(Rule {
            effect: effect(file, &reason)?,
            allowed: if file.action == Action::AllowOnly { Some(allowed(file)?) } else { None },
            matches: Matches::compile(&file.matches, file.action)?,
            when: when(file, phase)?,
            on_error: file.on_error.unwrap_or(Bias::Deny),
            phase,
            mode: file.mode,
            author: file.author,
            id: file.id.as_str().into(),
            reason,
        })
    }

    /// Whether a message of a connection in its scope is what the rule is about. For `allow_only` that is its kind; see
    /// [`Rule::allows`].
    pub(super) fn concerns(&self, subject: &Subject<'_>) -> bool {
        let asked = OF_MESSAGES.into_iter().filter(|field| Some(*field) != self.allowed);
        asked.into_iter().all(|field| self.field(field, subject))
    }

    /// Whether its phase is that of a message, and its agents and servers are the message's.
    pub(super) fn is_in_scope_of(&self, subject: &Subject<'_>) -> bool {
        let is_of_phase = self.is_of(subject.phase);
        let asked = [Field::Agent, Field::Namespace, Field::Server].into_iter();
        let asked = asked.filter(|field| Some(*field) != self.allowed);
        is_of_phase && asked.into_iter().all(|field| self.field(field, subject))
    }

    /// Whether it asks for no agent, or for this one.
    pub(super) fn is_for(&self, agent: &str) -> bool {
        self.matches.agent.as_ref().is_none_or(|globs| globs.is_match(agent))
    }

    /// Whether it asks for no namespace, or for this one.
    pub(super) fn is_in(&self, namespace: &str) -> bool {
        self.matches.namespace.as_ref().is_none_or(|globs| globs.is_match(namespace))
    }

    /// Whether it asks for no server, or for one with any of these names.
    pub(super) fn is_at(&self, servers: &[String]) -> bool {
        self.matches.server.as_ref().is_none_or(|globs| servers.iter().any(|name| globs.is_match(name)))
    }

    pub(super) fn is_of(&self, phase: Phase) -> bool {
        let cuts = matches!(&self.effect, Effect::Drift(drift) if drift.in_flight == InFlight::Cut);
        self.phase.map_or(phase != Phase::Response, |of| of == phase) || cuts && phase == Phase::Response
    }

    /// With `allow_only`: whether a message of its kind is allowed by it.
    pub(super) fn allows(&self, subject: &Subject<'_>) -> bool {
        let lifecycle = self.allowed == Some(Field::Method)
            && subject.method.is_none_or(|method| LIFECYCLE.contains(&method));
        lifecycle || self.allowed.is_none_or(|field| self.field(field, subject))
    }

    /// Whether its condition, if it has one, holds for a message.
    pub(super) fn holds(&self, inputs: &Inputs<'_>) -> Result<bool, String> {
        self.when.as_ref().map_or(Ok(true), |when| when.holds(inputs))
    }

    /// It looks at nothing that only a JSON-RPC message has, and so is also about what cannot be read.
    pub(super) fn is_of_connection(&self) -> bool {
        let reads_message = |when: &Condition| OF_MESSAGES_ONLY.iter().any(|name| when.uses(name));
        self.phase == Some(Phase::Request)
            && self.matches.method.is_none()
            && self.matches.tool.is_none()
            && !self.when.as_ref().is_some_and(reads_message)
            && matches!(self.effect, Effect::Deny | Effect::AllowOnly | Effect::Stop(_))
    }

    /// Whether it looks at a variable of conditions, or at [`STANDING`].
    pub(super) fn depends_on(&self, variable: &str) -> bool {
        let looks = variable == STANDING && matches!(self.effect, Effect::Drift(_));
        looks || self.when.as_ref().is_some_and(|when| when.uses(variable))
    }

    /// Whether one field of it matches.
    pub(super) fn field(&self, field: Field, subject: &Subject<'_>) -> bool {
        let matches = &self.matches;
        let is = |globs: &Option<GlobSet>, text: Option<&str>| {
            globs.as_ref().is_none_or(|globs| text.is_some_and(|text| globs.is_match(text)))
        };
        match field {
            Field::Agent => self.is_for(subject.agent.name),
            Field::Namespace => self.is_in(subject.agent.namespace()),
            Field::Server => self.is_at(subject.servers),
            Field::Method => {
                let [method, other] = subject_methods(subject);
                is(&matches.method, method) || !self.is_counted() && is(&matches.method, other)
            }
            Field::Tool => {
                let other = subject.of_tool.filter(|_| !self.is_counted());
                is(&matches.tool, subject.name) || other.is_some() && is(&matches.tool, other)
            }
            Field::Workflow => is(&matches.workflow, subject.workflow),
            Field::Session => is(&matches.session, subject.session.as_ref().map(Session::as_str)),
        }
    }

    /// By which tools the index finds it.
    pub(super) fn index_tool(&self, file: &RuleFile) -> Option<Globs> {
        file.matches.tool.clone().filter(|_| self.allowed.is_none())
    }

    /// By which methods the index finds it.
    pub(super) fn index_method(&self, file: &RuleFile) -> Option<Globs> {
        match self.allowed {
            Some(Field::Method) => None,
            Some(Field::Tool) if file.matches.tool.is_some() && file.matches.method.is_none() => {
                Some(Globs::One(CALL.to_owned()))
            }
            _ => file.matches.method.clone(),
        }
    }

    /// By which servers the index finds it.
    pub(super) fn index_server(&self, file: &RuleFile) -> Option<Globs> {
        file.matches.server.as_ref().filter(|_| self.allowed != Some(Field::Server)).map(lower)
    }

    /// With `require_approval`: without the methods of the lifecycle nothing could be asked or cancelled, so they need no
    /// approval unless the rule names methods.
    pub(super) fn asks_about(&self, subject: &Subject<'_>) -> bool {
        self.matches.method.is_some() || !subject.method.is_some_and(|method| LIFECYCLE.contains(&method))
    }

    /// It is done with at the call that begins a piece of work, and not again at what goes on with it.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self.effect, Effect::Approve(_) | Effect::Limit(_))
    }
}

/// The methods by which rules know a message: what is about a task belongs to the call that began it, and an entry of a
/// list to what uses it.
pub(super) fn subject_methods<'a>(subject: &Subject<'a>) -> [Option<&'a str>; 2] {
    let other = match (subject.phase, subject.method) {
        (Phase::List, Some("tools/list")) => Some(CALL),
        (Phase::List, Some("prompts/list")) => Some("prompts/get"),
        (Phase::List, Some("resources/list" | "resources/templates/list")) => Some("resources/read"),
        _ if subject.of_tool.is_some() => Some(CALL),
        _ => subject.method,
    };
    [subject.method, other]
}

impl Matches {
    fn compile(file: &Match, action: Action) -> Result<Matches, String> {
        // The tools of `allow_only` are those of calls: other methods are not of its kind.
        let calls = Globs::One(CALL.to_owned());
        let is_of_calls = action == Action::AllowOnly && file.tool.is_some() && file.method.is_none();
        let method = if is_of_calls { Some(&calls) } else { file.method.as_ref() };
        Ok(Matches {
            agent: compile_globs(file.agent.as_ref(), "match.agent")?,
            namespace: compile_globs(file.namespace.as_ref(), "match.namespace")?,
            server: compile_globs(file.server.as_ref().map(lower).as_ref(), "match.server")?,
            method: compile_globs(method, "match.method")?,
            tool: compile_globs(file.tool.as_ref(), "match.tool")?,
            workflow: compile_globs(file.workflow.as_ref(), "match.workflow")?,
            session: compile_globs(file.session.as_ref(), "match.session")?,
        })
    }
}

/// What an `allow_only` rule allows. The index finds such a rule by its kind alone.
fn allowed(file: &RuleFile) -> Result<Field, String> {
    match &file.matches {
        matches if matches.tool.is_some() || file.when.is_some() => Ok(Field::Tool),
        Match { method: Some(_), .. } => Ok(Field::Method),
        Match { server: Some(_), .. } => Ok(Field::Server),
        _ => {
            Err("match: `allow_only` needs to say what is allowed: a `server`, `method`, `tool` or `when`"
                .into())
        }
    }
}

fn when(file: &RuleFile, phase: Option<Phase>) -> Result<Option<Condition>, String> {
    let Some(text) = &file.when else {
        return match file.on_error {
            Some(_) => Err("`on_error` goes with `when`; leave it out".to_owned()),
            None => Ok(None),
        };
    };
    let compile = |phase| Condition::compile(text, phase).map_err(|error| format!("when: {error}"));
    match phase {
        Some(phase) => compile(phase).map(Some),
        // It may look only at what both phases have.
        None => compile(Phase::List).and_then(|_| compile(Phase::Request)).map(Some),
    }
}

fn phase(file: &RuleFile) -> Result<Option<Phase>, String> {
    let phase = file.phase.unwrap_or_default();
    let fits = match file.action {
        Action::Hide if file.phase.is_some() => {
            return Err("`hide` is about lists and about what is asked; leave `phase` out".to_owned());
        }
        Action::Hide => return Ok(None),
        Action::Deny => phase != Phase::List,
        Action::AllowOnly => phase != Phase::Response,
        Action::Redact => true,
        Action::Limit | Action::DenyDrift | Action::RequireApproval | Action::Stop => phase == Phase::Request,
    };
    let hint = if phase == Phase::List { "; use `hide` to take entries out of lists" } else { "" };
    if fits {
        Ok(Some(phase))
    } else {
        Err(format!("`phase`: `action: {}` has no such phase{hint}", file.action.name()))
    }
}

/// Fields that belong to one action stand at no other.
fn check_fields(file: &RuleFile) -> Result<(), String> {
    let given = [
        ("after", file.after.is_some(), Action::Stop),
        ("level", file.level.is_some(), Action::Stop),
        ("timeout", file.timeout.is_some(), Action::RequireApproval),
        ("redact", file.redact.is_some(), Action::Redact),
        ("limit", file.limit.is_some(), Action::Limit),
        ("drift", file.drift.is_some(), Action::DenyDrift),
    ];
    match given.into_iter().find(|(_, is_given, action)| *is_given && *action != file.action) {
        Some((field, _, action)) => Err(format!(
            "`{field}` goes with `action: {}`; leave it out, or change the action",
            action.name()
        )),
        None => Ok(()),
    }
}

fn effect(file: &RuleFile, reason: &Arc<str>) -> Result<Effect, String> {
    Ok(match file.action {
        Action::Deny => Effect::Deny,
        Action::AllowOnly => Effect::AllowOnly,
        Action::Hide => Effect::Hide,
        Action::Redact => {
            let redact = file.redact.as_ref().ok_or("`redact` is missing; say what to take out")?;
            let redaction = Redaction::compile(redact)?;
            Effect::Redact(Arc::new(Redact { rule: file.id.as_str().into(), mode: file.mode, redaction }))
        }
        Action::Limit => {
            let limit = file.limit.as_ref().ok_or("`limit` is missing; say how much to let through")?;
            let limit = limit.compile(&file.id.as_str().into())?;
            Effect::Limit(Arc::new(Limited { mode: file.mode, reason: Arc::clone(reason), limit }))
        }
        Action::DenyDrift => {
            let drift = file.drift.clone().unwrap_or_default();
            Effect::Drift(Arc::new(drift.compile(&file.id.as_str().into(), file.mode, reason)?))
        }
        Action::RequireApproval => {
            let timeout = file.timeout.unwrap_or(APPROVE_WITHIN);
            if timeout <= SignedDuration::ZERO || timeout > MAX_APPROVE_WITHIN {
                return Err(format!("timeout: {timeout:#}: give more than nothing and no more than 24h"));
            }
            Effect::Approve(Arc::new(Approval {
                rule: file.id.as_str().into(),
                reason: Arc::clone(reason),
                timeout: timeout.unsigned_abs(),
            }))
        }
        Action::Stop => Effect::Stop(Arc::new(Tripwire {
            rule: file.id.as_str().into(),
            mode: file.mode,
            after: file.after.map(Denials::check).transpose()?,
            level: file.level.unwrap_or(Level::Refuse),
            reason: Arc::clone(reason),
        })),
    })
}

impl Field {
    pub const ALL: [Field; 7] = [
        Field::Agent,
        Field::Namespace,
        Field::Server,
        Field::Method,
        Field::Tool,
        Field::Workflow,
        Field::Session,
    ];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Field::Agent => "agent",
            Field::Namespace => "namespace",
            Field::Server => "server",
            Field::Method => "method",
            Field::Tool => "tool",
            Field::Workflow => "workflow",
            Field::Session => "session",
        }
    }

    /// What a rule asks for there.
    pub fn globs(self, matches: &Match) -> Option<&Globs> {
        match self {
            Field::Agent => matches.agent.as_ref(),
            Field::Namespace => matches.namespace.as_ref(),
            Field::Server => matches.server.as_ref(),
            Field::Method => matches.method.as_ref(),
            Field::Tool => matches.tool.as_ref(),
            Field::Workflow => matches.workflow.as_ref(),
            Field::Session => matches.session.as_ref(),
        }
    }

    /// What a message has there.
    pub fn value(self, subject: &Subject<'_>) -> String {
        match self {
            Field::Agent => subject.agent.name.to_owned(),
            Field::Namespace => subject.agent.namespace().to_owned(),
            Field::Server => subject.servers.join(", "),
            Field::Method => subject.method.unwrap_or_default().to_owned(),
            Field::Tool => subject.name.unwrap_or_default().to_owned(),
            Field::Workflow => subject.workflow.unwrap_or_default().to_owned(),
            Field::Session => subject.session.map(|session| session.to_string()).unwrap_or_default(),
        }
    }
}
