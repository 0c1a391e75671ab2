//! The keys that tokens are checked with: a JSON Web Key Set (RFC 7517), read from a file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};
use tracing::warn;

use super::backend;
use crate::config::Tokens;

/// Bytes of a key set.
const MAX_FILE: u64 = 1 << 20;
/// Keys that are used: a token that names none is tried with each.
const MAX_KEYS: usize = 64;
/// How far the clock of whoever made a token may be from ours, in seconds.
pub(super) const LEEWAY: u64 = 60;

/// Keys, and what tokens must say to be believed.
#[derive(Debug)]
pub(super) struct Keys {
    keys: Vec<Key>,
    validation: Validation,
}

#[derive(Debug)]
struct Key {
    /// `kid`
    id: Option<String>,
    /// `alg`: the only algorithm it is for.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

/// The text of a key set.
pub(super) fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text));
    read.with_context(|| format!("read {}", path.display()))?;
    ensure!(text.len() as u64 <= MAX_FILE, "{}: is longer than 1 MiB, so no key set", path.display());
    Ok(text)
}

impl Keys {
    /// Reads a key set. What no signature can be checked with is passed over, keys that are secrets with a warning.
    ///
    /// # Errors
    /// Name the file and the remedy.
    pub(super) fn parse(text: &str, config: &Tokens) -> Result<Keys> {
        backend::install();
        let file = config.jwks.display();
        let set: JwkSet = serde_json::from_str(text)
            .with_context(|| format!("{file}: a JSON Web Key Set is expected in it: {{\"keys\": [...]}}"))?;
        let keys: Vec<Key> = set.keys.iter().filter_map(|jwk| key(jwk, config)).collect();
        if keys.is_empty() {
            bail!(
                "{file}: no key in it can check a signature; give public keys of type RSA, EC (P-256, P-384) or OKP (Ed25519)"
            );
        }
        ensure!(keys.len() <= MAX_KEYS, "{file}: {} keys; give no more than {MAX_KEYS}", keys.len());
        let mut validation = Validation::new(Algorithm::RS256);
        validation.leeway = LEEWAY;
        validation.validate_nbf = true;
        let mut required = vec!["exp"];
        // Without an audience in the configuration any will do: the token is for the server, not for us.
        validation.validate_aud = config.audience.is_some();
        if let Some(audience) = &config.audience {
            validation.set_audience(&[audience]);
            required.push("aud");
        }
        if let Some(issuer) = &config.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        validation.set_required_spec_claims(&required);
        Ok(Keys { keys, validation })
    }

    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// The claims of a token, if one of the keys has signed it, and it holds now and for us.
    pub(super) fn verify(&self, token: &str) -> Option<Map<String, Value>> {
        let header = jsonwebtoken::decode_header(token).ok()?;
        let fits = |key: &&Key| {
            header.kid.as_ref().is_none_or(|id| key.id.as_ref() == Some(id))
                && key.key.family() == header.alg.family()
                && key.algorithm.is_none_or(|algorithm| algorithm == header.alg)
        };
        self.keys.iter().filter(fits).find_map(|key| {
            let validation = Validation { algorithms: vec![header.alg], ..self.validation.clone() };
            jsonwebtoken::decode(token, &key.key, &validation).ok().map(|token| token.claims)
        })
    }
}

/// A key that signatures can be checked with.
fn key(jwk: &Jwk, config: &Tokens) -> Option<Key> {
    let common = &jwk.common;
    if matches!(jwk.algorithm, AlgorithmParameters::OctetKey(_)) {
        let (jwks, kid) = (config.jwks.display(), common.key_id.as_deref());
        warn!(%jwks, kid, "a key of type oct is a secret with which tokens could be made; it is not used");
        return None;
    }
    let is_for_signatures =
        common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature);
    let may_verify =
        common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    if !is_for_signatures || !may_verify {
        return None;
    }
    let algorithm = match common.key_algorithm {
        // One that is not known here, or not for signatures.
        Some(algorithm) => Some(algorithm.to_string().parse().ok()?),
        None => None,
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    Some(Key { id: common.key_id.clone(), algorithm, key })
}
