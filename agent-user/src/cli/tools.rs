//! `interlock tools`: what servers show to models, what has changed, and what persons say of it.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use comfy_table::Table;
use serde_json::Value;

use crate::baseline::{Filter, Wanted};
use crate::control::client::Client;
use crate::control::{ImportOrder, ToolsOrder};
use crate::fingerprint::{State, Surface, visible};

use super::Args;
use super::render::{items, operator_text, text};

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Tools {
    #[command(subcommand)]
    command: Option<Command>,
    /// Only of servers with a name or address that matches this glob.
    #[arg(long)]
    server: Option<String>,
    /// Only those whose name matches this glob.
    #[arg(long)]
    name: Option<String>,
    /// Only tools, prompts, resource templates, instructions, servers (their names and versions) or agent cards.
    #[arg(long)]
    surface: Option<Surface>,
    /// Only those in this state.
    #[arg(long)]
    state: Option<State>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show what has changed since it was trusted, in words and as a patch, with warnings and history.
    Diff { id: String },
    /// Trust what is shown under these ids.
    Approve {
        #[arg(required = true)]
        ids: Vec<String>,
        #[arg(long)]
        reason: String,
    },
    /// Refuse every use of these, whatever they show, until they are approved.
    Block {
        #[arg(required = true)]
        ids: Vec<String>,
        #[arg(long)]
        reason: String,
    },
    /// Print what is trusted as a file that can be reviewed, kept with the rules, and read again.
    Export {
        /// Print a `ToolBaseline` of this name, for `kubectl apply`.
        #[arg(long, value_name = "NAME")]
        as_object: Option<String>,
        /// Print what is shown now, trusted or not.
        #[arg(long)]
        shown: bool,
    },
    /// Trust what a file says.
    Import {
        file: PathBuf,
        #[arg(long)]
        reason: String,
    },
}

