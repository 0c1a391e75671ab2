//! The daemon's answers in words and tables.

use comfy_table::Table;
use serde_json::Value;

pub(super) fn stop_text(answer: &Value) -> String {
    let stop = &answer["stop"];
    let mut text_ = if answer["in_force"] == true {
        format!(
            "stop {} is in force since {} ({} {}, ordered {} by {})\n",
            text(&stop["id"]),
            text(&stop["in_force_at"]),
            text(&stop["level"]),
            text(&stop["scope"]["agent"]),
            text(&stop["issued_at"]),
            text(&stop["by"]["user"]),
        )
    } else {
        format!("stop {} is NOT in force\n", text(&stop["id"]))
    };
    for problem in answer["problems"].as_array().into_iter().flatten() {
        text_ += &format!("  problem: {}\n", text(problem));
    }
    let agents = answer["agents"].as_array().map_or(&[][..], |agents| agents);
    if agents.is_empty() {
        text_ += "  no agent of this name is known now; the stop holds for those that come\n";
    }
    for agent in agents {
        text_ += &format!(
            "  {}: {}, {}{}\n",
            text(&agent["agent"]),
            count(&agent["processes"], "process", "processes"),
            count(&agent["connections"], "connection", "connections"),
            if agent["isolated"] == true {
                format!(", isolated, {} sockets destroyed", agent["sockets_destroyed"])
            } else {
                String::new()
            },
        );
    }
    let calls = answer["calls"].as_array().map_or(&[][..], |calls| calls);
    text_ += &match calls.len() {
        1 => "  1 call was in flight".to_owned(),
        n => format!("  {n} calls were in flight"),
    };
    if !calls.is_empty() {
        text_ += &format!("\n{}", calls_table(calls));
    }
    text_
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
    let stops = value["stops"].as_array().map_or(&[][..], |stops| stops);
    if stops.is_empty() {
        return "no stop is in force".to_owned();
    }
    let mut table = Table::new();
    table.set_header(["stop", "agent", "level", "since", "by", "reason", "agents now", "calls caught"]);
    for entry in stops {
        let stop = &entry["stop"];
        let agents: Vec<String> = entry["agents"].as_array().into_iter().flatten().map(text).collect();
        let calls =
            entry["calls"].as_array().map_or("see records".to_owned(), |calls| calls.len().to_string());
        table.add_row([
            text(&stop["id"]),
            text(&stop["scope"]["agent"]),
            text(&stop["level"]),
            text(&stop["issued_at"]),
            text(&stop["by"]["user"]),
            text(&stop["reason"]),
            agents.join(" "),
            calls,
        ]);
    }
    table.to_string()
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
    let kernel = &status["kernel"];
    let detached: String = kernel["links"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|link| link["attached"] != true)
        .map(|link| format!("\n  NOT ATTACHED: {} on {}", text(&link["name"]), text(&link["cgroup"])))
        .collect();
    format!(
        "interlock {} (pid {}), up {} s\nkernel: {} programs attached, {} connects redirected, {} refused{detached}\nrules: {} (generation {}, {} rules){reload}\nagents: {} cgroups held, {} connections\nstops in force: {}\nrecords: {} ({} dropped)",
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
        text(&status["records"]["path"]),
        status["records"]["dropped"],
    )
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
}
