//! Every map: its size, who writes it and who reads it. All are pinned by the daemon and outlive it.
//!
//! A full map refuses. Only `FLOWS` forgets instead.

use core::ffi::c_void;

use agent_abi::{AgentState, Counter, EVERYBODY, Event, FlowKey, Listener, Origin, Settings, Tag};
use aya_ebpf::Global;
use aya_ebpf::bindings::bpf_map_type::BPF_MAP_TYPE_SK_STORAGE;
use aya_ebpf::bindings::{BPF_F_CLONE, BPF_F_NO_PREALLOC, BPF_SK_STORAGE_GET_F_CREATE};
use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use aya_ebpf::helpers::generated::{bpf_sk_storage_delete, bpf_sk_storage_get};
use aya_ebpf::macros::btf_map;

/// Cgroup id → agent, or `NOBODY`, or `UNCLASSIFIED`. The daemon writes, always after the agent's state; every hook reads.
#[btf_map]
pub(crate) static AGENTS: HashMap<u64, u32, 65_536, ON_DEMAND> = HashMap::new();

/// Agent (or `EVERYBODY`) → state: the stop word. The daemon writes, or the command line when the daemon is dead; every hook reads.
#[btf_map]
pub(crate) static STATES: HashMap<u32, AgentState, 65_536, ON_DEMAND> = HashMap::new();

/// Network namespace cookie → ports of the daemon there. The daemon writes; connect and bind hooks read.
#[btf_map]
pub(crate) static LISTENERS: HashMap<u64, Listener, 16_384, ON_DEMAND> = HashMap::new();

/// One entry. The daemon writes; every hook reads.
#[btf_map]
pub(crate) static SETTINGS: Array<Settings, 1> = Array::new();

/// Socket → the agent that owns it. Every hook writes on first sight. Accepted sockets inherit it from their
/// listener, so that packets of inbound connections are judged too.
#[btf_map]
pub(crate) static TAGS: SocketStorage<Tag, { (BPF_F_NO_PREALLOC | BPF_F_CLONE) as usize }> =
    SocketStorage::new();

/// Agent's socket → original destination. Connect hooks write; `handover` and getpeername hooks read, and the daemon
/// sees which sockets have one.
#[btf_map]
pub(crate) static ORIGINS: SocketStorage<Origin, ON_DEMAND> = SocketStorage::new();

/// Connection on its way from the agent's SYN to the daemon's accept → original destination. `handover` writes, the
/// daemon takes.
///
/// What was refused or given up stays, and nobody takes it back. An LRU lets go of it, oldest first, so that no agent
/// can fill the map and stop all others with it. What the daemon would still accept goes with it only when tens of
/// thousands have begun after it; it then finds no destination and closes the connection.
#[btf_map]
pub(crate) static FLOWS: LruHashMap<FlowKey, Origin, 65_536> = LruHashMap::new();

/// Refusals. Every hook writes; the daemon reads. When it is full the event is lost and counted.
#[btf_map]
pub(crate) static EVENTS: RingBuf<Event, 262_144> = RingBuf::new();

/// [`Counter`] → count. Every hook writes; the daemon sums over the processors.
#[btf_map]
pub(crate) static COUNTERS: PerCpuArray<u64, { Counter::COUNT as usize }> = PerCpuArray::new();

/// 1 where the kernel has `bpf_set_retval` (5.18); the loader sets it. On 0 the verifier drops the call as dead
/// code and every refusal is `EPERM`.
#[unsafe(no_mangle)]
pub(crate) static SET_RETVAL: Global<u32> = Global::new(1);

/// Memory is taken per entry, so that an idle node does not pay for the maximum.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// Adds to a counter of this processor.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the slot belongs to this processor, and the verifier has proven the bounds.
        unsafe { *slot += 1 };
    }
}

/// The daemon's settings, or all zero (which holds agents) before it wrote any.
#[inline(always)]
pub(crate) fn settings() -> Settings {
    match SETTINGS.get(0) {
        Some(settings) => *settings,
        None => Settings::default(),
    }
}

/// What an agent is held to: its own state, a missing one as if isolated, or everybody's where that is stricter.
#[inline(always)]
pub(crate) fn state(agent: u32) -> AgentState {
    // SAFETY: a concurrent update replaces the entry; both words stay readable until this program ends.
    let own = match unsafe { STATES.get(agent) } {
        Some(state) => *state,
        None => AgentState::UNKNOWN,
    };
    // SAFETY: as above.
    let everybody = match unsafe { STATES.get(EVERYBODY) } {
        Some(state) => *state,
        None => AgentState::RUN,
    };
    own.with_everybody(everybody)
}

/// Ports of the daemon in a network namespace; all zero where it has none.
#[inline(always)]
pub(crate) fn listener(netns: u64) -> Listener {
    // SAFETY: as for `state`.
    match unsafe { LISTENERS.get(netns) } {
        Some(listener) => *listener,
        None => Listener { port4: 0, port6: 0 },
    }
}

/// `BPF_MAP_TYPE_SK_STORAGE` for every kind of hook; the one in aya-ebpf 0.2 takes a sock_addr context only.
#[repr(C)]
pub(crate) struct SocketStorage<T, const FLAGS: usize> {
    r#type: *const [i32; BPF_MAP_TYPE_SK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; FLAGS],
}

// SAFETY: the pointers only describe the map in BTF; nobody follows them.
unsafe impl<T, const FLAGS: usize> Sync for SocketStorage<T, FLAGS> {}

impl<T: 'static, const FLAGS: usize> SocketStorage<T, FLAGS> {
    const fn new() -> Self {
        Self {
            r#type: core::ptr::null(),
            key: core::ptr::null(),
            value: core::ptr::null(),
            max_entries: core::ptr::null(),
            map_flags: core::ptr::null(),
        }
    }

    /// The value of a socket.
    ///
    /// # Safety
    /// `socket` must be what the hook's helper accepts: its context's socket, checked for null.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, socket: *mut c_void) -> Option<&'static mut T> {
        // SAFETY: the caller vouches for the socket; the verifier checks it again.
        unsafe { bpf_sk_storage_get(self.as_ptr(), socket, core::ptr::null_mut(), 0).cast::<T>().as_mut() }
    }

    /// Overwrites the value of a socket; false when there is no memory.
    ///
    /// # Safety
    /// As for [`Self::get`].
    #[inline(always)]
    pub(crate) unsafe fn set(&self, socket: *mut c_void, value: &T) -> bool {
        // SAFETY: as above. Created zeroed, then filled: `CREATE` with a value keeps what is already there.
        unsafe {
            let slot = bpf_sk_storage_get(
                self.as_ptr(),
                socket,
                core::ptr::null_mut(),
                BPF_SK_STORAGE_GET_F_CREATE.into(),
            )
            .cast::<T>();
            if slot.is_null() {
                return false;
            }
            // Not `*slot = *value`: bpf-linker has no memmove.
            core::ptr::copy_nonoverlapping(value, slot, 1);
        }
        true
    }

    /// Forgets the value of a socket.
    ///
    /// # Safety
    /// As for [`Self::get`].
    #[inline(always)]
    pub(crate) unsafe fn delete(&self, socket: *mut c_void) {
        // SAFETY: as above; the result only says whether there was one.
        unsafe { bpf_sk_storage_delete(self.as_ptr(), socket) };
    }

    #[inline(always)]
    fn as_ptr(&self) -> *mut c_void {
        core::ptr::from_ref(self).cast_mut().cast()
    }
}
