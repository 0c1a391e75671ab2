//! One side of a relayed connection: a socket's two halves and the bytes read but not yet used.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::kernel::tcp;
use crate::room::{FREE, Full, Share};

/// Room made for a read when nothing says how much will come.
const CHUNK: usize = 16 * 1024;
/// How long, and for how many bytes, a side that was refused may go on sending.
const LINGER_WITHIN: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 16 << 20;

/// How a peer that is gone is found: once nothing has come for `idle`, by `probes` of TCP, one `every` so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    pub idle: Duration,
    pub every: Duration,
    pub probes: u32,
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive { idle: Duration::from_secs(60), every: Duration::from_secs(15), probes: 4 }
    }
}

/// One side of a connection.
#[derive(Debug)]
pub struct Side {
    pub reader: Reader,
    pub writer: Writer,
}

/// The reading half and what it has read.
#[derive(Debug)]
pub struct Reader {
    socket: OwnedReadHalf,
    /// Bytes read and not yet used. Empty and without memory while the connection is idle.
    pub buffer: BytesMut,
    /// What it and what is made of it take of the room for messages.
    share: Share,
}

/// The writing half and how much it has written.
#[derive(Debug)]
pub struct Writer {
    /// `None` once this side is to end with a reset.
    socket: Option<OwnedWriteHalf>,
    written: AtomicU64,
}

impl Side {
    /// Takes over a socket: no delay (small frames must leave at once); and a peer that is gone is found, whether anything
    /// was sent to it or not.
    pub fn new(stream: TcpStream, share: Share, keepalive: Keepalive) -> Side {
        let Keepalive { idle, every, probes } = keepalive;
        let socket = SockRef::from(&stream);
        let options = TcpKeepalive::new().with_time(idle).with_interval(every).with_retries(probes);
        // All are improvements only; a socket that refuses them still works.
        let _ = socket.set_tcp_nodelay(true);
        let _ = socket.set_tcp_keepalive(&options);
        let _ = tcp::give_up_after(stream.as_fd(), idle + every * probes);
        let (reader, writer) = stream.into_split();
        Side {
            reader: Reader { socket: reader, buffer: BytesMut::new(), share },
            writer: Writer { socket: Some(writer), written: AtomicU64::new(0) },
        }
    }

    /// Takes leave after a last answer: says that nothing more comes and reads on for a while, because closing a socket
    /// with unread bytes is a reset, and a reset takes the answer away from a peer that is still sending.
    pub async fn linger(&mut self) {
        let leave = async {
            self.writer.finish().await?;
            let mut left = LINGER_BYTES;
            while left > 0 {
                self.reader.buffer.clear();
                match self.reader.fill().await? {
                    0 => break,
                    read => left = left.saturating_sub(read),
                }
            }
            Ok::<(), io::Error>(())
        };
        // However it ends, the socket is closed next.
        let _ = timeout(LINGER_WITHIN, leave).await;
    }

    /// Makes closing this side a reset, which the peer cannot take for an orderly end. Nothing can be written any more.
    pub fn reset_on_close(&mut self) {
        // Fails only on a socket that is already gone.
        let _ = SockRef::from(self.reader.socket.as_ref()).set_linger(Some(Duration::ZERO));
        // Dropped, this half would end the stream in order first.
        if let Some(socket) = self.writer.socket.take() {
            socket.forget();
        }
    }
}

impl Reader {
    /// Reads more bytes to the end of the buffer; 0 is the end of the stream. Cancelling loses nothing. An error that is a
    /// [`Full`]: there is no room for more.
    pub async fn fill(&mut self) -> io::Result<usize> {
        self.fill_for(0).await
    }

    /// Like [`Reader::fill`], with room for `expected` more bytes so that they arrive in one piece.
    pub async fn fill_for(&mut self, expected: usize) -> io::Result<usize> {
        // Wait first: an idle connection must hold no buffer.
        if self.buffer.is_empty() {
            self.socket.readable().await?;
        }
        self.buffer.reserve(expected.max(CHUNK / 4));
        if self.buffer.is_empty() {
            self.buffer.reserve(CHUNK);
        }
        self.share.buffer_has(self.buffer.capacity()).map_err(no_room)?;
        self.socket.read_buf(&mut self.buffer).await
    }

