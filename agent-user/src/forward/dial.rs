//! The connection to the server, made from the agent's own network namespace so that its address, its routes and
//! its network policies stay in force.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpSocket, TcpStream};

use crate::kernel::netns::Netns;

/// Connects to a server as the agent would have.
pub async fn dial(netns: &Netns, server: SocketAddr) -> io::Result<TcpStream> {
    // Only the making of a socket depends on the namespace of the thread; connecting it does not.
    let socket = netns.within(|| match server {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    })??;
    socket.connect(server).await
}
