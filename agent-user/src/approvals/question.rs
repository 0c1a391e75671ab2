//! What a person is asked, and what records hold of it.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::decode::Protocol;
use crate::session::Session;

/// Bytes of what a request asks for that a person is shown; all of it is in the digest.
const SHOWN: usize = 64 * 1024;
/// Longest name or id that a person can be asked to read.
const MAX_NAME: usize = 4096;

/// What a person is asked.
#[derive(Debug, Serialize)]
pub struct Question {
    pub approval: Arc<str>,
    pub agent: Arc<str>,
    pub pid: u32,
    pub uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exe: Option<Arc<str>>,
    pub conn: u64,
    /// As the agent names it.
    pub server: Arc<str>,
    /// Where its connection really goes.
    pub destination: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Session>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<Arc<str>>,
    pub since: Timestamp,
    /// When it is refused if nobody has decided.
    pub until: Timestamp,
    /// One, or those of a batch, which is sent whole or not at all.
    pub calls: Vec<Asked>,
}

/// One message of such a request.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Asked {
    pub decision: Box<str>,
    pub protocol: Protocol,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    pub method: Box<str>,
    /// Tool, prompt, resource or task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_id: Option<Box<str>>,
    /// The rules that ask for an approval of it.
    pub rules: Vec<RuleAsked>,
    /// SHA-256 of the arguments as sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_digest: Option<String>,
    /// What it asks for: shown to a person, and not in records.
    #[serde(skip)]
    pub text: Option<Text>,
}

/// A rule that asks for an approval.
#[derive(Clone, Debug, Serialize)]
pub struct RuleAsked {
    pub rule: Arc<str>,
    pub reason: Arc<str>,
}

/// JSON text for a person to read, cut to what is reasonable.
#[derive(Clone, Debug, Serialize)]
pub struct Text {
    /// `arguments`, or `params` where that says more.
    pub of: &'static str,
    pub json: Box<str>,
    /// Length of the whole.
    pub bytes: usize,
    pub is_cut: bool,
}

impl Asked {
    /// Nobody can be asked to read all of its names.
    pub(super) fn is_unreadable(&self) -> bool {
        let texts = [Some(&self.method), self.tool.as_ref(), self.rpc_id.as_ref()];
        texts.into_iter().flatten().any(|text| text.len() > MAX_NAME)
    }
}

impl Text {
    /// As much of a JSON text as `room` leaves, which becomes less by that.
    pub fn cut(of: &'static str, json: &str, room: &mut usize) -> Text {
        let end = json.floor_char_boundary(*room);
        *room -= end;
        Text { of, json: json[..end].into(), bytes: json.len(), is_cut: end < json.len() }
    }

    /// Room for the texts of one request.
    pub const ROOM: usize = SHOWN;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_bounded() {
        let mut room = 5;
        let text = Text::cut("arguments", "ääää", &mut room);
        assert_eq!((&*text.json, text.bytes, text.is_cut, room), ("ää", 8, true, 1));
        let text = Text::cut("arguments", "1", &mut room);
        assert_eq!((&*text.json, text.is_cut, room), ("1", false, 0));
    }

    #[test]
    fn nobody_is_asked_to_read_a_book() {
        let named = |length: usize| Asked { tool: Some("x".repeat(length).into()), ..Asked::default() };
        assert!(!Asked::default().is_unreadable() && !named(MAX_NAME).is_unreadable());
        assert!(named(MAX_NAME + 1).is_unreadable());
    }
}
