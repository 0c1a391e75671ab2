//! How the agent's steps, what came of them, and the counters read.

use serde_json::{Value, json};

/// A step in which the agent calls a tool.
pub(super) fn call(tool: &str, args: Value) -> Value {
    json!({"op": "call", "tool": tool, "args": args})
}

/// A step of the agent, in words.
pub(super) fn shown(step: &Value) -> String {
    match step["op"].as_str() {
        Some("connect") => format!("connect() to {}, plain TCP", step["addr"].as_str().unwrap_or_default()),
        _ => format!("call {} {}", step["tool"].as_str().unwrap_or_default(), step["args"]),
    }
}

/// What the agent got, in words.
pub(super) fn outcome(got: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match &got["error"] {
        error if error["code"] == EPERM => format!("EPERM: {}", text(&error["message"])),
        Value::Null if got["is_error"] == true => format!("[tool error] {}", text(&got["text"])),
        Value::Null => text(&got["text"]),
        error => format!("[{}] {}", text(&error["type"]), text(&error["message"])),
    }
}

/// Whether it is a refusal of interlock's for this rule or this reason, as an answer to the call.
pub(super) fn is_refusal(got: &Value, why: &str) -> bool {
    let text = got["text"].as_str().unwrap_or_default();
    got["is_error"] == true && got["error"].is_null() && text.starts_with("interlock: ") && text.contains(why)
}

/// Lines about decisions, denials and stops that count something.
pub(super) fn relevant(scrape: &str) -> String {
    let families = ["interlock_decisions_total{", "interlock_denials_total{", "interlock_stop"];
    let is_meant = |line: &&str| {
        families.iter().any(|family| line.starts_with(family))
            && !line.starts_with("interlock_stop_in_force_seconds")
            && (line.starts_with("interlock_stops_active") || !line.ends_with(" 0"))
    };
    scrape.lines().filter(is_meant).collect::<Vec<_>>().join("\n")
}

/// `EPERM` as a number.
pub(super) const EPERM: i64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_is_an_answer_of_ours_and_nothing_else() {
        let got = |text: &str, error: Value| json!({"is_error": true, "text": text, "error": error});
        assert!(is_refusal(&got("interlock: refused (rule r)", Value::Null), "rule r"));
        assert!(!is_refusal(&got("no such tool: rule r", Value::Null), "rule r"));
        assert!(!is_refusal(&got("interlock: rule r", json!({"type": "timeout"})), "rule r"));
    }

    #[test]
    fn counters_at_zero_are_left_out_unless_zero_is_the_news() {
        let text = "interlock_stops_active{level=\"kill\"} 0\ninterlock_stops_total{level=\"kill\"} 0\n\
                    interlock_denials_total{agent=\"a\"} 2\ninterlock_build_info{version=\"1\"} 1\n";
        assert_eq!(
            relevant(text),
            "interlock_stops_active{level=\"kill\"} 0\ninterlock_denials_total{agent=\"a\"} 2"
        );
    }
}
