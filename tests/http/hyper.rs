//! How hyper reads a stream: its server for requests, its client for responses.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, client, server};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::reading::{End, Message, Reading, name};

/// Longest wait for what hyper would have said at once.
const WITHIN: Duration = Duration::from_millis(500);

fn run<T>(what: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(what)
}

fn end_of(error: &hyper::Error) -> End {
    if error.is_incomplete_message() { End::Cut } else { End::Refused(error.to_string()) }
}

/// The requests that its server sees in a stream.
pub(crate) fn requests(bytes: &[u8]) -> Reading {
    let seen = Arc::new(Mutex::new((Vec::new(), End::Clean)));
    let service = service_fn(|request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let host =
                head.headers.get("host").map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned());
            let authority = head.uri.authority().map(ToString::to_string);
            let path = match head.uri.path_and_query() {
                Some(path) => path.to_string(),
                None => authority.clone().unwrap_or_default(),
            };
            let content = body.collect().await;
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match content {
                Ok(content) => seen.0.push(Message {
                    what: format!("{} {path}", head.method),
                    server: name(&authority.or(host).unwrap_or_default()),
                    content: content.to_bytes().to_vec(),
                }),
                Err(error) => seen.1 = end_of(&error),
            }
            // No tunnel, and no upgrade: what follows is the next request.
            Ok::<_, Infallible>(
                Response::builder().status(404).body(Empty::<Bytes>::new()).expect("a response"),
            )
        }
    });
    let served = run(async {
        let (mut near, far) = duplex(bytes.len() + 1);
        near.write_all(bytes).await.expect("there is room");
        let (mut answers, mut requests) = tokio::io::split(near);
        requests.shutdown().await.expect("the end");
        let serving =
            server::conn::http1::Builder::new().half_close(true).serve_connection(TokioIo::new(far), service);
        let mut ignored = Vec::new();
        let (served, _) = tokio::join!(serving, answers.read_to_end(&mut ignored));
        served
    });
    let (messages, end) = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let end = match served {
        Err(error) if end == End::Clean => end_of(&error),
        _ => end,
    };
    Reading::new(messages, end)
}

/// The responses that its client sees in a stream, which comes in the pieces in which we have read it: a reader that
/// takes one for longer waits, and one that takes it for shorter has bytes left over.
pub(crate) fn responses(method: &str, bytes: &[u8], ours: &Reading) -> Reading {
    run(async {
        let (near, mut far) = duplex(bytes.len() + 4096);
        let handshake = client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(near));
        let (mut sender, connection) = handshake.await.expect("hyper begins");
        let connection = tokio::spawn(connection);
        let (mut messages, mut at) = (Vec::new(), 0);
        let ends = ours.ends.iter().copied().filter(|end| *end < bytes.len()).chain([bytes.len()]);
        for end in ends.take(ours.messages.len() + 1) {
            if end == at && at > 0 {
                break;
            }
            if sender.ready().await.is_err() {
                return Reading::new(messages, End::Refused("it has done with the connection".to_owned()));
            }
            let request = Request::builder().method(method).uri("/").header("host", "a").body(Empty::new());
            let asking = sender.send_request(request.expect("a request"));
            let saying = async {
                // The whole request is there first.
                let mut asked = BytesMut::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    assert!(far.read_buf(&mut asked).await.expect("a request") > 0);
                }
                far.write_all(&bytes[at..end]).await.ok();
                if end == bytes.len() {
                    far.shutdown().await.ok();
                }
            };
            let exchange = async {
                let (answer, ()) = tokio::join!(asking, saying);
                let answer = answer?;
                let status = answer.status().as_u16().to_string();
                Ok::<_, hyper::Error>((status, answer.into_body().collect().await?.to_bytes().to_vec()))
            };
            match timeout(WITHIN, exchange).await {
                Ok(Ok((what, content))) => messages.push(Message { what, server: String::new(), content }),
                Ok(Err(error)) => return Reading::new(messages, end_of(&error)),
                Err(_) => return Reading::new(messages, End::Cut),
            }
            at = end;
        }
        drop(sender);
        // What is left over shows now.
        match timeout(WITHIN, connection).await {
            Ok(Ok(Err(error))) if !messages.is_empty() => Reading::new(messages, end_of(&error)),
            _ => Reading::new(messages, End::Clean),
        }
    })
}
