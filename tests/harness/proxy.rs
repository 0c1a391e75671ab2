//! A small explicit proxy: it gives tunnels for CONNECT and forwards absolute-form requests. It knows every name: all of
//! them are at the servers' address. Only `nobody.test` gets nothing.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use nix::sched::{CloneFlags, setns};

use crate::world::{SERVER_V4, World};

/// One in the servers' network namespace. Its connections end with those who have them; it ends with the test.
pub struct Proxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// Starts one.
    pub fn start(world: &World) -> Self {
        let netns = format!("/run/netns/{}", world.server_netns());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (send, bound) = mpsc::channel();
        thread::spawn({
            let asked = asked.clone();
            move || {
                // The threads it starts are in it, too.
                let netns = File::open(&netns).expect("open the network namespace");
                setns(netns, CloneFlags::CLONE_NEWNET).expect("enter the network namespace");
                let listener = TcpListener::bind((SERVER_V4, 0)).expect("bind");
                send.send(listener.local_addr().expect("an address")).expect("the test waits for it");
                for client in listener.incoming().flatten() {
                    let asked = asked.clone();
                    // Whoever breaks off is what some tests are about.
                    thread::spawn(move || serve(client, &asked).ok());
                }
            }
        });
        Self { address: bound.recv().expect("the proxy starts"), asked }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The start lines of what it was asked for.
    pub fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn serve(mut client: TcpStream, asked: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (line, fields) = head.split_once("\r\n").ok_or(io::ErrorKind::InvalidData)?;
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
    let [method, target, version] = line.split(' ').collect::<Vec<_>>()[..] else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let absolute = target.strip_prefix("http://").filter(|_| method != "CONNECT");
    let (authority, path) =
        absolute.map_or((target, ""), |rest| rest.split_at(rest.find('/').unwrap_or(rest.len())));
    let (name, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
    if name == "nobody.test" {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
    }
    let port = port.parse().map_err(|_| io::ErrorKind::InvalidData)?;
    let mut server = TcpStream::connect(SocketAddr::new(SERVER_V4, port))?;
    if absolute.is_some() {
        // What follows goes to the same server: agents here do not change it on a connection.
        server.write_all(format!("{method} {path} {version}\r\n{fields}").as_bytes())?;
    } else {
        client.write_all(b"HTTP/1.1 200 Connection established\r\nproxy-agent: test\r\n\r\n")?;
    }
    let (mut back, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || copy(&mut back, &mut to));
    copy(&mut client, &mut server);
    Ok(())
}

fn copy(from: &mut TcpStream, to: &mut TcpStream) {
    let _ = io::copy(from, to);
    let _ = to.shutdown(Shutdown::Write);
}
