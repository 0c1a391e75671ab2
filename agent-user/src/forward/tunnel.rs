//! Traffic that is not read: copied, counted, and cut by stops.

use crate::forward::End;
use crate::forward::side::{Reader, Side, Writer};

/// Copies both ways until both sides have ended. One side may end long before the other.
pub async fn tunnel(agent: &mut Side, server: &mut Side) -> End {
    let up = copy(&mut agent.reader, &mut server.writer, End::agent, End::server);
    let down = copy(&mut server.reader, &mut agent.writer, End::server, End::agent);
    tokio::pin!(up, down);
    // The side that ends first is the one that closed; an error ends both.
    tokio::select! {
        ended = &mut up => match ended {
            Ok(()) => down.await.err().unwrap_or(End::AgentClosed),
            Err(end) => end,
        },
        ended = &mut down => match ended {
            Ok(()) => up.await.err().unwrap_or(End::ServerClosed),
            Err(end) => end,
        },
    }
}

async fn copy(
    from: &mut Reader,
    to: &mut Writer,
    read_failed: fn(std::io::Error) -> End,
    write_failed: fn(std::io::Error) -> End,
) -> Result<(), End> {
    loop {
        if !from.buffer.is_empty() {
            to.send(&from.buffer).await.map_err(write_failed)?;
            from.buffer.clear();
        }
        from.rest();
        if from.fill().await.map_err(read_failed)? == 0 {
            return to.finish().await.map_err(write_failed);
        }
    }
}
