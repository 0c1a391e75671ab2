//! Calls in several rounds (MCP 2026-07-28): a server answers with a question, and the client sends the call again with the
//! answer. All rounds are one call, so whoever was let through to the first is not judged as somebody new in the next.
//!
//! A round goes on with the one before if the same process asks the same server for the same thing, with the state that the
//! server gave it. Each question is good for one more round. Whatever else a request claims to go on with is a new call.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::decode::{Message, find, mcp};
use crate::fingerprint::Digest;
use crate::ledger::{Conn, Scene};

/// Most calls that are remembered, and most of one agent; of further ones the next round is a new call.
const MOST: usize = 20_000;
const PER_AGENT: usize = 2000;
/// How long an answer may take: people give it.
const REMEMBERED_FOR: Duration = Duration::from_secs(60 * 60);
/// What a server may answer with a question.
const ASKABLE: [&str; 3] = ["tools/call", "prompts/get", "resources/read"];

/// What all rounds of a call have in common, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Round([u8; 32]);

/// The calls of which a next round may come.
#[derive(Debug, Default)]
pub struct Rounds {
    asked: Mutex<HashMap<Round, Asked>>,
}

/// Questions that a server has asked in the same words.
#[derive(Debug)]
struct Asked {
    agent: u32,
    /// How many: one call may be made several times.
    times: u32,
    last: Instant,
}

impl Round {
    /// Of a call with these arguments, given by their digest; `None` for one that has one round only.
    pub fn of(
        conn: &Conn,
        scene: &Scene,
        call: &mcp::Call<'_>,
        revision: Option<mcp::Revision>,
        arguments: Option<Digest>,
    ) -> Option<Round> {
        let is_askable = revision == Some(mcp::Revision::V2026_07_28) && ASKABLE.contains(&&*call.method);
        if !call.is_mcp || !is_askable {
            return None;
        }
        let mut hash = Sha256::new();
        hash.update(conn.identity.agent.number.to_be_bytes());
        let session = scene.session.as_ref().map(|session| session.as_str());
        let destination = conn.destination.to_string();
        for text in
            [session, scene.workflow.as_deref(), Some(&destination), Some(&call.method), call.name.as_deref()]
        {
            add(&mut hash, text.map(str::as_bytes));
        }
        add(&mut hash, arguments.as_ref().map(|digest| &digest.0[..]));
        Some(Round(hash.finalize().into()))
    }

    /// With the state that a server has given it.
    fn with(self, state: Option<&str>) -> Round {
        let mut hash = Sha256::new();
        hash.update(self.0);
        add(&mut hash, state.map(str::as_bytes));
        Round(hash.finalize().into())
    }
}

