//! The table of what applications see of a stop: how a row is made from what a client said, and the file it is kept in.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The file, for whoever has to change it.
const FILE: &str = "data/sdk-stops.md";

/// The situation in which a client has no session yet.
pub(crate) const NEW_CLIENT: &str = "new client";

/// What interlock says of a stopped call, whole: before the method and after it, up to what differs each time.
const BEGIN: &str = "interlock: ";
const REASON: &str = " was refused because an operator stopped this agent: a test says so (stop ";
const END: &str = "). Do not retry; the stop holds until the operator releases it.";

/// What one client showed, in the order in which it was looked at.
pub(crate) struct Rows {
    client: &'static str,
    revision: &'static str,
    url: String,
    seen: Vec<Row>,
}

struct Row {
    level: &'static str,
    when: &'static str,
    /// As the application was told.
    told: String,
}

impl Rows {
    pub(crate) fn of(client: &'static str, revision: &'static str, url: &str) -> Self {
        Self { client, revision, url: url.to_owned(), seen: Vec::new() }
    }

    /// Adds what the client said in one situation.
    pub(crate) fn push(&mut self, level: &'static str, when: &'static str, line: &Value) {
        self.seen.push(Row { level, when, told: told(when, line) });
    }

    /// What the application was told at one level so far.
    pub(crate) fn at(&self, level: &str) -> Vec<&str> {
        self.seen.iter().filter(|row| row.level == level).map(|row| row.told.as_str()).collect()
    }

    /// The rows as the file has them.
    fn lines(&self) -> Vec<String> {
        let mut rows: Vec<&Row> = self.seen.iter().collect();
        rows.sort_by_key(|row| row.level != "refuse"); // stable: within a level as they were seen
        let head = format!("| {} | {} |", self.client, self.revision);
        let line =
            |row: &&Row| format!("{head} {} | {} | {} |", row.level, row.when, lasting(&row.told, &self.url));
        rows.iter().map(line).collect()
    }
}

/// The table in the file.
pub(crate) struct Table {
    lines: Vec<String>,
}

impl Table {
    pub(crate) fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
        Self { lines: rows.map(str::to_owned).collect() }
    }

    /// The clients it has rows of, and the revision each speaks there.
    pub(crate) fn clients(&self) -> Vec<(&str, &str)> {
        let mut clients: Vec<(&str, &str)> = self.lines.iter().map(|line| client_of(line)).collect();
        clients.dedup();
        clients
    }

    /// Fails when a client showed anything else than the table says, and prints the rows as they should be.
    pub(crate) fn check(&self, rows: &Rows) {
        let client = (rows.client, rows.revision);
        let kept: Vec<&String> = self.lines.iter().filter(|line| client_of(line) == client).collect();
        let seen = rows.lines();
        let differs: Vec<&String> = seen.iter().filter(|line| !kept.contains(line)).collect();
        let all = seen.join("\n");
        assert!(differs.is_empty(), "not in tests/{FILE}: {differs:#?}\nall rows of this client now:\n{all}");
        assert_eq!(kept.len(), seen.len(), "tests/{FILE} has a row too many; all rows now:\n{all}");
    }
}

fn client_of(line: &str) -> (&str, &str) {
    let mut cells = line.split('|').map(str::trim).skip(1);
    (cells.next().unwrap_or_default(), cells.next().unwrap_or_default())
}

/// What a line of a client (see `tests/README.md`) means to the code around it.
fn told(when: &str, line: &Value) -> String {
    if line["done"] == true {
        return "the client has ended".to_owned();
    }
    if line["connected"] == false {
        let what = if when == NEW_CLIENT { "no session" } else { "the session ends" };
        return format!("{what}: {}", exception(&line["error"]));
    }
    match (line["ok"] == true, line["is_error"] == true) {
        (true, false) => "works".to_owned(),
        (true, true) => format!("tool error: {}", line["text"].as_str().unwrap_or_default()),
        _ => exception(&line["error"]),
    }
}

fn exception(error: &Value) -> String {
    let (kind, code) = (error["type"].as_str().unwrap_or_default(), error["code"].to_string());
    let kind = if kind == "protocol" { "JSON-RPC error" } else { kind };
    let code = if error["code"].is_null() { String::new() } else { format!(" {}", code.trim_matches('"')) };
    format!("{kind}{code}: {}", error["message"].as_str().unwrap_or_default())
}

/// The same without what differs from run to run.
fn lasting(told: &str, url: &str) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches("/mcp");
    let told = told.replace(address, "SERVER").replace('|', "\\|").replace('\n', " ");
    let Some((before, rest)) = told.split_once(BEGIN) else { return told };
    match rest.split_once(REASON).and_then(|(call, rest)| Some((call, rest.split_once(END)?.1))) {
        Some((call, after)) => format!("{before}«{call}»{after}"),
        None => told,
    }
}

#[test]
fn only_what_differs_from_run_to_run_is_left_out() {
    let refusal = "MCP error 1: interlock: tools/call slow was refused because an operator stopped this agent: a test \
                   says so (stop stp-1, by root, since 2026-11-29T18:44:23Z, decision d-2). Do not retry; the stop \
                   holds until the operator releases it. Sorry";
    assert_eq!(lasting(refusal, "http://10.77.0.2:1/mcp"), "MCP error 1: «tools/call slow» Sorry");
    let other = "interlock: tools/call slow was refused: no reason";
    assert_eq!(lasting(other, "http://10.77.0.2:1/mcp"), other);
    let refused = "connect EPERM 10.77.0.2:4711 | http://10.77.0.2:4711/mcp";
    assert_eq!(lasting(refused, "http://10.77.0.2:4711/mcp"), "connect EPERM SERVER \\| http://SERVER/mcp");
}
