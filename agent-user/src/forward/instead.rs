//! What an agent gets in place of what a server says, where that cannot be read or there is no room for it.

use crate::decide::policy::Bias;
use crate::decide::{Guard, Refusal};
use crate::decode::ResponseHead;
use crate::forward::End;
use crate::forward::answer::{Begun, Relay};
use crate::forward::refuse::{self, Refused};

impl Relay<'_> {
    /// What becomes of an answer that cannot be decided: passed unread where the operator chose so, else replaced.
    pub(super) async fn or_refuse(&mut self, guard: Guard, head: &ResponseHead) -> Result<(), End> {
        let defaults = self.parts.defaults_of(self.conn);
        let is_oversized = matches!(guard, Guard::Oversized { .. });
        match if is_oversized { defaults.oversized } else { defaults.undecodable } {
            // In a stream that is open nothing can be passed unread.
            Bias::Allow if !self.asked.opened => self.pass(head).await,
            _ => Err(self.refuse(&Refusal::Guard(guard), Some(head.status)).await),
        }
    }

    /// Answers in the server's place, which ends the connection.
    pub(super) async fn refuse(&mut self, refusal: &Refusal, status: Option<u16>) -> End {
        let calls = self.conn.end();
        for call in &calls {
            self.inspecting().record(call, "none", Some(refusal.label()), status, 0);
        }
        let decision = self.parts.record_guard(self.conn, "answer", refusal).await;
        let answer = if self.asked.opened {
            self.stream.ending(&calls, refusal)
        } else if calls.is_empty() {
            refuse::plain("502 Bad Gateway", refusal, &decision)
        } else {
            refuse::http(&Refused::all(&calls, refusal), calls.len() > 1, true)
        };
        match self.agent.send(&answer).await {
            Ok(()) => End::Refused,
            Err(error) => End::agent(error),
        }
    }

    /// Where there is no memory for what a server says, its agent is told.
    pub(super) async fn or_full<T>(&mut self, result: Result<T, End>) -> Result<T, End> {
        match result {
            Err(End::Full(full)) if *self.begun == Begun::Nothing || self.stream.is_waiting() => {
                Err(self.refuse(&Refusal::Guard(Guard::Full(full)), None).await)
            }
            Err(End::Full(full)) if *self.begun == Begun::Stream => {
                Err(self.refuse_rest(Guard::Full(full)).await)
            }
            result => result,
        }
    }

    /// Ends the stream where it cannot be read on.
    pub(super) async fn refuse_rest(&mut self, guard: Guard) -> End {
        let refusal = Refusal::Guard(guard);
        let calls = self.conn.end();
        for call in &calls {
            self.inspecting().record(call, "none", Some(refusal.label()), None, 0);
        }
        self.parts.record_guard(self.conn, "event", &refusal).await;
        if self.stream.is_passing() {
            return End::Refused;
        }
        let end = self.stream.ending(&calls, &refusal);
        match self.agent.send(&end).await {
            Ok(()) => End::Refused,
            Err(error) => End::agent(error),
        }
    }
}