/// Adds one part so that no two lists of parts look alike.
fn add(hash: &mut Sha256, part: Option<&[u8]>) {
    match part {
        None => hash.update([0]),
        Some(part) => {
            hash.update([1]);
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
}

impl Rounds {
    fn asked(&self) -> MutexGuard<'_, HashMap<Round, Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes notice of an answer to a call of an agent, if it is a question.
    pub fn learn(&self, agent: u32, round: Round, answer: &Message<'_>) {
        let Some(result) = &answer.result else { return };
        if result.result_type.and_then(find::text).as_deref() != Some("input_required") {
            return;
        }
        // Whatever is no text cannot be given back as it was.
        let Ok(state) = state(result.request_state) else { return };
        let now = Instant::now();
        let mut asked = self.asked();
        if asked.len() >= PER_AGENT {
            asked.retain(|_, asked| now.duration_since(asked.last) < REMEMBERED_FOR);
        }
        let round = round.with(state.as_deref());
        if let Some(known) = asked.get_mut(&round) {
            (known.times, known.last) = (known.times.saturating_add(1), now);
            return;
        }
        let of_agent = || asked.values().filter(|asked| asked.agent == agent).count();
        if asked.len() < MOST && (asked.len() < PER_AGENT || of_agent() < PER_AGENT) {
            asked.insert(round, Asked { agent, times: 1, last: now });
        }
    }

    /// Whether a request is the next round of a call. That can be said once for each question.
    pub fn goes_on(&self, round: Round, request: &Message<'_>) -> bool {
        let Some(params) = &request.params else { return false };
        let is_given = |member: Option<&str>| member.is_some_and(|value| value != "null");
        if !is_given(params.input_responses) && !is_given(params.request_state) {
            return false;
        }
        let Ok(state) = state(params.request_state) else { return false };
        let round = round.with(state.as_deref());
        let mut asked = self.asked();
        let Some(known) = asked.get_mut(&round) else { return false };
        let is_in_time = known.last.elapsed() < REMEMBERED_FOR;
        known.times -= 1;
        if known.times == 0 || !is_in_time {
            asked.remove(&round);
        }
        is_in_time
    }
}

/// What a state says; an error if it is no text.
fn state(json: Option<&str>) -> Result<Option<std::borrow::Cow<'_, str>>, ()> {
    match json.filter(|json| *json != "null") {
        None => Ok(None),
        Some(json) if json.starts_with('"') => Ok(find::text(json)),
        Some(_) => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Limits, Payload, decode};

    fn round(number: u8) -> Round {
        Round([number; 32])
    }

    fn learn(rounds: &Rounds, agent: u32, of: Round, result: &str) {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#);
        let Ok(Payload::Single(message)) = decode(text.as_bytes(), &Limits::default()) else {
            panic!("{text}")
        };
        rounds.learn(agent, of, &message);
    }

    fn goes_on(rounds: &Rounds, of: Round, more: &str) -> bool {
        let text =
            format!(r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"ask"{more}}}}}"#);
        let Ok(Payload::Single(message)) = decode(text.as_bytes(), &Limits::default()) else {
            panic!("{text}")
        };
        rounds.goes_on(of, &message)
    }

    const ANSWER: &str = r#","inputResponses":{"ok":{}}"#;

    #[test]
    fn each_question_is_good_for_one_more_round() {
        let rounds = Rounds::default();
        assert!(!goes_on(&rounds, round(1), ANSWER), "nobody has asked");
        learn(&rounds, 1, round(1), r#"{"resultType":"complete","content":[]}"#);
        assert!(!goes_on(&rounds, round(1), ANSWER), "that was no question");
        learn(&rounds, 1, round(1), r#"{"resultType":"input_required","inputRequests":{}}"#);
        assert!(!goes_on(&rounds, round(1), ""), "the same call again, without an answer");
        assert!(!goes_on(&rounds, round(2), ANSWER), "another call");
        assert!(goes_on(&rounds, round(1), ANSWER));
        assert!(!goes_on(&rounds, round(1), ANSWER));
        for _ in 0..2 {
            learn(&rounds, 1, round(1), r#"{"resultType":"input\u005frequired","inputRequests":{}}"#);
        }
        assert!(goes_on(&rounds, round(1), ANSWER) && goes_on(&rounds, round(1), ANSWER));
        assert!(!goes_on(&rounds, round(1), ANSWER));
        assert!(rounds.asked().is_empty());
    }

    #[test]
    fn state_comes_back_as_it_was() {
        let rounds = Rounds::default();
        let ask = || learn(&rounds, 1, round(1), r#"{"resultType":"input_required","requestState":"a/b"}"#);
        ask();
        for other in ["", ANSWER, r#","requestState":"a""#, r#","requestState":7"#, r#","requestState":null"#]
        {
            assert!(!goes_on(&rounds, round(1), other), "{other}");
        }
        assert!(goes_on(&rounds, round(1), r#","requestState":"a\/b""#), "escaped in another way");
        learn(&rounds, 1, round(1), r#"{"resultType":"input_required","requestState":{"a":1}}"#);
        assert!(!goes_on(&rounds, round(1), r#","requestState":{"a":1}"#), "no text");
    }

    #[test]
    fn parts_cannot_be_taken_for_each_other() {
        let digest = |parts: &[Option<&[u8]>]| {
            let mut hash = Sha256::new();
            parts.iter().for_each(|part| add(&mut hash, *part));
            hash.finalize()
        };
        assert_ne!(digest(&[Some(b"ab"), Some(b"c")]), digest(&[Some(b"a"), Some(b"bc")]));
        assert_ne!(digest(&[None, Some(b"a")]), digest(&[Some(b""), Some(b"a")]));
    }

    #[test]
    fn one_agent_cannot_take_all_the_room() {
        let rounds = Rounds::default();
        for number in 0..=u16::try_from(PER_AGENT).unwrap() {
            let mut bytes = [0; 32];
            bytes[..2].copy_from_slice(&number.to_be_bytes());
            learn(&rounds, 1, Round(bytes), r#"{"resultType":"input_required"}"#);
        }
        assert_eq!(rounds.asked().len(), PER_AGENT);
        learn(&rounds, 2, round(9), r#"{"resultType":"input_required"}"#);
        assert!(goes_on(&rounds, round(9), ANSWER));
    }
}
