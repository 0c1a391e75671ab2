//! Globs: compiled with errors that name their field, and those of many rules as one automaton.

use globset::{Candidate, Glob, GlobSet, GlobSetBuilder};

use super::file::Globs;

/// Globs of many rules as one automaton.
#[derive(Debug, Default)]
pub(super) struct Index {
    globs: GlobSet,
    /// The rule each glob belongs to.
    rules: Vec<usize>,
}

impl Index {
    pub(super) fn find(&self, text: &str, found: &mut Vec<usize>) {
        if self.rules.is_empty() {
            return;
        }
        let globs = self.globs.matches_candidate(&Candidate::new(text));
        found.extend(globs.into_iter().map(|glob| self.rules[glob]));
    }
}

#[derive(Default)]
pub(super) struct IndexBuilder {
    globs: Vec<Glob>,
    rules: Vec<usize>,
}

impl IndexBuilder {
    pub(super) fn add(&mut self, rule: usize, globs: &Globs, field: &str) -> Result<(), String> {
        for pattern in globs.patterns() {
            self.globs.push(compile_glob(pattern, field)?);
            self.rules.push(rule);
        }
        Ok(())
    }

    pub(super) fn build(self) -> Result<Index, String> {
        let mut set = GlobSetBuilder::new();
        for glob in self.globs {
            set.add(glob);
        }
        let globs = set.build().map_err(|error| format!("rules too large to index: {error}"))?;
        Ok(Index { globs, rules: self.rules })
    }
}

pub(super) fn compile_globs(globs: &Option<Globs>, field: &str) -> Result<Option<GlobSet>, String> {
    let Some(globs) = globs else { return Ok(None) };
    let mut set = GlobSetBuilder::new();
    for pattern in globs.patterns() {
        set.add(compile_glob(pattern, field)?);
    }
    set.build().map(Some).map_err(|error| format!("match.{field}: {error}"))
}

/// Names of hosts have no case (RFC 4343).
pub(super) fn compile_server_globs(globs: &Option<Globs>) -> Result<Option<GlobSet>, String> {
    let lower =
        |globs: &Globs| Globs::Many(globs.patterns().iter().map(|glob| glob.to_ascii_lowercase()).collect());
    compile_globs(&globs.as_ref().map(lower), "server")
}

fn compile_glob(pattern: &str, field: &str) -> Result<Glob, String> {
    if pattern.is_empty() {
        return Err(format!(
            "match.{field}: an empty glob matches nothing; leave the field out to match everything"
        ));
    }
    Glob::new(pattern).map_err(|error| format!("match.{field}: glob {pattern:?}: {}", error.kind()))
}
