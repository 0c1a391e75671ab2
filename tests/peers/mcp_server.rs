//! An MCP server on the official Rust SDK, both eras on one URL. It knows nothing of any proxy.
//!
//! Prints `{"listening":PORT}` when ready. Appends one JSON line per tool call it received to `--log`, so that a test
//! can tell what reached the server and when, in nanoseconds of the monotonic clock.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use rmcp::ErrorData;
use rmcp::ServiceExt as _;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest,
    ElicitRequestParams, ElicitationSchema, InputRequest, InputRequests, InputRequiredResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Map, Value, json};

/// An MCP server with the tools of the whole-program tests.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// File to which received tool calls are appended.
    #[arg(long)]
    log: Option<PathBuf>,
    /// Answer with plain JSON instead of SSE.
    #[arg(long)]
    json: bool,
    /// Serve lines over TCP.
    #[arg(long)]
    lines: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let log = Log::open(args.log)?;
    let says = Says::default();
    if args.lines {
        return serve_lines((args.host, args.port), &Bank { log, says }).await;
    }
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(Vec::<String>::new())
        .with_json_response(args.json);
    let service = StreamableHttpService::new(
        move || Ok(Bank { log: log.clone(), says: says.clone() }),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind((args.host, args.port)).await.context("bind")?;
    say(&json!({"listening": listener.local_addr()?.port()}));
    axum::serve(listener, router).await.context("serve")
}

/// One session on each connection.
async fn serve_lines(address: (IpAddr, u16), bank: &Bank) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await.context("bind")?;
    say(&json!({"listening": listener.local_addr()?.port()}));
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        let bank = bank.clone();
        tokio::spawn(async move {
            // Its client may have gone.
            if let Ok(session) = bank.serve(stream).await {
                let _ = session.waiting().await;
            }
        });
    }
}

/// The tools. The name is what the demo is about: one of them moves money.
#[derive(Clone)]
struct Bank {
    log: Log,
    says: Says,
}

/// What the server says of `echo`, to everybody.
#[derive(Clone)]
struct Says(Arc<Mutex<String>>);

impl Default for Says {
    fn default() -> Self {
        Self(Arc::new(Mutex::new("Says the text back".to_owned())))
    }
}

impl Says {
    fn text(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerHandler for Bank {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools(&self.says.text())))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let args = request.arguments.clone().unwrap_or_default();
        let mut seen = self.log.received(&request.name, args.clone());
        if request.name == "turn" {
            *self.says.text() = args.get("says").and_then(Value::as_str).unwrap_or_default().to_owned();
            // Whoever has gone needs no news.
            let _ = context.peer.notify_tool_list_changed().await;
            seen.finish();
            return Ok(said("turned".to_owned()));
        }
        let cancelled = context.ct.clone();
        let response = tokio::select! {
            response = answer(request, &args, context) => response,
            () = cancelled.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
        };
        seen.finish();
        response
    }
}

async fn answer(
    request: CallToolRequestParams,
    args: &Map<String, Value>,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let number = |name: &str| args.get(name).and_then(Value::as_f64).unwrap_or_default();
    let text = match request.name.as_ref() {
        "echo" => args.get("text").and_then(Value::as_str).unwrap_or_default().to_owned(),
        "add" => (number("a") + number("b")).to_string(),
        "slow" => {
            tokio::time::sleep(Duration::from_secs_f64(number("seconds"))).await;
            format!("slept {} s", number("seconds"))
        }
        "wire_transfer" => format!("transferred {}", number("amount")),
        "big" => "x".repeat(
            args.get("kib").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok()).unwrap_or(0) * 1024,
        ),
        "progress" => {
            let steps = args.get("steps").and_then(Value::as_u64).unwrap_or(0);
            if let Some(token) = context.meta.get_progress_token() {
                for step in 1..=u32::try_from(steps).unwrap_or(u32::MAX) {
                    let progress = ProgressNotificationParam::new(token.clone(), f64::from(step));
                    context.peer.notify_progress(progress).await.map_err(internal)?;
                }
            }
            format!("{steps} steps")
        }
        "ask" => return ask(request, context).await,
        other => return Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
    };
    Ok(said(text))
}

