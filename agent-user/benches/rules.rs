//! What rules that cannot match cost a call and a connection: many of them next to few. With `--ratios` both by turns, with
//! what a rule takes of memory; a line for each kind of rule, which `cargo xtask bench` prints.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use criterion::Criterion;
use interlock::decide::policy::{Policy, PolicyFile};
use interlock::decide::stop::Facts;
use interlock::decide::subject::{Sender, Subject};
use interlock::decide::{Reach, Rules, decide};

const FEW: usize = 10;
const MANY: usize = 10_000;

/// The `match` of the rule with a number.
type Rule = fn(usize) -> String;

/// Kinds of rules.
const KINDS: [(&str, Rule); 11] = [
    ("tool, literal", |n| format!("tool: tool_{n}")),
    ("tool, a*", |n| format!("tool: 'tool_{n}_*'")),
    ("tool, *a", |n| format!("tool: '*_{n}_tool'")),
    ("tool, a*b", |n| format!("tool: 'tool_{n}*_by'")),
    ("tool, *a*", |n| format!("tool: '*_{n}_*'")),
    ("tool, {a,b}", |n| format!("tool: '{{get,put}}_{n}'")),
    ("method", |n| format!("method: [custom/m{n}, 'other{n}/*']")),
    ("agent", |n| format!("agent: 'team-{n}/*'")),
    ("agent, and the tool", |n| format!("agent: team-{n}, tool: echo")),
    ("server", |n| format!("server: '*.host-{n}.internal', tool: echo")),
    ("mixed", mixed),
];

fn mixed(n: usize) -> String {
    let (_, kind) = KINDS[n % (KINDS.len() - 1)];
    kind(n)
}

/// Bytes of memory that this process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("resident memory");
    line.trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

/// Bytes of memory that a rule takes, asked of a process of its own: in this one it would be taken from what is free.
fn bytes_per_rule(kind: usize) -> usize {
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program).args(["--memory", &kind.to_string()]).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

/// The other side of that.
fn measure(kind: usize) {
    // What reading takes and gives back is there before.
    drop(policy(KINDS[kind].1, MANY / 10));
    let before = resident();
    let policy = policy(KINDS[kind].1, MANY);
    println!("{}", resident().saturating_sub(before) / policy.len());
}

fn policy(kind: Rule, count: usize) -> Policy {
    let rule = |n| format!("  - {{id: r{n}, action: deny, match: {{{}}}}}\n", kind(n));
    let text = format!("version: 1\nrules:\n{}", (0..count).map(rule).collect::<String>());
    let file: PolicyFile = serde_saphyr::from_str(&text).expect("rules are good");
    Policy::compile(file).expect("rules are good")
}

fn rules(policy: Policy) -> Rules {
    Rules { generation: 1, policy: Arc::new(policy), stops: Vec::new() }
}

/// A small call.
fn subject(servers: &[String]) -> Subject<'_> {
    Subject {
        agent: Sender { name: AGENT, ..Sender::default() },
        server: "tools.example.internal",
        servers,
        method: Some("tools/call"),
        name: Some("echo"),
        ..Subject::default()
    }
}

const AGENT: &str = "coder/agent-7";

fn judge(rules: &Rules, reach: &Reach, servers: &[String]) {
    let facts = Facts { agent: AGENT.into(), servers, tools: [Some("echo"), None], ..Facts::default() };
    let verdict = decide(rules, black_box(reach), black_box(&facts), black_box(&subject(servers)));
    assert!(black_box(verdict).refusal.is_none());
}

/// A call of a tool that the connection has called before.
fn call(rules: &Rules, servers: &[String]) -> impl Fn() {
    let reach = rules.reach(AGENT, "", servers);
    move || judge(rules, &reach, servers)
}

/// A new connection, or an open one after a change of the rules.
fn connection(rules: &Rules, servers: &[String]) -> impl Fn() {
    move || drop(black_box(rules.reach(black_box(AGENT), "", black_box(servers))))
}

/// The same with its first call: nothing is known yet.
fn first_call(rules: &Rules, servers: &[String]) -> impl Fn() {
    move || judge(rules, &rules.reach(black_box(AGENT), "", black_box(servers)), servers)
}

/// The fastest of many short rounds, by turns: what else the machine does only ever adds.
fn fastest(first: impl Fn(), second: impl Fn()) -> [f64; 2] {
    const ROUNDS: usize = 400;
    const CALLS: u32 = 1_000;
    let round = |run: &dyn Fn()| {
        let begin = Instant::now();
        (0..CALLS).for_each(|_| run());
        begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    let mut best = [f64::MAX; 2];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(round(&first));
        best[1] = best[1].min(round(&second));
    }
    best
}

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--memory").skip(1);
    if let Some(kind) = arguments.next() {
        return measure(kind.parse().expect("a number"));
    }
    let servers = ["tools.example.internal", "tools.example.internal:443", "10.0.0.7", "10.0.0.7:443"];
    let servers = servers.map(str::to_owned);
    let is_asked_for = |name: &str| std::env::args().any(|argument| argument == name);
    let mut criterion = match is_asked_for("--ratios") {
        true => None,
        false => Some(Criterion::default().configure_from_args()),
    };
    for (number, (name, kind)) in KINDS.into_iter().enumerate() {
        let few = rules(policy(kind, FEW));
        let begin = Instant::now();
        let many = rules(policy(kind, MANY));
        let took = begin.elapsed().as_millis();
        if let Some(criterion) = &mut criterion {
            for (count, rules) in [(FEW, &few), (MANY, &many)] {
                let mut bench = |what: &str, run: &dyn Fn()| {
                    criterion.bench_function(&format!("{name}/{what}/{count}"), |bench| bench.iter(run));
                };
                bench("call", &call(rules, &servers));
                bench("connection", &connection(rules, &servers));
                bench("first call", &first_call(rules, &servers));
            }
            continue;
        }
        let bytes = bytes_per_rule(number);
        let ratio = |[few, many]: [f64; 2]| format!("{few:4.0} and {many:4.0} ns, × {:.2}", many / few);
        println!(
            "rules by {name:20} {FEW} and {MANY}: a call {}; a connection {}; with its first call {}; {bytes} bytes a rule, \
             read in {took} ms",
            ratio(fastest(call(&few, &servers), call(&many, &servers))),
            ratio(fastest(connection(&few, &servers), connection(&many, &servers))),
            ratio(fastest(first_call(&few, &servers), first_call(&many, &servers))),
        );
    }
    if let Some(criterion) = criterion {
        criterion.final_summary();
    }
}
