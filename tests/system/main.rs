//! Whole-program tests: the real daemon, real kernel programs, agents and servers as real processes on the official
//! SDKs. One file per theme, every test in a world of its own. They need root, BPF and `cargo xtask sdk`, and show as
//! ignored without the feature `root-tests`. The numbers W1…, S1…, K8 are real-world cases, told where they are tested.

mod a2a;
mod agents;
mod approvals;
mod baselines;
mod bounds;
mod captured;
mod causes;
mod codings;
mod drift;
mod executables;
mod fates;
mod honest;
mod hostile;
mod hostile_json;
mod hostile_stops;
mod http1;
mod interfaces;
mod levels;
mod lines;
mod pairs;
mod pods;
mod policies;
mod proxies;
mod recorded;
mod remote;
mod restart;
mod rule_allow;
mod rule_answers;
mod rule_defaults;
mod rule_limits;
mod rule_peers;
mod rule_redact;
mod rule_stops;
mod rule_when;
mod rules;
mod scopes;
mod sdk_stops;
mod sdk_table;
mod sse2024;
mod stays;
mod stop;
mod streams;
mod tasks;
mod time;
mod tls;
mod transports;
mod tunnels;
mod two_persons;
mod wire;
mod workflow;

/// Refuses the one tool that moves money.
const NO_TRANSFERS: &str = "
version: 1
rules:
  - id: no-transfers
    action: deny
    phase: request
    match: {method: tools/call, tool: [wire_transfer]}
    reason: transfers need a person
";

/// No rule at all.
const NO_RULES: &str = "version: 1\nrules: []\n";

/// The reason of the stops that tests order.
const REASON: &str = "a test says so";
