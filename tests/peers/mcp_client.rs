//! An MCP client on the official Rust SDK: runs a script of steps and prints one JSON line for each. It knows nothing
//! of any proxy, and it never hangs: every step has a deadline.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use rmcp::ErrorData;
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ContentBlock, ElicitRequestParams, ElicitResult,
    ElicitationAction, Implementation, ProtocolVersion,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, RequestContext, RoleClient,
    RunningService, ServiceError,
};
use rmcp::transport::StreamableHttpClientTransport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader, Stdin};

/// An MCP client that runs a script of steps.
#[derive(Parser)]
struct Args {
    /// The server, such as http://127.0.0.1:8000/mcp.
    #[arg(long)]
    url: String,
    /// A JSON list of steps: list, call, together, sleep, wait_line, connect.
    #[arg(long)]
    script: String,
    /// Which era to speak.
    #[arg(long, value_enum, default_value = "auto")]
    mode: Mode,
    /// Seconds a step may take, unless it has a `timeout` of its own.
    #[arg(long, default_value_t = 20.0)]
    timeout: f64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// `server/discover` first, `initialize` where the server knows nothing newer.
    Auto,
    /// `initialize`, so 2025-11-25.
    Legacy,
}

type Session = RunningService<RoleClient, Agent>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let steps: Vec<Value> = serde_json::from_str(&args.script).context("--script")?;
    let mut stdin = BufReader::new(tokio::io::stdin());
    // A script of plain connects needs no session, and must not be spoiled by one that cannot be had.
    let needs_session = steps.iter().any(|step| matches!(op(step), "list" | "call" | "together"));
    let session = if needs_session { connect(&args).await.map(Arc::new) } else { None };
    for (index, step) in steps.iter().enumerate() {
        let limit = Duration::from_secs_f64(step["timeout"].as_f64().unwrap_or(args.timeout));
        if op(step) == "together" {
            let calls = step["calls"].as_array().cloned().unwrap_or_default();
            let tasks = calls.into_iter().enumerate().map(|(part, call)| {
                let session = session.clone();
                tokio::spawn(async move {
                    report((index, part, "together"), limit, call_tool(&call, session)).await
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await?;
            }
        } else {
            report((index, 0, op(step)), limit, run(step, session.clone(), &mut stdin)).await;
        }
    }
    say(&json!({"done": true}));
    if let Some(session) = session.and_then(Arc::into_inner) {
        let _ = tokio::time::timeout(Duration::from_secs(2), session.cancel()).await;
    }
    std::process::exit(0) // a blocked read of stdin must not keep us
}

/// Does one thing within its limit, and says what came of it.
async fn report((step, part, op): (usize, usize, &str), limit: Duration, work: impl Future<Output = Value>) {
    let started = Instant::now();
    let mut outcome = match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => failed("timeout", Value::Null, "no answer before the deadline"),
    };
    outcome["step"] = json!(step);
    outcome["part"] = json!(part);
    outcome["op"] = json!(op);
    outcome["ms"] = json!(started.elapsed().as_millis());
    say(&outcome);
}

async fn connect(args: &Args) -> Option<Session> {
    let lifecycle = match args.mode {
        Mode::Legacy => ClientLifecycleMode::Initialize,
        Mode::Auto => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: Some(ProtocolVersion::V_2025_11_25),
        },
    };
    let started = async {
        let Some(address) = args.url.strip_prefix("tcp://") else {
            let transport = StreamableHttpClientTransport::from_uri(args.url.as_str());
            return Agent.serve_with_lifecycle(transport, lifecycle).await;
        };
        let stream = tokio::net::TcpStream::connect(address).await;
        let stream = stream.map_err(|error| ClientInitializeError::ConnectionClosed(error.to_string()))?;
        Agent.serve_with_lifecycle(stream, lifecycle).await
    };
    let error = match tokio::time::timeout(Duration::from_secs_f64(args.timeout), Box::pin(started)).await {
        Ok(Ok(session)) => {
            let revision = session.peer().peer_info().map(|info| info.protocol_version.to_string());
            say(&json!({"connected": true, "revision": revision}));
            return Some(session);
        }
        Ok(Err(error)) => connect_error(&error),
        Err(_) => failed("timeout", Value::Null, "no session before the deadline"),
    };
    say(&json!({"connected": false, "error": error["error"]}));
    None
}

