//! The records file. Connections hand over finished lines through a bounded queue and never wait for the disk,
//! except where a line must be durable before an answer leaves. A full queue drops the line and counts it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Context;
use crossbeam_queue::ArrayQueue;
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tracing::error;

use super::entry::{Entry, Line, SCHEMA};
use super::metrics::Metrics;

/// Lines that may wait for the disk.
const QUEUE: usize = 16 * 1024;
/// Bytes that they may have, unless it is one line alone.
const QUEUED_BYTES: usize = 32 << 20;
/// How long a line may wait while nothing asks for durability.
const FLUSH: Duration = Duration::from_millis(100);
/// How soon a full queue is tried again.
const ROOM_IN: Duration = Duration::from_millis(1);

/// Where records go. Cheap to share.
#[derive(Debug)]
pub struct Log {
    queue: ArrayQueue<Item>,
    /// Of the lines in it.
    bytes: AtomicUsize,
    writer: thread::Thread,
    closing: AtomicBool,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Item {
    line: Vec<u8>,
    /// Told once the line is on disk, or why it is not.
    durable: Option<oneshot::Sender<io::Result<()>>>,
}

/// Writes what is still queued and ends the writer when dropped.
#[derive(Debug)]
pub struct Writer {
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Opens the file for appending and starts the writer. The file is created with mode 0600.
    pub fn open(path: &Path, metrics: Arc<Metrics>) -> anyhow::Result<(Arc<Log>, Writer)> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .with_context(|| format!("open records {}", path.display()))?;
        let (sender, receiver) = std::sync::mpsc::sync_channel::<Arc<Log>>(1);
        let thread = thread::Builder::new()
            .name("records".into())
            .spawn(move || {
                if let Ok(log) = receiver.recv() {
                    log.write_to(file);
                }
            })
            .context("start the records thread")?;
        let log = Arc::new(Log {
            queue: ArrayQueue::new(QUEUE),
            bytes: AtomicUsize::new(0),
            writer: thread.thread().clone(),
            closing: AtomicBool::new(false),
            metrics,
        });
        sender.send(Arc::clone(&log)).context("start the records thread")?;
        Ok((Arc::clone(&log), Writer { log, thread: Some(thread) }))
    }

    /// A log that keeps nothing, for whoever has no file for records.
    pub fn nowhere(metrics: Arc<Metrics>) -> anyhow::Result<(Arc<Log>, Writer)> {
        Log::open(Path::new("/dev/null"), metrics)
    }

    /// Records something that may be lost in a crash within a tenth of a second.
    pub fn record(&self, entry: &Entry<'_>) {
        if let Some(line) = self.line(entry)
            && self.push(Item { line, durable: None }).is_err()
        {
            self.metrics.records_dropped.inc();
        }
    }

    /// Records something and waits until it is on disk. Such a line is never dropped: it waits for room. An error of the
    /// disk was logged and counted; what the record is about holds all the same.
    pub async fn record_durably(&self, entry: &Entry<'_>) {
        let Some(line) = self.line(entry) else { return };
        let (sender, receiver) = oneshot::channel();
        let mut item = Item { line, durable: Some(sender) };
        while let Err(refused) = self.push(item) {
            item = refused;
            self.writer.unpark();
            sleep(ROOM_IN).await;
        }
        self.writer.unpark();
        // The writer answers every line it takes; it ends only with the daemon.
        let _ = receiver.await;
    }

    fn line(&self, entry: &Entry<'_>) -> Option<Vec<u8>> {
        self.metrics.records.with_label_values(&[entry.kind()]).inc();
        let mut bytes = Vec::with_capacity(512);
        let line = Line { schema: SCHEMA, at: Timestamp::now(), entry };
        if let Err(error) = serde_json::to_writer(&mut bytes, &line) {
            error!(%error, kind = entry.kind(), "record not serializable");
            self.metrics.records_dropped.inc();
            return None;
        }
        bytes.push(b'\n');
        Some(bytes)
    }

    fn push(&self, item: Item) -> Result<(), Item> {
        let length = item.line.len();
        let bytes = self.bytes.fetch_add(length, Ordering::Relaxed);
        let refused =
            if bytes > 0 && bytes + length > QUEUED_BYTES { Err(item) } else { self.queue.push(item) };
        if refused.is_err() {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
        refused?;
        if self.queue.len() > QUEUE / 2 || bytes > QUEUED_BYTES / 2 {
            self.writer.unpark();
        }
        Ok(())
    }

    fn write_to(&self, mut file: File) {
        let mut buffer = Vec::new();
        let mut waiting = Vec::new();
        loop {
            let closing = self.closing.load(Ordering::Acquire);
            let mut lines = 0;
            while let Some(item) = self.queue.pop() {
                buffer.extend_from_slice(&item.line);
                self.bytes.fetch_sub(item.line.len(), Ordering::Relaxed);
                lines += 1;
                waiting.extend(item.durable);
                if buffer.len() >= 1 << 20 {
                    break;
                }
            }
            if lines > 0 {
                let result = file
                    .write_all(&buffer)
                    .and_then(|()| if waiting.is_empty() { Ok(()) } else { file.sync_data() });
                if let Err(error) = &result {
                    error!(%error, lines, "records not written");
                    self.metrics.records_dropped.inc_by(lines);
                }
                for sender in waiting.drain(..) {
                    // The connection that waited may be gone.
                    let _ = sender
                        .send(result.as_ref().map(|_| ()).map_err(|error| io::Error::from(error.kind())));
                }
                buffer.clear();
                buffer.shrink_to(1 << 16);
            } else if closing {
                return;
            } else {
                thread::park_timeout(FLUSH);
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.log.closing.store(true, Ordering::Release);
        self.log.writer.unpark();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the records thread had panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::entry::Daemon;

    #[test]
    fn durable_lines_are_in_the_file_before_the_wait_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records.jsonl");
        let metrics = Arc::new(Metrics::new().unwrap());
        let (log, _writer) = Log::open(&path, metrics).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(log.record_durably(&Entry::Daemon(Daemon {
            event: "started",
            version: "1",
            pid: 7,
        })));
        let line: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(line["kind"], "daemon");
        assert_eq!(line["pid"], 7);
    }

    #[test]
    fn everything_queued_is_written_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records.jsonl");
        let metrics = Arc::new(Metrics::new().unwrap());
        let (log, writer) = Log::open(&path, Arc::clone(&metrics)).unwrap();
        for pid in 0..u32::try_from(QUEUE).unwrap() {
            log.record(&Entry::Daemon(Daemon { event: "started", version: "1", pid }));
        }
        drop(writer);
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert_eq!(lines as u64 + metrics.records_dropped.get(), QUEUE as u64);
    }

    #[test]
    fn lines_that_wait_have_a_bound_in_bytes() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let log = Log {
            queue: ArrayQueue::new(QUEUE),
            bytes: AtomicUsize::new(0),
            writer: thread::current(),
            closing: AtomicBool::new(false),
            metrics,
        };
        let push = |length: usize| log.push(Item { line: vec![0; length], durable: None });
        assert!(push(2 * QUEUED_BYTES).is_ok(), "one line alone is taken");
        assert!(push(1).is_err());
        drop(log.queue.pop());
        log.bytes.store(0, Ordering::Relaxed);
        assert!(push(QUEUED_BYTES / 2).is_ok() && push(QUEUED_BYTES / 2).is_ok() && push(1).is_err());
        assert_eq!(log.bytes.load(Ordering::Relaxed), QUEUED_BYTES, "what is refused is not counted");
    }
}
