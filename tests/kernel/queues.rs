//! What is left of destroyed sockets as evidence.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use interlock::kernel::sock_diag::{LISTED, Protocol};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::lab::{Lab, until};

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn destroyed_socket_is_listed_with_its_ends_and_the_bytes_in_its_queues() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:80");
    let (mut stream, _) = lab.accept4();
    let local = agent.must(&format!("local {handle}"));
    stream.write_all(b"never read").expect("it is connected");
    until("the bytes at the agent", || (agent.must(&format!("unread {handle}")) == "10").then_some(()));
    // From here on its packets stay, so what it writes is never acknowledged.
    lab.isolate();
    agent.must(&format!("send {handle} secret"));
    let inode: u64 = agent.must(&format!("inode {handle}")).parse().expect("a number");

    let destroyed = lab.destroy();
    assert_eq!((destroyed.tcp, destroyed.left, destroyed.unlisted()), (1, 0, 0));
    assert_eq!((destroyed.unread, destroyed.unsent), (10, 6));
    let socket = destroyed.sockets[0];
    assert_eq!((socket.protocol, socket.unread, socket.unsent, socket.uid), (Protocol::Tcp, 10, 6, 0));
    assert_eq!(socket.local, local.parse::<SocketAddr>().expect("an address"));
    assert_eq!(socket.remote, stream.local_addr().expect("it is bound"));
    assert_eq!(socket.inode, inode);
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn fin_is_no_byte() {
    let lab = Lab::new();
    let mut agent = lab.agent();
    let handle = lab.connected(&mut agent, "192.0.2.7:80");
    let (mut stream, _) = lab.accept4();
    stream.write_all(b"last").expect("it is connected");
    stream.shutdown(std::net::Shutdown::Write).expect("it is connected");
    until("the bytes at the agent", || (agent.must(&format!("unread {handle}")) == "4").then_some(()));
    lab.isolate();
    agent.must(&format!("send {handle} abc"));
    // Now its own FIN is in the queue as well.
    agent.must(&format!("shutdown {handle}"));
    let destroyed = lab.destroy();
    assert_eq!((destroyed.tcp, destroyed.unread, destroyed.unsent), (1, 4, 3));
}

#[test]
#[cfg_attr(not(feature = "root-tests"), ignore = "needs root and BPF")]
fn more_sockets_than_are_listed_are_all_destroyed_and_counted() {
    const SOCKETS: usize = LISTED + 100;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("room for as many sockets");
    let lab = Lab::new();
    let mut agents = [lab.agent(), lab.agent()];
    let (mut streams, mut sent) = (Vec::new(), 0);
    for i in 0..SOCKETS {
        let agent = &mut agents[i % 2];
        let handle = lab.connected(agent, "192.0.2.7:80");
        agent.must(&format!("send {handle} x"));
        let mut stream = lab.accept4().0;
        // Read, so that it is acknowledged; then one byte that stays unread.
        stream.set_nonblocking(false).expect("a socket");
        stream.read_exact(&mut [0]).expect("the byte");
        stream.write_all(b"y").expect("it is connected");
        streams.push(stream);
        sent += 1;
    }
    let destroyed = lab.destroy();
    assert_eq!((destroyed.tcp as usize, destroyed.left, destroyed.sockets.len()), (sent, 0, LISTED));
    assert_eq!((destroyed.unlisted(), destroyed.unread), (100, sent as u64));
}
