//! What conditions of rules cost a message: `cargo bench -p agent-user --bench conditions`, also a part of
//! `cargo xtask bench`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use interlock::decide::condition::{Condition, Inputs};
use interlock::decide::policy::Phase;
use interlock::decide::subject::{Sender, Subject};

/// As many as must run for one message.
const CONDITIONS: usize = 100;

const ARGUMENTS: &str = r#"{"amount": 5000.5, "currency": "EUR", "to": {"iban": "DE02120300000000202051", "name": "ACME"},
    "tags": ["invoice", "urgent"], "items": [{"sku": "a-1", "price": 4}, {"sku": "b-2", "price": 11.5}], "note": null}"#;

/// All of each is looked at: no left side decides.
const EXAMPLE: &[&str] = &[r#"args.amount > 1000 && agent.labels["tier"] != "gold""#];

const MIXED: &[&str] = &[
    r#"args.amount > 1000 && agent.labels["tier"] != "gold""#,
    r#"args.currency in ["USD", "GBP", "CHF"] || args.to.name == "EVIL""#,
    r#"has(args.to.iban) && args.to.iban.matches("^(RU|KP|IR)[0-9]{2}")"#,
    r#""secret" in args.tags || args.items.exists(i, i.price > 100)"#,
    r#"now.getHours("Europe/Berlin") < 6 || recent.denials > 3"#,
    r#"tool.startsWith("delete_") || server.host.endsWith(".bank.internal")"#,
    r#"!user.verified && size > 100000"#,
    r#"args.items.map(i, i.sku).size() > 50 || args.note != null"#,
];

fn compile(texts: &[&str]) -> Vec<Condition> {
    let texts = texts.iter().cycle().take(CONDITIONS);
    texts.map(|text| Condition::compile(text, Phase::Request).expect("it compiles")).collect()
}

fn conditions(bench: &mut Criterion) {
    let labels = BTreeMap::from([("tier".to_owned(), "silver".to_owned())]);
    let subject = Subject {
        agent: Sender {
            name: "payments/1",
            pid: 7,
            uid: 1000,
            exe: Some("/usr/bin/python3"),
            labels: Some(&labels),
            ..Sender::default()
        },
        server: "api.example.com:443",
        method: Some("tools/call"),
        name: Some("wire_transfer"),
        arguments: Some(ARGUMENTS),
        size: 400,
        ..Subject::default()
    };
    let mut group = bench.benchmark_group("conditions");
    group.sample_size(50).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for (name, texts) in [("example", EXAMPLE), ("mixed", MIXED)] {
        let conditions = compile(texts);
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let inputs = Inputs::new(black_box(&subject));
                conditions.iter().filter(|condition| condition.holds(&inputs) == Ok(true)).count()
            });
        });
    }
    group.finish();
}

/// What a hostile message can make one condition cost: all its steps.
fn bound(bench: &mut Criterion) {
    let arguments = format!("{{\"l\": [{}0]}}", "0,".repeat(2000));
    let subject = Subject { arguments: Some(&arguments), ..Subject::default() };
    let inputs = Inputs::new(&subject);
    let condition = "args.l.all(a, args.l.all(b, a == b))";
    let condition = Condition::compile(condition, Phase::Request).expect("it compiles");
    assert!(condition.holds(&inputs).is_err());
    let mut group = bench.benchmark_group("conditions");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    group.bench_function("bound", |bench| bench.iter(|| condition.holds(&inputs).is_err()));
    group.finish();
}

criterion_group!(benches, conditions, bound);
criterion_main!(benches);
