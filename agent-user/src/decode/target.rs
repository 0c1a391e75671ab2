//! Which server a request names: in its target (RFC 9112, section 3.2), and in `Host`.
//!
//! Read strictly. Servers and proxies cut names differently out of what is not quite one, so whatever is more than a
//! name and a port is refused ([`Malformed::Target`], [`Malformed::Host`]).

use super::{Malformed, Method, RequestHead, Span};

/// A server by its name or address, and its port if one is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// As written; an IPv6 address has its brackets.
    pub name: &'a [u8],
    /// The port.
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// Reads all of `text`. There is no user in it, no escape, and one spelling only of each port.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        if text.len() > MAX_AUTHORITY {
            return None;
        }
        let end = match text.strip_prefix(b"[") {
            Some(address) => memchr::memchr(b']', address)? + 2,
            None => memchr::memchr(b':', text).unwrap_or(text.len()),
        };
        let (name, port) = text.split_at_checked(end)?;
        let port = match port {
            [] => None,
            [b':', digits @ ..] => Some(port_of(digits)?),
            _ => return None,
        };
        let is_name = match name {
            [b'[', address @ .., b']'] => {
                address.contains(&b':')
                    && address.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte))
            }
            name => {
                !name.is_empty()
                    && !is_odd_number(name)
                    && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte))
            }
        };
        is_name.then_some(Self { name, port })
    }

    /// Whether `Host` names the same server. `default` is the port of the target's scheme.
    fn agrees(self, host: Self, default: Option<u16>) -> bool {
        self.name.eq_ignore_ascii_case(host.name) && self.port.or(default) == host.port.or(default)
    }
}

/// Whether resolvers take a name for a number, and so for an IPv4 address, that is not written as one.
fn is_odd_number(name: &[u8]) -> bool {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let last = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    let is_number = last.iter().all(u8::is_ascii_digit)
        || last.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(b"0x"));
    let is_address =
        || std::str::from_utf8(name).is_ok_and(|name| name.parse::<core::net::Ipv4Addr>().is_ok());
    is_number && !is_address()
}

fn port_of(digits: &[u8]) -> Option<u16> {
    let is_plain = digits.iter().all(u8::is_ascii_digit) && !digits.starts_with(b"0");
    std::str::from_utf8(digits).ok().filter(|_| is_plain)?.parse().ok()
}

/// The authority in a target, which is of one of the four forms, and the one that its method wants.
pub(super) fn read(method: Method, target: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    // Some readers end a target there, others do not; nobody sends one (RFC 9112, section 3.2).
    if memchr::memchr(b'#', target).is_some() {
        return Err(Malformed::Target);
    }
    match (method, target) {
        (Method::Connect, target) => {
            Some(target).filter(|target| Authority::parse(target).is_some_and(|named| named.port.is_some()))
        }
        (_, [b'/', ..]) | (Method::Options, b"*") => return Ok(None),
        (_, target) => in_absolute(target).map(|(_, authority)| authority),
    }
    .map(Some)
    .ok_or(Malformed::Target)
}

/// The scheme and the authority of `scheme://authority…`.
fn in_absolute(target: &[u8]) -> Option<(&[u8], &[u8])> {
    let (scheme, rest) = target.split_at_checked(memchr::memmem::find(target, b"://")?)?;
    let is_scheme = scheme.first().is_some_and(u8::is_ascii_alphabetic)
        && scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    let authority = rest.get(3..)?.split(|byte| matches!(byte, b'/' | b'?')).next()?;
    (is_scheme && Authority::parse(authority).is_some()).then_some((scheme, authority))
}

