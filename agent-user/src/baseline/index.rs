//! Which sections of documents are about an endpoint.
//!
//! A section governs every endpoint that has one of its names or its address, and trusts something only where all that it
//! says of the server fits: who writes down where a server is does not want it trusted elsewhere, or something else there,
//! because an agent finds another name for it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::document::{Document, Section};
use super::place::Endpoint;

/// Finds sections by the names and addresses of servers. It takes time to make, and little to ask.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) documents: Vec<Arc<Document>>,
    /// Document and section in it, by number.
    sections: Vec<(usize, usize)>,
    names: HashMap<Box<str>, Vec<u32>>,
    addresses: HashMap<SocketAddr, Vec<u32>>,
    /// Documents with globs, and the number of their first section.
    globbed: Vec<(usize, u32)>,
}

/// The sections, by number.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those that say what is trusted there.
    pub(super) about: Vec<u32>,
    /// Those that do not leave it to others what is trusted there; the former are of them.
    pub(super) governing: Vec<u32>,
}

impl Index {
    pub(super) fn new(documents: Vec<Arc<Document>>) -> Index {
        let mut index = Index {
            documents: Vec::new(),
            sections: Vec::new(),
            names: HashMap::new(),
            addresses: HashMap::new(),
            globbed: Vec::new(),
        };
        let mut number = 0;
        for (of, document) in documents.iter().enumerate() {
            if !document.globs.is_empty() {
                index.globbed.push((of, number));
            }
            for (at, section) in document.sections.iter().enumerate() {
                index.sections.push((of, at));
                for name in &section.names {
                    index.names.entry(name.clone()).or_default().push(number);
                }
                if let Some(address) = section.address {
                    index.addresses.entry(address).or_default().push(number);
                }
                number += 1;
            }
        }
        Index { documents, ..index }
    }

    /// The section of a number.
    pub(super) fn section(&self, number: u32) -> &Section {
        let (document, section) = self.sections[number as usize];
        &self.documents[document].sections[section]
    }

    /// The document that a section is of.
    pub(super) fn document(&self, number: u32) -> usize {
        self.sections[number as usize].0
    }

    pub(super) fn find(&self, endpoint: &Endpoint) -> Found {
        let mut named: Vec<u32> = Vec::new();
        for name in endpoint.names() {
            named.extend(self.names.get(&*name).into_iter().flatten());
            for (document, first) in &self.globbed {
                let document = &self.documents[*document];
                let globs = document.globs.matches(&name);
                named.extend(globs.into_iter().map(|glob| first + document.of_glob[glob]));
            }
        }
        let there = self.addresses.get(&endpoint.address).into_iter().flatten().copied();
        let of_agent = |number: &u32| self.section(*number).is_of_agent(endpoint);
        let mut governing: Vec<u32> = named.iter().copied().chain(there).filter(of_agent).collect();
        let mut about = named;
        about.retain(|number| self.section(*number).is_about(endpoint));
        for numbers in [&mut about, &mut governing] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        Found { about, governing }
    }
}
