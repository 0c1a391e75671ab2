//! All counters. Names and labels are a contract with dashboards; label values come from our own enums, the
//! agents' configured names and the rules' ids, never from a peer.

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::approvals;
use crate::baseline::Baseline;
use crate::control::remote::Failure;
use crate::decide::Verdict;
use crate::decide::stop::Level;
use crate::decode::Protocol;
use crate::fate::Fate;
use crate::fingerprint;

/// What kind of traffic a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// HTTP/1.1 on which at least one MCP message was seen.
    Mcp,
    /// HTTP/1.1 on which A2A was seen, and no MCP.
    A2a,
    /// HTTP/1.1 without either.
    Http,
    Tls,
    /// Anything that cannot be read.
    Opaque,
    /// Never got as far as a server: refused, or the server could not be reached.
    Refused,
}

impl Class {
    pub fn label(self) -> &'static str {
        match self {
            Class::Mcp => "mcp",
            Class::A2a => "a2a",
            Class::Http => "http",
            Class::Tls => "tls",
            Class::Opaque => "opaque",
            Class::Refused => "refused",
        }
    }
}

/// Every metric of the daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: IntCounterVec,
    denials: IntCounterVec,
    pub stops_active: IntGaugeVec,
    pub stops: IntCounterVec,
    stop_refusals: IntCounterVec,
    pub stop_in_force: Histogram,
    stop_calls: IntCounterVec,
    connections: IntCounterVec,
    connections_open: IntGaugeVec,
    bytes: IntCounterVec,
    pub decision_seconds: Histogram,
    pub held_seconds: Histogram,
    pub records: IntCounterVec,
    pub records_dropped: IntCounter,
    pub kernel_attached: IntGauge,
    pub kernel_events_lost: IntGauge,
    pub held_bytes: IntGauge,
    pub policy_generation: IntGauge,
    policy_reloads: IntCounterVec,
    condition_errors: IntCounterVec,
    control_refusals: IntCounter,
    remote_failures: IntCounterVec,
    pub approvals_pending: IntGauge,
    approvals: IntCounterVec,
    drift: IntCounterVec,
    tools: IntGaugeVec,
    tools_evicted: IntGauge,
}

/// The metrics of one agent, looked up once.
#[derive(Debug)]
pub struct AgentMetrics {
    /// By protocol: MCP, other JSON-RPC.
    decisions: [Decisions; Protocol::ALL.len()],
    pub stop_refusals_proxy: IntCounter,
    pub stop_refusals_kernel: IntCounter,
    pub bytes_to_server: IntCounter,
    pub bytes_to_agent: IntCounter,
}

#[derive(Debug)]
struct Decisions {
    allowed: IntCounter,
    denied: IntCounter,
    would_deny: IntCounter,
}

impl AgentMetrics {
    /// Counts one verdict.
    pub fn count(&self, verdict: &Verdict, protocol: Protocol) {
        let decisions = &self.decisions[protocol as usize];
        match verdict.label() {
            "deny" => decisions.denied.inc(),
            "would_deny" => decisions.would_deny.inc(),
            _ => decisions.allowed.inc(),
        }
    }
}

