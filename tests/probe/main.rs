//! A process that does on command what an agent might do to the network. One command a line on its input, one
//! line of answer: `ok …` or `err ERRNO`.
#![allow(clippy::print_stdout, reason = "answers go to standard output")]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

fn main() {
    let mut sockets = HashMap::new();
    for line in io::stdin().lines() {
        let Ok(line) = line else { return };
        let words: Vec<&str> = line.split(' ').collect();
        match run(&words, &mut sockets) {
            Ok(answer) => println!("ok {answer}"),
            Err(error) => println!("err {}", name(&error)),
        }
        let _ = io::stdout().flush();
    }
}

fn run(words: &[&str], sockets: &mut HashMap<i32, Socket>) -> io::Result<String> {
    match *words {
        // Moves to the network namespace behind a path.
        ["netns", path] => {
            setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
            Ok(String::new())
        }
        // A socket by its three numbers; answers with a handle.
        ["socket", domain, kind, protocol] => {
            let number = |word: &str| word.parse::<i32>().map_err(io::Error::other);
            let socket = Socket::new(
                Domain::from(number(domain)?),
                Type::from(number(kind)?),
                Some(Protocol::from(number(protocol)?)),
            )?;
            Ok(keep(socket, sockets))
        }
        // Takes over a descriptor that the parent left open.
        ["adopt", fd] => {
            // SAFETY: the test hands over a descriptor that nothing else in this process uses.
            let socket = unsafe { Socket::from_raw_fd(fd.parse().map_err(io::Error::other)?) };
            Ok(keep(socket, sockets))
        }
        ["connect", handle, to] => {
            let socket = find(handle, sockets)?;
            socket.connect(&address(to)?)?;
            Ok(String::new())
        }
        // Connects, and does not wait for the outcome.
        ["begin", handle, to] => {
            let socket = find(handle, sockets)?;
            socket.set_nonblocking(true)?;
            match socket.connect(&address(to)?) {
                Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(String::new()),
                outcome => outcome.map(|()| String::new()),
            }
        }
        // Loose source routing: packets go to another address first.
        ["route", handle, via] => {
            let via: Ipv4Addr = via.parse().map_err(io::Error::other)?;
            let option = [&[1, 0x83, 7, 4][..], &via.octets()].concat();
            setsockopt(find(handle, sockets)?, libc::IPPROTO_IP, libc::IP_OPTIONS, &option)
        }
        // Dissolves the connection of a socket, which may then connect anew.
        ["disconnect", handle] => {
            // SAFETY: an address of family AF_UNSPEC (0) and nothing else.
            let (_, nowhere) = unsafe {
                SockAddr::try_init(|_, length| {
                    *length = 16;
                    Ok(())
                })
            }?;
            find(handle, sockets)?.connect(&nowhere)?;
            Ok(String::new())
        }
        ["uring", handle, to] => uring(find(handle, sockets)?, &address(to)?),
        ["fastopen", handle, to, text] => {
            let sent = find(handle, sockets)?.send_to_with_flags(
                text.as_bytes(),
                &address(to)?,
                libc::MSG_FASTOPEN,
            )?;
            Ok(sent.to_string())
        }
        ["sendto", handle, to, text] => {
            Ok(find(handle, sockets)?.send_to(text.as_bytes(), &address(to)?)?.to_string())
        }
        ["send", handle, text] => Ok(find(handle, sockets)?.send(text.as_bytes())?.to_string()),
        ["recv", handle] => {
            let mut buffer = [0; 1024];
            let mut socket = find(handle, sockets)?;
            socket.set_read_timeout(Some(Duration::from_secs(5)))?;
            let length = socket.read(&mut buffer)?;
            Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
        }
        // Bytes that came in and were not read.
        ["unread", handle] => unread(find(handle, sockets)?),
        // The number of the socket in `/proc/self/fd`.
        ["inode", handle] => {
            let fd = find(handle, sockets)?.as_raw_fd();
            Ok(std::fs::metadata(format!("/proc/self/fd/{fd}"))?.ino().to_string())
        }
        ["shutdown", handle] => {
            find(handle, sockets)?.shutdown(std::net::Shutdown::Write)?;
            Ok(String::new())
        }
        ["bind", handle, to] => {
            find(handle, sockets)?.bind(&address(to)?)?;
            Ok(String::new())
        }
        ["listen", handle] => {
            find(handle, sockets)?.listen(16)?;
            Ok(String::new())
        }
        ["device", handle, device] => {
            find(handle, sockets)?.bind_device(Some(device.as_bytes()))?;
            Ok(String::new())
        }
        ["peer", handle] => {
            let peer = find(handle, sockets)?.peer_addr()?;
            Ok(peer.as_socket().map_or_else(String::new, |peer| peer.to_string()))
        }
        ["local", handle] => {
            let local = find(handle, sockets)?.local_addr()?;
            Ok(local.as_socket().map_or_else(String::new, |local| local.to_string()))
        }
        ["close", handle] => {
            let handle = handle.parse().map_err(io::Error::other)?;
            sockets.remove(&handle);
            Ok(String::new())
        }
        // Closes with a reset: no TIME_WAIT keeps the port.
        ["reset", handle] => {
            find(handle, sockets)?.set_linger(Some(Duration::ZERO))?;
            run(&["close", handle], sockets)
        }
        // Connects again and again; says how often each thing happened.
        ["hammer", to, milliseconds] => {
            hammer(&address(to)?, milliseconds.parse().map_err(io::Error::other)?)
        }
        _ => Err(io::Error::from(Errno::EINVAL)),
    }
}

