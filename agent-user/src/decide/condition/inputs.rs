//! Values of variables for one message, each made when the first condition asks for it.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jiff::SignedDuration;
use serde_json::Map;

use super::json;
use super::value::{Members, Text, Value};
use super::variables::Input;
use crate::decide::policy::Phase;
use crate::decide::subject::{Party, Subject};

/// What conditions look at: one message. Making it costs nothing; JSON is read at most once, and only where a condition
/// uses it.
#[derive(Debug)]
pub struct Inputs<'a> {
    subject: &'a Subject<'a>,
    args: Lazy<'a>,
    params: Lazy<'a>,
    result: Lazy<'a>,
    error: Lazy<'a>,
    item: Lazy<'a>,
    claims: Lazy<'a>,
    labels: Lazy<'a>,
    annotations: Lazy<'a>,
}

/// A value, or why there is none.
type Lazy<'a> = OnceLock<Result<Value<'a>, String>>;

impl<'a> Inputs<'a> {
    pub fn new(subject: &'a Subject<'a>) -> Inputs<'a> {
        Inputs {
            subject,
            args: OnceLock::new(),
            params: OnceLock::new(),
            result: OnceLock::new(),
            error: OnceLock::new(),
            item: OnceLock::new(),
            claims: OnceLock::new(),
            labels: OnceLock::new(),
            annotations: OnceLock::new(),
        }
    }

    /// The error is of JSON that cannot be read.
    pub(super) fn value(&self, input: Input) -> Result<Value<'a>, String> {
        let subject = self.subject;
        Ok(match input {
            Input::AgentName => text(subject.agent.name),
            Input::AgentPid => Value::Int(subject.agent.pid.into()),
            Input::AgentUid => Value::Int(subject.agent.uid.into()),
            Input::AgentExe => text(subject.agent.exe.unwrap_or_default()),
            Input::AgentNamespace => text(subject.agent.pod.map_or("", |pod| &pod.namespace)),
            Input::AgentPod => text(subject.agent.pod.map_or("", |pod| &pod.name)),
            Input::AgentServiceAccount => text(subject.agent.pod.map_or("", |pod| &pod.service_account)),
            Input::AgentContainer => text(subject.agent.pod.map_or("", |pod| &pod.container)),
            Input::AgentImage => text(subject.agent.pod.map_or("", |pod| &pod.image)),
            Input::AgentNode => text(subject.agent.pod.map_or("", |pod| &pod.node)),
            Input::AgentAnnotations => {
                let of_pod = subject.agent.pod.map(|pod| &pod.annotations);
                return self.annotations.get_or_init(|| Ok(labels(of_pod))).clone();
            }
            Input::AgentLabels => {
                return self.labels.get_or_init(|| Ok(labels(subject.agent.labels))).clone();
            }
            Input::UserVerified => Value::Bool(subject.user.is_some_and(|user| user.verified)),
            Input::UserClaims => return lazy(&self.claims, || claims(subject.user.map(|user| &user.claims))),
            Input::ServerName => text(subject.server),
            Input::ServerHost => Value::made(split_port(subject.server).0.to_ascii_lowercase()),
            Input::ServerPort => Value::Int(port(subject).into()),
            Input::ServerAddress => match subject.address {
                Some(address) => Value::made(address.ip().to_canonical().to_string()),
                None => text(""),
            },
            Input::Session => text(subject.session.as_ref().map_or("", |session| session.as_str())),
            Input::Workflow => text(subject.workflow.unwrap_or_default()),
            Input::Protocol => text(subject.protocol),
            Input::Revision => text(subject.revision.unwrap_or_default()),
            Input::Method => text(subject.method.unwrap_or_default()),
            Input::Tool => text(subject.name.unwrap_or_default()),
            Input::From => text(match subject.from {
                Party::Agent => "agent",
                Party::Server => "server",
            }),
            Input::Phase => text(phase_name(subject.phase)),
            Input::Size => integer(subject.size),
            Input::Now => Value::Timestamp(subject.now),
            Input::Known => Value::Bool(subject.annotations.known),
            Input::ReadOnly => Value::Bool(subject.annotations.read_only),
            Input::Destructive => Value::Bool(subject.annotations.destructive),
            Input::Idempotent => Value::Bool(subject.annotations.idempotent),
            Input::OpenWorld => Value::Bool(subject.annotations.open_world),
            Input::RecentCalls => integer(subject.recent.calls),
            Input::RecentDenials => integer(subject.recent.denials),
            Input::Args => return lazy(&self.args, || read("args", subject.arguments, empty)),
            Input::Params => return lazy(&self.params, || read("params", subject.params, empty)),
            Input::Result => return lazy(&self.result, || read("result", subject.result, || Value::Null)),
            Input::Error => return lazy(&self.error, || read("error", subject.error, || Value::Null)),
            Input::Item => return lazy(&self.item, || read("item", subject.item, || Value::Null)),
            Input::IsError => Value::Bool(subject.is_error),
            Input::Took => {
                Value::Duration(SignedDuration::try_from(subject.took).unwrap_or(SignedDuration::MAX))
            }
        })
    }
}

/// As rules write it.
pub(super) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Request => "request",
        Phase::Response => "response",
        Phase::List => "list",
    }
}

fn lazy<'a>(value: &Lazy<'a>, make: impl FnOnce() -> Result<Value<'a>, String>) -> Result<Value<'a>, String> {
    value.get_or_init(make).clone()
}

fn read<'a>(
    name: &str,
    json: Option<&'a str>,
    absent: impl FnOnce() -> Value<'a>,
) -> Result<Value<'a>, String> {
    let Some(json) = json else { return Ok(absent()) };
    json::parse(json).map_err(|error| format!("`{name}` cannot be read: {error}"))
}

fn claims(claims: Option<&Map<String, serde_json::Value>>) -> Result<Value<'_>, String> {
    let Some(claims) = claims else { return Ok(empty()) };
    json::convert(claims).map_err(|error| format!("`user.claims` cannot be read: {error}"))
}

fn labels(labels: Option<&BTreeMap<String, String>>) -> Value<'_> {
    let labels = labels.into_iter().flatten();
    let members = labels.map(|(name, label)| (Text::Borrowed(name), text(label)));
    // No name is twice in a map.
    Value::Map(Arc::new(Members::new(members.collect()).unwrap_or_default()))
}

fn empty<'a>() -> Value<'a> {
    Value::Map(Arc::default())
}

fn text(text: &str) -> Value<'_> {
    Value::Text(Text::Borrowed(text))
}

fn integer<'a>(number: impl TryInto<i64>) -> Value<'a> {
    Value::Int(number.try_into().unwrap_or(i64::MAX))
}

fn port(subject: &Subject<'_>) -> u16 {
    let named = || split_port(subject.server).1.and_then(|port| port.parse().ok());
    subject.address.map(|address| address.port()).or_else(named).unwrap_or(0)
}

/// Host and port of `host`, `host:port`, `[v6]:port`, `[v6]` or `v6`.
fn split_port(name: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = name.strip_prefix('[').and_then(|name| name.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match name.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_split_into_host_and_port() {
        for (name, host, port) in [
            ("bank.internal", "bank.internal", None),
            ("bank.internal:8080", "bank.internal", Some("8080")),
            ("[fd00::1]:8080", "fd00::1", Some("8080")),
            ("[fd00::1]", "fd00::1", None),
            ("fd00::1", "fd00::1", None),
            ("", "", None),
            (":80", "", Some("80")),
        ] {
            assert_eq!(split_port(name), (host, port), "{name}");
        }
    }
}
