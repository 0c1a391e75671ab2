//! For whom a server lists its tools: two users may be shown different ones, and neither has changed then.

use std::sync::Arc;

use serde_json::Value;

use super::{MAX_KEPT, bearer, read};
use crate::decode::Headers;
use crate::fingerprint::Digest;

/// Longest name of a user that is kept as it is.
const MAX_USER: usize = 128;

/// The authorization that a connection has sent last, and whom it speaks for. Agents send the same one with each request.
#[derive(Debug, Default)]
pub struct LastPrincipal {
    sent: Option<Vec<u8>>,
    principal: Option<Arc<str>>,
}

impl LastPrincipal {
    /// Whom a request speaks for: `user:` with subject and issuer of its bearer token (RFC 7519), which are the agent's
    /// word; `agent:` with the name of the agent where the authorization says nothing to us, so that a token that is renewed
    /// is the same principal. `None`: it has no authorization.
    pub fn of_request(&mut self, headers: Headers<'_>, agent: &str) -> Option<Arc<str>> {
        let mut all = headers.all("authorization");
        let first = all.next()?;
        let is_only = all.next().is_none();
        if self.sent.as_deref() != Some(first) || !is_only {
            let user = bearer(first).filter(|_| is_only).and_then(user);
            // What is long is read with each request.
            self.sent = (is_only && first.len() <= MAX_KEPT).then(|| first.to_owned());
            self.principal = Some(user.unwrap_or_else(|| format!("agent:{agent}")).into());
        }
        self.principal.clone()
    }
}

fn user(token: &[u8]) -> Option<String> {
    let user = read(token, None)?;
    let claim = |name| user.claims.get(name).and_then(Value::as_str);
    let subject = claim("sub")?;
    let named = match claim("iss") {
        Some(issuer) => format!("{subject} of {issuer}"),
        None => subject.to_owned(),
    };
    let is_plain =
        named.len() <= MAX_USER && named.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    let named = if is_plain { named } else { Digest::of(named.as_bytes()).to_string() };
    Some(format!("user:{named}"))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::decode::parse_request;

    fn token(claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        format!("Bearer {}.{}.{}", part(r#"{"alg":"none"}"#), part(claims), part("x"))
    }

    fn ask(last: &mut LastPrincipal, sent: &[&str]) -> Option<String> {
        let lines: String = sent.iter().map(|value| format!("Authorization: {value}\r\n")).collect();
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}Content-Length: 0\r\n\r\n");
        let parsed = parse_request(head.as_bytes(), 65_536).unwrap().unwrap();
        last.of_request(Headers::of(&parsed, head.as_bytes()), "coder").map(|principal| principal.to_string())
    }

    #[test]
    fn a_renewed_token_is_the_same_principal() {
        let mut last = LastPrincipal::default();
        let ann = Some("user:ann of https://login.test".to_owned());
        for expires in [1, 2] {
            let claims = format!(r#"{{"sub":"ann","iss":"https://login.test","exp":{expires}}}"#);
            assert_eq!(ask(&mut last, &[&token(&claims)]), ann);
        }
        assert_eq!(ask(&mut last, &[&token(r#"{"sub":"bob"}"#)]).as_deref(), Some("user:bob"));
        for opaque in ["Bearer abc", "Bearer def", "Basic YTpi", "Bearer a.b.c", &token("{}")] {
            assert_eq!(ask(&mut last, &[opaque]).as_deref(), Some("agent:coder"));
        }
        assert_eq!(ask(&mut last, &[]), None);
        let ann = token(r#"{"sub":"ann"}"#);
        assert_eq!(
            ask(&mut last, &[&ann, &ann]).as_deref(),
            Some("agent:coder"),
            "which one counts is unknown"
        );
        assert_eq!(ask(&mut last, &[&ann]).as_deref(), Some("user:ann"));
    }

    #[test]
    fn names_that_cannot_be_shown_are_digests() {
        let mut last = LastPrincipal::default();
        let shown = ask(&mut last, &[&token(r#"{"sub":"a\u001b[2J"}"#)]).unwrap();
        assert!(shown.starts_with("user:sha256:"), "{shown}");
    }
}