fn hammer(to: &SockAddr, milliseconds: u64) -> io::Result<String> {
    let end = Instant::now() + Duration::from_millis(milliseconds);
    let mut outcomes: HashMap<String, u32> = HashMap::new();
    while Instant::now() < end {
        let socket = Socket::new(to.domain(), Type::STREAM, None)?;
        // No TIME_WAIT, or the loop runs out of ports.
        socket.set_linger(Some(Duration::ZERO))?;
        let outcome = match socket.connect(to) {
            Ok(()) => "connected".to_owned(),
            Err(error) => name(&error),
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    let mut outcomes: Vec<String> = outcomes.iter().map(|(name, count)| format!("{name}={count}")).collect();
    outcomes.sort();
    Ok(outcomes.join(" "))
}

fn unread(socket: &Socket) -> io::Result<String> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::FIONREAD, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes.to_string())
}

fn setsockopt(socket: &Socket, level: i32, name: i32, value: &[u8]) -> io::Result<String> {
    let length = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: `value` has as many bytes as `length` says.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    if result == 0 { Ok(String::new()) } else { Err(io::Error::last_os_error()) }
}

fn uring(socket: &Socket, to: &SockAddr) -> io::Result<String> {
    let mut ring = IoUring::new(2)?;
    let entry = opcode::Connect::new(types::Fd(socket.as_raw_fd()), to.as_ptr().cast(), to.len()).build();
    // SAFETY: the socket and the address outlive the wait below.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().map_or(0, |entry| entry.result());
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(String::new()) }
}

fn keep(socket: Socket, sockets: &mut HashMap<i32, Socket>) -> String {
    let handle = socket.as_raw_fd();
    sockets.insert(handle, socket);
    handle.to_string()
}

fn find<'a>(handle: &str, sockets: &'a HashMap<i32, Socket>) -> io::Result<&'a Socket> {
    let handle: i32 = handle.parse().map_err(io::Error::other)?;
    sockets.get(&handle).ok_or_else(|| io::Error::from(Errno::EBADF))
}

fn address(text: &str) -> io::Result<SockAddr> {
    Ok(SockAddr::from(text.parse::<SocketAddr>().map_err(io::Error::other)?))
}

fn name(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => format!("{:?}", Errno::from_raw(errno)),
        None => error.to_string().replace(' ', "_"),
    }
}
