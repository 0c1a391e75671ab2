//! Pages that a list was last seen to have: what is the same again needs no second look.

use std::collections::HashMap;
use std::sync::Arc;

use super::place::Page;
use crate::fingerprint::Digest;

/// Names and pages that are remembered of one list. Of one that has more no page is, and each is looked at.
const MOST: usize = 8_192;

/// The last pages of a list.
#[derive(Debug, Default)]
pub(super) struct Pages {
    known: HashMap<Option<Digest>, Known>,
    size: usize,
}

#[derive(Debug)]
struct Known {
    digest: Digest,
    next: Option<Digest>,
    public: bool,
    names: Arc<[Arc<str>]>,
}

impl Pages {
    /// The names on a page, if it is as it was and nothing about the list has changed since.
    pub(super) fn find(&self, page: &Page) -> Option<Arc<[Arc<str>]>> {
        let known = self.known.get(&page.asked)?;
        let same = known.digest == page.digest && known.next == page.next && known.public == page.public;
        same.then(|| known.names.clone())
    }

    pub(super) fn remember(&mut self, page: &Page, names: Arc<[Arc<str>]>) {
        self.size += names.len() + 1;
        let known = Known { digest: page.digest, next: page.next, public: page.public, names };
        if let Some(before) = self.known.insert(page.asked, known) {
            self.size -= before.names.len() + 1;
        }
        if self.size > MOST {
            self.forget();
        }
    }

    /// Something about the list has changed.
    pub(super) fn forget(&mut self) {
        *self = Pages::default();
    }
}
