//! The server that a TLS client names before anything is encrypted (`server_name`, RFC 6066 section 3).
//!
//! rustls reads the ClientHello as a server would. A hello that it would refuse, that names nobody or an IP address has no
//! name here; of one with an encrypted inner hello (ECH) the outer name is seen.

use rustls::server::Acceptor;

/// Reads a ClientHello (RFC 8446 section 4.1.2) as it comes.
#[derive(Default)]
pub struct Hello {
    acceptor: Acceptor,
    /// Bytes that it has seen.
    read: usize,
}

/// What a hello says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// It is not complete.
    NeedMore,
    /// The name, in lower case, if it has one that can be read.
    Server(Option<String>),
}

impl Hello {
    /// Goes on with `bytes`: all that the client has sent so far.
    pub fn read(&mut self, bytes: &[u8]) -> Named {
        loop {
            match self.acceptor.accept() {
                Ok(Some(accepted)) => {
                    return Named::Server(accepted.client_hello().server_name().map(str::to_owned));
                }
                Ok(None) => {}
                Err(_) => return Named::Server(None),
            }
            let mut rest = bytes.get(self.read..).unwrap_or_default();
            if rest.is_empty() {
                return Named::NeedMore;
            }
            match self.acceptor.read_tls(&mut rest) {
                Ok(count @ 1..) => self.read += count,
                // More than a hello may be.
                Ok(0) | Err(_) => return Named::Server(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::crypto::ring;
    use rustls::version::{TLS12, TLS13};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// What a client sends first.
    fn hello(server: &str, version: &'static rustls::SupportedProtocolVersion) -> Vec<u8> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .expect("versions")
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = server.to_owned().try_into().expect("a name");
        let mut client = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("a hello");
        bytes
    }

    #[track_caller]
    fn check(bytes: &[u8], expect: Option<&str>) {
        let expect = Named::Server(expect.map(str::to_owned));
        assert_eq!(Hello::default().read(bytes), expect, "whole");
        let mut hello = Hello::default();
        for end in 0..bytes.len() {
            match hello.read(&bytes[..end]) {
                Named::NeedMore => {}
                early => {
                    assert_eq!(early, expect, "after {end} bytes");
                    return;
                }
            }
        }
        assert_eq!(hello.read(bytes), expect, "byte by byte");
    }

    /// The handshake message of a single record, in records of so many bytes.
    fn in_records(hello: &[u8], size: usize) -> Vec<u8> {
        let pieces = hello[5..].chunks(size);
        let record = |piece: &[u8]| {
            let length = u16::try_from(piece.len()).expect("a record").to_be_bytes();
            [&hello[..3], &length, piece].concat()
        };
        pieces.flat_map(record).collect()
    }

    #[test]
    fn clients_name_their_server() {
        for version in [&TLS12, &TLS13] {
            check(&hello("Bank.test", version), Some("bank.test"));
            check(&in_records(&hello("bank.test", version), 40), Some("bank.test"));
            check(&hello("192.0.2.1", version), None);
        }
    }

    #[test]
    fn what_is_no_hello_names_nobody() {
        check(b"\x16\x03\x01\x00\x05hello", None);
        // A record that says it is longer than one may be.
        check(b"\x16\x03\x01\xff\xff\x01", None);
        // A message that says it is longer than a hello may be.
        check(&[b"\x16\x03\x01\x40\x00\x01\xff\xff\xff".as_slice(), &[0; 20_000]].concat(), None);
    }

    #[test]
    fn altered_hellos_do_no_harm() {
        let hello = hello("bank.test", &TLS13);
        for at in 0..hello.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = hello.clone();
                bytes[at] ^= flip;
                let _ = Hello::default().read(&bytes);
            }
        }
    }
}
