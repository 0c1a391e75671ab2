//! How soon TCP gives up on a peer that does not acknowledge what was sent to it.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

/// How often the kernel sends again what is not acknowledged, or asks for room, before it gives up (`net.ipv4.tcp_retries2`).
const RETRIES: u32 = 15;
/// What the kernel takes for the longest pause.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));
/// `TCP_RTO_MAX_MS` of linux/tcp.h, from Linux 6.15 on.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Gives up after about this time, or a little over [`RETRIES`] seconds. Kernels before 6.15 refuse it, and take 15 minutes.
///
/// Keepalive does not see to this: it is silent while anything is not acknowledged. `TCP_USER_TIMEOUT` is no choice: it also
/// ends connections to peers that are well and only read nothing for a while.
pub fn give_up_after(socket: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    // The first pauses are shorter: each is twice the one before.
    let pause = (time / (RETRIES - 3)).clamp(PAUSES.0, PAUSES.1);
    let millis = libc::c_int::try_from(pause.as_millis()).map_err(io::Error::other)?;
    let length = libc::socklen_t::try_from(size_of_val(&millis)).map_err(io::Error::other)?;
    // SAFETY: `millis` has as many bytes as `length` says.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const millis).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
