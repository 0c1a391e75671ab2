//! Whom an agent acts for: the claims of the bearer token that comes with a request, which is a JWT (RFC 7519) or says
//! nothing to us.
//!
//! Bias: a claim is never lost, only marked. Where no keys are configured, or a token does not stand up to them, its
//! claims are there with `verified: false`, and rules decide what that is worth.

mod backend;
mod keys;
mod principal;

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use arc_swap::ArcSwapOption;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::get_current_timestamp;
use serde_json::{Map, Value};
use tracing::{error, info};

use self::keys::{Keys, LEEWAY};
use crate::config::Tokens;
use crate::decide::subject::User;
use crate::decode::Headers;

pub use self::principal::LastPrincipal;

/// Bytes of a token that is read.
const MAX_TOKEN: usize = 16 << 10;
/// Bytes of a token that a connection remembers. Claims take up to sixteen times as much once they are read, and
/// connections are many: longer ones are read with each request.
const MAX_KEPT: usize = 4 << 10;
/// Seconds for which what was found out about a token holds: one may begin to be valid.
const HOLDS_FOR: u64 = 10;

/// Reads the tokens of all connections.
#[derive(Debug, Default)]
pub struct Users {
    config: Option<Tokens>,
    keys: ArcSwapOption<Keys>,
    /// The text that was read last, good or bad.
    text: Mutex<String>,
}

/// The token that a connection has sent last. Agents send the same one with each request.
#[derive(Debug, Default)]
pub struct LastToken {
    token: Vec<u8>,
    user: Option<Arc<User>>,
    /// Seconds since 1970 from which on it is to be looked at again.
    until: u64,
    /// The keys it was looked at with.
    keys: Option<Arc<Keys>>,
}

impl Users {
    /// Reads the keys, where there are any.
    ///
    /// # Errors
    /// Name the file and the remedy.
    pub fn load(config: Option<&Tokens>) -> Result<Users> {
        let Some(config) = config else { return Ok(Users::default()) };
        let text = keys::read(&config.jwks).context("tokens: jwks")?;
        let keys = Keys::parse(&text, config).context("tokens: jwks")?;
        Ok(Users {
            config: Some(config.clone()),
            keys: ArcSwapOption::from_pointee(keys),
            text: Mutex::new(text),
        })
    }

    /// Reads the keys again if their file says something else than when it was read last. If they cannot be used, those
    /// read last stay.
    pub fn reload_if_changed(&self) {
        let Some(config) = &self.config else { return };
        let text = keys::read(&config.jwks);
        {
            let mut last = self.text.lock().unwrap_or_else(PoisonError::into_inner);
            // An unreadable file is a change too, once.
            let text = text.as_deref().unwrap_or_default();
            if *last == text {
                return;
            }
            text.clone_into(&mut last);
        }
        let jwks = config.jwks.display();
        match text.and_then(|text| Keys::parse(&text, config)) {
            Ok(keys) => {
                info!(%jwks, keys = keys.len(), "keys of tokens reloaded");
                self.keys.store(Some(Arc::new(keys)));
            }
            Err(fault) => {
                let error = format!("{fault:#}");
                error!(error, "keys of tokens not reloaded; the last good ones are in force");
            }
        }
    }

    /// Whom a request speaks for. `None`: it has no bearer token that is a JWT, or more than one `Authorization`.
    pub fn of_request(&self, headers: Headers<'_>, last: &mut LastToken) -> Option<Arc<User>> {
        let token = bearer(headers.only("authorization")?)?;
        let (keys, now) = (self.keys.load_full(), get_current_timestamp());
        let same_keys = last.keys.as_ref().map(Arc::as_ptr) == keys.as_ref().map(Arc::as_ptr);
        if last.token != token || now >= last.until || !same_keys {
            let user = read(token, keys.as_deref()).map(Arc::new);
            if token.len() > MAX_KEPT {
                *last = LastToken::default();
                return user;
            }
            let until = until(user.as_deref(), now);
            *last = LastToken { token: token.to_owned(), user, until, keys };
        }
        last.user.clone()
    }
}

/// The token of an `Authorization` header (RFC 6750, section 2.1), if it is one we read.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && token.len() <= MAX_TOKEN).then_some(token)
}

fn read(token: &[u8], keys: Option<&Keys>) -> Option<User> {
    // Other numbers of parts are something else: five are an encrypted token, which says nothing to us.
    let token = std::str::from_utf8(token).ok().filter(|token| token.split('.').count() == 3)?;
    if let Some(claims) = keys.and_then(|keys| keys.verify(token)) {
        return Some(User { verified: true, claims });
    }
    let claims: Map<String, Value> = insecure_decode_claims(token).ok()?;
    Some(User { verified: false, claims })
}

/// When a token is to be looked at again: at the latest when it is no more to be believed.
fn until(user: Option<&User>, now: u64) -> u64 {
    let verified = user.filter(|user| user.verified);
    let expires = verified.and_then(|user| user.claims.get("exp")?.as_u64()).unwrap_or(u64::MAX);
    now.saturating_add(HOLDS_FOR).min(expires.saturating_add(LEEWAY + 1))
}

#[cfg(test)]
mod tests;
