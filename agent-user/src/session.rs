//! Sessions as an operator names them: short digests, since the id of an MCP session is a secret.
//!
//! `s-` and 12 hexadecimal digits stand for a session that the server gave an id (`Mcp-Session-Id`, MCP 2025-03-26
//! to 2025-11-25); `p-` and 12 digits for what one process does at one server without such an id (MCP 2026-07-28).
//! The id is never kept: whoever has it finds its session by the digest.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use globset::{Glob, GlobMatcher};
use sha2::{Digest, Sha256};

use crate::kernel::process;

const DIGITS: usize = 12;
const LEN: usize = 2 + DIGITS;

/// The digest of a session. Two sessions have the same one by chance only among millions.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session([u8; LEN]);

/// A process, told from another one that has the same number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process<'a> {
    pub pid: u32,
    /// When it started, in ticks since the boot.
    pub started: u64,
    /// The boot, by the kernel's random id for it.
    pub boot: &'a str,
}

/// An operator's choice of sessions.
#[derive(Clone, Debug)]
pub struct SessionPattern {
    text: String,
    glob: Option<GlobMatcher>,
    /// The session whose id the operator's text would be.
    session: Session,
}

impl Session {
    /// The session with this id, as it stands in `Mcp-Session-Id`; an empty one is none.
    pub fn of_id(id: &[u8]) -> Option<Session> {
        (!id.is_empty()).then(|| Session::new(*b"s-", &[id]))
    }

    /// What a process does at a server, given as host and port, outside of any session with an id.
    pub fn of_process(process: &Process<'_>, server: &str) -> Session {
        let (pid, started) = (process.pid.to_be_bytes(), process.started.to_be_bytes());
        // Only the last part may be of any length; the kernel's boot id has no NUL.
        Session::new(*b"p-", &[process.boot.as_bytes(), b"\0", &started, &pid, server.as_bytes()])
    }

    /// `s-` or `p-`, and 12 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    fn new(prefix: [u8; 2], parts: &[&[u8]]) -> Session {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part);
        }
        let digest = hash.finalize();
        let mut text = [0; LEN];
        let (start, digits) = text.split_at_mut(prefix.len());
        start.copy_from_slice(&prefix);
        for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
            let digit = |value: u8| HEX[usize::from(value & 15)];
            pair.copy_from_slice(&[digit(byte >> 4), digit(byte)]);
        }
        Session(text)
    }
}

impl Process<'static> {
    /// A process that is there now.
    pub fn read(pid: u32) -> Option<Process<'static>> {
        Some(Process { pid, started: process::start_ticks(pid).ok()?, boot: boot_id() })
    }
}

/// Random for each boot: random(4). Empty where it cannot be read.
fn boot_id() -> &'static str {
    static BOOT: OnceLock<String> = OnceLock::new();
    BOOT.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim_ascii_end().to_owned()
    })
}

impl SessionPattern {
    /// Reads a glob over digests (`s-1f*`), or the id of a session itself. Errors name the pattern, except where it
    /// may be an id.
    pub fn parse(text: &str) -> Result<SessionPattern, String> {
        let session = Session::of_id(text.as_bytes()).ok_or("session=: is empty")?;
        if !is_glob_of_digests(text) {
            // From here on the id is forgotten.
            return Ok(SessionPattern { text: session.to_string(), glob: None, session });
        }
        let glob = Glob::new(text).map_err(|error| format!("session={text}: {}", error.kind()))?;
        Ok(SessionPattern { text: text.to_owned(), glob: Some(glob.compile_matcher()), session })
    }

    /// Whether a session is meant.
    pub fn matches(&self, session: &Session) -> bool {
        self.session == *session || self.glob.as_ref().is_some_and(|glob| glob.is_match(session.as_str()))
    }

    /// What to keep and to show: the operator's glob, or the digest of the operator's id. Parsing it again gives a
    /// pattern that matches the same.
    pub fn pattern(&self) -> &str {
        &self.text
    }
}

/// Whether `text` could match a digest: it is one, or a glob with nothing in it that no digest has. All else is an
/// id, and must not be kept.
fn is_glob_of_digests(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let whole = text.len() == LEN
        && (text.starts_with("s-") || text.starts_with("p-"))
        && text.bytes().skip(2).all(is_digit);
    let is_meta = |byte: u8| b"*?[]{}!,".contains(&byte);
    let plain = text.bytes().filter(|byte| !is_meta(*byte));
    let glob = text.bytes().any(|byte| b"*?[{".contains(&byte))
        && plain.clone().all(|byte| is_digit(byte) || b"sp-".contains(&byte))
        && plain.count() <= LEN * 2;
    whole || glob
}

impl FromStr for Session {
    type Err = ();

