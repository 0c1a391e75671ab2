//! A filter that the kernel runs over each socket before it lists it (`struct inet_diag_bc_op`, linux/inet_diag.h).

use std::collections::HashSet;

const JMP: u8 = 1;
/// Linux 5.9.
const CGROUP_COND: u8 = 13;
/// An operation, and one with the id of a cgroup behind it.
const OP: u16 = 4;
const COND: u16 = OP + 8;
/// More would not fit into an attribute; then all sockets are listed.
const MOST: usize = 2048;

/// Sockets that were made in one of these cgroups, exactly; with too many of them, or none, every socket.
pub(super) fn made_in(cgroup_ids: &HashSet<u64>) -> Vec<u8> {
    let count = if cgroup_ids.len() > MOST { 0 } else { cgroup_ids.len() };
    let mut code = Vec::new();
    for (id, left) in cgroup_ids.iter().zip((0..count).rev()) {
        // Fulfilled: on to the jump, or to the end. If not: over it to the next one, or past the end, which refuses.
        code.extend(operation(CGROUP_COND, COND, COND + OP));
        code.extend(id.to_ne_bytes());
        if left > 0 {
            // To the end: over itself, over all that follow, and over the jumps between them.
            let rest = u16::try_from(left).unwrap_or(u16::MAX).saturating_mul(COND + OP);
            code.extend(operation(JMP, OP, rest));
        }
    }
    code
}

/// `yes` and `no`: bytes from here to where it goes on.
fn operation(code: u8, yes: u16, no: u16) -> [u8; 4] {
    let [low, high] = no.to_ne_bytes();
    [code, u8::try_from(yes).unwrap_or(u8::MAX), low, high]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `inet_diag_bc_run` does it.
    fn accepts(code: &[u8], cgroup: u64) -> bool {
        let mut at = 0;
        while at < code.len() {
            let op = &code[at..];
            let id = op.get(4..12).and_then(|id| id.try_into().ok()).map(u64::from_ne_bytes);
            let holds = op[0] == CGROUP_COND && id == Some(cgroup);
            at += usize::from(if holds { u16::from(op[1]) } else { u16::from_ne_bytes([op[2], op[3]]) });
        }
        at == code.len()
    }

    #[test]
    fn sockets_of_these_cgroups_are_listed_and_no_others() {
        for ids in [vec![7], vec![7, 8], vec![7, 8, 9, 1 << 40]] {
            let code = made_in(&ids.iter().copied().collect());
            for id in &ids {
                assert!(accepts(&code, *id), "{ids:?}: {id}");
            }
            assert!(!accepts(&code, 6) && !accepts(&code, 0), "{ids:?}");
        }
    }

    #[test]
    fn no_filter_lists_all() {
        assert!(made_in(&HashSet::new()).is_empty());
        assert!(made_in(&(0..3000).collect()).is_empty());
    }
}
