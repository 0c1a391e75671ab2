//! Cuts live sockets: `SOCK_DESTROY` over `NETLINK_SOCK_DIAG`, in the network namespace of the calling thread.
//!
//! Both ends learn of it: the owner gets `ECONNABORTED`, the peer a reset, and what was queued is gone. This is
//! what makes a stop final: packets that are only dropped would leave once the stop is lifted.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use agent_abi::{Origin, Tag};

use super::destroyed::MESSAGE;
pub use super::destroyed::{Destroyed, LISTED, Protocol, Queues, Socket};
use super::filter;

/// Which sockets.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Sockets made in exactly these cgroups (name the whole subtree).
    pub cgroup_ids: &'a HashSet<u64>,
    /// What the kernel side has stored with a socket changes whether it is meant.
    pub stored: Stored<'a>,
}

/// The socket storage that is looked at.
#[derive(Clone, Copy, Debug)]
pub enum Stored<'a> {
    /// None.
    Unread,
    /// `TAGS`: sockets of these agents too, wherever they were made.
    Tags(BorrowedFd<'a>, &'a HashSet<u32>),
    /// `ORIGINS`: not those that were redirected.
    Origins(BorrowedFd<'a>),
    /// `ORIGINS`: sockets with these inodes too, wherever they were made, but none that was redirected.
    Kept(BorrowedFd<'a>, &'a HashSet<u64>),
    /// Both: sockets of these agents too, but none that was redirected.
    Direct { tags: BorrowedFd<'a>, agents: &'a HashSet<u32>, origins: BorrowedFd<'a> },
}

/// Destroys until a pass finds none. Each pass is bounded by what was open when it began, so a process that
/// reconnects in a loop cannot hold us; it is refused by then anyway. Sockets are destroyed while they are listed, so
/// that their number costs no memory.
///
/// # Errors
/// `Unsupported` where the kernel lacks `CONFIG_INET_DIAG_DESTROY`; else what netlink says.
pub fn destroy(scope: &Scope<'_>) -> io::Result<Destroyed> {
    // One lists, one destroys: an answer on the first would mix with its list.
    let (mut lister, mut diag) = (Diag::open()?, Diag::open()?);
    let mut destroyed = Destroyed::default();
    for _ in 0..PASSES {
        destroyed.left = 0;
        for (protocol, family) in KINDS {
            lister.each(protocol, family, scope, |id, message| {
                destroyed.left = destroyed.left.saturating_add(1);
                if diag.destroy(protocol, family, id)? {
                    let kind = if protocol == IPPROTO_TCP { Protocol::Tcp } else { Protocol::Udp };
                    destroyed.add(Socket::parse(kind, message));
                }
                Ok(())
            })?;
        }
        if destroyed.left == 0 {
            break;
        }
    }
    Ok(destroyed)
}

const PASSES: u32 = 8;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const KINDS: [(u8, u8); 4] =
    [(IPPROTO_TCP, AF_INET), (IPPROTO_TCP, AF_INET6), (IPPROTO_UDP, AF_INET), (IPPROTO_UDP, AF_INET6)];

// linux/tcp.h, linux/sock_diag.h, linux/inet_diag.h, linux/netlink.h
const TCP_ESTABLISHED: u32 = 1;
const TCP_TIME_WAIT: u32 = 6;
const TCP_CLOSE: u32 = 7;
const TCP_LISTEN: u32 = 10;
const TCP_NEW_SYN_RECV: u32 = 12;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_SK_BPF_STORAGES: u16 = 20;
const INET_DIAG_CGROUP_ID: u16 = 21;
const INET_DIAG_REQ_BYTECODE: u16 = 1;
const INET_DIAG_REQ_SK_BPF_STORAGES: u16 = 2;
const SK_DIAG_BPF_STORAGE: u16 = 1;
const SK_DIAG_BPF_STORAGE_REQ_MAP_FD: u16 = 1;
const SK_DIAG_BPF_STORAGE_MAP_VALUE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLA_F_NESTED: u16 = 0x8000;
const HEADER: usize = 16;
/// Within `struct inet_diag_msg`.
const INODE: usize = 68;
const SOCKET_ID: usize = 48;

/// `struct inet_diag_sockid`, taken from a dump and given back as it came.
type SocketId = [u8; SOCKET_ID];

struct Diag {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Diag {
    fn open() -> io::Result<Diag> {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkSockDiag,
        )?;
        Ok(Diag { socket, sequence: 0, buffer: vec![0; 64 * 1024] })
    }

    /// Calls `found` with the id and the `inet_diag_msg` of each socket in scope.
    fn each(
        &mut self,
        protocol: u8,
        family: u8,
        scope: &Scope<'_>,
        mut found: impl FnMut(&SocketId, &[u8; MESSAGE]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut body = request(protocol, family, states(protocol), &[0; SOCKET_ID]);
        let maps = match scope.stored {
            Stored::Unread => vec![],
            Stored::Tags(map, _) | Stored::Origins(map) | Stored::Kept(map, _) => vec![map],
            Stored::Direct { tags, origins, .. } => vec![tags, origins],
        };
        if !maps.is_empty() {
            let wanted = |map: &BorrowedFd<'_>| {
                attribute(SK_DIAG_BPF_STORAGE_REQ_MAP_FD, &map.as_raw_fd().to_ne_bytes())
            };
            let wanted: Vec<u8> = maps.iter().flat_map(wanted).collect();
            body.extend(attribute(INET_DIAG_REQ_SK_BPF_STORAGES | NLA_F_NESTED, &wanted));
        }
        // What bears a tag and was made elsewhere was redirected, if it is TCP: of thousands of sockets few remain.
        if matches!(scope.stored, Stored::Direct { .. }) && protocol == IPPROTO_TCP {
            body.extend(attribute(INET_DIAG_REQ_BYTECODE, &filter::made_in(scope.cgroup_ids)));
        }
        self.send(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, &body)?;
        loop {
            let length = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
            for (kind, body) in messages(&self.buffer[..length]) {
                match kind {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => match error_of(body) {
                        // No such protocol in this kernel: no such sockets.
                        Some(libc::ENOENT | libc::EOPNOTSUPP) => return Ok(()),
                        Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                        None => {}
                    },
                    SOCK_DIAG_BY_FAMILY if is_in_scope(body, scope) => {
                        if let (Some(message), Some(id)) =
                            (body.first_chunk(), body.get(4..).and_then(|rest| rest.first_chunk()))
                        {
                            found(id, message)?;
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// False: it was gone before.
    fn destroy(&mut self, protocol: u8, family: u8, id: &SocketId) -> io::Result<bool> {
        let body = request(protocol, family, u32::MAX, id);
        self.send(SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, &body)?;
        let length = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
        match messages(&self.buffer[..length])
            .find(|(kind, _)| *kind == NLMSG_ERROR)
            .and_then(|(_, body)| error_of(body))
        {
            None => Ok(true),
            Some(libc::ENOENT) => Ok(false),
            Some(libc::EOPNOTSUPP) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel cannot destroy sockets (CONFIG_INET_DIAG_DESTROY)",
            )),
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence += 1;
        let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        message.extend(0u32.to_ne_bytes());
        message.extend(body);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }
}

// TIME_WAIT and half-made connections belong to no process; an unconnected UDP socket survives its destruction
// and would be found for ever, and its datagrams are refused one by one.
// Listening sockets lead nowhere while their packets stay, and the agent needs them when it is released.
fn states(protocol: u8) -> u32 {
    if protocol == IPPROTO_UDP {
        return 1 << TCP_ESTABLISHED;
    }
    let skipped = 1 << TCP_TIME_WAIT | 1 << TCP_NEW_SYN_RECV | 1 << TCP_CLOSE | 1 << TCP_LISTEN;
    0xfff & !skipped
}

/// `struct inet_diag_req_v2`.
fn request(protocol: u8, family: u8, states: u32, id: &SocketId) -> Vec<u8> {
    let mut body = vec![family, protocol, 0, 0];
    body.extend(states.to_ne_bytes());
    body.extend(id);
    body
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // Attributes here are a few bytes long.
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(aligned(4 + value.len()));
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(aligned(bytes.len()), 0);
    bytes
}

fn is_in_scope(message: &[u8], scope: &Scope<'_>) -> bool {
    let attribute = |wanted| {
        let mut all = attributes(message.get(MESSAGE..).unwrap_or_default());
        all.find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
    };
    let cgroup = attribute(INET_DIAG_CGROUP_ID).and_then(number::<8>).map(u64::from_ne_bytes);
    let in_cgroup = cgroup.is_some_and(|id| scope.cgroup_ids.contains(&id));
    let stored = Storages(attribute(INET_DIAG_SK_BPF_STORAGES).unwrap_or_default());
    let is_agents =
        |agents: &HashSet<u32>| in_cgroup || stored.tag().is_some_and(|tag| agents.contains(&tag));
    match scope.stored {
        Stored::Unread => in_cgroup,
        Stored::Tags(_, agents) => is_agents(agents),
        Stored::Origins(_) => in_cgroup && !stored.has_origin(),
        Stored::Kept(_, inodes) => {
            let inode = message.get(INODE..).and_then(number::<4>).map(u32::from_ne_bytes);
            (in_cgroup || inode.is_some_and(|inode| inodes.contains(&inode.into()))) && !stored.has_origin()
        }
        Stored::Direct { agents, .. } => is_agents(agents) && !stored.has_origin(),
    }
}

/// The socket storages in an answer. Which map each is of shows in its size.
struct Storages<'a>(&'a [u8]);

impl<'a> Storages<'a> {
    fn values(&self) -> impl Iterator<Item = &'a [u8]> {
        let storages = attributes(self.0).filter(|(kind, _)| *kind == SK_DIAG_BPF_STORAGE);
        storages.filter_map(|(_, storage)| {
            attributes(storage)
                .find_map(|(kind, value)| (kind == SK_DIAG_BPF_STORAGE_MAP_VALUE).then_some(value))
        })
    }

    /// The agent of a `Tag`, which is its first word.
    fn tag(&self) -> Option<u32> {
        let tag = self.values().find(|value| value.len() == size_of::<Tag>())?;
        number::<4>(tag).map(u32::from_ne_bytes)
    }

    fn has_origin(&self) -> bool {
        self.values().any(|value| value.len() == size_of::<Origin>())
    }
}

const _: () = assert!(size_of::<Tag>() != size_of::<Origin>());

fn messages(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    records(bytes, HEADER, |head| {
        let length = usize::try_from(u32::from_ne_bytes(number::<4>(head)?)).ok()?;
        Some((length, u16::from_ne_bytes(number::<2>(&head[4..])?)))
    })
}

fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    records(bytes, 4, |head| {
        let length = usize::from(u16::from_ne_bytes(number::<2>(head)?));
        Some((length, u16::from_ne_bytes(number::<2>(&head[2..])?) & !NLA_F_NESTED))
    })
}

/// Netlink's two kinds of records differ in the header only: `parse` gives length (with header) and type.
fn records<'a>(
    mut bytes: &'a [u8],
    header: usize,
    parse: impl Fn(&'a [u8]) -> Option<(usize, u16)>,
) -> impl Iterator<Item = (u16, &'a [u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = parse(bytes.get(..header)?)?;
        let body = bytes.get(header..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The errno in a `struct nlmsgerr`; `None` is success.
fn error_of(body: &[u8]) -> Option<i32> {
    number::<4>(body).map(|errno| -i32::from_ne_bytes(errno)).filter(|errno| *errno != 0)
}

fn number<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.first_chunk().copied()
}

const fn aligned(length: usize) -> usize {
    (length + 3) & !3
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn message(attributes: &[u8]) -> Vec<u8> {
        [&[0; MESSAGE][..], attributes].concat()
    }

    #[test]
    fn sockets_are_told_by_cgroup_tag_and_origin() {
        let any = std::io::stderr();
        let (cgroups, agents) = (HashSet::from([7]), HashSet::from([3]));
        let ours = attribute(INET_DIAG_CGROUP_ID, &7u64.to_ne_bytes());
        let others = attribute(INET_DIAG_CGROUP_ID, &8u64.to_ne_bytes());
        let storage =
            |value: &[u8]| attribute(SK_DIAG_BPF_STORAGE, &attribute(SK_DIAG_BPF_STORAGE_MAP_VALUE, value));
        let stored = |storages: &[&[u8]]| {
            let storages: Vec<u8> = storages.iter().flat_map(|value| storage(value)).collect();
            attribute(INET_DIAG_SK_BPF_STORAGES, &storages)
        };
        let tag = [3u32.to_ne_bytes(), [0; 4]].concat();
        let origin = [0; size_of::<Origin>()];
        let (tagged, redirected, both) = (stored(&[&tag]), stored(&[&origin]), stored(&[&tag, &origin]));
        let check = |stored, attributes: &[&[u8]], expect: bool| {
            let scope = Scope { cgroup_ids: &cgroups, stored };
            assert_eq!(is_in_scope(&message(&attributes.concat()), &scope), expect);
        };
        check(Stored::Unread, &[&ours], true);
        check(Stored::Unread, &[&others], false);
        check(Stored::Tags(any.as_fd(), &agents), &[&others, &tagged], true);
        check(Stored::Tags(any.as_fd(), &agents), &[&others], false);
        check(Stored::Origins(any.as_fd()), &[&ours], true);
        check(Stored::Origins(any.as_fd()), &[&ours, &redirected], false);
        check(Stored::Origins(any.as_fd()), &[], false);
        // The messages here have inode 0.
        let (kept, others_kept) = (HashSet::from([0]), HashSet::from([5]));
        check(Stored::Kept(any.as_fd(), &kept), &[&others], true);
        check(Stored::Kept(any.as_fd(), &kept), &[&others, &redirected], false);
        check(Stored::Kept(any.as_fd(), &others_kept), &[&others], false);
        let direct = Stored::Direct { tags: any.as_fd(), agents: &agents, origins: any.as_fd() };
        check(direct, &[&ours], true);
        check(direct, &[&others, &tagged], true);
        check(direct, &[&ours, &both], false);
        check(direct, &[&others, &redirected], false);
    }

    #[test]
    fn broken_records_end_the_walk() {
        let mut bytes = attribute(5, &[1, 2, 3]);
        bytes.extend([200, 0, 1, 0]);
        assert_eq!(attributes(&bytes).collect::<Vec<_>>(), [(5, &[1, 2, 3][..])]);
        assert_eq!(attributes(&[0, 0]).count(), 0);
        assert_eq!(attributes(&[0; 8]).count(), 0, "a record shorter than its header");
    }
}
