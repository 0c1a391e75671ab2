//! The promise of [`crate::gate`], tried in every interleaving up to a number of preemptions: connections, an operator
//! and a reload of the rules run against each other on the real gate, ledger and decision. What is played here is only
//! what lies around them: the bytes, and who waits for whom. Loom also says where somebody would wait for ever.
//!
//! `cargo test -p agent-user --features loom --lib exact`

mod seen;
mod streamed;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use loom::model::Builder;
use loom::thread;

use crate::decide::policy::Policy;
use crate::decide::stop::{Level, Selector, Stop, Terms};
use crate::identity::Agent;
use crate::record::metrics::Metrics;

use self::world::World;

/// What is tried.
#[derive(Clone)]
struct Plan {
    /// The agents; each has a connection of its own.
    agents: Vec<Arc<Agent>>,
    /// Calls on each connection, one after the other.
    calls: usize,
    orders: Vec<Order>,
    /// The rules are read again meanwhile.
    reload: bool,
    /// One more connection of the coder, whose calls are answered in a stream on yet another one.
    streamed: bool,
    mistake: Option<Mistake>,
    /// How often a thread is interrupted where it need not wait. Few mistakes need more than two (Musuvathi and Qadeer,
    /// PLDI 2007); without a bound there are too many interleavings.
    preemptions: usize,
}

#[derive(Clone)]
enum Order {
    Stop(Arc<Stop>),
    /// Of all stops.
    Release,
}

/// A way to do it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A connection reads the rules before its call is listed.
    RulesBeforeCall,
    /// A stop is brought to the connections before it is published.
    BroughtBeforePublished,
    /// A stop is answered before the connections have acted on it.
    AnswerBeforeAct,
    /// A call is marked as sent before its bytes have left.
    SentTooEarly,
    /// A call is handed over to the stream in which it is answered, and the rules are not read again.
    HandedOverUnread,
}

static CODER: LazyLock<Arc<Agent>> = LazyLock::new(|| agent(1, "coder"));
static SIBLING: LazyLock<Arc<Agent>> = LazyLock::new(|| agent(2, "sibling"));
static STOP: LazyLock<Arc<Stop>> = LazyLock::new(|| stop("coder", None, Level::Refuse));
static ISOLATE: LazyLock<Arc<Stop>> = LazyLock::new(|| stop("coder", None, Level::Isolate));
/// Wakes the connections of the coder, and is for nothing that they do.
static STOP_OF_ANOTHER_TOOL: LazyLock<Arc<Stop>> =
    LazyLock::new(|| stop("coder", Some("delete"), Level::Refuse));

const TOOL: &str = "transfer";
/// Bytes of one call: one that is not the last, and the last.
const BYTES: usize = 2;

fn agent(number: u32, name: &str) -> Arc<Agent> {
    let metrics = Metrics::new().unwrap().agent(name);
    Arc::new(Agent::new(number, name, metrics))
}

fn stop(agent: &str, tool: Option<&str>, level: Level) -> Arc<Stop> {
    let terms = Terms { agent: Some(agent.into()), tool: tool.map(Into::into), ..Terms::default() };
    Arc::new(Stop::drill(Selector::compile(terms).unwrap(), level))
}

/// Tries a plan. Answers how many runs there were, or what went wrong in the first that did.
fn check(plan: Plan) -> Result<usize, String> {
    let runs = Arc::new(AtomicUsize::new(0));
    let (counted, fault) = (Arc::clone(&runs), Arc::new(Mutex::new(None)));
    let found = Arc::clone(&fault);
    let mut builder = Builder::new();
    builder.preemption_bound = Some(plan.preemptions);
    builder.max_branches = 10_000;
    let model = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let world = Arc::new(World::new(plan.clone()));
        let mut threads: Vec<_> = plan
            .agents
            .iter()
            .map(|agent| {
                let (world, agent) = (Arc::clone(&world), Arc::clone(agent));
                thread::spawn(move || world.serve(&agent))
            })
            .collect();
        if plan.streamed {
            let (listed, stream) = world.open_stream();
            let (posts, posted) = (Arc::clone(&world), Arc::clone(&stream));
            threads.push(thread::spawn(move || posts.serve_posts(&posted)));
            let world = Arc::clone(&world);
            threads.push(thread::spawn(move || world.serve_stream(listed, &stream)));
        }
        if plan.reload {
            let world = Arc::clone(&world);
            threads.push(thread::spawn(move || {
                world.gate.set_policy(Policy::default());
            }));
        }
        world.operate();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let stops = world.gate.rules().stops.len();
        let fault = world.seen().judge(stops);
        // Here, where nothing of the run is alive any more, a panic is no mess.
        drop(world);
        if let Some(fault) = fault {
            *found.lock().unwrap() = Some(fault);
            panic!("a fault is found");
        }
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.check(model)));
    let fault = fault.lock().unwrap().take();
    match (outcome, fault) {
        (Ok(()), None) => Ok(runs.load(Ordering::Relaxed)),
        (_, Some(fault)) => Err(fault),
        (Err(panic), None) => std::panic::resume_unwind(panic),
    }
}

