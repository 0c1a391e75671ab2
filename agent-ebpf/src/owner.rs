//! Who owns a socket: the tag it carries, else the cgroups of the process at hand.
//!
//! Both are needed. A socket made outside and used inside has no tag; one made inside and carried out has no
//! cgroup. Whichever answers first puts the tag on, so the answer stays; that nobody knows yet is no answer.

use core::ffi::c_void;

use agent_abi::{MAX_CGROUP_LEVEL, Tag, is_agent};
use aya_ebpf::helpers::generated::bpf_get_current_ancestor_cgroup_id;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_uid_gid};

use crate::maps::{AGENTS, SETTINGS, TAGS};

/// The agent that owns this socket; `NOBODY` and `UNCLASSIFIED` are none.
///
/// # Safety
/// `socket` must be what the hook's socket storage helper accepts.
#[inline(always)]
pub(crate) unsafe fn owner(socket: *mut c_void) -> u32 {
    // SAFETY: the caller vouches for the socket.
    if let Some(tag) = unsafe { TAGS.get(socket) } {
        return tag.agent;
    }
    let agent = current();
    if is_agent(agent) {
        // SAFETY: as above. Without memory the socket stays untagged, and the next hook asks again.
        unsafe { TAGS.set(socket, &Tag { agent, _pad: 0 }) };
    }
    agent
}

/// The agent whose cgroup the current process is in, or `NOBODY`, or `UNCLASSIFIED`. The deepest cgroup that is known wins:
/// an agent may be nested in another one. Everybody on the host pays for this, so it looks only where agents are.
#[inline(always)]
pub(crate) fn current() -> u32 {
    let skipped = match SETTINGS.get(0) {
        Some(settings) => settings.skipped_levels,
        None => 0,
    };
    let mut agent = 0;
    let mut level = 1;
    while level <= MAX_CGROUP_LEVEL {
        if skipped & 1 << level == 0 {
            // SAFETY: the helper takes a plain number and answers 0 below the leaf.
            let id = unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) };
            if id == 0 {
                break;
            }
            // SAFETY: the value is one word, copied at once.
            if let Some(found) = unsafe { AGENTS.get(id) } {
                agent = *found;
            }
        }
        level += 1;
    }
    agent
}

/// Process (thread group) and real user of the current task.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "both helpers pack two 32-bit numbers into one")]
pub(crate) fn caller() -> (u32, u32) {
    ((bpf_get_current_pid_tgid() >> 32) as u32, bpf_get_current_uid_gid() as u32)
}