pub(super) fn tools(args: &Args, client: &Client, tools: &Tools) -> Result<ExitCode> {
    match &tools.command {
        None => args.print(&client.get(&tools.path()?)?, table),
        Some(Command::Diff { id }) => args.print(&client.get(&format!("/v1/tools/{id}"))?, review),
        Some(Command::Approve { ids, reason }) => decide(args, client, "approve", ids, reason)?,
        Some(Command::Block { ids, reason }) => decide(args, client, "block", ids, reason)?,
        Some(Command::Export { as_object, shown }) => {
            args.print(&client.get(&tools.export_path(as_object.clone(), *shown)?)?, |exported| {
                exported["baseline"].as_str().unwrap_or_default().trim_end().to_owned()
            });
        }
        Some(Command::Import { file, reason }) => {
            let baseline =
                std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
            let order = ImportOrder { baseline, reason: reason.clone() };
            args.print(&client.post("/v1/baseline", &order)?, decided);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn decide(args: &Args, client: &Client, verb: &str, ids: &[String], reason: &str) -> Result<()> {
    let order = ToolsOrder { ids: ids.to_vec(), reason: reason.to_owned() };
    args.print(&client.post(&format!("/v1/tools/{verb}"), &order)?, decided);
    Ok(())
}

impl Tools {
    fn path(&self) -> Result<String> {
        Ok(format!("/v1/tools?{}", serde_urlencoded::to_string(self.filter())?))
    }

    fn export_path(&self, as_object: Option<String>, shown: bool) -> Result<String> {
        let wanted = Wanted { filter: self.filter(), shown, as_object };
        Ok(format!("/v1/baseline?{}", serde_urlencoded::to_string(wanted)?))
    }

    fn filter(&self) -> Filter {
        let Tools { server, name, surface, state, .. } = self.clone();
        Filter { server, name, surface, state }
    }
}

fn decided(value: &Value) -> String {
    let lines = items(&value["changes"]).iter().map(|change| {
        format!(
            "{} {} {} of {}",
            text(&change["change"]),
            kind(change),
            name(change),
            text(&change["server"])
        )
    });
    let lines: Vec<String> = lines.collect();
    format!("{}\nby {}", lines.join("\n"), operator_text(&value["by"]))
}

fn table(value: &Value) -> String {
    let tools = items(&value["tools"]);
    if let Value::String(fault) = &value["fault"] {
        return fault.clone();
    }
    if tools.is_empty() {
        return "no server has shown anything that matches".to_owned();
    }
    let mut table = Table::new();
    table.set_header(["id", "server", "what", "name", "revision", "for", "state", "changes", "since"]);
    for tool in tools {
        table.add_row([
            text(&tool["id"]),
            server(tool),
            kind(tool),
            name(tool),
            or_dash(&tool["revision"]),
            or_dash(&tool["principal"]),
            state(tool),
            classes(&tool["classes"]),
            text(&tool["since"]),
        ]);
    }
    format!("{table}\n`interlock tools diff ID` shows one, and what has changed")
}

fn review(tool: &Value) -> String {
    let mut shown = format!(
        "{} {} {} of {}: {}\n  since {}",
        text(&tool["id"]),
        kind(tool),
        name(tool),
        server(tool),
        state(tool),
        text(&tool["since"]),
    );
    for (word, value) in [("revision", &tool["revision"]), ("shown to", &tool["principal"])] {
        if !value.is_null() {
            shown += &format!(", {word} {}", text(value));
        }
    }
    shown.push('\n');
    if !tool["renamed_from"].is_null() {
        shown += &format!(
            "  it looks like {}, which has just gone from the same list: no reason to trust it\n",
            visible(&text(&tool["renamed_from"]))
        );
    }
    for warning in items(&tool["seen"]["warnings"]) {
        shown += &format!(
            "  warning: {} at {}: {}\n",
            text(&warning["label"]),
            visible(&text(&warning["at"])),
            visible(&text(&warning["excerpt"]))
        );
    }
    for change in items(&tool["changes"]) {
        shown += &format!("  {}\n", visible(&text(change)));
    }
    match (&tool["patch"], &tool["seen"]["text"]) {
        (Value::String(patch), _) if !patch.is_empty() => shown += &format!("\n{patch}\n"),
        (Value::String(_), _) => shown += "  it is what is trusted\n",
        (_, Value::String(seen)) => {
            shown += &format!("  nothing is trusted of it yet; it shows\n{}\n", visible(seen))
        }
        _ => shown += &format!("  its {} bytes are too long to be kept\n", tool["seen"]["bytes"]),
    }
    shown += "history\n";
    for event in items(&tool["history"]) {
        let by = if event["by"].is_null() {
            String::new()
        } else {
            format!(" by {}", operator_text(&event["by"]))
        };
        let reason =
            if event["reason"].is_null() { String::new() } else { format!(": {}", text(&event["reason"])) };
        let changed = match &*classes(&event["classes"]) {
            "" => String::new(),
            classes => format!(" ({classes})"),
        };
        shown += &format!("  {} {}{changed}{by}{reason}\n", text(&event["at"]), text(&event["what"]));
    }
    shown += &format!(
        "`interlock tools approve {id} --reason …` trusts it as it is now, `interlock tools block {id} --reason …` refuses it",
        id = text(&tool["id"])
    );
    shown
}

fn kind(tool: &Value) -> String {
    text(&tool["surface"]).replace('_', " ")
}

fn name(tool: &Value) -> String {
    visible(&text(&tool["name"])).into_owned()
}

fn server(tool: &Value) -> String {
    let (named, address) = (text(&tool["server"]), text(&tool["address"]));
    let path = visible(&text(&tool["path"])).into_owned();
    let shown = if named == address { named + &path } else { format!("{named}{path} ({address})") };
    match &tool["agent"] {
        Value::Null => shown,
        agent => format!("{shown}, of agent {}", text(agent)),
    }
}

fn state(tool: &Value) -> String {
    let unsure = if tool["unsure"] == true { ", not listed since it may have changed" } else { "" };
    format!("{}{unsure}", text(&tool["state"]))
}

fn classes(classes: &Value) -> String {
    items(classes).iter().map(text).collect::<Vec<_>>().join(", ")
}

fn or_dash(value: &Value) -> String {
    if value.is_null() { "-".to_owned() } else { text(value) }
}
