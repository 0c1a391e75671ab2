//! Which workflow a call belongs to: looked for in what the agent sends anyway, and in how its process was started.
//!
//! The places are tried in the configured order and the first that yields a workflow wins; one whose value is missing,
//! or not fit to be shown, or readable in two ways, is passed over as if it said nothing. What a message and its
//! headers say is the agent's claim: to stop an agent for certain, name the agent.

mod extractor;

use std::borrow::Cow;
use std::cell::LazyCell;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use crate::decode::{Headers, Message, a2a, find, trace};
use crate::kernel::cgroup;

pub use extractor::Extractor;

/// The configured places to look for a workflow.
#[derive(Clone, Debug, Default)]
pub struct Extractors {
    list: Vec<Extractor>,
}

/// What the process behind a connection says, read once for all of its messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfProcess {
    /// The first extractor that found something there, and what. Those after it need not be tried any more.
    found: Option<(usize, Arc<str>)>,
}

impl OfProcess {
    /// What holds where no message says otherwise.
    pub fn value(&self) -> Option<Arc<str>> {
        self.found.as_ref().map(|(_, value)| Arc::clone(value))
    }
}

impl Extractors {
    /// The configuration has checked them.
    pub fn compile(extractors: &[Extractor]) -> Extractors {
        Extractors { list: extractors.to_owned() }
    }

    /// Some extractor looks at the process behind a connection.
    pub fn reads_processes(&self) -> bool {
        self.list.iter().any(|extractor| matches!(extractor, Extractor::Env(_) | Extractor::Unit))
    }

    /// Looks at the process behind a connection; reads nothing that no extractor asks for. A process that is gone
    /// says nothing, nor does `pid` 0.
    pub fn of_process(&self, pid: u32) -> OfProcess {
        let environ = LazyCell::new(|| environ(pid).unwrap_or_default());
        let found = self.list.iter().enumerate().find_map(|(index, extractor)| {
            let value = match extractor {
                Extractor::Env(name) => printable(variable(&environ, name)?.into()),
                Extractor::Unit => {
                    let path = cgroup::of_pid(pid).ok()?;
                    printable(unit(path.to_str()?)?.to_owned().into())
                }
                _ => None,
            };
            Some((index, Arc::from(&*value?)))
        });
        OfProcess { found }
    }

    /// The workflow of one message, or of a request that carries none. Allocates only what it yields.
    pub fn of_message(
        &self,
        headers: Headers<'_>,
        message: Option<&Message<'_>>,
        process: &OfProcess,
    ) -> Option<Arc<str>> {
        let end = process.found.as_ref().map_or(self.list.len(), |(index, _)| *index);
        let mut before = self.list.iter().take(end);
        let said = before.find_map(|extractor| printable(claim(extractor, headers, message)?));
        said.map(Arc::from).or_else(|| process.found.as_ref().map(|(_, value)| Arc::clone(value)))
    }
}

/// What an extractor finds in a message or its headers.
fn claim<'a>(
    extractor: &Extractor,
    headers: Headers<'a>,
    message: Option<&Message<'a>>,
) -> Option<Cow<'a, str>> {
    let meta = message.and_then(|message| message.params.as_ref()).map_or("", |params| params.meta.raw);
    match extractor {
        Extractor::Header(name) => std::str::from_utf8(headers.only(name)?).ok().map(Cow::Borrowed),
        Extractor::Meta(key) => find::text(find::member(meta, key).ok()??),
        // The context in `_meta` is the message's own, that of HTTP only its carrier's: if there are both, that of
        // `_meta` holds (OpenTelemetry, semantic conventions for MCP).
        Extractor::Traceparent => match find::member(meta, "traceparent").ok()? {
            Some(value) => trace::trace_id(find::text(value)?.as_bytes()).map(|id| id.to_owned().into()),
            None => trace::trace_id(headers.only("traceparent")?).map(Cow::Borrowed),
        },
        Extractor::Baggage(key) => match find::member(meta, "baggage").ok()? {
            Some(value) => {
                let list = find::text(value)?;
                let found = trace::baggage(std::iter::once(list.as_bytes()), key)?;
                Some(found.into_owned().into())
            }
            None => trace::baggage(headers.all("baggage"), key),
        },
        Extractor::ContextId => a2a::context_id(message?),
        Extractor::Env(_) | Extractor::Unit => None,
    }
}

