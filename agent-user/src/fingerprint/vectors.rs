//! The recorded examples of what README says about fingerprints. Their texts and digests were made by another program.

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Example {
    what: String,
    surface: Surface,
    text: String,
    canonical: String,
    #[serde(flatten)]
    fingerprint: Fingerprint,
}

#[track_caller]
fn check(examples: &str) {
    for Example { what, surface, text, canonical, fingerprint: expect } in
        serde_json::from_str::<Vec<Example>>(examples).unwrap()
    {
        assert_eq!(canonical_text(surface, &text), canonical, "{what}");
        assert_eq!(fingerprint(surface, &text), expect, "{what}");
        // The canonical form is one of the spellings.
        assert_eq!(canonical_text(surface, &canonical), canonical, "{what}");
        assert_eq!(fingerprint(surface, &canonical), expect, "{what}");
    }
}

macro_rules! example {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/fingerprint/", $name, ".json"))
    };
}

#[test]
fn spellings_are_as_recorded() {
    check(example!("spelling"));
}

#[test]
fn schemas_are_as_recorded() {
    check(example!("schema"));
}

#[test]
fn parts_are_as_recorded() {
    check(example!("parts"));
}
