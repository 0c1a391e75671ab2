//! Who is an agent, what state it is in, and where its connections go.

/// Value of the `TAGS` socket storage: the agent that owns a socket, for as long as the socket lives, whatever
/// becomes of the process that made it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Number of the agent; 0 is nobody.
    pub agent: u32,
    pub _pad: u32,
}

/// The agent runs; its TCP connections are redirected to the daemon.
pub const MODE_RUN: u32 = 0;
/// The agent's network is cut: connects and datagrams fail, packets other than RST are dropped.
pub const MODE_ISOLATED: u32 = 1;
/// As [`MODE_RUN`], but redirected whatever became of the daemon: a stop that the daemon carries out must not be
/// lifted by its death.
pub const MODE_HELD: u32 = 2;

/// The key of `STATES` whose entry is for every agent, known or not; agents' own numbers begin at 1. One write to
/// it stops all of them, and those that are enrolled later, with no daemon alive.
pub const EVERYBODY: u32 = 0;

/// In place of an agent's number in the `AGENTS` map: whatever is in this cgroup is no agent's, though a cgroup above it be
/// one's.
pub const NOBODY: u32 = 0;
/// Likewise: it is not known yet whose this cgroup is. Without an entry in `STATES` its processes are held as if isolated.
/// Sockets do not keep it: they are asked anew, until somebody is known.
pub const UNCLASSIFIED: u32 = u32::MAX;

/// Whether a number of the `AGENTS` map is an agent's.
#[inline(always)]
pub const fn is_agent(number: u32) -> bool {
    number != NOBODY && number != UNCLASSIFIED
}

/// Value of the `STATES` map, keyed by agent number. An agent without an entry is held as if isolated: a map
/// that was not written yet must not let anything through. [`EVERYBODY`] without an entry adds nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentState {
    /// [`MODE_RUN`], [`MODE_HELD`] or [`MODE_ISOLATED`]; anything else counts as isolated.
    pub mode: u32,
    /// What an isolated agent's `connect` and `sendmsg` fail with; 0 means `EPERM`.
    pub errno: u32,
}

impl AgentState {
    /// Runs: what [`EVERYBODY`] is in while nothing is ordered for all.
    pub const RUN: AgentState = AgentState { mode: MODE_RUN, errno: 0 };
    /// Stands for an entry that is missing. A value and not an `Option`: what LLVM makes of those (it reuses the
    /// looked-up pointer as the tag) does not pass the verifier.
    pub const UNKNOWN: AgentState = AgentState { mode: MODE_ISOLATED, errno: 0 };

    /// What an agent is held to: the stricter of its own state and everybody's, whole, so that the errno is that
    /// of the entry that decides. Of two that are equally strict its own.
    #[inline(always)]
    pub const fn with_everybody(self, everybody: AgentState) -> AgentState {
        if strictness(everybody.mode) > strictness(self.mode) { everybody } else { self }
    }
}

/// Numbers of modes say nothing about their order; an unknown one counts as isolated.
#[inline(always)]
const fn strictness(mode: u32) -> u32 {
    match mode {
        MODE_RUN => 0,
        MODE_HELD => 1,
        _ => 2,
    }
}

/// Value of the `LISTENERS` map, keyed by network namespace cookie: the ports on which the daemon accepts the
/// connections of agents in that namespace, on 127.0.0.1 and `::1`. Host byte order; 0 means none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    pub port4: u32,
    pub port6: u32,
}

/// The one entry of the `SETTINGS` map.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// When the daemon was last known alive, `CLOCK_MONOTONIC` nanoseconds.
    pub heartbeat_ns: u64,
    /// With `fail_open`, the age of the heartbeat from which on agents pass unheld, nanoseconds.
    pub stale_after_ns: u64,
    /// Cgroup id of the daemon, the only one that may bind a listener's port; 0 is nobody. An id and not a
    /// process number, because a daemon in a pod does not know the number that the kernel sees.
    pub daemon_cgroup: u64,
    /// 1: let agents through while the heartbeat is stale (`fail: open`). 0: hold them.
    pub fail_open: u32,
    /// 1: let UDP other than DNS through (`defaults.quic: allow`). 0: refuse it.
    pub udp_allowed: u32,
    /// The [`crate::ABI_VERSION`] of the daemon that wrote this entry.
    pub abi_version: u32,
    /// Bit N is set where no agent's cgroup lies N levels below the root, so that nobody needs to look there. 0 looks
    /// everywhere.
    pub skipped_levels: u32,
}

const _: () = assert!(size_of::<Tag>() == 8);
const _: () = assert!(size_of::<AgentState>() == 8);
const _: () = assert!(size_of::<Listener>() == 8);
const _: () = assert!(size_of::<Settings>() == 40);

#[cfg(test)]
mod tests {
    use super::*;

    const fn state(mode: u32, errno: u32) -> AgentState {
        AgentState { mode, errno }
    }

    #[test]
    fn stricter_state_wins_with_its_own_errno() {
        let (run, held, isolated) = (state(MODE_RUN, 1), state(MODE_HELD, 2), state(MODE_ISOLATED, 3));
        let order = [run, held, isolated];
        for (i, own) in order.into_iter().enumerate() {
            for (j, everybody) in
                order.map(|state| AgentState { errno: state.errno + 10, ..state }).into_iter().enumerate()
            {
                let expect = if j > i { everybody } else { own };
                assert_eq!(own.with_everybody(everybody), expect, "{own:?} {everybody:?}");
            }
        }
    }

    #[test]
    fn unknown_mode_counts_as_isolated_on_either_side() {
        let (odd, held) = (state(7, 9), state(MODE_HELD, 0));
        assert_eq!(held.with_everybody(odd), odd);
        assert_eq!(odd.with_everybody(held), odd);
        assert_eq!(odd.with_everybody(state(MODE_ISOLATED, 5)), odd, "equally strict: its own");
    }

    #[test]
    fn missing_entries_isolate_the_agent_and_leave_everybody_alone() {
        assert_eq!(AgentState::UNKNOWN.with_everybody(AgentState::RUN), AgentState::UNKNOWN);
        let held = state(MODE_HELD, 0);
        assert_eq!(held.with_everybody(AgentState::RUN), held);
    }
}