impl RequestHead {
    /// Whether target and `Host` name the same server, as far as both do. Servers go by the target (RFC 9112, section
    /// 3.2.2), but not all of them.
    pub fn is_of_one_server(&self, bytes: &[u8]) -> bool {
        let Some(target) = self.authority.map(|target| target.of(bytes)) else { return true };
        let host = self.host.and_then(|host| Authority::parse(host.of(bytes)));
        match (Authority::parse(target), host) {
            // Clients leave out the port of the scheme that they will speak in the tunnel.
            (Some(target), Some(host)) if self.method == Method::Connect => {
                target.agrees(host, host.port.or(target.port))
            }
            (Some(target), Some(host)) => target.agrees(host, self.default_port(bytes)),
            (_, None) => self.method == Method::Connect && self.host.is_none(),
            (None, _) => false,
        }
    }

    /// The path that is asked for, without authority and query.
    pub fn path<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let target = self.target.of(bytes);
        let absolute = self.authority.filter(|_| self.method != Method::Connect);
        let start = absolute.map_or(0, |authority| authority.range().end - self.target.range().start);
        let path = target.get(start..).unwrap_or_default().split(|byte| *byte == b'?').next();
        path.filter(|path| !path.is_empty()).unwrap_or(b"/")
    }

    fn default_port(&self, bytes: &[u8]) -> Option<u16> {
        let (scheme, _) = in_absolute(self.target.of(bytes))?;
        let is = |known: &str| scheme.eq_ignore_ascii_case(known.as_bytes());
        if is("http") { Some(80) } else { is("https").then_some(443) }
    }
}

/// `Host` is no longer than this, and so neither is a name in it (RFC 1035: 253 characters).
const MAX_AUTHORITY: usize = 256;

