//! Why a call that needs a person's approval does not go on.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use super::policy::Approval;

/// A call that needs a person's approval and will not get it.
#[derive(Clone, Debug)]
pub struct Unapproved {
    /// The rule that asks for it.
    pub rule: Arc<Approval>,
    /// What a person was asked under; `None` where nobody could be asked.
    pub approval: Option<Arc<str>>,
    pub why: Why,
}

/// Why there is no approval.
#[derive(Clone, Debug)]
pub enum Why {
    /// A person has refused it.
    Refused { by: String, reason: Arc<str> },
    /// Nobody has decided in time.
    TimedOut { after: Duration },
    /// Nobody waits for it any more; the label says who ended it.
    Withdrawn(&'static str),
    /// Nobody was asked, in words.
    NotAsked(&'static str),
}

impl Unapproved {
    /// It counts as a denial: somebody or something has said no, not the agent itself.
    pub(super) fn is_denial(&self) -> bool {
        !matches!(self.why, Why::Withdrawn(_))
    }

    /// A bounded label for metrics.
    pub(super) fn label(&self) -> &'static str {
        match self.why {
            Why::Refused { .. } => "approval_refused",
            Why::TimedOut { .. } => "approval_timed_out",
            Why::Withdrawn(_) => "approval_withdrawn",
            Why::NotAsked(_) => "approval_not_asked",
        }
    }

    /// The reason in words, for the agent and the record.
    pub(super) fn reason(&self) -> String {
        let rule = &self.rule.reason;
        let approval = self.approval.as_deref().unwrap_or("none");
        match &self.why {
            Why::Refused { by, reason } => {
                format!("{rule}: {by} has refused its approval {approval}: {reason}")
            }
            Why::TimedOut { after } => {
                let after = SignedDuration::try_from(*after).unwrap_or(SignedDuration::MAX);
                format!("{rule}: nobody has decided on its approval {approval} within {after:#}")
            }
            Why::Withdrawn(cause) => format!("{rule}: its approval {approval} was withdrawn: {cause}"),
            Why::NotAsked(why) => format!("{rule}: nobody was asked, because {why}"),
        }
    }
}
