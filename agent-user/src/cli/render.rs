//! The daemon's answers in words and tables.

use comfy_table::Table;
use serde_json::Value;

pub(super) fn receipt_text(receipt: &Value) -> String {
    let stop = &receipt["stop"];
    let mut shown = format!(
        "stop {} {} ({} {}, ordered {} by {}: {})\n",
        text(&stop["id"]),
        match (&receipt["in_force"], &receipt["in_force_at"]) {
            _ if receipt["released"].is_object() => "is released".to_owned(),
            (Value::Bool(false), _) => "is NOT in force".to_owned(),
            (_, Value::Null) => "is in force".to_owned(),
            (_, at) => format!("is in force since {}", text(at)),
        },
        text(&stop["level"]),
        scope_text(&stop["scope"]),
        text(&stop["issued_at"]),
        operator_text(&stop["by"]),
        text(&stop["reason"]),
    );
    for report in items(&receipt["earlier"]) {
        shown +=
            &format!("  {} in force since {}\n", text(&report["to_level"]), text(&report["in_force_at"]));
    }
    for escalation in items(&stop["escalations"]) {
        shown += &format!(
            "  raised from {} to {} at {} by {}: {}\n",
            text(&escalation["from"]),
            text(&escalation["to"]),
            text(&escalation["at"]),
            operator_text(&escalation["by"]),
            text(&escalation["reason"]),
        );
    }
    if let asked @ Value::Object(_) = &receipt["release_asked"] {
        shown += &format!("  {}\n", asked_text(asked));
    }
    if let release @ Value::Object(_) = &receipt["released"] {
        shown += &format!(
            "  RELEASED at {} by {}: {}\n",
            text(&release["at"]),
            operator_text(&release["by"]),
            text(&release["reason"]),
        );
    }
    if receipt["offline"] == true {
        shown += "  carried out without the daemon, which did not answer\n";
    }
    if let Value::String(_) = &receipt["note"] {
        shown += &format!("  note: {}\n", text(&receipt["note"]));
    }
    for problem in items(&receipt["problems"]) {
        shown += &format!("  problem: {}\n", text(problem));
    }
    match &receipt["agents"] {
        Value::Null => shown += "  carried out by an earlier daemon; `interlock log` tells what it did\n",
        agents if items(agents).is_empty() => {
            shown += "  no agent of this name is known now; the stop holds for those that come\n";
        }
        agents => shown.extend(items(agents).iter().map(effect_text)),
    }
    let refused = &receipt["refused"];
    if refused["proxy"] != 0 || refused["kernel"] != 0 {
        shown += &format!(
            "  refused since: {} by the proxy, {} by the kernel\n",
            refused["proxy"], refused["kernel"]
        );
    }
    let calls = items(&receipt["calls"]);
    shown += &match calls.len() {
        0 if receipt["offline"] == true => "  no daemon saw which calls were in flight".to_owned(),
        1 => "  1 call was in flight".to_owned(),
        n => format!("  {n} calls were in flight"),
    };
    if !calls.is_empty() {
        shown += &format!("\n{}", calls_table(calls));
    }
    shown
}

fn asked_text(asked: &Value) -> String {
    format!(
        "release asked for at {} by {}: {}; it HOLDS until a second person asks too",
        text(&asked["at"]),
        operator_text(&asked["by"]),
        text(&asked["reason"])
    )
}

