//! A file as the only authority on what is trusted.

use std::collections::HashMap;
use std::sync::Arc;

use super::document::{self, Section};
use super::list::List;
use super::place::Place;
use super::state::Trusted;
use crate::fingerprint::{Fingerprint, Surface, compare};

/// What a file says is trusted. Then nothing else is: first use trusts nothing, and operators change the file.
#[derive(Debug)]
pub struct Authority {
    sections: Vec<Indexed>,
}

/// A section, and where in it names are.
#[derive(Debug)]
struct Indexed {
    section: Section,
    names: HashMap<Surface, HashMap<Arc<str>, Vec<usize>>>,
}

impl Authority {
    /// Reads a file such as [`super::Baseline::export`] writes.
    ///
    /// # Errors
    /// `LINE:COLUMN: ` and what is wrong there, with the remedy.
    pub fn parse(text: &str) -> Result<Authority, String> {
        Ok(Authority { sections: document::parse(text)?.into_iter().map(Indexed::new).collect() })
    }

    /// Which parts of it are about a place.
    pub(super) fn sections(&self, place: &Place) -> Box<[usize]> {
        (0..self.sections.len()).filter(|index| self.sections[*index].section.is_about(place)).collect()
    }

    /// What it trusts an item to be: what is seen, if that is one of what is trusted, or else the nearest.
    pub(super) fn trusted(&self, list: &List, name: &str, seen: &Fingerprint) -> Option<Trusted<'_>> {
        let mut nearest: Option<(bool, Trusted<'_>)> = None;
        for indexed in list.sections.iter().filter_map(|index| self.sections.get(*index)) {
            let names = indexed.names.get(&list.surface).and_then(|names| names.get(name));
            for entry in names.into_iter().flatten().map(|index| &indexed.section.entries[*index]) {
                if entry.principal.is_some() && entry.principal != list.place.principal {
                    continue;
                }
                let same_revision = entry.revision == list.place.revision;
                let trusted = Trusted { fingerprint: &entry.fingerprint, same_revision, reviewed: true };
                if compare(trusted.fingerprint, seen, same_revision).is_empty() {
                    return Some(trusted);
                }
                if nearest.is_none_or(|(same, _)| same_revision && !same) {
                    nearest = Some((same_revision, trusted));
                }
            }
        }
        nearest.map(|(_, trusted)| trusted)
    }
}

impl Indexed {
    fn new(section: Section) -> Indexed {
        let mut names: HashMap<Surface, HashMap<Arc<str>, Vec<usize>>> = HashMap::new();
        for (index, entry) in section.entries.iter().enumerate() {
            names.entry(entry.surface).or_default().entry(entry.name.clone()).or_default().push(index);
        }
        Indexed { section, names }
    }
}
