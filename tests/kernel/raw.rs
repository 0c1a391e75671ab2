//! A pinned map, written as no daemon writes it.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;

const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_DELETE_ELEM: libc::c_int = 3;
const BPF_OBJ_GET: libc::c_int = 7;

pub(crate) struct RawMap(OwnedFd);

impl RawMap {
    pub(crate) fn open(pins: &Path, name: &str) -> RawMap {
        let path = pins.join(format!("v{}/maps/{name}", agent_abi::ABI_VERSION));
        let path = CString::new(path.display().to_string()).expect("a path");
        let fd = bpf(BPF_OBJ_GET, [path.as_ptr() as u64, 0, 0, 0]).expect("it is pinned");
        // SAFETY: the kernel has just made this descriptor for us.
        RawMap(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Both must be as long as the map's.
    pub(crate) fn set<K, V>(&self, key: &K, value: &V) -> io::Result<()> {
        let (key, value) = (std::ptr::from_ref(key) as u64, std::ptr::from_ref(value) as u64);
        bpf(BPF_MAP_UPDATE_ELEM, [self.fd(), key, value, 0]).map(drop)
    }

    /// It must be as long as the map's.
    pub(crate) fn remove<K>(&self, key: &K) -> io::Result<()> {
        bpf(BPF_MAP_DELETE_ELEM, [self.fd(), std::ptr::from_ref(key) as u64, 0, 0]).map(drop)
    }

    fn fd(&self) -> u64 {
        u64::from(self.0.as_raw_fd().cast_unsigned())
    }
}

fn bpf(command: libc::c_int, attr: [u64; 4]) -> io::Result<i32> {
    // SAFETY: these commands read no more than four words, and what they point to outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(&attr)) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