fn effect_text(effect: &Value) -> String {
    let mut shown = format!(
        "  {}: {}, {}",
        text(&effect["agent"]),
        count(&effect["processes"], "process", "processes"),
        count(&effect["connections"], "connection", "connections"),
    );
    if effect["isolated"] == true {
        shown += &format!(
            "; network cut, {} destroyed ({} bytes unread, {} unsent)",
            count(&effect["sockets_destroyed"], "socket", "sockets"),
            effect["bytes_unread"],
            effect["bytes_unsent"],
        );
    }
    shown.push('\n');
    if !effect["tasks_unknown"].is_null() {
        shown += &format!(
            "    {} may still run of which nothing is known\n",
            count(&effect["tasks_unknown"], "task", "tasks")
        );
    }
    for cgroup in items(&effect["cgroups"]) {
        let state = match (&cgroup["populated"], &cgroup["frozen"]) {
            (Value::Bool(false), _) => "empty",
            (_, Value::Bool(true)) => "frozen",
            _ => "RUNS",
        };
        shown += &format!("    cgroup {}: {state}\n", text(&cgroup["path"]));
    }
    for process in items(&effect["process_list"]) {
        shown += &format!(
            "    process {} {} ({}): {}, {}\n",
            process["pid"],
            text(&process["comm"]),
            text(&process["exe"]),
            text(&process["done"]),
            count(&process["sockets_destroyed"], "socket destroyed", "sockets destroyed"),
        );
    }
    shown
}

pub(super) fn drill_text(drill: &Value) -> String {
    let mut shown = format!(
        "a drill, nothing was stopped: {} {} would cut\n",
        text(&drill["level"]),
        scope_text(&drill["scope"])
    );
    for agent in items(&drill["agents"]) {
        let numbers = |list: &Value| items(list).iter().map(text).collect::<Vec<_>>().join(" ");
        shown += &format!(
            "  {}: processes {} in {}; sessions {}; {} idle, {}, {}, {}\n",
            text(&agent["agent"]),
            numbers(&agent["processes"]),
            numbers(&agent["cgroups"]),
            numbers(&agent["sessions"]),
            count(&agent["idle_connections"], "connection", "connections"),
            count(&items(&agent["streams"]).len().into(), "stream", "streams"),
            count(&items(&agent["calls"]).len().into(), "call", "calls"),
            count(&items(&agent["tasks"]).len().into(), "task", "tasks"),
        );
        for call in items(&agent["calls"]) {
            shown += &format!(
                "    call {} {} to {}: would be {}{}\n",
                text(&call["method"]),
                text(&call["tool"]),
                text(&call["server"]),
                text(&call["would_be"]),
                if call["is_sibling"] == true { " (not in scope, ends with its batch)" } else { "" },
            );
        }
    }
    if items(&drill["agents"]).is_empty() {
        shown += "  no agent that is known now";
    }
    shown
}

/// Whom a stop is for, as on the command line.
pub(super) fn scope_text(scope: &Value) -> String {
    if scope["all"] == true {
        return "all".to_owned();
    }
    let terms = scope.as_object().into_iter().flatten();
    let shown = terms.flat_map(|(name, value)| match value {
        Value::Object(by_key) => {
            by_key.iter().map(|(key, value)| format!("{name}={key}={}", text(value))).collect()
        }
        value => vec![format!("{name}={}", text(value))],
    });
    shown.collect::<Vec<_>>().join(" ")
}

pub(super) fn operator_text(operator: &Value) -> String {
    if let certificate @ Value::Object(_) = &operator["certificate"] {
        let sha256: String = text(&certificate["sha256"]).chars().take("sha256:".len() + 16).collect();
        let (user, from) = (text(&operator["user"]), text(&certificate["from"]));
        return format!(
            "{user} (certificate {sha256}…, serial {}, from {from})",
            text(&certificate["serial"])
        );
    }
    match &operator["login"] {
        Value::Null => text(&operator["user"]),
        login if *login == operator["user"] => text(login),
        login => format!("{} ({})", text(&operator["user"]), text(login)),
    }
}

