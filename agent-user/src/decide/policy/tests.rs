//! What rules mean, and that the index changes nothing of it.

use proptest::prelude::*;

use super::*;
use crate::decide::stop::Level;
use crate::decide::subject::{InPod, Sender, Subject};
use crate::decide::{Refusal, Rules, Verdict};

fn policy(rules: &str) -> Policy {
    let file = serde_saphyr::from_str(&format!("version: 1\nrules:\n{rules}")).unwrap();
    Policy::compile(file).unwrap()
}

#[track_caller]
fn check(rules: &str, agent: &str, method: &str, name: Option<&str>, expect: &[&str]) {
    let policy = policy(rules);
    let scope = policy.scope(agent, "", &["bank.internal", "10.0.0.7:443"].map(str::to_owned));
    let verdict = policy.judge(&scope, &Subject { method: Some(method), name, ..Subject::default() });
    let fired: Vec<&str> = verdict.fired.iter().map(|id| &**id).collect();
    assert_eq!(fired, expect);
    assert_eq!(verdict.refusal.is_some(), !expect.is_empty());
}

const CALL: &str = "tools/call";

#[test]
fn fields_are_anded_and_lists_are_ored() {
    let rules = r#"
  - {id: a, action: deny, match: {agent: "pay/*", server: "*.internal", method: tools/call, tool: [wire, "pay_*"]}}"#;
    check(rules, "pay/1", CALL, Some("wire"), &["a"]);
    check(rules, "pay/1", CALL, Some("pay_now"), &["a"]);
    check(rules, "pay/1", CALL, Some("read"), &[]);
    check(rules, "other", CALL, Some("wire"), &[]);
    check(rules, "pay/1", "prompts/get", Some("wire"), &[]);
    check(&rules.replace("*.internal", "*.example"), "pay/1", CALL, Some("wire"), &[]);
}

#[test]
fn server_is_matched_by_name_and_by_address() {
    for server in ["bank.*", "BANK.internal", "10.0.0.7:443", "10.0.*"] {
        check(
            &format!("  - {{id: a, action: deny, match: {{server: '{server}'}}}}"),
            "x",
            "ping",
            None,
            &["a"],
        );
    }
}

#[test]
fn every_rule_that_fires_is_listed() {
    let rules = "  - {id: a, action: deny}\n  - {id: b, action: deny, match: {method: 'tools/*'}}\n  - {id: c, action: deny, match: {tool: t}}";
    check(rules, "x", CALL, Some("t"), &["a", "b", "c"]);
    check(rules, "x", "ping", None, &["a"]);
}

#[test]
fn observe_speaks_and_does_not_act() {
    let policy = policy("  - {id: a, action: deny, mode: observe}");
    let verdict = policy.judge(
        &policy.scope("x", "", &[]),
        &Subject { method: Some(CALL), name: Some("t"), ..Subject::default() },
    );
    assert!(verdict.refusal.is_none());
    assert_eq!(verdict.label(), "would_deny");
}

#[test]
fn phases_are_apart() {
    let policy = policy("  - {id: a, action: deny}\n  - {id: b, action: deny, phase: response}");
    for (phase, expect) in [(Phase::Request, "a"), (Phase::Response, "b")] {
        assert_eq!(fired(&policy, &Subject { phase, method: Some(CALL), ..Subject::default() }), [expect]);
    }
}

#[test]
fn a_rule_that_stops_refuses_what_it_matches_unless_it_counts() {
    let policy = policy(
        "  - {id: now, action: stop, match: {tool: wire}, level: isolate}
  - {id: later, action: stop, after: {denials: 5, within: 60s}}
  - {id: seen, action: stop, mode: observe, match: {tool: read}}",
    );
    let judge = |name| {
        policy.judge(
            &policy.scope("x", "", &[]),
            &Subject { method: Some(CALL), name: Some(name), ..Subject::default() },
        )
    };
    let tripwires = |verdict: &Verdict| -> Vec<String> {
        verdict.tripwires.iter().map(|tripwire| tripwire.rule.to_string()).collect()
    };
    let verdict = judge("wire");
    assert!(matches!(&verdict.refusal, Some(Refusal::Rule { id, .. }) if &**id == "now"));
    assert_eq!((tripwires(&verdict), verdict.fired.len()), (vec!["now".into(), "later".into()], 1));
    assert_eq!(verdict.tripwires[0].level, Level::Isolate);
    let verdict = judge("read");
    assert_eq!(verdict.label(), "would_deny");
    assert_eq!(tripwires(&verdict), ["later", "seen"]);
    let verdict = judge("echo");
    assert!(verdict.refusal.is_none() && verdict.fired.is_empty());
    assert_eq!(tripwires(&verdict), ["later"]);
}