/// Why there is no session; where both eras were tried, why the older one failed.
fn connect_error(error: &ClientInitializeError) -> Value {
    match error {
        ClientInitializeError::JsonRpcError(error) => protocol_error(error),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => connect_error(fallback),
        other => failed("connect", Value::Null, &chain(other)),
    }
}

async fn run(step: &Value, session: Option<Arc<Session>>, stdin: &mut BufReader<Stdin>) -> Value {
    match op(step) {
        "sleep" => {
            tokio::time::sleep(Duration::from_secs_f64(step["seconds"].as_f64().unwrap_or(0.0))).await;
            worked("")
        }
        "wait_line" => {
            let mut line = String::new();
            match stdin.read_line(&mut line).await {
                Ok(_) => worked(line.trim_end()),
                Err(error) => failed("stdin", Value::Null, &error.to_string()),
            }
        }
        "connect" => plain_connect(step),
        "list" => list(session).await,
        "call" => call_tool(step, session).await,
        other => failed("script", Value::Null, &format!("unknown op {other}")),
    }
}

async fn list(session: Option<Arc<Session>>) -> Value {
    let Some(session) = session else { return failed("not_connected", Value::Null, "no session") };
    match session.list_all_tools().await {
        Ok(tools) => {
            let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
            worked(&names.join(" "))
        }
        Err(error) => service_error(&error),
    }
}

async fn call_tool(call: &Value, session: Option<Arc<Session>>) -> Value {
    let Some(session) = session else { return failed("not_connected", Value::Null, "no session") };
    let tool = call["tool"].as_str().unwrap_or_default().to_owned();
    let arguments = call["args"].as_object().cloned().unwrap_or_default();
    match session.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await {
        Ok(result) => {
            let text = |block: &ContentBlock| block.as_text().map(|text| text.text.clone());
            let text: String = result.content.iter().filter_map(text).collect();
            json!({"ok": true, "is_error": result.is_error.unwrap_or(false), "text": text, "error": null})
        }
        Err(error) => service_error(&error),
    }
}

/// A TCP connect of our own, past any SDK; the answer is the errno.
fn plain_connect(step: &Value) -> Value {
    let Some(address) = step["addr"].as_str().and_then(|addr| addr.parse::<SocketAddr>().ok()) else {
        return failed("script", Value::Null, "addr must be HOST:PORT");
    };
    match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
        Ok(_) => worked("connected"),
        Err(error) => failed("connect", json!(error.raw_os_error()), &error.to_string()),
    }
}

/// Accepts whatever a server asks.
struct Agent;

impl ClientHandler for Agent {
    fn get_info(&self) -> ClientConfig {
        let capabilities = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("agent-rmcp", "1.0"))
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"ok": true})))
    }
}

fn op(step: &Value) -> &str {
    step["op"].as_str().unwrap_or_default()
}

fn worked(text: &str) -> Value {
    json!({"ok": true, "is_error": false, "text": text, "error": null})
}

fn failed(kind: &str, code: Value, message: &str) -> Value {
    json!({"ok": false, "is_error": true, "text": "", "error": {"type": kind, "code": code, "message": message}})
}

fn service_error(error: &ServiceError) -> Value {
    match error {
        ServiceError::McpError(error) => protocol_error(error),
        other => failed("transport", Value::Null, &chain(other)),
    }
}

fn protocol_error(error: &ErrorData) -> Value {
    failed("protocol", json!(error.code.0), &error.message)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let cause = inner.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = inner.source();
    }
    text
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