/// Asks the client in the middle of the call: a request on the answer's stream up to 2025-11-25, `input_required`
/// and a second round from 2026-07-28 on.
async fn ask(
    request: CallToolRequestParams,
    context: RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let question = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: "may I?".to_owned(),
        requested_schema: ElicitationSchema::new(BTreeMap::new()),
    };
    if context.protocol_version().is_none_or(|version| version < ProtocolVersion::V_2026_07_28) {
        let reply = context.peer.create_elicitation(question).await.map_err(internal)?;
        return Ok(said(format!("{:?}", reply.action).to_lowercase()));
    }
    match request.input_responses.as_ref().and_then(|replies| replies.get("ok")) {
        Some(reply) => Ok(said(reply["action"].as_str().unwrap_or("no action").to_owned())),
        None => {
            let mut questions = InputRequests::new();
            questions.insert("ok".to_owned(), InputRequest::Elicitation(ElicitRequest::new(question)));
            Ok(InputRequiredResult::new(Some(questions), None).into())
        }
    }
}

fn said(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn tools(says: &str) -> Vec<Tool> {
    let tool = |name: &'static str, about: &str, fields: Value| {
        let required: Vec<&String> = fields.as_object().into_iter().flat_map(Map::keys).collect();
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("required".to_owned(), json!(required));
        schema.insert("properties".to_owned(), fields);
        Tool::new(name, about.to_owned(), schema)
    };
    vec![
        tool("echo", says, json!({"text": {"type": "string"}})),
        tool("add", "Adds two numbers", json!({"a": {"type": "number"}, "b": {"type": "number"}})),
        tool("turn", "Says something else of echo from now on", json!({"says": {"type": "string"}})),
        tool("slow", "Takes its time", json!({"seconds": {"type": "number"}})),
        tool("wire_transfer", "Moves money", json!({"amount": {"type": "number"}})),
        tool("ask", "Asks the user before it answers", json!({})),
        tool("big", "Answers with that many KiB of text", json!({"kib": {"type": "integer"}})),
        tool("progress", "Reports each step, then answers", json!({"steps": {"type": "integer"}})),
    ]
}

/// The file of received calls.
#[derive(Clone)]
struct Log(Arc<Mutex<Option<File>>>);

impl Log {
    fn open(path: Option<PathBuf>) -> anyhow::Result<Self> {
        let open = |path: PathBuf| {
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .with_context(|| format!("open {}", path.display()))
        };
        Ok(Self(Arc::new(Mutex::new(path.map(open).transpose()?))))
    }

    fn received(&self, tool: &str, args: Map<String, Value>) -> Call {
        let call = Call { log: self.clone(), tool: tool.to_owned(), args: args.into(), finished: false };
        call.write("start");
        call
    }

    fn file(&self) -> MutexGuard<'_, Option<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One received call. Dropped before `finish`, it was cancelled.
struct Call {
    log: Log,
    tool: String,
    args: Value,
    finished: bool,
}

impl Call {
    fn finish(&mut self) {
        self.finished = true;
        self.write("end");
    }

    fn write(&self, phase: &str) {
        let line = json!({"at_ns": monotonic_ns(), "tool": self.tool, "args": self.args, "phase": phase});
        if let Some(file) = self.log.file().as_mut() {
            // A lost line fails the test that waits for it; a server has nobody else to tell.
            let _ = file.write_all(format!("{line}\n").as_bytes());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.finished {
            self.write("cancelled");
        }
    }
}

fn monotonic_ns() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |at| at.tv_sec() * 1_000_000_000 + at.tv_nsec())
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
