//! An agent that wants to reach the daemon's own endpoint for operators.

use nix::unistd::User;
use tokio::task::spawn_blocking;
use tracing::warn;

use crate::decide::stop::Operator;
use crate::forward::End;
use crate::kernel::cgroup;
use crate::kernel::netns::Netns;
use crate::ledger::Conn;
use crate::parts::Parts;
use crate::record::entry::{Entry, Intrusion};

/// Refuses, and records, a connection that would arrive there.
pub(super) async fn refuse(parts: &Parts, netns: &Netns, conn: &Conn) -> Result<(), End> {
    if !parts.own_endpoint.is_at(netns, conn.destination) {
        return Ok(());
    }
    record(parts, conn).await;
    Err(End::Refused)
}

/// Records that an agent's connection was kept from it.
pub async fn record(parts: &Parts, conn: &Conn) {
    let (pid, uid) = (conn.identity.pid, conn.identity.uid);
    // The user database may be on the network.
    let user = spawn_blocking(move || User::from_uid(uid.into()).ok().flatten()).await.ok().flatten();
    let by = Operator {
        uid: Some(uid),
        pid: i32::try_from(pid).ok(),
        user: user.map_or_else(|| uid.to_string(), |user| user.name),
        ..Operator::default()
    };
    let agent = &conn.identity.agent.name;
    let order = format!("connect {}", conn.destination);
    // Empty: the process is gone.
    let cgroup = cgroup::of_pid(pid).map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    warn!(agent = &**agent, pid, order, "agent kept from the endpoint for operators");
    parts.metrics.control_refused();
    let entry = Entry::Intrusion(Intrusion { agent, order: &order, by: &by, cgroup: &cgroup });
    parts.log.record_durably(&entry).await;
}