/// A value that is short enough to be kept, and that looks in a terminal like what it is.
fn printable(value: Cow<'_, str>) -> Option<Cow<'_, str>> {
    let is_printable = |letter: char| letter == ' ' || letter.is_ascii_graphic() || letter.is_alphanumeric();
    let fits = (1..=MAX_LEN).contains(&value.len()) && value.trim() == value;
    (fits && value.chars().all(is_printable)).then_some(value)
}

/// The environment that a process was started with: proc_pid_environ(5). `None` if it is longer than we read, since
/// what is behind may say otherwise.
fn environ(pid: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(MAX_ENVIRON + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_ENVIRON).then_some(bytes)
}

/// The value of a variable that is there once: of several, C takes the first and a shell the last.
fn variable<'a>(environ: &'a [u8], name: &str) -> Option<&'a str> {
    let entries = environ.split(|byte| *byte == 0);
    let mut values = entries.filter_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
    let value = values.next().filter(|_| values.next().is_none())?;
    std::str::from_utf8(value).ok()
}

/// The systemd unit of a cgroup, without its suffix. The outermost, for an agent may make cgroups inside its own; but
/// below the manager of a user's units, those.
fn unit(cgroup: &str) -> Option<&str> {
    let mut units = cgroup.split('/').filter_map(|part| {
        let (unit, kind) = part.rsplit_once('.')?;
        matches!(kind, "service" | "scope").then_some(unit)
    });
    let first = units.next()?;
    if first.starts_with("user@") { units.next().or(Some(first)) } else { Some(first) }
}

