//! Documents as authorities on what is trusted: a file on all of it, and objects of the API server on the servers that they
//! name. Where one is, nothing else is trusted: first use trusts nothing, and operators change the document.

use std::sync::Arc;

use super::document::Document;
use super::index::Index;
use super::place::{Endpoint, Place};
use super::state::Trusted;
use crate::fingerprint::{Fingerprint, Surface, compare};

/// Authorities that are named where there are more.
const MOST_NAMED: usize = 3;

/// All documents together: what one of them trusts is trusted.
#[derive(Debug)]
pub struct Authority {
    index: Index,
    /// Who governs everything.
    everywhere: Option<Arc<str>>,
}

/// Who says what is trusted at a place.
#[derive(Clone, Debug, Default)]
pub(super) struct Governed {
    /// As operators and agents are told. `None`: what was seen there, and operators by their orders.
    pub(super) by: Option<Arc<str>>,
    /// The sections that do so.
    sections: Box<[u32]>,
}

impl Authority {
    /// Of a file, which governs everything, and of objects. `closed` names what is to govern everything and trusts nothing.
    /// `None`: there is nothing of it.
    pub fn new(
        file: Option<Arc<Document>>,
        objects: Vec<Arc<Document>>,
        closed: Option<&str>,
    ) -> Option<Authority> {
        let everywhere = closed.map(Arc::from).or_else(|| Some(file.as_ref()?.name.clone()));
        if everywhere.is_none() && objects.is_empty() {
            return None;
        }
        Some(Authority { index: Index::new(file.into_iter().chain(objects).collect()), everywhere })
    }

    /// Who says what is trusted at an endpoint.
    pub(super) fn over(&self, endpoint: &Endpoint) -> Governed {
        let found = self.index.find(endpoint);
        let mut documents: Vec<usize> =
            found.governing.iter().map(|number| self.index.document(*number)).collect();
        documents.dedup();
        let names = documents.iter().map(|document| &self.index.documents[*document].name);
        let names = names.filter(|name| Some(*name) != self.everywhere.as_ref());
        let names: Vec<&Arc<str>> = self.everywhere.iter().chain(names).collect();
        Governed { by: together(&names), sections: found.about.into() }
    }

    /// What it trusts an item to be: what is seen, if that is one of what is trusted, or else the nearest.
    pub(super) fn trusted(
        &self,
        governed: &Governed,
        (place, surface): (&Place, Surface),
        name: &str,
        seen: &Fingerprint,
    ) -> Option<Trusted<'_>> {
        let mut nearest: Option<(bool, Trusted<'_>)> = None;
        let sections = governed.sections.iter().map(|number| self.index.section(*number));
        for entry in sections.flat_map(|section| section.of_name(surface, name)) {
            if entry.principal.is_some() && entry.principal != place.principal {
                continue;
            }
            let same_revision = entry.revision == place.revision;
            let text = entry.text.as_ref();
            let trusted = Trusted { fingerprint: &entry.fingerprint, same_revision, reviewed: true, text };
            if compare(trusted.fingerprint, seen, same_revision).is_empty() {
                return Some(trusted);
            }
            if nearest.is_none_or(|(same, _)| same_revision && !same) {
                nearest = Some((same_revision, trusted));
            }
        }
        nearest.map(|(_, trusted)| trusted)
    }
}

fn together(names: &[&Arc<str>]) -> Option<Arc<str>> {
    match names {
        [] => None,
        [name] => Some((*name).clone()),
        names => {
            let mut words: Vec<&str> = names.iter().take(MOST_NAMED).map(|name| &***name).collect();
            if names.len() > MOST_NAMED {
                words.push("another");
            }
            Some(words.join(" or ").into())
        }
    }
}
