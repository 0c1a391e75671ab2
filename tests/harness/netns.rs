//! A network namespace of a test's own: a loopback device and nothing else.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Lives as long as this, or a process in it, does.
#[derive(Debug)]
pub struct Netns {
    file: File,
}

impl Netns {
    /// Makes one, with `lo` up.
    pub fn create() -> Netns {
        // On a thread of its own, so that nobody else changes namespace.
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root may make network namespaces");
            raise_loopback();
            File::open("/proc/thread-self/ns/net").expect("/proc is mounted")
        });
        Netns { file: made.join().expect("the namespace was made") }
    }

    /// A path by which any process of this machine can open it.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()))
    }
}

fn raise_loopback() {
    let socket =
        socket(AddressFamily::Inet, SockType::Datagram, SockFlag::empty(), None).expect("sockets work");
    // SAFETY: an all-zero `ifreq` is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l'.cast_signed();
    request.ifr_name[1] = b'o'.cast_signed();
    request.ifr_ifru.ifru_flags = 1; // IFF_UP
    // SAFETY: `request` is what this ioctl reads.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) };
    assert_eq!(result, 0, "lo comes up");
}
