//! What somebody sees who sees everything, in the order in which it really happens, and what is wrong with it.

use std::sync::Arc;

use super::{BYTES, CODER, TOOL};
use crate::decide::stop::{Facts, Stop};
use crate::fate::Fate;

/// What somebody who sees everything has seen.
#[derive(Default)]
pub(super) struct Seen {
    calls: Vec<Call>,
    /// The stops that were answered, and not released.
    in_force: Vec<Arc<Stop>>,
    trail: Vec<String>,
    faults: Vec<String>,
}

struct Call {
    agent: Arc<str>,
    /// That reached the server.
    bytes: usize,
    end: Option<End>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server's answer was let through.
    Answered,
    /// It met the stop.
    Refused,
    /// The stop listed it.
    Caught(Fate),
}

impl Seen {
    pub(super) fn call(&mut self, agent: &Arc<str>) -> usize {
        let call = self.calls.len();
        self.trail.push(format!("{agent}: call {call}"));
        self.calls.push(Call { agent: Arc::clone(agent), bytes: 0, end: None });
        call
    }

    /// A byte of a call reaches the server.
    pub(super) fn byte(&mut self, call: usize) {
        self.calls[call].bytes += 1;
        self.trail.push(format!("call {call}: byte {}", self.calls[call].bytes));
        if self.in_force.iter().any(|stop| self.calls[call].is_met_by(stop)) {
            self.fault(format!("a byte of call {call} left after the stop was answered"));
        }
    }

    pub(super) fn ended(&mut self, call: usize, end: End) {
        self.trail.push(format!("call {call}: {end:?}"));
        if self.calls[call].end.replace(end).is_some() {
            self.fault(format!("call {call} ended twice"));
        }
        let bytes = self.calls[call].bytes;
        let is_true = match end {
            End::Refused | End::Caught(Fate::Refused) => bytes == 0,
            End::Caught(Fate::Cut) => bytes < BYTES,
            End::Answered | End::Caught(Fate::Sent) => bytes == BYTES,
            End::Caught(_) => false,
        };
        if !is_true {
            self.fault(format!("call {call} is said to be {end:?} with {bytes} bytes sent"));
        }
    }

    /// A stop is answered, with what it has listed so far.
    pub(super) fn answered(&mut self, stop: &Arc<Stop>) {
        self.trail.push("the stop is answered".into());
        self.in_force.push(Arc::clone(stop));
        for (number, call) in self.calls.iter().enumerate() {
            if call.bytes > 0 && call.end.is_none() && self.in_force.iter().any(|stop| call.is_met_by(stop)) {
                let fault = format!("call {number} is in flight, and the answer does not list it");
                self.faults.push(fault);
            }
        }
    }

    pub(super) fn released(&mut self) {
        self.trail.push("released".into());
        self.in_force.clear();
    }

    fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    /// Looks back on a whole run, after which the gate has so many stops: what went wrong, and what led to it.
    pub(super) fn judge(&self, stops: usize) -> Option<String> {
        let lost = self.calls.iter().position(|call| call.end.is_none());
        let lost = lost.map(|call| format!("nobody knows what became of call {call}"));
        let bystander = |call: &Call| *call.agent != *CODER.name && call.end != Some(End::Answered);
        let bystander = self.calls.iter().position(bystander);
        let bystander = bystander.map(|call| format!("call {call} is nothing to the stop"));
        let stops = (stops != self.in_force.len()).then(|| format!("{stops} stops are in force"));
        let fault = self.faults.first().cloned().or(lost).or(bystander).or(stops)?;
        Some(format!("{fault}: {:#?}", self.trail))
    }
}

impl Call {
    fn is_met_by(&self, stop: &Stop) -> bool {
        stop.selector.matches(&Facts {
            agent: (&*self.agent).into(),
            tools: [Some(TOOL), None],
            ..Facts::default()
        })
    }
}
