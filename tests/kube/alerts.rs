//! The alerts of `prometheusrule.yaml` in a real Prometheus: what agents and operators do makes them fire, and they end with it.
//!
//! A minute of theirs is a second here, in every duration alike: `for: 5m` is five seconds, `[1h]` sixty.

use std::fs;
use std::path::{Path, PathBuf};

use agent_tests::wait_for;
use serde_json::Value;

use crate::captured::{BY_API, RULES, WATCH};
use crate::cluster::Cluster;
use crate::deployment::Deployment;
use crate::node::agent_and_bank;
use crate::peers;
use crate::prometheus::{self, Prometheus};

#[test]
fn stops_refusals_and_an_absent_node_make_their_alerts_fire() {
    let cluster = Cluster::join();
    let (_servers, _agents) = (cluster.namespace("servers"), cluster.namespace("agents"));
    let deployment = Deployment::start(&cluster, BY_API, WATCH, RULES);
    let bank = agent_and_bank(&cluster);
    let prometheus =
        Prometheus::start(&cluster, &prometheus::target(&cluster, &deployment), Some(&rules(&cluster)));
    let scraped = || prometheus.get("query?query=interlock_kernel_attached");
    wait_for("a scrape", || scraped()?["data"]["result"][0].is_object().then_some(()));
    // A first scrape that comes late, as seconds are minutes here, is an alert for a moment.
    wait_for("all to be well", || firing(&prometheus)?.is_empty().then_some(()));

    // An agent that is refused all the time.
    let mut hammer = peers::hammer(&cluster, ("agents", "client"), bank);
    let surge = fires(&prometheus, "InterlockDenialsSurge");
    assert_eq!(surge["labels"]["agent"], "agents/client", "{surge}");
    // It is stopped, and all that Prometheus shows of it is the stop.
    let (stop, _) = deployment.stop(&["agent=agents/client"], "isolate");
    let stopped = fires(&prometheus, "InterlockStopInForce");
    assert_eq!(stopped["annotations"]["summary"], "stops of level isolate are in force");
    hammer.tell("enough");
    assert_eq!(hammer.line()["wire_transfer"], 0);
    ends(&prometheus, "InterlockDenialsSurge");
    deployment.release(&stop);
    ends(&prometheus, "InterlockStopInForce");

    // The pod that was scraped is no more.
    deployment.roll_out();
    let absent = fires(&prometheus, "InterlockNodeAbsent");
    assert_eq!(
        (&absent["labels"]["node"], &absent["labels"]["severity"]),
        (&"node1".into(), &"critical".into())
    );
}

fn fires(prometheus: &Prometheus<'_>, name: &str) -> Value {
    let is = |alert: &Value| alert["labels"]["alertname"] == name;
    wait_for(&format!("{name} to fire"), || firing(prometheus)?.into_iter().find(is))
}

fn ends(prometheus: &Prometheus<'_>, name: &str) {
    let is = |alert: &Value| alert["labels"]["alertname"] == name;
    wait_for(&format!("{name} to end"), || (!firing(prometheus)?.iter().any(is)).then_some(()));
}

/// The alerts that fire now.
fn firing(prometheus: &Prometheus<'_>) -> Option<Vec<Value>> {
    let alerts = prometheus.get("alerts")?["data"]["alerts"].take();
    let Value::Array(alerts) = alerts else { return None };
    Some(alerts.into_iter().filter(|alert| alert["state"] == "firing").collect())
}

/// A file with the rules of `prometheusrule.yaml`, with seconds for minutes.
fn rules(cluster: &Cluster) -> PathBuf {
    let given = "../deploy/kubernetes/components/prometheus-operator/prometheusrule.yaml";
    let given = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(given)).expect("the rules");
    let mut given: Value = serde_saphyr::from_str(&given).expect("YAML");
    for group in given["spec"]["groups"].as_array_mut().expect("groups") {
        for rule in group["rules"].as_array_mut().expect("rules") {
            for field in ["expr", "for"] {
                if let Some(text) = rule[field].as_str() {
                    rule[field] = quicker(text).into();
                }
            }
        }
    }
    let path = cluster.dir().join("alerts.yaml");
    fs::write(&path, given["spec"].to_string()).expect("write the rules");
    path
}

/// The same expression with its durations in seconds: those alone are digits with a unit.
fn quicker(text: &str) -> String {
    let mut quick = String::new();
    let mut digits = String::new();
    for letter in text.chars().chain([' ']) {
        match letter {
            '0'..='9' => digits.push(letter),
            'm' if !digits.is_empty() => quick.extend([&*std::mem::take(&mut digits), "s"]),
            'h' if !digits.is_empty() => {
                let hours: u32 = std::mem::take(&mut digits).parse().expect("a number");
                quick += &format!("{}s", hours * 60);
            }
            _ => {
                quick += &std::mem::take(&mut digits);
                quick.push(letter);
            }
        }
    }
    quick.trim_end().to_owned()
}

#[test]
fn durations_get_shorter_and_nothing_else_does() {
    assert_eq!(quicker("rate(a_5[5m]) > 5 * b[1h] offset 15m"), "rate(a_5[5s]) > 5 * b[60s] offset 15s");
    assert_eq!(quicker("2m"), "2s");
}
