//! Which sections of documents are about an endpoint.
//!
//! A section governs every endpoint that has one of its names or its address, and trusts something only where all that it
//! says of the server fits: who writes down where a server is does not want it trusted elsewhere, or something else there,
//! because an agent finds another name for it.

use std::collections::HashMap;
use std::net::SocketAddr;

use globset::{GlobSet, GlobSetBuilder};

use super::document::Section;
use super::place::Endpoint;

/// Finds sections by the names and addresses of servers. It takes time to make, and little to ask.
#[derive(Debug, Default)]
pub(super) struct Index {
    names: GlobSet,
    /// The section of each glob.
    of_glob: Vec<u32>,
    addresses: HashMap<SocketAddr, Vec<u32>>,
}

/// The sections, in order, of all that were indexed.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Those that say what is trusted there.
    pub(super) about: Vec<u32>,
    /// Those that do not leave it to others what is trusted there; the former are of them.
    pub(super) governing: Vec<u32>,
}

impl Index {
    /// # Errors
    /// All globs are too much together, though each was good.
    pub(super) fn new<'a>(sections: impl Iterator<Item = &'a Section>) -> Result<Index, String> {
        let mut names = GlobSetBuilder::new();
        let mut index = Index::default();
        for (number, section) in (0..).zip(sections) {
            for glob in &section.servers {
                names.add(glob.clone());
                index.of_glob.push(number);
            }
            if let Some(address) = section.address {
                index.addresses.entry(address).or_default().push(number);
            }
        }
        index.names = names.build().map_err(|error| format!("server: {error}"))?;
        Ok(index)
    }

    /// `section` is the one of a number.
    pub(super) fn find<'a>(&self, endpoint: &Endpoint, section: impl Fn(u32) -> &'a Section) -> Found {
        let names = endpoint.names();
        let globs = names.iter().flat_map(|name| self.names.matches(name));
        let named: Vec<u32> = globs.filter_map(|glob| self.of_glob.get(glob).copied()).collect();
        let there = self.addresses.get(&endpoint.address).into_iter().flatten().copied();
        let mut governing: Vec<u32> = named
            .iter()
            .copied()
            .chain(there)
            .filter(|number| section(*number).is_of_agent(endpoint))
            .collect();
        let mut about: Vec<u32> =
            named.into_iter().filter(|number| section(*number).is_about(endpoint)).collect();
        for numbers in [&mut about, &mut governing] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        Found { about, governing }
    }
}
