//! The tunnel that an agent has asked a proxy for, with CONNECT (RFC 9110, section 9.3.6). What goes through it is
//! judged as a connection of its own to the server that was named; what is needed to make another tunnel like it is kept.

use std::io;
use std::net::SocketAddr;

use bytes::Buf;

use crate::decode::{Authority, Method, parse_request, parse_response};
use crate::forward::side::Side;

/// Tunnels in tunnels: more of them are refused.
const DEEPEST: usize = 2;

/// A tunnel through a proxy, or through several.
#[derive(Debug)]
pub struct Tunnel {
    /// Name or address, and port, of the server at its end.
    server: Box<str>,
    port: u16,
    /// The heads that asked for it, from the first proxy on. They hold what authorizes the agent.
    requests: Vec<Box<[u8]>>,
}

impl Tunnel {
    /// The one that a request with this head asks for, inside another one if it came through that.
    pub fn asked_for(request: &[u8], outer: Option<&Tunnel>) -> Option<Tunnel> {
        let head = parse_request(request, request.len() + 1).ok()??;
        let server = head.authority?.of(request);
        let outer = outer.map(|outer| outer.requests.clone()).unwrap_or_default();
        Some(Tunnel {
            port: Authority::parse(server)?.port?,
            server: String::from_utf8_lossy(server).into(),
            requests: outer.into_iter().chain([request.into()]).collect(),
        })
    }

    /// Name or address, and port, of the server at its end.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The port of that server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it leads, if it was asked for by an address.
    pub fn address(&self) -> Option<SocketAddr> {
        let address: SocketAddr = self.server.parse().ok()?;
        // An IPv4 address is one, however it is written.
        Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
    }

    /// No other tunnel may lead through it.
    pub fn is_deepest(&self) -> bool {
        self.requests.len() >= DEEPEST
    }

    /// Asks for it again, on a new connection to the proxy.
    ///
    /// # Errors
    /// A proxy does not give it.
    pub async fn dig(&self, proxy: &mut Side, limit: usize) -> io::Result<()> {
        for request in &self.requests {
            proxy.writer.send(request).await?;
            loop {
                let head = parse_response(&proxy.reader.buffer, limit, Method::Connect);
                match head.map_err(|fault| refused(fault.label()))? {
                    Some(head) => {
                        proxy.reader.buffer.advance(head.len);
                        match head.status {
                            200..300 => break,
                            102..200 | 100 => {}
                            status => return Err(refused(&format!("status {status}"))),
                        }
                    }
                    None if proxy.reader.fill().await? == 0 => {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionRefused, format!("the proxy gives no tunnel: {why}"))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::forward::side::Keepalive;
    use crate::room::Share;

    const FIRST: &[u8] = b"CONNECT proxy.test:3128 HTTP/1.1\r\nProxy-Authorization: Basic x\r\n\r\n";
    const SECOND: &[u8] = b"CONNECT [::ffff:10.0.0.1]:443 HTTP/1.1\r\n\r\n";

    #[test]
    fn tunnels_lead_to_what_was_asked_for() {
        let outer = Tunnel::asked_for(FIRST, None).unwrap();
        assert_eq!((outer.server(), outer.port(), outer.address()), ("proxy.test:3128", 3128, None));
        assert!(!outer.is_deepest());
        let inner = Tunnel::asked_for(SECOND, Some(&outer)).unwrap();
        assert_eq!(inner.address(), Some("10.0.0.1:443".parse().unwrap()));
        assert!(inner.is_deepest());
        assert!(Tunnel::asked_for(b"GET / HTTP/1.1\r\n\r\n", None).is_none());
    }

    /// What comes of asking for both tunnels again at a proxy that answers so.
    async fn dug(answer: &'static [u8]) -> (io::Result<()>, Vec<u8>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut side, mut far) =
            (Side::new(near.unwrap(), Share::default(), Keepalive::default()), far.unwrap().0);
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        let outer = Tunnel::asked_for(FIRST, None).unwrap();
        let dug = Tunnel::asked_for(SECOND, Some(&outer)).unwrap().dig(&mut side, 4096).await;
        let left = side.reader.buffer.to_vec();
        drop(side);
        let mut asked = Vec::new();
        far.read_to_end(&mut asked).await.unwrap();
        (dug, asked, left)
    }

    #[tokio::test]
    async fn tunnels_are_made_again() {
        let (dug, asked, left) =
            dug(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 X\r\n\r\n220 mail").await;
        dug.unwrap();
        assert_eq!((asked, &*left), ([FIRST, SECOND].concat(), &b"220 mail"[..]));
    }

    #[tokio::test]
    async fn proxies_that_give_none_are_heard() {
        for answer in [
            &b"HTTP/1.1 407 X\r\n\r\n"[..],
            b"",
            b"HTTP/1.1 101 X\r\n\r\n",
            b"SSH-2.0",
            b"HTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert!(dug(answer).await.0.is_err(), "{}", answer.escape_ascii());
        }
    }
}
