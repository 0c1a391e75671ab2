//! In what two definitions differ, by their digests alone.

use super::{Class, Classes, Fingerprint};

/// The classes of the differences between what is trusted and what was seen. Definitions that were seen in two revisions
/// of the protocol (`same_revision` is false) are compared by what every revision has: not by titles, icons, `_meta`,
/// output schema or execution, which servers leave out where a revision has no place for them.
pub fn compare(trusted: &Fingerprint, seen: &Fingerprint, same_revision: bool) -> Classes {
    let mut classes = Classes::NONE;
    let mut differ = |differ: bool, class| {
        if differ {
            classes.insert(class);
        }
    };
    if same_revision {
        differ(trusted.definition != seen.definition, Class::Definition);
        differ(trusted.display != seen.display, Class::Display);
        differ(trusted.meta != seen.meta, Class::Meta);
        differ(trusted.ui != seen.ui, Class::Ui);
    } else {
        differ(trusted.core != seen.core, Class::Definition);
    }
    // What is not known could be anything.
    differ(trusted.annotations != seen.annotations, Class::AnnotationsLessSafe);
    for ((_, before, safe), (_, after, _)) in trusted.hints.promises().into_iter().zip(seen.hints.promises())
    {
        let class = if after == safe { Class::AnnotationsSafer } else { Class::AnnotationsLessSafe };
        differ(before != after, class);
    }
    classes
}
