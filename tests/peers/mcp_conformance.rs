//! What the conformance suites ask a server for, of `data/conformance.json`, on the official Rust SDK: every revision on one
//! URL. It knows nothing of any proxy.

#![expect(deprecated, reason = "clients up to 2025-11-25 have logging, sampling and subscriptions")]

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use rmcp::ErrorData;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, GetPromptRequestParams,
    GetPromptResponse, InputRequiredResult, InputResponses, ListPromptsResult, ListResourceTemplatesResult,
    ListResourcesResult, ListToolsResult, LoggingLevel, LoggingMessageNotificationParam,
    PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion, ReadResourceRequestParams,
    ReadResourceResponse, RequestStateCodec, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// The server of the conformance suites.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// As other servers have it; nothing is written there.
    #[arg(long)]
    log: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let fixture: Value =
        serde_json::from_str(include_str!("../data/conformance.json")).context("the fixture")?;
    let whole = Whole {
        fixture: Arc::new(fixture),
        // Of this process alone.
        states: Arc::new(RequestStateCodec::try_new(format!("{:032}", std::process::id()))?),
    };
    let config = StreamableHttpServerConfig::default().with_allowed_hosts(vec![args.host.to_string()]);
    let service = StreamableHttpService::new(
        move || Ok(whole.clone()),
        Arc::new(LocalSessionManager::default()),
        config,
    );
    let router = axum::Router::new().nest_service("/mcp", service);
    let listener = tokio::net::TcpListener::bind((args.host, 0)).await.context("bind")?;
    println!("{}", json!({"listening": listener.local_addr()?.port()}));
    axum::serve(listener, router).await.context("serve")
}

#[derive(Clone)]
struct Whole {
    fixture: Arc<Value>,
    states: Arc<RequestStateCodec>,
}

type Asked = RequestContext<RoleServer>;
type Answer<T> = Result<T, ErrorData>;

/// What a call or a prompt is asked for with.
struct Request {
    arguments: Map<String, Value>,
    responses: Option<InputResponses>,
    state: Option<String>,
}

impl Whole {
    fn find(&self, kind: &str, name: &str) -> Answer<&Value> {
        self.fixture[kind]
            .get(name)
            .ok_or_else(|| ErrorData::invalid_params(format!("{name} is unknown"), None))
    }

    fn list(&self, kind: &str, entry: impl Fn(&str, &Value) -> Value) -> Value {
        let all = self.fixture[kind].as_object().into_iter().flatten();
        all.map(|(name, of)| entry(name, of)).collect()
    }