    /// Waits until the peer has closed its side, or is gone, whatever it has sent before; reads nothing. An error: that
    /// cannot be seen.
    pub async fn hangup(&self) -> io::Result<()> {
        // Readiness of its own: to take it off the socket would keep readers waiting for what is there.
        let socket = self.socket.as_ref().as_fd().try_clone_to_owned()?;
        let socket = TcpStream::from_std(std::net::TcpStream::from(socket))?;
        while !socket.ready(Interest::READABLE).await?.is_read_closed() {
            // Waits for the next event. It gives back the error that it is given.
            let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
        }
        Ok(())
    }

    /// So many bytes are held that were made of what was read: decoded, joined or edited. An error is a [`Full`].
    pub fn made(&mut self, bytes: usize) -> io::Result<()> {
        self.share.made(bytes).map_err(no_room)
    }

    /// Gives the memory back between messages, but for the beginning of the next one.
    pub fn rest(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        } else if self.share.buffer() > FREE && self.buffer.len() <= FREE {
            // What is used up at its front would be kept with it.
            self.buffer = BytesMut::from(&self.buffer[..]);
        } else {
            return;
        }
        self.share.buffer_is_back(self.buffer.capacity());
    }
}

impl Writer {
    /// Writes everything. When cancelled, [`Writer::written`] still tells how much has left.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.send_rest(bytes, &mut 0).await
    }

    /// Writes what follows the first `left` bytes, which counts on: when cancelled, the rest can be sent later.
    pub async fn send_rest(&mut self, bytes: &[u8], left: &mut usize) -> io::Result<()> {
        while *left < bytes.len() {
            *left += self.send_some(&bytes[*left..]).await?;
        }
        Ok(())
    }

    /// Writes as much as can be written now, and tells how much that was. When cancelled, nothing has left.
    pub async fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.socket()?.write(bytes).await?;
        self.add(n)?;
        Ok(n)
    }

    fn socket(&mut self) -> io::Result<&mut OwnedWriteHalf> {
        self.socket.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn add(&self, n: usize) -> io::Result<()> {
        self.written.fetch_add(n as u64, Ordering::Relaxed);
        if n == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Bytes written since this was asked last. From now on [`Writer::written`] counts from 0.
    pub fn take_written(&self) -> u64 {
        self.written.swap(0, Ordering::Relaxed)
    }

    /// Tells the peer that nothing more will come.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.socket()?.shutdown().await
    }
}

fn no_room(full: Full) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, full)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn hangup_is_seen_behind_bytes_that_nobody_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (mut side, mut far) =
            (Side::new(near.unwrap(), Share::default(), Keepalive::default()), far.unwrap().0);
        let within = Duration::from_millis(50);
        far.write_all(b"first").await.unwrap();
        assert!(timeout(within, side.reader.hangup()).await.is_err());
        far.write_all(b"second").await.unwrap();
        assert!(timeout(within, side.reader.hangup()).await.is_err());
        far.shutdown().await.unwrap();
        side.reader.hangup().await.unwrap();
        while side.reader.fill().await.unwrap() > 0 {}
        assert_eq!(&*side.reader.buffer, b"firstsecond");
    }

    #[tokio::test]
    async fn a_side_delays_nothing_and_finds_peers_that_are_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let keepalive = Keepalive { idle: Duration::from_secs(7), every: Duration::from_secs(3), probes: 2 };
        let side = Side::new(near, Share::default(), keepalive);
        let socket = SockRef::from(side.reader.socket.as_ref());
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), keepalive.idle);
        assert_eq!(socket.tcp_keepalive_interval().unwrap(), keepalive.every);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), keepalive.probes);
        // It would end connections to peers that are well.
        assert_eq!(socket.tcp_user_timeout().unwrap(), None);
    }
}