#[test]
fn what_cannot_be_read_meets_the_rules_that_ask_for_nothing_in_it() {
    let policy = policy(
        "  - {id: any, action: stop, match: {agent: 'pay/*', server: bank}, after: {denials: 5, within: 60s}}
  - {id: call, action: stop, match: {method: 'tools/*'}, after: {denials: 5, within: 60s}}
  - {id: shop, action: deny, match: {server: shop}}
  - {id: tool, action: deny, match: {tool: '*'}}
  - {id: egress, action: allow_only, match: {server: [bank, shop]}}",
    );
    let judge = |agent, server: &str| {
        let servers = [server.to_owned()];
        let subject = Subject { servers: &servers, ..Subject::default() };
        let verdict = policy.judge_unread(&policy.scope(agent, "", &servers), &subject);
        (verdict.tripwires.len(), verdict.fired.iter().map(|id| id.to_string()).collect::<Vec<_>>())
    };
    assert_eq!(judge("pay/1", "bank"), (1, vec![]));
    assert_eq!(judge("x", "bank"), (0, vec![]));
    assert_eq!(judge("pay/1", "shop"), (0, vec!["shop".to_owned()]));
    assert_eq!(judge("x", "elsewhere"), (0, vec!["egress".to_owned()]));
}

fn fired(policy: &Policy, subject: &Subject<'_>) -> Vec<String> {
    let scope = policy.scope(subject.agent.name, subject.agent.namespace(), subject.servers);
    policy.judge(&scope, subject).fired.iter().map(|id| id.to_string()).collect()
}

#[test]
fn allow_only_refuses_the_rest_of_its_kind() {
    let policy = policy(
        "  - {id: read, action: allow_only, match: {agent: pay, tool: ['read_*', 'list_*']}}
  - {id: one-more, action: allow_only, match: {agent: 'p*', tool: wire}}
  - {id: methods, action: allow_only, match: {agent: shop, method: [tools/list, tools/call]}}
  - {id: here, action: allow_only, match: {agent: shop, server: '*.internal', tool: order}}",
    );
    let servers = ["a.internal".to_owned()];
    let check = |agent, method, name, expect: &[&str]| {
        let agent = Sender { name: agent, ..Sender::default() };
        let subject = Subject { agent, method: Some(method), name, servers: &servers, ..Subject::default() };
        assert_eq!(fired(&policy, &subject), expect, "{subject:?}");
    };
    check("pay", CALL, Some("read_all"), &[]);
    check("pay", CALL, Some("wire"), &[]);
    check("pay", CALL, Some("delete"), &["read", "one-more"]);
    check("pay", CALL, None, &["read", "one-more"]);
    check("pay", "prompts/get", Some("delete"), &[]);
    check("pond", CALL, Some("read_all"), &["one-more"]);
    check("coder", CALL, Some("delete"), &[]);
    check("shop", "resources/read", None, &["methods"]);
    for method in ["initialize", "ping", "notifications/initialized", "tools/list"] {
        check("shop", method, None, &[]);
    }
    check("shop", CALL, Some("refund"), &[]);
}