pub(super) fn items(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn calls_table(calls: &[Value]) -> Table {
    let mut table = Table::new();
    table.set_header(["agent", "server", "method", "tool", "id", "fate", "late answer"]);
    for call in calls {
        let late = match &call["late"] {
            Value::Null => String::new(),
            late => format!("{} bytes {}", late["bytes"], text(&late["digest"])),
        };
        table.add_row([
            text(&call["agent"]),
            text(&call["server"]),
            text(&call["method"]),
            text(&call["tool"]),
            text(&call["rpc_id"]),
            text(&call["fate"]),
            late,
        ]);
    }
    table
}

pub(super) fn stops_table(value: &Value) -> String {
    let stops = items(&value["stops"]);
    if stops.is_empty() {
        return "no stop is in force".to_owned();
    }
    let mut table = Table::new();
    table.set_header([
        "stop",
        "for",
        "level",
        "since",
        "by",
        "reason",
        "agents now",
        "calls caught",
        "refused",
    ]);
    for entry in stops {
        let stop = &entry["stop"];
        let agents: Vec<String> = items(&entry["agents"]).iter().map(text).collect();
        let calls = match (&entry["calls"], &entry["open"]) {
            (Value::Null, _) => "see records".to_owned(),
            (calls, Value::Number(open)) if open.as_u64() == Some(0) => calls.to_string(),
            (calls, open) => format!("{calls}, {open} open"),
        };
        table.add_row([
            text(&stop["id"]),
            scope_text(&stop["scope"]),
            text(&stop["level"]),
            text(&stop["issued_at"]),
            operator_text(&stop["by"]),
            text(&stop["reason"]),
            agents.join(" "),
            calls,
            format!("{} proxy, {} kernel", entry["refused"]["proxy"], entry["refused"]["kernel"]),
        ]);
    }
    let asked = stops.iter().filter(|entry| entry["release_asked"].is_object());
    let asked = asked
        .map(|entry| format!("\n{}: {}", text(&entry["stop"]["id"]), asked_text(&entry["release_asked"])));
    format!("{table}{}", asked.collect::<String>())
}

pub(super) fn agents_table(value: &Value) -> String {
    let agents = value["agents"].as_array().map_or(&[][..], |agents| agents);
    if agents.is_empty() {
        return "no agent is held; see `agents:` in the configuration, or start one with `interlock exec`"
            .to_owned();
    }
    let mut table = Table::new();
    table.set_header(["agent", "cgroup", "processes", "connections", "of these MCP", "stopped by"]);
    for agent in agents {
        for cgroup in agent["cgroups"].as_array().into_iter().flatten() {
            table.add_row([
                text(&agent["agent"]),
                text(&cgroup["path"]),
                cgroup["processes"].to_string(),
                agent["connections"]["open"].to_string(),
                agent["connections"]["inspected"].to_string(),
                text(&agent["stop"]),
            ]);
        }
    }
    table.to_string()
}

/// What conditions of rules may use.
pub(super) fn variables_table(value: &Value) -> String {
    let mut table = Table::new();
    table.set_header(["variable", "type", "phase", "what it is"]);
    for variable in value["variables"].as_array().into_iter().flatten() {
        let phases: Vec<_> = variable["phases"].as_array().into_iter().flatten().map(text).collect();
        let phases = if phases.len() == 3 { "all".to_owned() } else { phases.join(", ") };
        table.add_row([text(&variable["name"]), text(&variable["type"]), phases, text(&variable["doc"])]);
    }
    table.to_string()
}

pub(super) fn status_text(status: &Value) -> String {
    let policy = &status["policy"];
    let reload = match &policy["last_reload"]["error"] {
        Value::Null => String::new(),
        // Its lines show the place in the operator's own file.
        error => format!(
            "\n  LAST RELOAD FAILED, the rules before it hold: {}",
            error.as_str().unwrap_or_default()
        ),
    };
    let faults = policy["faults"].as_object().into_iter().flatten();
    let faults: String = faults
        .map(|(name, error)| format!("\n  NOT ACCEPTED, its rules before hold: {name}: {}", text(error)))
        .collect();
    let trust = trust_text(&status["baseline"]);
    let kernel = &status["kernel"];
    let detached: String = kernel["links"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|link| link["attached"] != true)
        .map(|link| format!("\n  NOT ATTACHED: {} on {}", text(&link["name"]), text(&link["cgroup"])))
        .collect();
    let state = match (&status["state"]["fault"], &status["state"]["saved"]) {
        (Value::Null, Value::Bool(false)) => {
            "\nSTATE NOT SAVED: what was ordered last is lost in a reboot".to_owned()
        }
        (Value::Null, _) => String::new(),
        (fault, _) => format!("\nSTATE UNREADABLE, everybody is held: {}", text(fault)),
    };
    let limits = match &status["limits"]["fault"] {
        Value::Null => String::new(),
        fault => {
            format!("\nCOUNTS UNREADABLE, limits of an hour or more let nothing through: {}", text(fault))
        }
    };
    let pods = match (&status["kubernetes"], &status["kubernetes"]["fault"]) {
        (Value::Null, _) => String::new(),
        (cluster, Value::Null) if cluster["complete"] == true => {
            format!("\npods of this node: {}", cluster["pods"])
        }
        (cluster, Value::Null) => format!("\npods of this node: {}, NOT ALL ARE KNOWN YET", cluster["pods"]),
        (cluster, fault) => {
            format!("\npods of this node: {}, API SERVER NOT HEARD FROM: {}", cluster["pods"], text(fault))
        }
    };
    format!(
        "interlock {} (pid {}), up {} s{state}{limits}\nkernel: {} programs attached, {} connects redirected, {} refused{detached}\nrules: {} (generation {}, {} rules){reload}{faults}{trust}\nagents: {} cgroups held, {} connections{pods}\nstops in force: {}, waiting for an approval: {}\nrecords: {} ({} dropped)",
        text(&status["version"]),
        status["pid"],
        status["uptime_s"],
        kernel["links"].as_array().map_or(0, Vec::len),
        kernel["counters"]["redirected"],
        kernel["counters"]["refused"],
        text(&policy["path"]),
        status["generation"],
        policy["rules"],
        status["agents"],
        status["connections"],
        status["stops"],
        status["approvals"],
        text(&status["records"]["path"]),
        status["records"]["dropped"],
    )
}

/// What is wrong with the documents that say what is trusted.
fn trust_text(baseline: &Value) -> String {
    let unreadable = match &baseline["objects_unreadable"] {
        Value::Null => String::new(),
        error => format!(
            "\n  BASELINES UNREADABLE, nothing is trusted until the API server tells of them: {}",
            text(error)
        ),
    };
    let file = baseline["file"].as_str().map(|error| ("the baseline file", error.to_owned()));
    let objects = baseline["faults"].as_object().into_iter().flatten();
    let faults = file.into_iter().chain(objects.map(|(name, error)| (&**name, text(error))));
    let faults = faults.map(|(name, error)| {
        format!("\n  NOT ACCEPTED, what it said before is what is trusted: {name}: {error}")
    });
    unreadable + &faults.collect::<String>()
}

/// A number with its noun.
fn count(number: &Value, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// The text of a value: nothing for null, a string without its quotes. Agents choose names of tools and servers: what
/// could steer a terminal is shown, not sent.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.chars().fold(String::new(), |mut shown, c| {
            if c.is_control()
                || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
            {
                shown.extend(c.escape_unicode());
            } else {
                shown.push(c);
            }
            shown
        }),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_cannot_steer_a_terminal() {
        let table =
            calls_table(&[serde_json::json!({"tool": "a\u{1b}[2Jb\u{202e}c", "fate": "sent"})]).to_string();
        assert!(table.contains(r"a\u{1b}[2Jb\u{202e}c"), "{table}");
    }

    #[test]
    fn every_variable_of_conditions_has_a_line() {
        let variables = crate::decide::condition::variables();
        let value = serde_json::json!({"variables": variables});
        assert_eq!(
            value["variables"][0],
            serde_json::json!({"name": "agent.name", "type": "string", "phases": ["request", "response", "list"],
                "doc": variables[0].doc})
        );
        let table = variables_table(&value);
        for variable in variables {
            let phases = if variable.phases.len() == 3 { " all " } else { "" };
            let is_line = |line: &str| {
                let mut cells = line.split('|').map(str::trim);
                line.contains(phases)
                    && cells.nth(1) == Some(variable.name)
                    && cells.next() == Some(variable.kind)
            };
            assert!(table.lines().any(is_line), "{}", variable.name);
        }
    }
}
