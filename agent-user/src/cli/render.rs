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
            "  {}: {} processes, {} connections{}\n",
            text(&agent["agent"]),
            agent["processes"],
            agent["connections"],
            if agent["isolated"] == true {
                format!(", isolated, {} sockets destroyed", agent["sockets_destroyed"])
            } else {
                String::new()
            },
        );
    }
    let calls = answer["calls"].as_array().map_or(&[][..], |calls| calls);
    text_ += &format!("  {} calls were in flight", calls.len());
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
        let calls = entry["calls"].as_array().map_or(0, Vec::len);
        table.add_row([
            text(&stop["id"]),
            text(&stop["scope"]["agent"]),
            text(&stop["level"]),
            text(&stop["issued_at"]),
            text(&stop["by"]["user"]),
            text(&stop["reason"]),
            agents.join(" "),
            calls.to_string(),
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
        error => format!("\n  LAST RELOAD FAILED, the rules before it hold: {}", text(error)),
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

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