/// Bytes of a workflow's name.
const MAX_LEN: usize = 256;
/// Bytes of an environment.
const MAX_ENVIRON: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::decode::{Limits, Payload, decode, parse_request};

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const OTHER: &str = "0af7651916cd43dd8448eb211c80319c";

    fn extractors(yaml: &str) -> Extractors {
        let list: Vec<Extractor> = serde_saphyr::from_str(yaml).unwrap();
        Extractors::compile(&list)
    }

    /// What is found in a request with these header lines and this text of `params`.
    fn found(yaml: &str, lines: &str, params: &str, process: &OfProcess) -> Option<Arc<str>> {
        let bytes = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let head = parse_request(bytes.as_bytes(), 1 << 16).unwrap().unwrap();
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"x","params":{params}}}"#);
        let Ok(Payload::Single(message)) = decode(text.as_bytes(), &Limits::default()) else {
            panic!("{text}")
        };
        extractors(yaml).of_message(Headers::of(&head, bytes.as_bytes()), Some(&message), process)
    }

    #[track_caller]
    fn check(yaml: &str, lines: &str, params: &str, expect: Option<&str>) {
        let found = found(yaml, lines, params, &OfProcess::default());
        assert_eq!(found.as_deref(), expect, "{yaml} in {lines:?} {params}");
    }

    #[test]
    fn headers_and_meta_keys_are_workflows() {
        check("[{header: X-Flow}]", "x-flow: a b\r\n", "{}", Some("a b"));
        check("[{header: X-Flow}]", "x-flow: a\r\nX-Flow: a\r\n", "{}", None);
        check("[{header: X-Flow}]", "x-flow: \u{202e}a\r\n", "{}", None);
        check("[{meta: flow}]", "", r#"{"_meta":{"flow":"a\u002f1"}}"#, Some("a/1"));
        check("[{meta: com.example/flow}]", "", r#"{"_meta":{"com.example/flow":7}}"#, Some("7"));
        check("[{meta: flow}]", "", r#"{"_meta":{"flow":{"flow":"a"}}}"#, None);
        check("[{meta: flow}]", "", r#"{"_meta":{"flow":"a","Flow":"b"}}"#, None);
        check("[{meta: flow}]", "", r#"{"flow":"a","_meta":"flow"}"#, None);
        check("[{meta: flow}]", "flow: a\r\n", "[]", None);
        check("[{context_id: true}]", "", r#"{"message":{"contextId":"c"}}"#, Some("c"));
    }

    #[test]
    fn trace_and_baggage_of_the_message_come_before_those_of_http() {
        let parent = |trace: &str| format!("00-{trace}-00f067aa0ba902b7-01");
        let http = format!("traceparent: {}\r\n", parent(TRACE));
        let meta = |value: &str| format!(r#"{{"_meta":{{"traceparent":"{value}"}}}}"#);
        let yaml = "[{traceparent: true}]";
        check(yaml, &http, "{}", Some(TRACE));
        check(yaml, "", &meta(&parent(OTHER)), Some(OTHER));
        check(yaml, &http, &meta(&parent(OTHER)), Some(OTHER));
        check(yaml, &http, &meta("malformed"), None);
        check(yaml, &http, r#"{"_meta":{"Traceparent":"x"}}"#, None);
        check(yaml, &http, r#"{"_meta":{"traceparent":null}}"#, Some(TRACE));
        check(yaml, &format!("{http}{http}"), "{}", None);

        let yaml = "[{baggage: flow}]";
        check(yaml, "baggage: a=1\r\nBaggage: flow=b%20c;ttl=1\r\n", "{}", Some("b c"));
        check(yaml, "baggage: flow=a\r\n", r#"{"_meta":{"baggage":"user=u,flow=b"}}"#, Some("b"));
        check(yaml, "baggage: flow=a\r\n", r#"{"_meta":{"baggage":"user=u"}}"#, None);
        check(yaml, "baggage: flow=%0a\r\n", "{}", None);
    }

    #[test]
    fn the_first_that_yields_wins_wherever_it_looks() {
        let process = |index| OfProcess { found: Some((index, "p".into())) };
        let yaml = "[{header: h}, {env: E}, {meta: m}]";
        let check = |lines, params, process: &OfProcess, expect: Option<&str>| {
            assert_eq!(found(yaml, lines, params, process).as_deref(), expect, "{lines:?} {params}");
        };
        let meta = r#"{"_meta":{"m":"m"}}"#;
        check("h: h\r\n", meta, &process(1), Some("h"));
        check("", meta, &process(1), Some("p"));
        check("", meta, &OfProcess::default(), Some("m"));
        check("h: 1\r\nh: 2\r\n", meta, &OfProcess::default(), Some("m"));
        check("", "{}", &OfProcess::default(), None);
        check("h: h\r\n", "{}", &process(0), Some("p"));
    }

    #[test]
    fn a_request_without_a_message_has_its_headers() {
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nx: a\r\n\r\n";
        let head = parse_request(bytes, 1 << 16).unwrap().unwrap();
        let of = |yaml| extractors(yaml).of_message(Headers::of(&head, bytes), None, &OfProcess::default());
        assert_eq!(of("[{meta: m}, {context_id: true}, {header: x}]").as_deref(), Some("a"));
        assert_eq!(of("[]"), None);
        assert!(
            !extractors("[{meta: a}]").reads_processes() && extractors("[{unit: true}]").reads_processes()
        );
    }

    #[test]
    fn only_what_can_be_shown_is_a_workflow() {
        let check = |value: &str, fits| assert_eq!(printable(value.into()).is_some(), fits, "{value:?}");
        check(&"x".repeat(256), true);
        check("Zürich 7/ä", true);
        for other in [
            "",
            " ",
            " a",
            "a ",
            "a\n",
            "a\0",
            "a\u{1b}[1m",
            "a\u{202e}b",
            "a\u{200b}",
            "\u{fffd}",
            &"x".repeat(257),
        ] {
            check(other, false);
        }
    }

    #[test]
    fn variables_are_read_if_they_are_there_once() {
        let environ = b"A=1\0FLOW=a=b\0FLOWS=c\0X\0TWICE=1\0TWICE=1\0BAD=\xff\0EMPTY=\0";
        let check = |name, expect| assert_eq!(variable(environ, name), expect, "{name}");
        check("FLOW", Some("a=b"));
        check("EMPTY", Some(""));
        for none in ["flow", "FLO", "X", "TWICE", "BAD", "B"] {
            check(none, None);
        }
        assert_eq!(variable(b"", "A"), None);
    }

    #[test]
    fn units_are_the_outermost_below_slices() {
        let check = |path, expect| assert_eq!(unit(path), expect, "{path}");
        check("/system.slice/claude-a.service", Some("claude-a"));
        check("/system.slice/claude-a.service/evil.service", Some("claude-a"));
        check("/user.slice/user-1.slice/session-3.scope", Some("session-3"));
        check("/user.slice/user-1.slice/user@1.service/app.slice/b.c.service/x", Some("b.c"));
        check("/user.slice/user-1.slice/user@1.service", Some("user@1"));
        check("/agents.slice/coder", None);
        check("/", None);
        check(".service", Some(""));
    }

    /// Runs `look` at a process with this environment.
    fn beside<T>(variables: &[(&str, &str)], look: impl FnOnce(u32) -> T) -> T {
        let mut child = Command::new("cat");
        child.env_clear().envs(variables.iter().copied());
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It has its own environment once it answers.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"x").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let seen = look(child.id());
        drop(stdin);
        child.wait().unwrap();
        seen
    }

    #[test]
    fn a_process_is_asked_for_its_environment() {
        let of = |variables: &[_]| {
            beside(variables, |pid| extractors("[{header: h}, {env: NONE}, {env: FLOW}]").of_process(pid))
                .found
        };
        assert_eq!(of(&[("FLOW", "nightly")]), Some((2, "nightly".into())));
        assert_eq!(of(&[("FLOW", "a\nb")]), None);
        let long = "x".repeat(100_000);
        assert_eq!(of(&[("FLOW", "a"), ("A", &long), ("B", &long), ("C", &long)]), None, "beyond the bound");
        let gone = extractors("[{env: FLOW}, {unit: true}]");
        assert_eq!(gone.of_process(0), OfProcess::default());
        assert_eq!(gone.of_process(u32::MAX), OfProcess::default());
    }
}
