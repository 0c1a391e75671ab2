//! Ids of items. They are told to operators alone, and made with a key: a server that could compute them would look
//! for two definitions with the same one, to have the first reviewed and the second approved.

use sha2::{Digest as _, Sha256};

use super::place::Place;
use crate::fingerprint::{Digest, Fingerprint, Surface};

const PREFIX: &str = "tool-";
const BITS: u32 = 48;

/// Makes ids of one store.
#[derive(Clone)]
pub(super) struct Key(pub(super) [u8; 32]);

impl Key {
    /// Of an item that shows something, as a number of 48 bits.
    pub(super) fn id(&self, place: &Place, surface: Surface, name: &str, seen: &Fingerprint) -> u64 {
        let mut hash = Sha256::new();
        hash.update(self.0);
        let endpoint = &place.endpoint;
        let address = endpoint.address.to_string();
        let parts = [
            Some(&*endpoint.server),
            Some(&*endpoint.path),
            Some(&*address),
            endpoint.agent.as_deref(),
            place.revision.as_deref(),
            place.principal.as_deref(),
            Some(surface.label()),
            Some(name),
        ];
        for part in parts {
            // Lengths tell where parts end, and one more tells what is empty from what is not there.
            hash.update(part.map_or(0, |part| part.len() as u64 + 1).to_le_bytes());
            hash.update(part.unwrap_or_default());
        }
        hash.update(digest(seen).0);
        first_bytes(hash.finalize().into()) >> (u64::BITS - BITS)
    }
}

/// One digest of all that a fingerprint says.
pub(super) fn digest(fingerprint: &Fingerprint) -> Digest {
    let Fingerprint { definition, core, hints, annotations, display, meta, ui } = fingerprint;
    let mut hash = Sha256::new();
    for digest in [definition, core, annotations, display, meta, ui] {
        hash.update(digest.0);
    }
    hash.update([hints.read_only, hints.destructive, hints.idempotent, hints.open_world].map(u8::from));
    Digest(hash.finalize().into())
}

pub(super) fn first_bytes(digest: [u8; 32]) -> u64 {
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// As it is shown.
pub(super) fn write(id: u64) -> String {
    format!("{PREFIX}{id:012x}")
}

/// As it is given by an operator.
pub(super) fn read(text: &str) -> Option<u64> {
    let digits = text.strip_prefix(PREFIX).filter(|digits| digits.len() == 12)?;
    let hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    hex.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}
