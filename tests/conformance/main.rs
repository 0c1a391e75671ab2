//! The official conformance suites, run with and without the program between client and server: they must come to
//! exactly the same results, check by check. Needs root, BPF and `cargo xtask sdk`:
//! `cargo xtask test conformance`.

mod clients;
mod servers;
mod suite;

/// Rules that read and edit messages of every kind, all of them about something else: everything is looked at, and
/// nothing may change.
const RULES: &str = r#"
version: 1
rules:
  - {id: hidden, action: hide, match: {tool: "no_such_*"}}
  - {id: requests, action: redact, phase: request, redact: {fields: [/no/such/field]}}
  - {id: results, action: redact, phase: response, redact: {fields: [/no/such/field]}}
  - {id: conditions, action: deny, match: {method: tools/call}, when: 'has(args.no_such)'}
  - {id: plenty, action: limit, limit: {calls: 1000000, within: 1h, per: agent}}
"#;