    /// Reads what [`Session::as_str`] gives.
    fn from_str(text: &str) -> Result<Session, ()> {
        let bytes: [u8; LEN] = text.as_bytes().try_into().map_err(|_| ())?;
        let is_digest = matches!(&bytes[..2], b"s-" | b"p-") && is_glob_of_digests(text);
        if is_digest && bytes[2..].iter().all(u8::is_ascii_hexdigit) { Ok(Session(bytes)) } else { Err(()) }
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Session {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: Process<'_> = Process { pid: 7, started: 99, boot: "b" };

    fn session(id: &str) -> Session {
        Session::of_id(id.as_bytes()).unwrap()
    }

    #[test]
    fn an_id_becomes_the_start_of_its_sha256() {
        assert_eq!(session("abc").as_str(), "s-ba7816bf8f01");
        assert_eq!(format!("{} {:?}", session("abc"), session("abc")), "s-ba7816bf8f01 s-ba7816bf8f01");
        assert_eq!(Session::of_id(b""), None);
        assert!(Session::of_id(b"\xff\0").is_some());
    }

    #[test]
    fn sessions_without_an_id_differ_by_process_boot_and_server() {
        let at = |process: Process<'_>| Session::of_process(&process, "a:80");
        let first = at(PROCESS);
        assert!(first.as_str().starts_with("p-") && first.as_str().len() == 14);
        assert_eq!(first, at(PROCESS));
        let others = [
            at(Process { pid: 8, ..PROCESS }),
            at(Process { started: 100, ..PROCESS }),
            at(Process { boot: "c", ..PROCESS }),
            Session::of_process(&PROCESS, "a:81"),
            session("b"),
        ];
        assert!(!others.contains(&first));
    }

    #[test]
    fn this_process_is_found_and_no_other_has_its_key() {
        let own = Process::read(std::process::id()).unwrap();
        assert!(own.started > 0 && !own.boot.is_empty() && !own.boot.contains('\n'));
        assert_eq!(Process::read(std::process::id()), Some(own));
        assert_eq!(Process::read(0), None);
        assert_eq!(Process::read(u32::MAX), None);
    }

    #[track_caller]
    fn check(pattern: &str, kept: &str, meant: &[Session], not_meant: &[Session]) {
        let parsed = SessionPattern::parse(pattern).unwrap();
        let again = SessionPattern::parse(parsed.pattern()).unwrap();
        assert_eq!(parsed.pattern(), kept);
        for parsed in [parsed, again] {
            assert!(meant.iter().all(|session| parsed.matches(session)), "{pattern}");
            assert!(!not_meant.iter().any(|session| parsed.matches(session)), "{pattern}");
        }
    }

    #[test]
    fn patterns_are_globs_of_digests_or_ids() {
        let abc = session("abc");
        let other = Session::of_process(&PROCESS, "a:80");
        check("s-ba7816bf8f01", "s-ba7816bf8f01", &[abc], &[other]);
        check("s-ba78*", "s-ba78*", &[abc], &[other]);
        check("s-b[a-f]*", "s-b[a-f]*", &[abc], &[other]);
        check("*", "*", &[abc, other], &[]);
        check("{s,p}-*", "{s,p}-*", &[abc, other], &[]);
        check("p-*", "p-*", &[other], &[abc]);
        // The id itself, and only the whole of it.
        check("abc", "s-ba7816bf8f01", &[abc], &[other]);
        check("ab", session("ab").as_str(), &[], &[abc, other]);
        check("ba7816bf8f01", session("ba7816bf8f01").as_str(), &[], &[abc]);
        check("s-BA7816BF8F01", session("s-BA7816BF8F01").as_str(), &[], &[abc]);
    }

    #[test]
    fn an_id_is_not_kept_whatever_it_looks_like() {
        for id in [
            "1f0c9a52-93c5-4f6e-8a5e-0d1f2c3b4a59",
            "eyJhbGciOiJIUzI1NiJ9.e30.x*",
            "mcp-session-[7]",
            "Zürich",
            "\\",
            &"0123456789abcdef*".repeat(3),
        ] {
            let pattern = SessionPattern::parse(id).unwrap();
            assert!(!format!("{pattern:?}").contains(id), "{pattern:?}");
            assert!(pattern.matches(&session(id)));
        }
        // It looks like a digest, so it is kept as one; but it is found all the same.
        assert!(SessionPattern::parse("s-0123456789ab").unwrap().matches(&session("s-0123456789ab")));
    }

    #[test]
    fn bad_patterns_are_named() {
        assert!(SessionPattern::parse("").unwrap_err().contains("empty"));
        assert!(SessionPattern::parse("s-[").unwrap_err().contains("session=s-["));
        assert!(SessionPattern::parse("s-{a").unwrap_err().contains("session=s-{a"));
    }
}
