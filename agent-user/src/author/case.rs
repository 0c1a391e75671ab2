//! One message to try rules on: a decision of the records, or a call that the author of rules has written down. Both have
//! the same form, and what is left out is as if it were not known.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::decide::policy::{Phase, STANDING};
use crate::decide::subject::{Annotations, InPod, Party, Sender, Subject};
use crate::fingerprint::Standings;
use crate::judge::server_names;

/// A message and what was decided on it. Other fields of a record say nothing to rules.
#[derive(Debug, Deserialize)]
pub struct Case {
    #[serde(default)]
    pub decision: Option<String>,
    #[serde(default)]
    at: Option<Timestamp>,
    #[serde(default)]
    agent: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    uid: u32,
    #[serde(default)]
    exe: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    pod: Option<InPod>,
    /// As the agent names it.
    #[serde(default)]
    server: String,
    /// Where the connection went.
    #[serde(default)]
    destination: Option<SocketAddr>,
    #[serde(default)]
    session: Option<String>,
    #[serde(default)]
    workflow: Option<String>,
    #[serde(default)]
    protocol: Option<String>,
    #[serde(default)]
    revision: Option<String>,
    #[serde(default)]
    pub phase: Phase,
    #[serde(default)]
    from: Party,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    tool: Option<String>,
    #[serde(default)]
    arguments: Option<Box<RawValue>>,
    #[serde(default)]
    arguments_digest: Option<String>,
    #[serde(default)]
    annotations: Option<Annotations>,
    /// Left out where nobody asked for it.
    #[serde(default)]
    standing: Option<Standings>,
    /// What was decided: allow, deny, would_deny or edit.
    #[serde(default)]
    pub verdict: Option<String>,
    #[serde(default)]
    pub rules: Vec<String>,
    /// The stop that it ran into; rules had nothing to do with that.
    #[serde(default)]
    pub stop: Option<String>,
    /// A person was asked.
    #[serde(default)]
    pub approval: Option<String>,
    #[serde(default)]
    continues: bool,
    /// Rules took something out of it, and so out of the arguments that are here.
    #[serde(default)]
    redacted: Option<IgnoredAny>,
    #[serde(skip)]
    servers: Vec<String>,
}

impl Case {
    /// Reads one case, as JSON.
    pub fn parse(text: &str) -> Result<Case> {
        let mut case: Case = serde_json::from_str(text)?;
        case.servers = server_names(&case.server, case.destination);
        Ok(case)
    }

    /// Reads one case from a file.
    pub fn load(path: &Path) -> Result<Case> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Case::parse(&text)
            .with_context(|| format!("{}: a JSON object like a decision of the records", path.display()))
    }

    /// What rules look at.
    pub fn subject(&self) -> Subject<'_> {
        let arguments = self.arguments.as_deref().map(RawValue::get);
        Subject {
            phase: self.phase,
            from: self.from,
            agent: Sender {
                name: &self.agent,
                pid: self.pid,
                uid: self.uid,
                exe: self.exe.as_deref(),
                labels: Some(&self.labels),
                pod: self.pod.as_ref(),
            },
            server: &self.server,
            servers: &self.servers,
            address: self.destination,
            session: self.session.as_deref().and_then(|session| session.parse().ok()),
            workflow: self.workflow.as_deref(),
            protocol: self.protocol.as_deref().unwrap_or("mcp"),
            revision: self.revision.as_deref(),
            method: self.method.as_deref(),
            name: self.tool.as_deref(),
            continues: self.continues,
            arguments,
            annotations: self.annotations.unwrap_or_default(),
            standings: self.standing.clone().unwrap_or_default(),
            now: self.at.unwrap_or_else(Timestamp::now),
            ..Subject::default()
        }
    }

    /// Variables of conditions whose values are not in it. What a rule makes of them is anybody's guess.
    pub fn unknown(&self) -> Vec<&'static str> {
        let mut unknown =
            vec!["params", "user", "size", "recent", "took", "result", "error", "is_error", "item"];
        if self.redacted.is_some() || self.arguments.is_none() && self.arguments_digest.is_some() {
            unknown.push("args");
        }
        // Only tools have any.
        let has_none = self.phase == Phase::Request && self.method.as_deref() != Some("tools/call");
        if self.annotations.is_none() && !has_none {
            unknown.push("annotations");
        }
        if self.standing.is_none() {
            unknown.push(STANDING);
        }
        unknown
    }
}

/// The decisions of a records file, oldest first. Lines of other kinds, and those that are no records, are passed over.
pub fn decisions(path: &Path) -> Result<impl Iterator<Item = Case>> {
    #[derive(Deserialize)]
    struct Kind<'a> {
        kind: &'a str,
    }
    let file = File::open(path).with_context(|| format!("open records {}", path.display()))?;
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    Ok(lines.filter_map(|line| {
        let kind: Kind<'_> = serde_json::from_str(&line).ok()?;
        if kind.kind == "decision" { Case::parse(&line).ok() } else { None }
    }))
}

/// One decision of a records file.
pub fn find(path: &Path, id: &str) -> Result<Case> {
    match decisions(path)?.find(|case| case.decision.as_deref() == Some(id)) {
        Some(case) => Ok(case),
        None => bail!("{}: no decision {id}", path.display()),
    }
}
