//! Lines to a server: one message in each, whoever has something to say. Only whole lines leave, but where a stop cuts one;
//! what follows begins a line of its own then.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{MutexGuard, oneshot};

use crate::decode::RawId;
use crate::forward::side::Writer;

/// Most requests of ours that a server has not answered.
const MOST_ASKED: usize = 1024;

/// The way to a server.
#[derive(Debug, Default)]
pub struct ToServer {
    link: tokio::sync::Mutex<Link>,
    /// Requests of ours that were not answered yet, by id. Their answers are not for the agent.
    asked: Mutex<HashMap<String, oneshot::Sender<String>>>,
    written: AtomicU64,
}

#[derive(Debug, Default)]
struct Link {
    /// Dialed, and not done with.
    writer: Option<Writer>,
    stands: Stands,
}

/// Where what has left ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stands {
    /// Between two lines.
    #[default]
    Between,
    /// In a line whose rest will follow.
    Within,
    /// In a line whose rest will not.
    Torn,
}

/// The right to send the next line.
#[derive(Debug)]
pub struct Turn<'a> {
    link: MutexGuard<'a, Link>,
    written: &'a AtomicU64,
}

impl ToServer {
    /// The server is reached.
    pub async fn connect(&self, writer: Writer) {
        self.link.lock().await.writer = Some(writer);
    }

    /// Waits until no other line is on its way.
    pub async fn turn(&self) -> Turn<'_> {
        Turn { link: self.link.lock().await, written: &self.written }
    }

    /// Says something of ours, and waits for the answer if it asks for one under an id; empty where it does not.
    pub async fn post(&self, text: &str, id: Option<&str>) -> io::Result<String> {
        let answer = match id {
            Some(id) => Some(self.expect(id)?),
            None => None,
        };
        self.turn().await.send(format!("{text}\n").as_bytes(), &mut 0).await?;
        match answer {
            Some(answer) => answer.await.map_err(|_| io::ErrorKind::NotConnected.into()),
            None => Ok(String::new()),
        }
    }

    fn expect(&self, id: &str) -> io::Result<oneshot::Receiver<String>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.len() >= MOST_ASKED {
            return Err(io::Error::other("it has not answered what it was asked before"));
        }
        let (answer, answered) = oneshot::channel();
        asked.insert(id.to_owned(), answer);
        Ok(answered)
    }

    /// Takes the answer to a request of ours; false: it is to the agent's.
    pub fn takes(&self, id: RawId<'_>, text: &str) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.is_empty() {
            return false;
        }
        let answer = asked.remove(id.key().trim_matches('"'));
        // Whoever has asked may have given up.
        answer.map(|answer| answer.send(text.to_owned())).is_some()
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

impl Turn<'_> {
    /// Sends the bytes of a line, and counts in `left` how many have left: when this is cancelled, no more will.
    pub async fn send(&mut self, line: &[u8], left: &mut usize) -> io::Result<()> {
        if self.link.stands != Stands::Between {
            self.end().await?;
        }
        while *left < line.len() {
            *left += self.some(&line[*left..]).await?;
            self.link.stands = Stands::Torn;
        }
        self.link.stands = if line.ends_with(b"\n") { Stands::Between } else { Stands::Within };
        Ok(())
    }

    /// Sends what is no message, and need not be whole: a part of it may leave, and the rest when this is called again.
    pub async fn pass(&mut self, bytes: &[u8], left: &mut usize) -> io::Result<()> {
        if self.link.stands == Stands::Torn {
            self.end().await?;
        }
        while *left < bytes.len() {
            let sent = self.some(&bytes[*left..]).await?;
            *left += sent;
            self.link.stands = if bytes[..*left].ends_with(b"\n") { Stands::Between } else { Stands::Within };
        }
        Ok(())
    }

    async fn end(&mut self) -> io::Result<()> {
        self.some(b"\n").await?;
        self.link.stands = Stands::Between;
        Ok(())
    }

    async fn some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let writer = self.link.writer.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let sent = writer.send_some(bytes).await?;
        self.written.fetch_add(sent as u64, Ordering::Relaxed);
        Ok(sent)
    }

    /// Nothing more will be said.
    pub async fn finish(&mut self) -> io::Result<()> {
        match &mut self.link.writer {
            Some(writer) => writer.finish().await,
            None => Ok(()),
        }
    }
}