impl Metrics {
    /// Registers every metric. Fails only if two names collide.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntCounterVec> {
            let metric = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> prometheus::Result<IntGaugeVec> {
            let metric = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| -> prometheus::Result<Histogram> {
            let metric = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &[])?;
            registry.register(Box::new(metric.clone()))?;
            Ok(metric.with_label_values::<&str>(&[]))
        };
        let none: &[&str] = &[];
        let micro = || prometheus::exponential_buckets(1e-6, 4.0, 12);
        let metrics = Metrics {
            decisions: counter(
                "interlock_decisions_total",
                "Messages judged.",
                &["agent", "protocol", "verdict"],
            )?,
            denials: counter(
                "interlock_denials_total",
                "Messages refused, by rule.",
                &["agent", "rule", "reason"],
            )?,
            stops_active: gauge("interlock_stops_active", "Stops in force.", &["level"])?,
            stops: counter("interlock_stops_total", "Stops ordered.", &["level"])?,
            stop_refusals: counter(
                "interlock_stop_refusals_total",
                "Attempts of stopped agents that were refused.",
                &["agent", "layer"],
            )?,
            stop_in_force: histogram(
                "interlock_stop_in_force_seconds",
                "Time from a stop's order until it was in force.",
                vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0],
            )?,
            stop_calls: counter("interlock_stop_calls_total", "Calls a stop found in flight.", &["fate"])?,
            connections: counter(
                "interlock_connections_total",
                "Connections of agents that ended.",
                &["agent", "class"],
            )?,
            connections_open: gauge(
                "interlock_connections_open",
                "Connections of agents open now.",
                &["class"],
            )?,
            bytes: counter("interlock_bytes_total", "Bytes relayed.", &["agent", "direction"])?,
            decision_seconds: histogram(
                "interlock_decision_seconds",
                "Time to decode and judge a message.",
                micro()?,
            )?,
            held_seconds: histogram(
                "interlock_held_seconds",
                "Time a request was held, from its first byte until it was decided.",
                micro()?,
            )?,
            records: counter("interlock_records_total", "Records made.", &["kind"])?,
            records_dropped: counter("interlock_records_dropped_total", "Records lost.", none)?
                .with_label_values::<&str>(&[]),
            kernel_attached: gauge(
                "interlock_kernel_attached",
                "1 while every kernel program is attached.",
                none,
            )?
            .with_label_values::<&str>(&[]),
            held_bytes: gauge(
                "interlock_held_bytes",
                "Messages of agents and servers that are held, beyond the small ones (limits.memory).",
                none,
            )?
            .with_label_values::<&str>(&[]),
            kernel_events_lost: gauge(
                "interlock_kernel_events_lost",
                "Kernel refusals that could not be reported.",
                none,
            )?
            .with_label_values::<&str>(&[]),
            policy_generation: gauge(
                "interlock_policy_generation",
                "Generation of the rules in force.",
                none,
            )?
            .with_label_values::<&str>(&[]),
            condition_errors: counter(
                "interlock_condition_errors_total",
                "Messages for which the condition of a rule could not be computed.",
                &["rule"],
            )?,
            policy_reloads: counter(
                "interlock_policy_reloads_total",
                "Reloads of the rules file.",
                &["result"],
            )?,
            control_refusals: counter(
                "interlock_control_refusals_total",
                "Orders, or attempts to give one, refused because they were an agent's.",
                none,
            )?
            .with_label_values::<&str>(&[]),
            remote_failures: counter(
                "interlock_remote_failures_total",
                "Connections to the endpoint for remote operators that got no further.",
                &["reason"],
            )?,
            approvals_pending: gauge(
                "interlock_approvals_pending",
                "Requests that wait for a person's approval.",
                none,
            )?
            .with_label_values::<&str>(&[]),
            approvals: counter(
                "interlock_approvals_total",
                "Requests that needed a person's approval, by what became of that.",
                &["outcome"],
            )?,
            drift: counter(
                "interlock_drift_total",
                "Changes of what servers show to models, by class.",
                &["class"],
            )?,
            tools: gauge(
                "interlock_tools",
                "What servers show to models: tools, prompts and the like, by what is thought of it.",
                &["state"],
            )?,
            tools_evicted: gauge(
                "interlock_tools_evicted",
                "Of these, how many were forgotten to make room.",
                none,
            )?
            .with_label_values::<&str>(&[]),
            registry: registry.clone(),
        };
        gauge("interlock_build_info", "Version of the daemon.", &["version"])?
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        for level in Level::ALL {
            metrics.stops_active.with_label_values(&[level.label()]).set(0);
            metrics.stops.with_label_values(&[level.label()]);
        }
        for failure in Failure::ALL {
            metrics.remote_failures.with_label_values(&[failure.label()]);
        }
        for outcome in approvals::OUTCOMES {
            metrics.approvals.with_label_values(&[outcome]);
        }
        for class in fingerprint::Class::ALL {
            metrics.drift.with_label_values(&[class.label()]);
        }
        for state in fingerprint::State::SHOWN {
            metrics.tools.with_label_values(&[state.label()]).set(0);
        }
        for fate in Fate::ALL {
            metrics.stop_calls.with_label_values(&[fate.label()]);
        }
        Ok(metrics)
    }

    /// The handles of one agent.
    pub fn agent(&self, name: &str) -> AgentMetrics {
        let decisions = |protocol: &str| Decisions {
            allowed: self.decisions.with_label_values(&[name, protocol, "allow"]),
            denied: self.decisions.with_label_values(&[name, protocol, "deny"]),
            would_deny: self.decisions.with_label_values(&[name, protocol, "would_deny"]),
        };
        AgentMetrics {
            decisions: Protocol::ALL.map(|protocol| decisions(protocol.label())),
            stop_refusals_proxy: self.stop_refusals.with_label_values(&[name, "proxy"]),
            stop_refusals_kernel: self.stop_refusals.with_label_values(&[name, "kernel"]),
            bytes_to_server: self.bytes.with_label_values(&[name, "to_server"]),
            bytes_to_agent: self.bytes.with_label_values(&[name, "to_agent"]),
        }
    }

    /// Counts one refusal by its rule.
    pub fn denied(&self, agent: &str, rule: &str, reason: &'static str) {
        self.denials.with_label_values(&[agent, rule, reason]).inc();
    }

    /// Counts one call a stop found in flight, or its later fate.
    pub fn stop_call(&self, fate: Fate) {
        self.stop_calls.with_label_values(&[fate.label()]).inc();
    }

    /// An open connection is of this class, whatever it was `known` to be.
    pub fn classify(&self, known: &mut Option<Class>, class: Class) {
        match known.replace(class) {
            Some(before) if before == class => return,
            Some(before) => self.connections_open.with_label_values(&[before.label()]).dec(),
            None => {}
        }
        self.connections_open.with_label_values(&[class.label()]).inc();
    }

    pub fn connection_closed(&self, agent: &str, class: Class) {
        self.connections_open.with_label_values(&[class.label()]).dec();
        self.connections.with_label_values(&[agent, class.label()]).inc();
    }

    /// Counts a connection that never carried anything.
    pub fn connection_refused(&self, agent: &str) {
        self.connections.with_label_values(&[agent, Class::Refused.label()]).inc();
    }

    pub fn policy_reloaded(&self, ok: bool) {
        self.policy_reloads.with_label_values(&[if ok { "ok" } else { "error" }]).inc();
    }

    pub fn condition_failed(&self, rule: &str) {
        self.condition_errors.with_label_values(&[rule]).inc();
    }

    pub fn control_refused(&self) {
        self.control_refusals.inc();
    }

    pub fn remote_failed(&self, failure: Failure) {
        self.remote_failures.with_label_values(&[failure.label()]).inc();
    }

    /// Counts one approval by its outcome.
    pub fn approval(&self, outcome: &'static str) {
        self.approvals.with_label_values(&[outcome]).inc();
    }

    /// Counts a change of what a server shows.
    pub fn drifted(&self, class: fingerprint::Class) {
        self.drift.with_label_values(&[class.label()]).inc();
    }

    /// Says how much of what servers show is in which state, and how much was forgotten.
    pub fn count_surfaces(&self, baseline: &Baseline) {
        for (state, count) in baseline.changed_counts().into_iter().flatten() {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.tools.with_label_values(&[state.label()]).set(count);
        }
        self.tools_evicted.set(i64::try_from(baseline.evicted()).unwrap_or(i64::MAX));
    }

    /// The text exposition format, version 0.0.4.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
