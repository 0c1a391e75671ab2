//! How nginx reads a stream: as a server, seen by what it asks of the server behind it, and as a client of that one.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use agent_tests::http;
use agent_tests::wait_for;
use tempfile::TempDir;

use crate::reading::{End, Message, Reading, name};

/// One process for all rows, without a network: everything is a socket in a folder.
pub(crate) struct Nginx {
    process: Child,
    dir: TempDir,
    /// What it has asked of the server behind it.
    asked: Arc<Mutex<Vec<Message>>>,
    /// What that server answers next.
    answer: Arc<Mutex<Vec<u8>>>,
}

/// Reads whole messages, and passes them on in a form of its own.
const CONFIG: &str = "
daemon off; master_process off; pid DIR/pid; error_log DIR/error.log info;
events { worker_connections 64; }
http {
    access_log off; client_body_temp_path DIR/body; proxy_temp_path DIR/proxy; fastcgi_temp_path DIR/fastcgi;
    uwsgi_temp_path DIR/uwsgi; scgi_temp_path DIR/scgi;
    client_header_timeout 2s; client_body_timeout 2s; keepalive_timeout 2s; lingering_close off; client_max_body_size 0;
    large_client_header_buffers 8 80k; proxy_next_upstream off;
    server {
        listen unix:DIR/requests;
        location / {
            proxy_pass http://unix:DIR/behind-requests; proxy_pass_request_headers off; proxy_ignore_client_abort on;
            proxy_set_header X-Method $request_method; proxy_set_header X-Target $request_uri;
            proxy_set_header X-Server $host; proxy_set_header Host behind;
        }
    }
    server {
        listen unix:DIR/responses;
        location / { proxy_pass http://unix:DIR/behind-responses; proxy_http_version 1.1; proxy_read_timeout 2s; }
    }
}
";

impl Nginx {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let (asked, answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        behind(&dir.path().join("behind-requests"), {
            let asked = asked.clone();
            move |stream| note(stream, &asked)
        });
        behind(&dir.path().join("behind-responses"), {
            let answer = answer.clone();
            move |stream| say(stream, &answer)
        });
        let config = dir.path().join("nginx.conf");
        fs::write(&config, CONFIG.replace("DIR", &dir.path().display().to_string()))
            .expect("the configuration");
        let log = fs::File::create(dir.path().join("start.log")).expect("a log");
        let process = Command::new("nginx")
            .arg("-p")
            .arg(dir.path())
            .arg("-e")
            .arg(dir.path().join("error.log"))
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("nginx starts (Debian: nginx-light)");
        let nginx = Self { process, dir, asked, answer };
        wait_for("nginx", || UnixStream::connect(nginx.socket("responses")).ok());
        nginx
    }

    /// The requests that it sees in a stream.
    pub(crate) fn requests(&self, bytes: &[u8]) -> Reading {
        lock(&self.asked).clear();
        let answers = self.exchange("requests", bytes);
        let messages = lock(&self.asked).clone();
        // Each has its answer, and what it refuses has one more.
        let mut statuses = statuses(&answers);
        let refused = statuses.pop().filter(|status| *status >= 400);
        Reading::new(messages, refused.map_or(End::Clean, |status| End::Refused(format!("status {status}"))))
    }

    /// The response that it sees in a stream.
    pub(crate) fn response(&self, method: &str, bytes: &[u8]) -> Reading {
        *lock(&self.answer) = bytes.to_vec();
        let request = format!("{method} / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut answer = self.exchange("responses", request.as_bytes());
        // Whatever its head says, such an answer has no body (RFC 9112, section 6.3).
        let is_head = method == "HEAD" || answer.starts_with(b"HTTP/1.1 304");
        let message = match is_head {
            true => http::Message::take_head(&mut answer),
            false => http::Message::take(&mut answer, true),
        };
        match message {
            Some(message) if matches!(message.status(), 502 | 504) => {
                Reading::new(Vec::new(), End::Refused(format!("status {}", message.status())))
            }
            Some(message) => {
                let what = message.status().to_string();
                Reading::new(vec![Message { what, server: String::new(), content: message.body }], End::Clean)
            }
            None => Reading::new(Vec::new(), End::Cut),
        }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Says that, and nothing more; answers all that comes back.
    fn exchange(&self, socket: &str, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(self.socket(socket)).expect("nginx is there");
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        // It may have had enough before all is said.
        let _ = stream
            .write_all(bytes)
            .and_then(|()| if socket == "requests" { stream.shutdown(Shutdown::Write) } else { Ok(()) });
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers);
        answers
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server behind it, which ends with the test.
fn behind(path: &Path, serve: impl Fn(UnixStream) -> io::Result<()> + Send + 'static) {
    let listener = UnixListener::bind(path).expect("bind");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = serve(stream);
        }
    });
}

/// Notes the one request of a connection, which nginx has framed.
fn note(mut stream: UnixStream, asked: &Mutex<Vec<Message>>) -> io::Result<()> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 64 << 10]);
    let request = loop {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            length => bytes.extend_from_slice(&piece[..length]),
        }
        if let Some(request) = http::Message::take(&mut bytes, false) {
            break request;
        }
    };
    let said = |header: &str| request.header(header).unwrap_or_default();
    let what = format!("{} {}", said("x-method"), said("x-target"));
    lock(asked).push(Message { what, server: name(said("x-server")), content: request.body.clone() });
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}

/// Answers the one request of a connection with what comes next, and ends it.
fn say(mut stream: UnixStream, answer: &Mutex<Vec<u8>>) -> io::Result<()> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while http::Message::take(&mut bytes, false).is_none() {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            length => bytes.extend_from_slice(&piece[..length]),
        }
    }
    stream.write_all(&lock(answer))
}

/// The statuses of responses, in order; nginx sends no other line that begins so.
fn statuses(bytes: &[u8]) -> Vec<u16> {
    let text = String::from_utf8_lossy(bytes);
    let of = |part: &str| part.get(2..5).and_then(|status| status.parse().ok());
    text.split("HTTP/1.").skip(1).filter_map(of).collect()
}
