//! Clients of the official SDKs at servers of the others: the same script through `interlock` and without, at the same time.

use agent_tests::agent::{Agent, Step, call, list, together};
use agent_tests::world::SERVER_V4;
use agent_tests::{Era, Sdk, Server, World};
use serde_json::{Value, json};

use crate::Run;

/// A card number, and what `interlock` makes of it.
const CARD: &str = "4111 1111 1111 1111";
/// Blocks of steps in one session.
const BLOCKS: usize = 6;

/// A client, which speaks as it is told, and a server.
pub(crate) struct Lane {
    client: Sdk,
    era: Era,
    server: Server,
    of: Sdk,
    sse: bool,
    /// Answers in one piece leave no place for a question.
    asks: bool,
}

pub(crate) fn lanes(world: &World) -> Vec<Lane> {
    let lane = |client, era, of: Sdk, more: &[&str]| {
        let server = Server::start_on(world, of, SERVER_V4, more);
        Lane { client, era, server, of, sse: more.contains(&"--sse"), asks: !more.contains(&"--json") }
    };
    vec![
        lane(Sdk::Py1, Era::Legacy, Sdk::Ts1, &[]),
        lane(Sdk::Ts1, Era::Legacy, Sdk::Py1, &["--json"]),
        lane(Sdk::Py2, Era::Auto, Sdk::Ts2, &[]),
        lane(Sdk::Ts2, Era::Auto, Sdk::Py2, &[]),
        lane(Sdk::Rmcp, Era::Auto, Sdk::Rmcp, &[]),
        lane(Sdk::Rmcp, Era::Legacy, Sdk::Ts1, &[]),
        lane(Sdk::Ts2, Era::Legacy, Sdk::Ts1, &["--sse"]),
        lane(Sdk::Py2, Era::Legacy, Sdk::Py2, &["--sse"]),
    ]
}

impl Lane {
    /// One session after the other, until the run is over.
    pub(crate) fn go_on(&self, world: &World, run: &Run) {
        let url = if self.sse { self.server.sse_url() } else { self.server.url() };
        let script = script(self.asks);
        let command = Agent::command(self.client, self.era, &url, &script);
        while run.goes_on() {
            let through = Agent::of(world.start_agent("coder", &command));
            let direct = Agent::of(world.start_operator_there("direct", &command));
            let [through, direct] = [through, direct].map(|agent| (agent.tried(), agent.rest()));
            self.compare(through, direct, run);
        }
    }

    fn compare(&self, through: (Value, Vec<Step>), direct: (Value, Vec<Step>), run: &Run) {
        let name = format!("{} at {} ({:?}, sse {})", self.client.name(), self.of.name(), self.era, self.sse);
        if through.0 != direct.0 {
            run.fault(format!("{name}: connects as {}, without us as {}", through.0, direct.0));
        }
        let [through, direct] = [through.1, direct.1].map(|steps| {
            let mut steps: Vec<Outcome> = steps.into_iter().map(Outcome::of).collect();
            steps.sort_by_key(|step| step.place);
            steps
        });
        if through.len() != direct.len() {
            run.fault(format!("{name}: {} steps, without us {}", through.len(), direct.len()));
        }
        for (through, direct) in through.iter().zip(&direct) {
            let expect = direct.as_rules_leave_it();
            if *through != expect {
                run.fault(format!("{name}: {through:?}, without us {direct:?}"));
            }
            run.note(|found| {
                if direct.is_error {
                    *found.shared.entry(format!("{name}: {}", direct.text)).or_default() += 1;
                }
                found.compared += u64::try_from(through.text.len()).unwrap_or_default();
            });
        }
        run.note(|found| {
            found.sessions += 1;
            found.calls += u64::try_from(through.len()).unwrap_or_default();
        });
    }
}

/// What a step came to, whoever took it.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    place: (u64, u64),
    op: String,
    is_error: bool,
    text: String,
    told: Value,
}

impl Outcome {
    fn of(step: Step) -> Self {
        let number = |name: &str| step.line[name].as_u64().unwrap_or_default();
        Self {
            place: (number("step"), number("part")),
            op: step.line["op"].as_str().unwrap_or_default().to_owned(),
            is_error: step.is_error,
            text: step.text,
            told: step.line["told"].clone(),
        }
    }

    fn as_rules_leave_it(&self) -> Self {
        let text = match &*self.op {
            "list" => self.text.split(' ').filter(|tool| *tool != "turn").collect::<Vec<_>>().join(" "),
            _ => self.text.replace(CARD, "[redacted:card]"),
        };
        Self { text, ..self.clone() }
    }
}

fn script(asks: bool) -> Value {
    let block = |number: usize| {
        [
            list(),
            call("echo", json!({"text": format!("block {number}")})),
            call("echo", json!({"text": format!("pay with {CARD} please")})),
            call("add", json!({"a": number, "b": 2})),
            call("ask", json!({})),
            call("progress", json!({"steps": 5})),
            call("big", json!({"kib": 100 * (number % 3) + 1})),
            together(&[
                call("slow", json!({"seconds": 0.5})),
                call("echo", json!({"text": "at once"})),
                call("add", json!({"a": 1, "b": 1})),
                call("big", json!({"kib": 20})),
            ]),
            json!({"op": "sleep", "seconds": 0.3}),
        ]
    };
    (0..BLOCKS).flat_map(block).filter(|step| asks || step["tool"] != "ask").collect()
}
