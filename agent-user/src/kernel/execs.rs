//! Which processes begin to execute something else, on the whole host: the kernel's process events (`linux/cn_proc.h`,
//! CONFIG_PROC_EVENTS) over a netlink connector.

use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use nix::sys::socket::{MsgFlags, NetlinkAddr, bind, recv, send};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::cgroup::HOSTS;
use super::events::watch;
use super::netns::Netns;

// linux/netlink.h, linux/connector.h, linux/cn_proc.h
const NETLINK_CONNECTOR: i32 = 11;
const NLMSG_DONE: u16 = 3;
const CN_IDX_PROC: u32 = 1;
const CN_VAL_PROC: u32 = 1;
const PROC_CN_MCAST_LISTEN: u32 = 1;
const PROC_EVENT_NONE: u32 = 0;
const PROC_EVENT_EXEC: u32 = 2;
/// `struct nlmsghdr` and `struct cn_msg`.
const HEADERS: usize = 16 + 20;
/// Within `struct proc_event`: what happened to whom, and `err` of the answer to our request.
const EVENT_DATA: usize = HEADERS + 16;
/// Some thousand events; a build starts hundreds of processes a second.
const RECEIVE_BUFFER: usize = 1 << 20;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exec {
    /// A process, by its number, executes something else now.
    Of(u32),
    /// More happened than could be told: look at all processes.
    Lost,
}

/// The events, from [`Execs::open`] on.
pub struct Execs {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl Execs {
    /// Begins to listen. Call it within a tokio runtime.
    ///
    /// # Errors
    /// The kernel has no process events, or does not tell them to this process: the host's process namespace and
    /// CAP_NET_ADMIN are needed.
    pub fn open() -> anyhow::Result<Execs> {
        // Only the host's network namespace has them.
        let host = HOSTS.iter().find_map(|pid| Netns::open(Path::new(&format!("/proc/{pid}/ns/net"))).ok());
        let host = host.map_or_else(Netns::current, Ok)?;
        let socket = host.within(connector).flatten().context("no process events (CONFIG_PROC_EVENTS)")?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, CN_IDX_PROC)).context("listen for process events")?;
        send(socket.as_raw_fd(), &request(), MsgFlags::empty()).context("ask for process events")?;
        // The answer to the request comes before any event is told, with the reason why none will be.
        socket.set_read_timeout(Some(std::time::Duration::from_secs(5)))?;
        let mut buffer = vec![0; 4096];
        loop {
            let length = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::empty()).context(
                "the kernel does not answer (it tells process events to its first namespaces only)",
            )?;
            if let Some((PROC_EVENT_NONE, error)) = event(&buffer[..length]) {
                ensure!(
                    error == 0,
                    "the kernel tells no process events: {}",
                    io::Error::from_raw_os_error(error.cast_signed())
                );
                break;
            }
        }
        socket.set_nonblocking(true)?;
        Ok(Execs { socket: watch(socket).context("watch for process events")?, buffer })
    }

    /// The next one. Cancel safe.
    pub async fn next(&mut self) -> io::Result<Exec> {
        loop {
            let mut ready = self.socket.readable().await?;
            let received =
                ready.try_io(|socket| Ok(recv(socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?));
            match received {
                Ok(Ok(length)) => {
                    if let Some((PROC_EVENT_EXEC, pid)) = event(&self.buffer[..length]) {
                        return Ok(Exec::Of(pid));
                    }
                }
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(Exec::Lost),
                Ok(Err(error)) if error.kind() == ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }
}

fn connector() -> io::Result<Socket> {
    Socket::new(
        Domain::from(libc::AF_NETLINK),
        Type::DGRAM.cloexec(),
        Some(Protocol::from(NETLINK_CONNECTOR)),
    )
}

/// Asks for events. Kernels before 6.6 take no filter of their kinds.
fn request() -> Vec<u8> {
    let length: u32 = 40;
    let words = [CN_IDX_PROC, CN_VAL_PROC, 0, 0, 4, PROC_CN_MCAST_LISTEN];
    let kind = [NLMSG_DONE.to_ne_bytes(), [0; 2]].concat();
    let header = [length.to_ne_bytes().to_vec(), kind, vec![0; 8]].concat();
    [header, words.iter().flat_map(|word| word.to_ne_bytes()).collect()].concat()
}

/// What an event is, and the first word of its data after the thread's: for an exec the process.
fn event(message: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| message.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    let kind = word(HEADERS)?;
    let data = if kind == PROC_EVENT_EXEC { EVENT_DATA + 4 } else { EVENT_DATA };
    Some((kind, word(data)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_told_apart_and_short_ones_are_none() {
        let mut message = vec![0; HEADERS];
        for word in [PROC_EVENT_EXEC, 0, 0, 0, 4712, 4711] {
            message.extend(u32::to_ne_bytes(word));
        }
        assert_eq!(event(&message), Some((PROC_EVENT_EXEC, 4711)));
        assert_eq!(event(&message[..message.len() - 1]), None);
        assert_eq!(event(&[]), None);
        assert_eq!(request().len(), 40);
    }
}
