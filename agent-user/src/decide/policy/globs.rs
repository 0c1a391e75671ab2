//! Globs, compiled with errors that name their field and the remedy.

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::file::Globs;

/// `None` matches everything.
pub(super) fn compile_globs(globs: Option<&Globs>, field: &str) -> Result<Option<GlobSet>, String> {
    let Some(globs) = globs else { return Ok(None) };
    let mut set = GlobSetBuilder::new();
    for pattern in globs.patterns() {
        set.add(compile_glob(pattern, field)?);
    }
    set.build().map(Some).map_err(|error| format!("{field}: {error}"))
}

/// Names of hosts have no case (RFC 4343).
pub(super) fn lower(globs: &Globs) -> Globs {
    Globs::Many(globs.patterns().iter().map(|glob| glob.to_ascii_lowercase()).collect())
}

pub(super) fn compile_glob(pattern: &str, field: &str) -> Result<Glob, String> {
    if pattern.is_empty() {
        return Err(format!(
            "{field}: an empty glob matches nothing; leave the field out to match everything"
        ));
    }
    Glob::new(pattern).map_err(|error| format!("{field}: glob {pattern:?}: {}", error.kind()))
}

/// A pattern that matches nothing but itself.
pub(super) fn is_literal(pattern: &str) -> bool {
    !pattern.contains(['*', '?', '[', ']', '{', '}', '\\', '!'])
}