    /// The next round of questions, or the result with all that was answered.
    async fn answer<T, R>(&self, entry: &Value, request: Request, context: &Asked) -> Answer<R>
    where
        T: DeserializeOwned + Into<R>,
        R: From<InputRequiredResult>,
    {
        let Request { arguments, responses, state } = request;
        let rounds = entry["rounds"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut given = arguments;
        if context.protocol_version().is_none_or(|version| version < ProtocolVersion::V_2026_07_28) {
            for (key, question) in rounds.iter().filter_map(Value::as_object).flatten() {
                let answer = ask(&fill(question, &given), context).await?;
                given.insert(key.clone(), said(&answer).unwrap_or_default().into());
            }
            return Ok(self.finish::<T>(entry, &given, context).await?.into());
        }
        let opened = state.map(|state| self.states.open_json::<(usize, Map<String, Value>)>(&state));
        let (mut turn, before) = opened.transpose().map_err(|_| invalid("requestState"))?.unwrap_or_default();
        given.extend(before);
        if let (Some(round), Some(responses)) = (rounds.get(turn).and_then(Value::as_object), &responses) {
            let answers = round.keys().map(|key| Some((key.clone(), said(responses.get(key)?)?.into())));
            if let Some(answers) = answers.collect::<Option<Vec<_>>>() {
                given.extend(answers);
                turn += 1;
            }
        }
        let Some(round) = rounds.get(turn).and_then(Value::as_object) else {
            return Ok(self.finish::<T>(entry, &given, context).await?.into());
        };
        let able = json!(context.meta.client_capabilities());
        let wanted = round.iter().filter(|(_, question)| {
            let family = question["method"].as_str().and_then(|method| method.split('/').next());
            entry["supported"].is_null() || family.is_some_and(|family| !able[family].is_null())
        });
        let wanted: Map<String, Value> =
            wanted.map(|(key, question)| (key.clone(), fill(question, &given))).collect();
        let state = self.states.seal_json(&(turn, given)).map_err(internal)?;
        let state = Some(state).filter(|_| !entry["state"].is_null() || turn > 0);
        Ok(InputRequiredResult::new(Some(parsed(wanted.into())?), state).into())
    }

    async fn finish<T: DeserializeOwned>(
        &self,
        entry: &Value,
        given: &Map<String, Value>,
        context: &Asked,
    ) -> Answer<T> {
        for line in entry["logs"].as_array().into_iter().flatten() {
            let line = LoggingMessageNotificationParam::new(LoggingLevel::Info, line.clone());
            context.peer.notify_logging_message(line).await.map_err(internal)?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if let Some(token) = context.meta.get_progress_token() {
            for progress in entry["progress"].as_array().into_iter().flatten().filter_map(Value::as_f64) {
                let progress = ProgressNotificationParam::new(token.clone(), progress).with_total(100.0);
                context.peer.notify_progress(progress).await.map_err(internal)?;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        whole(fill(&entry["result"], given))
    }
}

/// `{name}` in a text of the fixture is what the client has given under that name.
fn fill(value: &Value, given: &Map<String, Value>) -> Value {
    match value {
        Value::String(text) => {
            let fill = |text: String, (name, value): (&String, &Value)| {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text.replace(&format!("{{{name}}}"), &value)
            };
            given.iter().fold(text.clone(), fill).into()
        }
        Value::Array(parts) => parts.iter().map(|part| fill(part, given)).collect(),
        Value::Object(members) => {
            members.iter().map(|(key, part)| (key.clone(), fill(part, given))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

/// What is to be said of an answer; `None` when it is none to its question.
fn said(answer: &Value) -> Option<String> {
    if let Some(roots) = answer["roots"].as_array() {
        return Some(roots.iter().filter_map(|root| root["uri"].as_str()).collect::<Vec<_>>().join(" "));
    }
    if answer["role"].is_string() {
        return answer["content"]["text"].as_str().map(str::to_owned);
    }
    let action = answer["action"].as_str()?;
    match answer["content"].as_object() {
        Some(content) if content.len() == 1 => content.values().next().map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }),
        _ => Some(format!("action={action}, content={}", answer["content"])),
    }
}

/// Asks a client of up to 2025-11-25 while its call waits.
async fn ask(question: &Value, context: &Asked) -> Answer<Value> {
    let (peer, params) = (&context.peer, question["params"].clone());
    let answer = match question["method"].as_str() {
        Some("elicitation/create") => {
            json!(peer.create_elicitation(parsed(params)?).await.map_err(internal)?)
        }
        Some("sampling/createMessage") => {
            json!(peer.create_message(parsed(params)?).await.map_err(internal)?)
        }
        _ => json!(peer.list_roots().await.map_err(internal)?),
    };
    Ok(answer)
}

/// A result; the SDK takes its type away for clients up to 2025-11-25.
fn whole<T: DeserializeOwned>(mut result: Value) -> Answer<T> {
    result["resultType"] = json!("complete");
    parsed(result)
}

fn parsed<T: DeserializeOwned>(value: Value) -> Answer<T> {
    serde_json::from_value(value).map_err(internal)
}

fn internal(error: impl std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

fn invalid(what: &str) -> ErrorData {
    ErrorData::invalid_params(format!("{what} is not valid"), None)
}

impl ServerHandler for Whole {
    fn get_info(&self) -> ServerConfig {
        let able = ServerCapabilities::builder().enable_tools().enable_prompts().enable_resources();
        let able = able.enable_completions().enable_logging();
        ServerConfig::new(able.build())
    }

    async fn list_tools(&self, _: Option<PaginatedRequestParams>, _: Asked) -> Answer<ListToolsResult> {
        let tools = self.list("tools", |name, tool| {
            json!({"name": name, "description": tool["description"], "inputSchema": tool["inputSchema"]})
        });
        Ok(ListToolsResult::with_all_items(parsed(tools)?))
    }

    async fn call_tool(&self, params: CallToolRequestParams, context: Asked) -> Answer<CallToolResponse> {
        let entry = self.find("tools", &params.name)?;
        let request = Request {
            arguments: params.arguments.unwrap_or_default(),
            responses: params.input_responses,
            state: params.request_state,
        };
        self.answer::<rmcp::model::CallToolResult, _>(entry, request, &context).await
    }

    async fn list_prompts(&self, _: Option<PaginatedRequestParams>, _: Asked) -> Answer<ListPromptsResult> {
        let prompts = self.list("prompts", |name, prompt| {
            let arguments = prompt["arguments"].as_array().into_iter().flatten();
            let arguments: Value = arguments.map(|name| json!({"name": name, "required": true})).collect();
            json!({"name": name, "description": prompt["description"], "arguments": arguments})
        });
        Ok(ListPromptsResult::with_all_items(parsed(prompts)?))
    }

    async fn get_prompt(&self, params: GetPromptRequestParams, context: Asked) -> Answer<GetPromptResponse> {
        let entry = self.find("prompts", &params.name)?;
        let request = Request {
            arguments: params.arguments.unwrap_or_default(),
            responses: params.input_responses,
            state: params.request_state,
        };
        self.answer::<rmcp::model::GetPromptResult, _>(entry, request, &context).await
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Asked,
    ) -> Answer<ListResourcesResult> {
        let resources = self.list("resources", |uri, resource| {
            json!({"uri": uri, "name": uri, "description": uri, "mimeType": resource["mimeType"]})
        });
        Ok(ListResourcesResult::with_all_items(parsed(resources)?))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Asked,
    ) -> Answer<ListResourceTemplatesResult> {
        let template = &self.fixture["template"];
        let listed =
            json!([{"uriTemplate": template["uri"], "name": "template", "mimeType": template["mimeType"]}]);
        Ok(ListResourceTemplatesResult::with_all_items(parsed(listed)?))
    }

    async fn read_resource(
        &self,
        params: ReadResourceRequestParams,
        _: Asked,
    ) -> Answer<ReadResourceResponse> {
        let id = params.uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let mut content = match id {
            Some(id) => {
                let template = &self.fixture["template"];
                let text = template["text"].as_str().unwrap_or_default().replace("ID", id);
                json!({"mimeType": template["mimeType"], "text": text})
            }
            None => self.fixture["resources"].get(&params.uri).cloned().ok_or_else(|| {
                ErrorData::invalid_params("Resource not found", Some(json!({"uri": params.uri})))
            })?,
        };
        content["uri"] = json!(params.uri);
        let result: rmcp::model::ReadResourceResult = whole(json!({"contents": [content]}))?;
        Ok(result.into())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Asked) -> Answer<()> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Asked) -> Answer<()> {
        Ok(())
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Asked) -> Answer<()> {
        Ok(())
    }

    async fn complete(&self, _: CompleteRequestParams, _: Asked) -> Answer<CompleteResult> {
        whole(json!({"completion": {"values": ["paris", "park", "party"], "total": 3, "hasMore": false}}))
    }
}