#[test]
fn a_condition_of_allow_only_is_asked_only_of_what_its_tools_are() {
    let policy = policy(
        "  - {id: say, action: allow_only, match: {tool: echo}}
  - {id: small, action: allow_only, match: {tool: pay}, when: args.amount < 10}",
    );
    let check = |name, arguments, expect: &[&str]| {
        let (name, arguments) = (Some(name), Some(arguments));
        let subject = Subject { method: Some(CALL), name, arguments, ..Subject::default() };
        assert_eq!(fired(&policy, &subject), expect, "{subject:?}");
    };
    check("echo", "{}", &[]);
    check("pay", r#"{"amount":9}"#, &[]);
    check("pay", r#"{"amount":10}"#, &["say", "small"]);
    check("pay", "{}", &["small", "say"]);
    check("write", "{}", &["say", "small"]);
}

#[test]
fn allow_only_with_a_condition_alone_is_about_everything() {
    let policy =
        policy("  - {id: here, action: allow_only, match: {agent: shop}, when: 'method == \"tools/call\"'}");
    for (agent, method, expect) in
        [("shop", CALL, &[][..]), ("shop", "resources/read", &["here"]), ("pay", "resources/read", &[])]
    {
        let agent = Sender { name: agent, ..Sender::default() };
        assert_eq!(fired(&policy, &Subject { agent, method: Some(method), ..Subject::default() }), expect);
    }
}

#[test]
fn hidden_entries_are_hidden_and_refused() {
    let policy = policy("  - {id: h, action: hide, match: {method: tools/call, tool: 'delete_*'}}");
    let check = |phase, method, name, is_hidden: bool| {
        let subject = Subject { phase, method: Some(method), name: Some(name), ..Subject::default() };
        assert_eq!(!fired(&policy, &subject).is_empty(), is_hidden, "{subject:?}");
    };
    check(Phase::Request, CALL, "delete_all", true);
    check(Phase::List, "tools/list", "delete_all", true);
    check(Phase::List, "tools/list", "read_all", false);
    check(Phase::List, "prompts/list", "delete_all", false);
    check(Phase::Response, CALL, "delete_all", false);
}

#[test]
fn what_goes_on_with_a_call_meets_its_rules_and_is_approved_once() {
    let policy = policy(
        "  - {id: deny, action: deny, match: {method: tools/call, tool: wire}}
  - {id: ask, action: require_approval, match: {method: tools/call}, timeout: 30s}",
    );
    let task = Subject { method: Some("tasks/get"), name: Some("t-1"), ..Subject::default() };
    assert_eq!(fired(&policy, &task), [""; 0]);
    assert_eq!(fired(&policy, &Subject { of_tool: Some("wire"), ..task }), ["deny"]);
    let call = Subject { method: Some(CALL), name: Some("read"), ..Subject::default() };
    assert_eq!(fired(&policy, &call), ["ask"]);
    assert_eq!(fired(&policy, &Subject { continues: true, ..call }), [""; 0]);
}

#[track_caller]
fn check_error(text: &str, expect: &str) {
    let error = match serde_saphyr::from_str::<PolicyFile>(text) {
        Ok(file) => Policy::compile(file).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(expect), "{error}");
}

#[test]
fn mistakes_are_named() {
    check_error("version: 2", "version 2 is not known");
    check_error("version: 1\nrules: [{id: a, action: deny, tol: x}]", "tol");
    check_error("version: 1\nrules: [{id: a, action: explode}]", "explode");
    check_error("version: 1\nrules: [{id: a, action: deny}, {id: a, action: deny}]", "used twice");
    check_error("version: 1\nrules: [{id: a, action: deny, match: {tool: 'x['}}]", "rule 1 (a): match.tool");
    check_error("version: 1\nrules: [{id: a, action: deny, match: {tool: ''}}]", "empty glob");
    check_error("version: 1\ndefaults: {opaque: maybe}", "maybe");
    let stop = |fields: &str| format!("version: 1\nrules: [{{id: a, action: stop, {fields}}}]");
    check_error(&stop("after: {denials: 0, within: 60s}"), "rule 1 (a): after.denials: 0: give 1 to 1000");
    check_error(&stop("after: {denials: 5, within: 0s}"), "after.within: 0s: give more than nothing");
    check_error(&stop("after: {denials: 5, within: -1s}"), "no more than 24h");
    check_error(&stop("after: {denials: 5, within: 25h}"), "no more than 24h");
    check_error(&stop("after: {denials: 5}"), "within");
    check_error(&stop("after: {denials: 5, within: 60}"), "60");
    check_error(&stop("level: explode"), "explode");
    check_error(
        "version: 1\nrules: [{id: a, action: deny, level: kill}]",
        "`level` goes with `action: stop`",
    );
    check_error(
        "version: 1\nrules: [{id: a, action: deny, after: {denials: 1, within: 1s}}]",
        "`after` goes with `action: stop`",
    );
}

#[test]
fn what_is_known_of_one_policy_is_not_known_of_the_next() {
    let call = Subject { method: Some(CALL), name: Some("t"), ..Subject::default() };
    for tool in ["t", "other", "t*"] {
        let policy = policy(&format!("  - {{id: a, action: deny, match: {{tool: '{tool}'}}}}")).into();
        let rules = Rules { generation: 1, policy, stops: Vec::new() };
        let reach = rules.reach("x", "", &[]);
        for _ in 0..2 {
            assert_eq!(reach.judge(&rules, &call).refusal.is_some(), tool != "other");
        }
    }
}

const WORDS: [&str; 9] = ["a", "b", "bc", "ac", "abc", "tools/call", "tools/list", "initialize", "x/a"];
const GLOBS: [&str; 10] = ["a", "b*", "*c", "a*c", "?", "*", "tools/*", "{a,tools/call}", "[ab]", "abc"];

/// A rules file of random rules.
fn rules() -> impl Strategy<Value = String> {
    let globs = || {
        let one = prop::sample::select(&GLOBS[..]).prop_map(|glob| format!("'{glob}'"));
        let many = prop::collection::vec(prop::sample::select(&GLOBS[..]), 1..3);
        prop::option::of(prop_oneof![one, many.prop_map(|globs| format!("['{}']", globs.join("', '")))])
    };
    let fields = prop::collection::vec(globs(), 7);
    let actions = &["deny", "allow_only", "hide", "require_approval", "stop"][..];
    let rule = (prop::sample::select(actions), 0..3usize, any::<bool>(), fields);
    prop::collection::vec(rule, 0..40).prop_map(|rules| {
        let mut text = "version: 1\nrules:\n".to_owned();
        for (index, (action, phase, observe, fields)) in rules.into_iter().enumerate() {
            let names = ["agent", "namespace", "server", "method", "tool", "workflow", "session"];
            let fields =
                names.iter().zip(fields).filter_map(|(name, globs)| Some(format!("{name}: {}", globs?)));
            let fields: Vec<String> = fields.collect();
            let phase = ["", ", phase: response", ", phase: list"][phase];
            let mode = if observe { ", mode: observe" } else { "" };
            let rule = format!(
                "  - {{id: r{index}, action: {action}{phase}{mode}, match: {{{}}}}}\n",
                fields.join(", ")
            );
            let file = format!("version: 1\nrules:\n{rule}");
            // Not every action has every phase, or every field.
            if serde_saphyr::from_str(&file).is_ok_and(|file| Policy::compile(file).is_ok()) {
                text += &rule;
            }
        }
        if text.ends_with("rules:\n") { "version: 1".to_owned() } else { text }
    })
}

fn word() -> impl Strategy<Value = Option<&'static str>> {
    prop::option::of(prop::sample::select(&WORDS[..]))
}

fn phase() -> impl Strategy<Value = Phase> {
    prop::sample::select(&[Phase::Request, Phase::Response, Phase::List][..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// The index must never change a decision, and neither must what is known of messages before: compare with looking at
    /// every rule.
    #[test]
    fn index_agrees_with_every_rule_looked_at(
        rules in rules(),
        (server, agent, namespace) in (word(), word(), word()),
        messages in prop::collection::vec((phase(), prop::collection::vec(word(), 4)), 1..24),
    ) {
        let policy = Policy::compile(serde_saphyr::from_str(&rules).unwrap()).unwrap();
        let servers = [server.unwrap_or("s").to_owned(), "10.0.0.7:443".to_owned()];
        let pod = InPod { namespace: namespace.unwrap_or("ns").to_owned(), ..InPod::default() };
        let agent = Sender { name: agent.unwrap_or("agent"), pod: Some(&pod), ..Sender::default() };
        let scope = policy.scope(agent.name, agent.namespace(), &servers);
        let known = Known::default();
        for (phase, words) in messages.iter().chain(&messages) {
            let subject = Subject {
                phase: *phase,
                agent,
                servers: &servers,
                method: words[0],
                name: words[1],
                of_tool: words[2],
                workflow: words[3],
                ..Subject::default()
            };
            let every = format!("{:?}", policy.judge_by_all(&subject));
            prop_assert_eq!(&format!("{:?}", policy.judge(&scope, &subject)), &every);
            for _ in 0..2 {
                prop_assert_eq!(&format!("{:?}", policy.judge_next(&scope, &known, &subject)), &every);
            }
        }
    }
}

#[test]
fn no_rule_of_the_file_looks_like_one_of_the_api_server() {
    let text = "version: 1\nrules:\n  - {id: AgentPolicy/agents/team/a, action: deny}\n";
    let mut file: PolicyFile = serde_saphyr::from_str(text).unwrap();
    let fault = Policy::compile(file.clone()).unwrap_err();
    assert!(fault.to_string().contains("begin it with something else"), "{fault}");
    file.rules[0].author = Author::Namespace;
    Policy::compile(file).unwrap();
}
