//! `interlock approvals`, `approve` and `refuse`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use comfy_table::Table;
use serde_json::Value;

use crate::control::DecideOrder;
use crate::control::client::Client;

use super::Args;
use super::render::{items, operator_text, text};

#[derive(Debug, Subcommand)]
pub(super) enum Approvals {
    /// Show one request with all that it asks for.
    Show { id: String },
}

pub(super) fn approvals(args: &Args, client: &Client, command: Option<&Approvals>) -> Result<ExitCode> {
    match command {
        None => args.print(&client.get("/v1/approvals")?, table),
        Some(Approvals::Show { id }) => {
            args.print(&client.get(&format!("/v1/approvals/{id}"))?, question_text)
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn decide(args: &Args, client: &Client, id: &str, verb: &str, reason: &str) -> Result<ExitCode> {
    let order = DecideOrder { reason: reason.to_owned() };
    let decided = client.post(&format!("/v1/approvals/{id}/{verb}"), &order)?;
    args.print(&decided, |decided| {
        let calls: Vec<String> = items(&decided["calls"]).iter().map(call_text).collect();
        format!(
            "{} {} ({} of agent {} to {}), by {}",
            text(&decided["outcome"]),
            text(&decided["approval"]),
            calls.join(", "),
            text(&decided["agent"]),
            text(&decided["server"]),
            operator_text(&decided["by"]),
        )
    });
    Ok(ExitCode::SUCCESS)
}

fn table(value: &Value) -> String {
    let waiting = items(&value["approvals"]);
    if waiting.is_empty() {
        return "nothing waits for an approval".to_owned();
    }
    let mut table = Table::new();
    table.set_header(["approval", "agent", "server", "asks for", "rules", "since", "refused at"]);
    for question in waiting {
        let calls: Vec<String> = items(&question["calls"]).iter().map(call_text).collect();
        let asked = items(&question["calls"]).iter().flat_map(|call| items(&call["rules"]));
        let mut rules: Vec<String> = asked.map(|asked| text(&asked["rule"])).collect();
        rules.sort_unstable();
        rules.dedup();
        table.add_row([
            text(&question["approval"]),
            text(&question["agent"]),
            text(&question["server"]),
            calls.join("\n"),
            rules.join("\n"),
            text(&question["since"]),
            text(&question["until"]),
        ]);
    }
    format!("{table}\n`interlock approvals show ID` shows all of what one asks for")
}

fn question_text(question: &Value) -> String {
    let mut shown = format!(
        "approval {} of agent {} (process {} {}, uid {}), refused at {} if nobody decides\n  to {} at {}, since {}\n",
        text(&question["approval"]),
        text(&question["agent"]),
        question["pid"],
        text(&question["exe"]),
        question["uid"],
        text(&question["until"]),
        text(&question["server"]),
        text(&question["destination"]),
        text(&question["since"]),
    );
    for name in ["session", "workflow"] {
        if !question[name].is_null() {
            shown += &format!("  {name} {}\n", text(&question[name]));
        }
    }
    for call in items(&question["calls"]) {
        shown += &format!("  {} (decision {})\n", call_text(call), text(&call["decision"]));
        for asked in items(&call["rules"]) {
            shown += &format!("    rule {}: {}\n", text(&asked["rule"]), text(&asked["reason"]));
        }
        let asks = &call["asks"];
        if asks.is_object() {
            let rest = if asks["is_cut"] == true {
                format!(" … ({} bytes in all)", asks["bytes"])
            } else {
                String::new()
            };
            shown += &format!("    {} {}{rest}\n", text(&asks["of"]), text(&asks["json"]));
        }
        if !call["arguments_digest"].is_null() {
            let digest = text(&call["arguments_digest"]);
            shown += &format!("    digest of the arguments {digest}\n");
        }
    }
    shown
}

fn call_text(call: &Value) -> String {
    match &call["tool"] {
        Value::Null => text(&call["method"]),
        tool => format!("{} {}", text(&call["method"]), text(tool)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_person_sees_what_is_asked_for_and_no_escape_codes() {
        let call = json!({
            "decision": "d-1", "method": "tools/call", "tool": "pay",
            "rules": [{"rule": "money", "reason": "it is much"}],
            "asks": {"of": "arguments", "json": "{\"to\":\"\u{1b}[2Jx\"}", "bytes": 9, "is_cut": true},
        });
        let question = json!({"approval": "apr-1", "agent": "coder", "server": "bank", "calls": [call]});
        let shown = question_text(&question);
        for part in
            ["apr-1", "tools/call pay", "rule money: it is much", r#"{"to":"\u{1b}[2Jx"} … (9 bytes in all)"#]
        {
            assert!(shown.contains(part), "{shown}");
        }
        let shown = table(&json!({"approvals": [question]}));
        assert!(
            shown.contains("apr-1") && shown.contains("tools/call pay") && shown.contains("money"),
            "{shown}"
        );
    }
}