pub(super) fn host(host: Option<Span>, head: &[u8]) -> Result<(), Malformed> {
    match host.map(|host| host.of(head)) {
        // Whoever asks for something that has no server says so with an empty one (RFC 9110, section 7.2).
        None | Some([]) => Ok(()),
        Some(host) => Authority::parse(host).map(drop).ok_or(Malformed::Host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::parse_request;

    #[track_caller]
    fn check(text: &str, expect: Option<(&str, Option<u16>)>) {
        let got = Authority::parse(text.as_bytes());
        assert_eq!(
            got.map(|got| (got.name, got.port)),
            expect.map(|(name, port)| (name.as_bytes(), port)),
            "{text}"
        );
    }

    #[test]
    fn authorities_are_a_name_and_a_port() {
        check("bank.test", Some(("bank.test", None)));
        check("Bank_1.test.:8080", Some(("Bank_1.test.", Some(8080))));
        check("10.0.0.1:65535", Some(("10.0.0.1", Some(65535))));
        check("10.0.0.1.", Some(("10.0.0.1.", None)));
        check("0xa.test", Some(("0xa.test", None)));
        check("[fd77::2]", Some(("[fd77::2]", None)));
        check("[::ffff:10.0.0.1]:1", Some(("[::ffff:10.0.0.1]", Some(1))));
    }

    #[test]
    fn what_hides_a_name_is_none() {
        for text in [
            "1",
            "127.1",
            "010.0.0.1",
            "0x7f000001",
            "10.0.0.0x1",
            "2130706433:80",
            "1.2.3.4.5",
            "256.0.0.1",
            ".",
            "a..",
            "",
            ":80",
            "a:",
            "a:x",
            "a:+1",
            "a:080",
            "a:0",
            "a:65536",
            "a:1:2",
            "u@a",
            "a@",
            "a%2etest",
            "a,b",
            "a b",
            "a/b",
            "a\\b",
            "a\tb",
            "[::1",
            "::1",
            "[]",
            "[a]",
            "[::1]x",
            "[::1]:",
            "[::1%25eth0]",
            "a]",
            "\u{fc}",
        ] {
            check(text, None);
        }
        check(&"a".repeat(256), Some((&"a".repeat(256), None)));
        check(&"a".repeat(257), None);
    }

    fn head(line: &str, host: &str) -> Result<(RequestHead, Vec<u8>), Malformed> {
        let text = format!("{line} HTTP/1.1\r\n{host}\r\n").into_bytes();
        parse_request(&text, 4096).map(|head| (head.expect("it is whole"), text))
    }

    #[test]
    fn targets_are_of_a_known_form() {
        let check = |line: &str, expect: Option<(Option<&str>, &str)>| {
            let got = head(line, "").map(|(head, text)| {
                let of = |bytes: &[u8]| bytes.escape_ascii().to_string();
                (head.authority.map(|span| of(span.of(&text))), of(head.path(&text)))
            });
            match expect {
                Some((authority, path)) => {
                    assert_eq!(got, Ok((authority.map(str::to_owned), path.to_owned())), "{line}");
                }
                None => assert_eq!(got, Err(Malformed::Target), "{line}"),
            }
        };
        check("GET /", Some((None, "/")));
        check("GET /a?b://c", Some((None, "/a")));
        check("GET //bank.test/x", Some((None, "//bank.test/x")));
        check("GET http://bank.test", Some((Some("bank.test"), "/")));
        check("GET HTTP://bank.test:81/x?y", Some((Some("bank.test:81"), "/x")));
        check("POST https://bank.test?x/y", Some((Some("bank.test"), "/")));
        check("CONNECT bank.test:443", Some((Some("bank.test:443"), "bank.test:443")));
        check("OPTIONS *", Some((None, "*")));
        check("OPTIONS /a", Some((None, "/a")));
        for none in [
            "GET bank.test",
            "GET bank.test:80",
            "GET *",
            "GET http:bank.test/x",
            "GET http:/bank.test/x",
            "GET http:///x",
            "GET ://bank.test/x",
            "GET 1://bank.test/x",
            "GET x y://bank.test/x",
            "GET http://u@bank.test/x",
            "GET http://bank.test\\@shop.test/x",
            "GET http://bank.test:/x",
            "GET /a#b",
            "CONNECT bank.test",
            "CONNECT /",
            "CONNECT http://bank.test:80",
            "CONNECT u@bank.test:443",
        ] {
            if none.matches(' ').count() == 1 {
                check(none, None);
            } else {
                assert!(head(none, "").is_err(), "{none}");
            }
        }
    }

    #[test]
    fn hosts_that_hide_a_name_are_refused() {
        for host in
            ["a@bank.test", "bank.test:", "bank.test:x", "bank.test, shop.test", "bank%2etest", "http://a"]
        {
            assert_eq!(head("GET /", &format!("Host: {host}\r\n")).map(drop), Err(Malformed::Host), "{host}");
        }
        for host in ["", "bank.test", "BANK.test.:8080", "[::1]:1"] {
            assert_eq!(head("GET /", &format!("Host: {host}\r\n")).map(drop), Ok(()), "{host}");
        }
    }

    #[test]
    fn target_and_host_agree_or_not() {
        let check = |line: &str, host: &str, expect| {
            let (head, text) = head(line, host).unwrap();
            assert_eq!(head.is_of_one_server(&text), expect, "{line}, {host}");
        };
        check("GET /", "Host: bank.test\r\n", true);
        check("GET /", "", true);
        check("GET http://bank.test/", "Host: BANK.test\r\n", true);
        check("GET http://bank.test:80/", "Host: bank.test\r\n", true);
        check("GET https://bank.test/", "Host: bank.test:443\r\n", true);
        check("GET http://bank.test/", "Host: bank.test:443\r\n", false);
        check("GET http://bank.test/", "Host: shop.test\r\n", false);
        check("GET http://bank.test/", "Host:\r\n", false);
        check("GET http://bank.test/", "", false);
        check("CONNECT bank.test:443", "Host: bank.test:443\r\n", true);
        check("CONNECT bank.test:443", "Host: bank.test\r\n", true);
        check("CONNECT bank.test:443", "", true);
        check("CONNECT bank.test:443", "Host: bank.test:80\r\n", false);
        check("CONNECT bank.test:443", "Host: shop.test\r\n", false);
        check("CONNECT bank.test:443", "Host:\r\n", false);
    }
}
