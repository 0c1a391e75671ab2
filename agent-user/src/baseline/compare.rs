//! Stands in for `fingerprint::compare` until that is there.

use crate::fingerprint::{Class, Classes, Fingerprint};

pub(super) fn compare(trusted: &Fingerprint, seen: &Fingerprint, same_revision: bool) -> Classes {
    let definition = match same_revision {
        true => trusted.definition != seen.definition,
        false => trusted.core != seen.core,
    };
    [
        (definition, Class::Definition),
        (trusted.annotations != seen.annotations || trusted.hints != seen.hints, Class::AnnotationsLessSafe),
        (trusted.display != seen.display, Class::Display),
        (trusted.meta != seen.meta, Class::Meta),
        (trusted.ui != seen.ui, Class::Ui),
    ]
    .into_iter()
    .filter_map(|(differs, class)| differs.then_some(class))
    .collect()
}
