//! Network namespaces: hold one open, tell them apart, and make sockets in them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::OnceLock;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// An open network namespace, which keeps it alive.
#[derive(Debug)]
pub struct Netns {
    file: File,
    identity: Identity,
}

/// Tells namespaces apart while at least one handle to each is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

impl Netns {
    /// The namespace of this thread.
    pub fn current() -> io::Result<Netns> {
        Netns::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace of a process.
    pub fn of_pid(pid: u32) -> io::Result<Netns> {
        Netns::open(Path::new(&format!("/proc/{pid}/ns/net")))
    }

    /// The namespace behind a file, such as `/run/netns/NAME`.
    pub fn open(path: &Path) -> io::Result<Netns> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok(Netns { file, identity: Identity { device: metadata.dev(), inode: metadata.ino() } })
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Whether it is the one in which the daemon runs. What cannot be told is not.
    pub fn is_home(&self) -> bool {
        home().is_ok_and(|home| home.identity == self.identity)
    }

    /// The number by which the kernel side knows this namespace.
    pub fn cookie(&self) -> io::Result<u64> {
        self.within(|| {
            let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
            cookie_of(socket.as_fd())
        })?
    }

    /// Runs a short synchronous closure with this thread in the namespace. Sockets made inside stay in it; the
    /// thread comes back, or the process ends: a thread left behind would dial from a pod's namespace.
    ///
    /// All threads must be in the namespace in which the process was when it first called this.
    pub fn within<T>(&self, closure: impl FnOnce() -> T) -> io::Result<T> {
        let home = home()?;
        if self.identity == home.identity {
            return Ok(closure());
        }
        setns(&self.file, CloneFlags::CLONE_NEWNET)?;
        let _return = ReturnHome(home);
        Ok(closure())
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The cookie of the namespace a socket lives in (Linux 5.14).
pub fn cookie_of(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0u64;
    let mut length: libc::socklen_t = 8;
    // SAFETY: `cookie` has the eight bytes that `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

struct ReturnHome(&'static Netns);

impl Drop for ReturnHome {
    fn drop(&mut self) {
        if setns(&self.0.file, CloneFlags::CLONE_NEWNET).is_err() {
            tracing::error!("cannot return to the daemon's network namespace");
            std::process::abort();
        }
    }
}

fn home() -> io::Result<&'static Netns> {
    static HOME: OnceLock<Netns> = OnceLock::new();
    if let Some(home) = HOME.get() {
        return Ok(home);
    }
    let home = Netns::current()?;
    Ok(HOME.get_or_init(|| home))
}

/// `asm-generic/socket.h`; not in libc for every target.
const SO_NETNS_COOKIE: libc::c_int = 71;
