//! How far everything can be trusted that a message has to do with.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

use super::{Standing, State, Surface};

/// One standing for each kind of thing; what a message has nothing to do with is as if it was never shown. Written as an
/// object of those that are more than trusted or never shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings {
    all: [Standing; Surface::ALL.len()],
    /// The documents that say what is trusted there, if any do. Not written: it is in the reason of a refusal.
    pub by: Option<Arc<str>>,
}

impl Standings {
    pub fn of(&self, surface: Surface) -> Standing {
        self.all[surface as usize]
    }

    pub fn set(&mut self, surface: Surface, standing: Standing) {
        self.all[surface as usize] = standing;
    }

    /// Those that say something, which is nothing good.
    pub fn notable(&self) -> impl Iterator<Item = (Surface, Standing)> {
        let all = Surface::ALL.into_iter().map(|surface| (surface, self.of(surface)));
        all.filter(|(_, standing)| {
            standing.unsure || !matches!(standing.state, State::Unseen | State::Trusted)
        })
    }

    /// Whether an operator has blocked any of it.
    pub fn is_blocked(&self) -> bool {
        self.all.iter().any(|standing| standing.state == State::Blocked)
    }
}

impl Serialize for Standings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.notable())
    }
}

impl<'de> Deserialize<'de> for Standings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Standings, D::Error> {
        let mut standings = Standings::default();
        for (surface, standing) in BTreeMap::<Surface, Standing>::deserialize(deserializer)? {
            standings.set(surface, standing);
        }
        Ok(standings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Class, Classes};

    #[test]
    fn what_is_written_is_what_matters() {
        let mut standings = Standings::default();
        standings.set(Surface::Tool, Standing { state: State::Trusted, ..Standing::default() });
        assert_eq!(standings.notable().count(), 0);
        let classes = Classes::from_iter([Class::Definition]);
        let drifted = Standing { state: State::Drifted, classes, unsure: false };
        standings.set(Surface::Instructions, drifted);
        let text = serde_json::to_string(&standings).unwrap();
        assert_eq!(text, r#"{"instructions":{"state":"drifted","classes":["definition"]}}"#);
        let read: Standings = serde_json::from_str(&text).unwrap();
        assert_eq!(read.of(Surface::Instructions), drifted);
        assert!(serde_json::from_str::<Standings>(r#"{"colour":{"state":"new"}}"#).is_err());
    }
}
