//! What is left of destroyed sockets as evidence.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;

use interlock::kernel::sock_diag::{LISTED, Protocol};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::lab::{AGENT, Lab, until};

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
    assert_eq!((destroyed.tcp, destroyed.left, destroyed.sockets.len()), (1, 0, 1));
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
fn direct_sockets_of_every_cgroup_go_and_redirected_ones_stay() {
    let lab = Lab::new();
    // Older than the agent, and so not redirected: one in its cgroup and one in each of two below, among which the
    // kernel's filter has to choose.
    lab.let_go();
    let mut probes = vec![lab.agent()];
    for name in ["one", "two"] {
        let below = lab.agent_dir().join(name);
        std::fs::create_dir(&below).expect("a cgroup below");
        probes.push(lab.probe(&below));
    }
    let mut direct = Vec::new();
    for probe in &mut probes {
        let handle = probe.must("socket 2 1 0");
        probe.must(&format!("connect {handle} 127.0.0.1:{}", lab.ports().port4));
        direct.push(lab.accept4().0);
    }
    lab.hold();
    lab.connected(&mut probes[0], "192.0.2.7:80");
    let (mut redirected, _) = lab.accept4();
    lab.isolate();
    let dirs = [lab.agent_dir().to_owned()];
    let destroyed = lab.kernel.destroy_direct_below(&dirs, &[AGENT].into()).expect("destroy");
    assert_eq!((destroyed.tcp, destroyed.left), (3, 0), "{:?}", destroyed.sockets);
    redirected.write_all(b"still there").expect("the redirected connection is the daemon's to end");
    let rest = lab.kernel.destroy_below(&dirs, &[AGENT].into()).expect("destroy");
    assert_eq!(rest.tcp, 1, "it was there: {:?}", rest.sockets);
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
    assert_eq!((destroyed.sockets.len(), destroyed.unread), (LISTED, sent as u64));
}
