//! The few `bpf(2)` calls that aya 0.14 lacks or hides: link update, link info, and map access that takes no lock.

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A value that may cross into the kernel byte by byte.
///
/// # Safety
/// Any bit pattern must be valid, and there must be no padding.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: integers only, no implicit padding; agent-abi asserts the sizes.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::AgentState {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::Listener {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::Settings {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::Origin {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::FlowKey {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::Event {}
// SAFETY: as above.
unsafe impl Plain for agent_abi::Tag {}

/// What the kernel says about a cgroup link (`struct bpf_link_info`, up to the end of its cgroup part).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkInfo {
    pub kind: u32,
    pub id: u32,
    pub program_id: u32,
    _pad: u32,
    /// 0 once the cgroup is gone or the link was detached by force.
    pub cgroup_id: u64,
    pub attach_type: u32,
    _pad2: u32,
}

/// What the kernel says about a map (`struct bpf_map_info`, its first part).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MapInfo {
    pub kind: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
}

// SAFETY: integers only, the padding is named.
unsafe impl Plain for LinkInfo {}
// SAFETY: as above.
unsafe impl Plain for MapInfo {}
// SAFETY: as above.
unsafe impl Plain for [u32; 2] {}

pub(super) fn pin(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    bpf(Command::ObjPin, &ObjectAttr { path: path.as_ptr() as u64, fd: fd.as_raw_fd(), flags: 0 }).map(drop)
}

pub(super) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let fd = bpf(Command::ObjGet, &ObjectAttr { path: path.as_ptr() as u64, fd: 0, flags: 0 })?;
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches a program to a cgroup, beside all others there: a link always is.
pub(super) fn create_link(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    attach_type: u32,
) -> io::Result<OwnedFd> {
    let attr =
        LinkCreateAttr { program: program.as_raw_fd(), target: cgroup.as_raw_fd(), attach_type, flags: 0 };
    let fd = bpf(Command::LinkCreate, &attr)?;
    // SAFETY: the kernel has just made this descriptor (close-on-exec) for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Swaps the program behind a link: no packet and no call sees neither or both.
pub(super) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let attr =
        LinkUpdateAttr { link: link.as_raw_fd(), new_program: program.as_raw_fd(), flags: 0, old_program: 0 };
    bpf(Command::LinkUpdate, &attr).map(drop)
}

pub(super) fn link_info(link: BorrowedFd<'_>) -> io::Result<LinkInfo> {
    info(link)
}

/// Detaches a link by force, whoever else holds it.
pub(super) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(Command::LinkDetach, &link.as_raw_fd().cast_unsigned()).map(drop)
}

/// The id of a program, as in [`LinkInfo::program_id`].
pub(super) fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // `struct bpf_prog_info` begins with type and id; the kernel fills what fits.
    let [_, id] = info::<[u32; 2]>(program)?;
    Ok(id)
}

pub(super) fn map_info(map: BorrowedFd<'_>) -> io::Result<MapInfo> {
    info(map)
}

/// The value under a key, `None` if there is none.
pub(super) fn lookup<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    value_of(Command::MapLookup, map, key)
}

fn value_of<K: Plain, V: Plain>(command: Command, map: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    let mut value = MaybeUninit::<V>::zeroed();
    let attr = ElementAttr::new(map, key, value.as_mut_ptr() as u64, 0);
    match bpf(command, &attr) {
        // SAFETY: `Plain`, zeroed, and as long as the map's values (checked when the map was opened).
        Ok(_) => Ok(Some(unsafe { value.assume_init() })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The value under a key, which is gone then (hash maps: Linux 5.14). Of two callers one gets it.
pub(super) fn take<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K) -> io::Result<Option<V>> {
    value_of(Command::MapTake, map, key)
}

/// The values of all processors under a key of a per-processor map. `values` must have one slot for each
/// possible processor.
pub(super) fn lookup_per_cpu(map: BorrowedFd<'_>, key: u32, values: &mut [u64]) -> io::Result<()> {
    bpf(Command::MapLookup, &ElementAttr::new(map, &key, values.as_mut_ptr() as u64, 0)).map(drop)
}

pub(super) fn update<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    bpf(Command::MapUpdate, &ElementAttr::new(map, key, std::ptr::from_ref(value) as u64, 0)).map(drop)
}

/// Writes a value under a key that has none; one that is there stays.
pub(super) fn insert<K: Plain, V: Plain>(map: BorrowedFd<'_>, key: &K, value: &V) -> io::Result<()> {
    const BPF_NOEXIST: u64 = 1;
    let attr = ElementAttr::new(map, key, std::ptr::from_ref(value) as u64, BPF_NOEXIST);
    match bpf(Command::MapUpdate, &attr) {
        Err(error) if error.raw_os_error() != Some(libc::EEXIST) => Err(error),
        _ => Ok(()),
    }
}

/// Removes a key; absent is fine.
pub(super) fn delete<K: Plain>(map: BorrowedFd<'_>, key: &K) -> io::Result<()> {
    match bpf(Command::MapDelete, &ElementAttr::new(map, key, 0, 0)) {
        Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
        _ => Ok(()),
    }
}

/// Every key of a hash map, as of some time during the call.
pub(super) fn keys<K: Plain>(map: BorrowedFd<'_>) -> io::Result<Vec<K>> {
    let mut keys: Vec<K> = Vec::new();
    loop {
        let mut next = MaybeUninit::<K>::zeroed();
        let attr = ElementAttr {
            map: map.as_raw_fd(),
            _pad: 0,
            key: keys.last().map_or(0, |key| std::ptr::from_ref(key) as u64),
            value: next.as_mut_ptr() as u64,
            flags: 0,
        };
        match bpf(Command::MapNextKey, &attr) {
            // SAFETY: `Plain`, zeroed, and as long as the map's keys.
            Ok(_) => keys.push(unsafe { next.assume_init() }),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
            Err(error) => return Err(error),
        }
    }
}

fn info<T: Plain + Default>(fd: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let attr = InfoAttr {
        fd: fd.as_raw_fd(),
        length: u32::try_from(size_of::<T>()).map_err(io::Error::other)?,
        info: &raw mut info as u64,
    };
    bpf(Command::ObjInfo, &attr)?;
    Ok(info)
}

fn bpf<T>(command: Command, attr: &T) -> io::Result<i32> {
    // SAFETY: `attr` is the layout this command reads, and every pointer in it outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_int, attr, size_of::<T>()) };
    match i32::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// `enum bpf_cmd` of `linux/bpf.h`.
#[repr(i32)]
#[derive(Clone, Copy)]
enum Command {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ObjPin = 6,
    ObjGet = 7,
    ObjInfo = 15,
    MapTake = 21,
    LinkCreate = 28,
    LinkUpdate = 29,
    LinkDetach = 34,
}

// The arms of `union bpf_attr`. The kernel takes the rest of the union as zero.

#[repr(C)]
struct ElementAttr {
    map: i32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl ElementAttr {
    fn new<K>(map: BorrowedFd<'_>, key: &K, value: u64, flags: u64) -> Self {
        Self { map: map.as_raw_fd(), _pad: 0, key: std::ptr::from_ref(key) as u64, value, flags }
    }
}

#[repr(C)]
struct ObjectAttr {
    path: u64,
    fd: i32,
    flags: u32,
}

#[repr(C)]
struct InfoAttr {
    fd: i32,
    length: u32,
    info: u64,
}

#[repr(C)]
struct LinkCreateAttr {
    program: i32,
    target: i32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct LinkUpdateAttr {
    link: i32,
    new_program: i32,
    flags: u32,
    old_program: i32,
}
