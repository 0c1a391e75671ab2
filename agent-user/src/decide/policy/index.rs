//! Which rules can concern a text: the globs of all of them as one, and literal names as a hash table, so that the cost
//! of a look-up does not grow with the rules that it does not find.

use std::collections::HashMap;

use globset::{Candidate, Glob, GlobSet, GlobSetBuilder};

use super::super::scope::Scope;
use super::file::Globs;
use super::globs::{compile_glob, is_literal};

/// One field of many rules.
#[derive(Debug, Default)]
pub(super) struct Index {
    literals: HashMap<Box<str>, Found>,
    globs: GlobSet,
    /// The rule each glob belongs to.
    rules: Vec<usize>,
}

/// Rules of one literal: a list, or a set once that is the smaller of the two.
#[derive(Debug)]
enum Found {
    List(Vec<usize>),
    Set(Scope),
}

impl Index {
    /// Adds the rules whose globs match.
    pub(super) fn find(&self, text: &str, found: &mut Scope) {
        match self.literals.get(text) {
            Some(Found::List(rules)) => rules.iter().for_each(|rule| found.insert(*rule)),
            Some(Found::Set(rules)) => found.unite(rules),
            None => {}
        }
        if !self.rules.is_empty() {
            let globs = self.globs.matches_candidate(&Candidate::new(text));
            globs.into_iter().for_each(|glob| found.insert(self.rules[glob]));
        }
    }
}

#[derive(Default)]
pub(super) struct IndexBuilder {
    literals: HashMap<Box<str>, Vec<usize>>,
    globs: Vec<Glob>,
    rules: Vec<usize>,
}

impl IndexBuilder {
    pub(super) fn add(&mut self, rule: usize, globs: &Globs, field: &str) -> Result<(), String> {
        for pattern in globs.patterns() {
            let glob = compile_glob(pattern, field)?;
            if is_literal(pattern) {
                self.literals.entry(pattern.as_str().into()).or_default().push(rule);
            } else {
                self.globs.push(glob);
                self.rules.push(rule);
            }
        }
        Ok(())
    }

    /// For a policy of `count` rules.
    pub(super) fn build(self, count: usize) -> Result<Index, String> {
        let mut set = GlobSetBuilder::new();
        for glob in self.globs {
            set.add(glob);
        }
        let globs = set.build().map_err(|error| format!("rules too large to index: {error}"))?;
        let to_found = |rules: Vec<usize>| {
            if rules.len() < count.div_ceil(64) {
                return Found::List(rules);
            }
            let mut set = Scope::with_rules(count);
            rules.into_iter().for_each(|rule| set.insert(rule));
            Found::Set(set)
        };
        let literals = self.literals.into_iter().map(|(text, rules)| (text, to_found(rules))).collect();
        Ok(Index { literals, globs, rules: self.rules })
    }
}
