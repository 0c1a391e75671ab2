//! Random rules files and messages, random definitions of tools, and random streams of HTTP/1, for as long as `INTERLOCK_FUZZ_SECONDS` says (2 for each target where it does
//! not): nothing panics, nothing takes long, the index over the rules never
//! changes a decision, fingerprints change with what is said and not with how it is spelled, and HTTP/1 reads the same in whatever pieces it comes. `cargo xtask fuzz` runs
//! them longer, with another seed each time; a fault names its input, which is also in `target/tmp/fuzz-*.txt`, should it
//! end the process.

mod canonical;
mod http;
mod message;
mod random;
mod rules;
mod streams;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use interlock::author::check;
use interlock::decide::policy::{Policy, PolicyFile};
use interlock::decode::Method;
use interlock::fingerprint::{Names, Surface, canonical_text, changes, compare, fingerprint, patch, smells};

use self::canonical::Case;
use self::message::Message;
use self::random::Random;

/// Far more than any input needs in a debug build on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

/// Runs a target on inputs until the time is over.
fn fuzz(target: &str, mut next: impl FnMut(&mut Random) -> String, run: impl Fn(&str, &mut Random)) {
    let number =
        |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let seconds = number("INTERLOCK_FUZZ_SECONDS", 2);
    let seed = number("INTERLOCK_FUZZ_SEED", 0x9e37_79b9_7f4a_7c15);
    let mut random = Random::new(seed);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{target}.txt"));
    let begin = Instant::now();
    let mut runs = 0_u32;
    while runs == 0 || begin.elapsed() < Duration::from_secs(seconds) {
        let input = next(&mut random);
        fs::write(&file, &input).expect("keep the input");
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| run(&input, &mut random)));
        let took = started.elapsed();
        assert!(outcome.is_ok(), "{target}, seed {seed}, run {runs}: this input panics:\n{input}");
        assert!(took < LONGEST, "{target}, seed {seed}, run {runs}: this input takes {took:?}:\n{input}");
        runs += 1;
    }
    println!("{target}: {runs} inputs, seed {seed}");
}

/// What the daemon and `policy check` do with a file.
fn read(text: &str) -> Option<(PolicyFile, Policy)> {
    let file: PolicyFile = serde_saphyr::from_str(text).ok()?;
    match Policy::compile(file.clone()) {
        Ok(policy) => Some((file, policy)),
        Err(fault) => {
            let (_, _) = (fault.to_string(), fault.place(text));
            None
        }
    }
}

/// By the index as by all.
fn judge(policy: &Policy, message: &Message) {
    let subject = message.subject();
    let scope = policy.scope(subject.agent.name, subject.agent.namespace(), subject.servers);
    let indexed = policy.judge(&scope, &subject);
    let every = policy.judge_by_all(&subject);
    assert_eq!(format!("{indexed:?}"), format!("{every:?}"), "{subject:?}");
    policy.judge_unread(&scope, &subject);
    policy.judges_answers(&scope);
    policy.depends_on(&scope, &subject, &["args", "recent"]);
}

#[test]
fn files_of_rules() {
    let corpus = rules::corpus();
    fuzz(
        "parser",
        |random| rules::mutated(random, &corpus),
        |text, random| {
            let Some((file, policy)) = read(text) else { return };
            check::check(&file, text, None);
            for _ in 0..4 {
                judge(&policy, &Message::new(random));
            }
        },
    );
}

#[test]
fn rules_and_messages() {
    fuzz("matcher", rules::made, |text, random| {
        let (_, policy) = read(text).unwrap_or_else(|| panic!("rules that are made are good"));
        for _ in 0..40 {
            judge(&policy, &Message::new(random));
        }
    });
}

/// What is said of two definitions is that they are the same exactly if they are.
fn differ(surface: Surface, before: &str, after: &str) -> bool {
    let texts = [canonical_text(surface, before), canonical_text(surface, after)];
    let [old, new] = &texts;
    let differ = old != new;
    assert_ne!(fingerprint(surface, before) == fingerprint(surface, after), differ, "{before}\n{after}");
    let classes = compare(&fingerprint(surface, before), &fingerprint(surface, after), true);
    assert_ne!(classes.is_empty(), differ, "{before}\n{after}");
    assert_ne!(changes(surface, old, new).is_empty(), differ, "{old}\n{new}");
    assert_ne!(patch(old, new).is_empty(), differ, "{old}\n{new}");
    for text in texts {
        assert_eq!(canonical_text(surface, &text), text);
        smells(&text, "own", &Names::of(["a b", "name"].into_iter()));
    }
    differ
}

#[test]
fn definitions() {
    fuzz(
        "canonical",
        |random| Case::new(random).print(),
        |text, _| {
            let case = Case::parse(text);
            assert!(!differ(case.surface, &case.text, &case.respelled), "the same in another spelling");
            assert!(differ(case.surface, &case.text, &case.changed), "not the same");
        },
    );
}

#[test]
fn definitions_that_are_none() {
    let mut seeds = Random::new(1);
    let corpus: Vec<String> = (0..200).map(|_| Case::new(&mut seeds).respelled).collect();
    fuzz(
        "definition",
        |random| rules::mutated(random, &corpus),
        |text, random| {
            let surface = Surface::ALL[random.below(Surface::ALL.len())];
            differ(surface, text, &corpus[random.below(corpus.len())]);
            assert!(!differ(surface, text, text));
        },
    );
}

#[test]
fn requests_in_pieces() {
    fuzz("requests", streams::requests, |text, _| http::same_in_every_split(text, None));
}

#[test]
fn responses_in_pieces() {
    fuzz("responses", streams::responses, |text, random| {
        let asked = [Method::Get, Method::Head, Method::Connect][random.below(3)];
        http::same_in_every_split(text, Some(asked));
    });
}
