//! Summing up the reports of many nodes.

use super::resources::{AgentStopReportSpec, AgentStopStatus, PROBLEMS};

/// What these reports, all of one stop, come to where so many nodes run interlock.
pub(super) fn sum<'a>(
    reports: impl IntoIterator<Item = &'a AgentStopReportSpec>,
    nodes: usize,
) -> AgentStopStatus {
    let mut status = AgentStopStatus { nodes, ..AgentStopStatus::default() };
    for report in reports {
        status.nodes_in_force += usize::from(report.in_force);
        status.agents += report.agents;
        status.calls += report.calls;
        status.open += report.open;
        status.in_force_at = status.in_force_at.max(report.in_force_at);
        for (fate, calls) in &report.fates {
            *status.fates.entry(fate.clone()).or_default() += calls;
        }
        status.problems.extend(report.problems.iter().map(|problem| format!("{}: {problem}", report.node)));
    }
    status.problems.sort();
    status.problems.truncate(PROBLEMS);
    if status.nodes_in_force < nodes {
        status.in_force_at = None;
    }
    status.in_force = format!("{}/{nodes}", status.nodes_in_force);
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(node: &str, in_force: bool, at: i64, sent: usize) -> AgentStopReportSpec {
        AgentStopReportSpec {
            node: node.to_owned(),
            in_force,
            in_force_at: in_force.then(|| jiff::Timestamp::from_second(at).unwrap()),
            agents: 2,
            calls: sent + 1,
            open: sent,
            fates: [("sent".to_owned(), sent), ("refused".to_owned(), 1)].into(),
            problems: if in_force { Vec::new() } else { vec!["no room".to_owned()] },
            ..AgentStopReportSpec::default()
        }
    }

    #[test]
    fn status_is_the_sum_and_in_force_at_is_that_of_the_last_node() {
        let reports = [report("a", true, 10, 2), report("b", true, 20, 0)];
        let status = sum(&reports, 2);
        assert_eq!((&*status.in_force, status.agents, status.calls, status.open), ("2/2", 4, 4, 2));
        assert_eq!((status.fates["sent"], status.fates["refused"]), (2, 2));
        assert_eq!(status.in_force_at.map(|at| at.as_second()), Some(20));
    }

    #[test]
    fn a_node_that_is_missing_or_failed_is_not_in_force() {
        let status = sum(&[report("a", true, 10, 0)], 3);
        assert_eq!((&*status.in_force, status.in_force_at), ("1/3", None));
        let status = sum(&[report("a", true, 10, 0), report("b", false, 0, 0)], 2);
        assert_eq!((&*status.in_force, status.in_force_at), ("1/2", None));
        assert_eq!(status.problems, ["b: no room"]);
        let many: Vec<_> = (0..100).map(|n| report(&n.to_string(), false, 0, 0)).collect();
        assert_eq!(sum(&many, 100).problems.len(), PROBLEMS);
    }
}
