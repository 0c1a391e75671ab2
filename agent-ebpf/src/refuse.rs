//! The one way to refuse: count, tell the daemon, choose the errno. Never blocks; a full ring buffer only costs
//! the event, which is counted.

use agent_abi::{Counter, Reason};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_set_retval};
use aya_log_ebpf::debug;

use crate::maps::{EVENTS, SET_RETVAL, count};
use crate::owner::caller;

/// What was attempted, for the record.
pub(crate) struct Refused {
    pub agent: u32,
    pub netns: u64,
    pub addr: [u8; 16],
    pub port: u32,
    pub protocol: u32,
}

/// Refuses a system call. `stop_errno` is `AgentState::errno`. Returns what the hook must return.
#[inline(always)]
pub(crate) fn refuse<C>(ctx: &C, reason: Reason, stop_errno: u32, refused: &Refused) -> i32 {
    count(Counter::Refused);
    if matches!(reason, Reason::Stopped) {
        count(Counter::RefusedStopped);
    }
    emit(reason, refused);
    debug!(ctx, "refused agent {} port {} reason {}", refused.agent, refused.port, reason as u32);
    if SET_RETVAL.load() == 1 {
        // The verifier of Linux 7.3 wants to see that it is an errno: at most 4095 (MAX_ERRNO).
        let errno = (reason.errno(stop_errno) & 0xfff) as i32;
        // SAFETY: a plain number.
        unsafe { bpf_set_retval(-errno) };
    }
    0
}

#[inline(always)]
fn emit(reason: Reason, refused: &Refused) {
    let Some(mut entry) = EVENTS.reserve(0) else {
        count(Counter::EventsLost);
        return;
    };
    let (tgid, uid) = caller();
    let event = entry.as_mut_ptr();
    // SAFETY: `event` is the reserved entry; every field is written before it is submitted.
    unsafe {
        (*event).at_ns = bpf_ktime_get_ns();
        (*event).netns = refused.netns;
        core::ptr::copy_nonoverlapping(&refused.addr, &raw mut (*event).addr, 1);
        (*event).port = refused.port;
        (*event).protocol = refused.protocol;
        (*event).agent = refused.agent;
        (*event).tgid = tgid;
        (*event).uid = uid;
        (*event).reason = reason as u32;
    }
    entry.submit(0);
}
