//! What a request of A2A's HTTP+JSON binding asks for (A2A 0.3, section 3.5.3, and 1.0, section 11): its target names the
//! operation, and its content is what `params` is elsewhere.
//!
//! Servers find their routes in more spellings of a path than one: escapes are undone before or after it is taken apart,
//! a tenant or any base path may stand in front, and some compare without case.

use std::borrow::Cow;

use percent_encoding::percent_decode;

use super::json::Scanner;
use super::jsonrpc::{Kind, Message};
use super::members::{Params, ResultMembers};
use super::{Headers, Limits, Method, RequestHead, Undecodable};

/// The operation that a request asks for, by its name in A2A 1.0 (which is also its method in JSON-RPC there).
///
/// What ends in `/tasks` or `/tasks/{id}` alone is some task of any HTTP API, unless a header says that it is A2A's.
pub fn operation(head: &RequestHead, bytes: &[u8]) -> Option<&'static str> {
    let path = percent_decode(head.path(bytes));
    let path = Cow::from(path).to_ascii_lowercase();
    let segments = segments(&path);
    let (last, before) = segments.split_last()?;
    let of_tasks = before.contains(&&b"tasks"[..]);
    let configs = segments.iter().rposition(|segment| *segment == b"pushnotificationconfigs");
    let creates = head.method == Method::Post;
    Some(match *last {
        b"message:send" => "SendMessage",
        b"message:stream" => "SendStreamingMessage",
        b"extendedagentcard" => "GetExtendedAgentCard",
        _ if of_tasks && last.ends_with(b":cancel") => "CancelTask",
        _ if of_tasks && last.ends_with(b":subscribe") => "SubscribeToTask",
        _ if of_tasks && configs.is_some() => match configs == Some(before.len()) {
            true if creates => "CreateTaskPushNotificationConfig",
            true => "ListTaskPushNotificationConfigs",
            false if head.method == Method::Delete => "DeleteTaskPushNotificationConfig",
            false => "GetTaskPushNotificationConfig",
        },
        b"tasks" if is_of_a2a(head, bytes) => "ListTasks",
        _ if of_tasks && is_of_a2a(head, bytes) => "GetTask",
        _ => return None,
    })
}

/// The parts of a path as a server that resolves it sees them (RFC 3986, section 5.2.4), without parameters.
fn segments(path: &[u8]) -> Vec<&[u8]> {
    let mut segments = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment.split(|byte| *byte == b';').next().unwrap_or_default() {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    segments
}

/// Whether a client says that it speaks A2A (1.0, section 3.6: a header, or a parameter of the query).
fn is_of_a2a(head: &RequestHead, bytes: &[u8]) -> bool {
    let headers = Headers::of(head, bytes);
    let names = ["a2a-version", "a2a-extensions", "x-a2a-extensions"];
    let query = head.target.of(bytes).split(|byte| *byte == b'?').nth(1).unwrap_or_default();
    let mut parameters = query.split(|byte| *byte == b'&');
    names.iter().any(|name| headers.all(name).next().is_some())
        || parameters.any(|parameter| parameter.to_ascii_lowercase().starts_with(b"a2a-version="))
}

/// The request for an operation; `content` is empty or JSON.
///
/// # Errors
/// The content is not JSON that everybody reads alike.
pub fn asked<'a>(
    operation: &'static str,
    content: &'a [u8],
    limits: &Limits,
) -> Result<Message<'a>, Undecodable> {
    let kind = Kind::Operation { method: operation };
    let (raw, params) = match whole(content, limits, Params::read) {
        Ok((raw, params)) => (raw, Some(params)),
        Err(Undecodable::Empty) => ("", None),
        Err(fault) => return Err(fault),
    };
    Ok(Message { kind, raw, params, result: None, error: None })
}

/// What answers an operation: one object, or one event of a stream.
///
/// # Errors
/// It is not JSON that everybody reads alike.
pub fn answered<'a>(content: &'a [u8], is_error: bool, limits: &Limits) -> Result<Message<'a>, Undecodable> {
    let (raw, result) = whole(content, limits, ResultMembers::read)?;
    let kind = Kind::Response { id: None, is_error };
    let (result, error) = if is_error { (None, Some(raw)) } else { (Some(result), None) };
    Ok(Message { kind, raw, params: None, result, error })
}

