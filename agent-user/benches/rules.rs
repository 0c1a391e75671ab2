//! What rules that cannot match cost a call and a connection: many of them next to few. With `--ratios` both by turns, with
//! what a rule takes of memory; a line for each kind of rule, which `cargo xtask bench` prints.

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use criterion::Criterion;
use interlock::decide::policy::{Policy, PolicyFile};
use interlock::decide::subject::{Sender, Subject};

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

/// A small call.
fn subject(servers: &[String]) -> Subject<'_> {
    Subject {
        agent: Sender { name: "coder/agent-7", ..Sender::default() },
        server: "tools.example.internal",
        servers,
        method: Some("tools/call"),
        name: Some("echo"),
        ..Subject::default()
    }
}

/// One call of a connection that has made some before.
fn decide(policy: &Policy, servers: &[String]) -> impl Fn() {
    let scope = policy.scope("coder/agent-7", servers);
    move || {
        let verdict = policy.judge(black_box(&scope), black_box(&subject(servers)));
        assert!(black_box(verdict).refusal.is_none());
    }
}

/// What a new connection costs.
fn scope(policy: &Policy, servers: &[String]) -> impl Fn() {
    move || drop(black_box(policy.scope(black_box("coder/agent-7"), black_box(servers))))
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
        let few = policy(kind, FEW);
        let begin = Instant::now();
        let many = policy(kind, MANY);
        let took = begin.elapsed().as_millis();
        if let Some(criterion) = &mut criterion {
            for (count, policy) in [(FEW, &few), (MANY, &many)] {
                let (call, conn) = (decide(policy, &servers), scope(policy, &servers));
                criterion.bench_function(&format!("{name}/call/{count}"), |bench| bench.iter(&call));
                criterion.bench_function(&format!("{name}/connection/{count}"), |bench| bench.iter(&conn));
            }
            continue;
        }
        let bytes = bytes_per_rule(number);
        let call = fastest(decide(&few, &servers), decide(&many, &servers));
        let conn = fastest(scope(&few, &servers), scope(&many, &servers));
        println!(
            "rules by {name:20} {FEW} and {MANY}: a call {:4.0} and {:4.0} ns, × {:.2}; a connection {:4.0} and {:4.0} ns, \
             × {:.2}; {bytes} bytes a rule, read in {took} ms",
            call[0],
            call[1],
            call[1] / call[0],
            conn[0],
            conn[1],
            conn[1] / conn[0],
        );
    }
    if let Some(criterion) = criterion {
        criterion.final_summary();
    }
}