#[track_caller]
fn holds(plan: Plan) {
    match check(plan) {
        Ok(runs) => println!("{runs} interleavings"),
        Err(fault) => panic!("{fault}"),
    }
}

/// Two connections of one agent, a call on each, and a stop.
fn two() -> Plan {
    Plan {
        agents: vec![Arc::clone(&CODER), Arc::clone(&CODER)],
        calls: 1,
        orders: vec![Order::Stop(Arc::clone(&STOP))],
        reload: false,
        streamed: false,
        mistake: None,
        preemptions: 2,
    }
}

/// One connection, looked at more closely.
fn one() -> Plan {
    Plan { agents: vec![Arc::clone(&CODER)], preemptions: 4, ..two() }
}

fn orders(stops: &[Option<&LazyLock<Arc<Stop>>>]) -> Vec<Order> {
    stops.iter().map(|stop| stop.map_or(Order::Release, |stop| Order::Stop(Arc::clone(stop)))).collect()
}

#[test]
fn a_stop_meets_or_lists_the_call() {
    holds(one());
}

#[test]
fn a_stop_meets_or_lists_the_calls_of_every_connection_until_it_is_released() {
    holds(Plan { orders: orders(&[Some(&STOP), None]), ..two() });
}

#[test]
fn the_next_call_on_the_same_connection_meets_the_stop() {
    holds(Plan { calls: 2, preemptions: 3, ..one() });
}

#[test]
fn rules_that_are_read_again_meanwhile_lose_no_stop() {
    holds(Plan { reload: true, preemptions: 3, ..one() });
}

#[test]
fn a_sibling_is_left_alone() {
    holds(Plan { agents: vec![Arc::clone(&CODER), Arc::clone(&SIBLING)], ..two() });
}

#[test]
fn stops_and_releases_follow_each_other() {
    let orders = orders(&[Some(&STOP_OF_ANOTHER_TOOL), Some(&STOP), None, Some(&ISOLATE)]);
    holds(Plan { calls: 2, orders, preemptions: 2, ..one() });
}

#[test]
fn all_of_it_at_once_is_exact() {
    holds(Plan {
        reload: true,
        orders: orders(&[Some(&STOP), None, Some(&ISOLATE)]),
        preemptions: 1,
        ..two()
    });
}

/// Nothing but calls that are answered in a stream.
fn streamed() -> Plan {
    Plan { agents: Vec::new(), streamed: true, ..two() }
}

#[test]
fn a_stop_meets_or_lists_the_call_that_is_answered_in_a_stream() {
    holds(Plan { preemptions: 1, ..streamed() });
}

#[test]
#[ignore = "takes many minutes; cargo test … --lib exact -- --ignored"]
fn stops_of_calls_that_are_answered_in_a_stream_follow_each_other() {
    let orders = orders(&[Some(&STOP_OF_ANOTHER_TOOL), Some(&STOP), None]);
    holds(Plan { calls: 2, orders, ..streamed() });
}

/// A model that finds nothing wrong with a wrong order would prove nothing.
#[track_caller]
fn is_noticed(mistake: Mistake) {
    is_noticed_in(Plan { mistake: Some(mistake), ..one() });
}

#[track_caller]
fn is_noticed_in(plan: Plan) {
    let fault = check(plan).expect_err("a fault");
    println!("{fault}");
}

#[test]
#[ignore = "takes many minutes; cargo test … --lib exact -- --ignored"]
fn handing_a_call_over_without_reading_the_rules_again_is_noticed() {
    is_noticed_in(Plan { mistake: Some(Mistake::HandedOverUnread), preemptions: 3, ..streamed() });
}

#[test]
fn reading_the_rules_before_the_call_is_listed_is_noticed() {
    is_noticed(Mistake::RulesBeforeCall);
}

#[test]
fn bringing_a_stop_before_it_is_published_is_noticed() {
    is_noticed(Mistake::BroughtBeforePublished);
}

#[test]
fn an_answer_before_the_connections_have_acted_is_noticed() {
    is_noticed(Mistake::AnswerBeforeAct);
}

#[test]
fn a_fate_that_is_not_true_is_noticed() {
    is_noticed(Mistake::SentTooEarly);
}