/// Reads one value and nothing else.
fn whole<'a, T>(
    content: &'a [u8],
    limits: &Limits,
    read: impl FnOnce(&mut Scanner<'a>) -> Result<T, super::Stop>,
) -> Result<(&'a str, T), Undecodable> {
    let mut scanner = Scanner::new(content, limits.depth)?;
    let read = scanner.spanned(read)?;
    scanner.space();
    match scanner.fault.take() {
        Some(fault) => Err(fault),
        None if !scanner.at_end() => Err(Undecodable::Trailing),
        None => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::parse_request;

    #[track_caller]
    fn check(start: &str, expect: Option<&str>) {
        check_with(start, "", expect);
    }

    #[track_caller]
    fn check_with(start: &str, lines: &str, expect: Option<&str>) {
        let text = format!("{start} HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
        let head = parse_request(text.as_bytes(), 4096).unwrap().unwrap();
        assert_eq!(operation(&head, text.as_bytes()), expect, "{start}");
    }

    #[test]
    fn targets_name_operations() {
        check("POST /message:send", Some("SendMessage"));
        check("POST /v1/message:stream?x=/tasks", Some("SendStreamingMessage"));
        check("POST /tasks/t-1:cancel", Some("CancelTask"));
        check("GET /acme/tasks/t-1:subscribe", Some("SubscribeToTask"));
        check("POST /tasks/t/pushNotificationConfigs", Some("CreateTaskPushNotificationConfig"));
        check("GET /tasks/t/pushNotificationConfigs", Some("ListTaskPushNotificationConfigs"));
        check("GET /tasks/t/pushNotificationConfigs/c", Some("GetTaskPushNotificationConfig"));
        check("DELETE /tasks/t/pushNotificationConfigs/c", Some("DeleteTaskPushNotificationConfig"));
        check("GET http://a/base/extendedAgentCard", Some("GetExtendedAgentCard"));
        for other in ["/", "/message", "/x:cancel", "/tasks:cancel", "/message:sender", "/send?message:send"]
        {
            check(&format!("POST {other}"), None);
        }
    }

    #[test]
    fn other_spellings_are_seen() {
        for spelling in [
            "/message%3Asend",
            "/mess%61ge%3asend",
            "/acme/v1/message:send",
            "//x/../message:send/",
            "/./Message:Send;v=1",
            "/x%2Fmessage:send",
        ] {
            check(&format!("POST {spelling}"), Some("SendMessage"));
        }
        for spelling in ["/tasks/a%2Fb:cancel", "/acme%2Ftasks/t%3ACancel", "/tasks/t:cancel;x"] {
            check(&format!("POST {spelling}"), Some("CancelTask"));
        }
    }

    #[test]
    fn tasks_of_other_interfaces_are_not_meant() {
        check("GET /api/tasks/7", None);
        check("GET /api/tasks", None);
        check_with("GET /api/tasks/7", "A2A-Version: 1.0\r\n", Some("GetTask"));
        check_with("GET /api/tasks", "X-A2A-Extensions: x\r\n", Some("ListTasks"));
        check("GET /tasks/7?historyLength=1&A2A-Version=1.0", Some("GetTask"));
    }

    #[test]
    fn contents_are_read_as_params_are() {
        let limits = Limits::default();
        let read = |content: &'static str| asked("SendMessage", content.as_bytes(), &limits);
        let message = read(r#" {"message":{"contextId":"c"}} "#).unwrap();
        assert_eq!(message.params.unwrap().raw, r#"{"message":{"contextId":"c"}}"#);
        assert_eq!(message.kind, Kind::Operation { method: "SendMessage" });
        assert_eq!(read("").unwrap().params, None);
        assert_eq!(read("{} {}"), Err(Undecodable::Trailing));
        assert_eq!(read("{"), Err(Undecodable::Json));
        assert_eq!(read(r#"{"id":1,"id":2}"#), Err(Undecodable::DuplicateMember("id".into())));
    }
}
