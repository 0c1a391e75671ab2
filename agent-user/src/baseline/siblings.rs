//! What is trusted of an item that a place shows for the first time: what is trusted of it where the same server shows
//! it already, so that a server that moves, or speaks another revision, does not begin anew.

use std::sync::Arc;

use super::kin::Tie;
use super::known::Known;
use super::list::{How, Item, List, Other, Trust};
use super::state::{Facts, Trusted};
use crate::fingerprint::{Fingerprint, State, Surface, compare};

/// Lists that are looked at, the oldest first. Where there are more, nothing that is new is trusted by first use: a
/// list that was not looked at may know it.
const MOST: usize = 256;

/// Lists that may be the same server's.
pub(super) struct Siblings {
    lists: Vec<u32>,
    /// There are more than were looked at.
    more: bool,
}

/// An item of a sibling, of which something is trusted.
struct Sibling<'a> {
    item: &'a Item,
    trusted: Trusted<'a>,
    /// How far from the place, less being nearer.
    distance: [bool; 3],
    /// What is trusted was shown in the same revision.
    same_revision: bool,
    /// What differs from it has changed: the server has the same name and path, and it was for the same principal, or is
    /// for all. Behind one address there may be servers of many names that have nothing to do with each other.
    comparable: bool,
}

impl Known {
    /// The siblings of a list.
    pub(super) fn siblings(&self, list: &List) -> Siblings {
        let mut lists = Vec::new();
        for number in self.kin.of_server(&list.place.endpoint, list.surface) {
            if number != list.number && !lists.contains(&number) {
                if lists.len() == MOST {
                    return Siblings { lists, more: true };
                }
                lists.push(number);
            }
        }
        Siblings { lists, more: false }
    }

    /// What is trusted of an item that is new in a list.
    pub(super) fn first_trust(
        &self,
        (list, witness): (&List, &str),
        name: &str,
        seen: &Fingerprint,
        siblings: &Siblings,
    ) -> Option<Trust> {
        if list.governed.by.is_some() {
            return None;
        }
        let lists = siblings.lists.iter().filter_map(|number| self.lists.get(number));
        let mut known: Vec<Sibling<'_>> =
            lists.filter_map(|other| self.sibling((list, witness), other, name)).collect();
        known.sort_by_key(|sibling| sibling.distance);
        let approved = known.iter().any(|sibling| sibling.has_approved(seen));
        if let Some(drifted) = known.iter().find(|sibling| !approved && sibling.has_drifted_to(seen)) {
            return Some(drifted.trust());
        }
        let is_same = |sibling: &&Sibling<'_>| {
            compare(sibling.trusted.fingerprint, seen, sibling.same_revision).is_empty()
        };
        let mut comparable = known.iter().filter(|sibling| sibling.comparable).peekable();
        if let Some(nearest) = comparable.peek().copied() {
            let trust = if comparable.any(|sibling| is_same(&sibling)) {
                Trust::of_seen(How::Inherited)
            } else {
                nearest.trust()
            };
            return Some(trust);
        }
        if known.iter().any(|sibling| is_same(&sibling)) {
            return Some(Trust::of_seen(How::Inherited));
        }
        // Of what was forgotten anything may come again.
        let first = self.trust_first_use && !list.lossy && !siblings.more;
        first.then(|| Trust::of_seen(How::FirstUse))
    }

    /// An item of another list, as far as something is trusted of it there.
    fn sibling<'a>(
        &'a self,
        (list, witness): (&List, &str),
        other: &'a List,
        name: &str,
    ) -> Option<Sibling<'a>> {
        let item = other.items.get(name)?;
        let trusted = self.trusted(other, name, item)?;
        let (here, there) = (&list.place, &other.place);
        let is_same_server =
            here.endpoint.server == there.endpoint.server && here.endpoint.path == there.endpoint.path;
        // An agent that makes up a server of this name elsewhere does not speak for others.
        let is_here = here.endpoint.address == there.endpoint.address;
        if !is_here && *other.owner != *witness {
            return None;
        }
        let principal = here.principal == there.principal;
        let revision = here.revision == there.revision;
        Some(Sibling {
            item,
            trusted,
            distance: [here.endpoint != there.endpoint, !principal, !revision],
            same_revision: revision && trusted.same_revision,
            comparable: is_same_server && (principal || list.public || other.public),
        })
    }

    /// Whether an operator has blocked this name for a server that may be this one.
    pub(super) fn is_blocked(&self, list: &List, name: &Arc<str>) -> bool {
        let surface: Surface = list.surface;
        let ties = || Tie::of_kin(&list.place.endpoint).into_iter();
        !self.blocks.is_empty() && ties().any(|tie| self.blocks.contains(&(tie, surface, name.clone())))
    }
}

impl Sibling<'_> {
    /// A person has approved just this.
    fn has_approved(&self, seen: &Fingerprint) -> bool {
        self.trusted.reviewed && self.trusted.fingerprint == seen
    }

    /// Just this is known to have drifted.
    fn has_drifted_to(&self, seen: &Fingerprint) -> bool {
        let trusted = Some(self.trusted);
        let facts = Facts { trusted, present: true, blocked: false, ..self.item.facts() };
        self.item.seen == *seen && facts.judge().0 == State::Drifted
    }

    /// What is trusted there is what is trusted here, and not what is seen.
    fn trust(&self) -> Trust {
        let other = Other { fingerprint: *self.trusted.fingerprint, same_revision: self.same_revision };
        Trust { how: How::Inherited, other: Some(Box::new(other)) }
    }
}
