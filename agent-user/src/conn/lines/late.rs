//! What a server still says when its agent is gone, or was cut: evidence of what became of calls that a stop has caught.

use bytes::Buf;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::decode::{Kind, Lines, Payload, Piece, Said, said};
use crate::forward::inspect::settle;
use crate::forward::side::Reader;

use super::Shared;
use super::down::Down;

/// The server's side of a connection that has no other.
pub(super) struct Late {
    shared: Shared,
    reader: Reader,
    lines: Lines,
    /// As long as it is there, somebody reads.
    _said: mpsc::Receiver<Vec<u8>>,
}

impl Late {
    /// That of a connection that has ended, if there is something to be learnt.
    pub(super) fn of(shared: Shared, down: Down<'_>) -> Option<Late> {
        let Down { reader, lines, said, .. } = down;
        let reader = reader.filter(|_| shared.conn.has_late())?;
        Some(Late { shared, reader, lines, _said: said })
    }

    /// Reads on for a while.
    pub(super) async fn follow(mut self) {
        let window = self.shared.parts.evidence_window;
        // What has not come by then will not be known.
        let _ = timeout(window, self.read()).await;
    }

    async fn read(&mut self) {
        while self.shared.conn.has_late() {
            match self.lines.next(&self.reader.buffer, true) {
                Ok(Some((piece, len))) => {
                    self.take(piece, len);
                    self.lines.take((piece, len));
                    self.reader.buffer.advance(len);
                }
                Ok(None) => match self.reader.fill().await {
                    Ok(read) if read > 0 => {}
                    _ => return,
                },
                Err(_) => return,
            }
        }
    }

    fn take(&self, piece: Piece, len: usize) {
        let Shared { parts, conn, server, .. } = &self.shared;
        let bytes = &self.reader.buffer[..len];
        let said = said(&self.lines, piece, bytes, &parts.limits, true);
        let Said::Messages(messages) = said else { return };
        for message in messages.messages() {
            let Kind::Response { id: Some(id), .. } = &message.kind else { continue };
            if matches!(messages, Payload::Single(_)) && server.takes(*id, message.raw) {
                continue;
            }
            if let Some((call, stop)) = conn.finish_late(*id) {
                settle(parts, conn, &stop, &call, message, bytes.trim_ascii_end());
            }
        }
    }
}
