//! The members of `params` and `result` that decisions need, noted while the message is scanned.

use super::Undecodable;
use super::json::{Scanner, Stop};
use super::strings::unescape;

/// `params` of a request or notification. Each member is the JSON text of its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    /// All of it.
    pub raw: &'a str,
    /// `name`: the tool or prompt.
    pub name: Option<&'a str>,
    /// `arguments`
    pub arguments: Option<&'a str>,
    /// `uri`: the resource.
    pub uri: Option<&'a str>,
    /// `taskId`: the task of MCP.
    pub task_id: Option<&'a str>,
    /// `id`: the task of A2A.
    pub id: Option<&'a str>,
    /// `requestId` of a cancellation.
    pub request_id: Option<&'a str>,
    /// `protocolVersion` of an initialize.
    pub protocol_version: Option<&'a str>,
    /// `cursor` of a list.
    pub cursor: Option<&'a str>,
    /// `progressToken` of a progress notification.
    pub progress_token: Option<&'a str>,
    /// `inputResponses`: what the server has asked for, when the call is made again (MCP 2026-07-28).
    pub input_responses: Option<&'a str>,
    /// `requestState` that the server gave with its question.
    pub request_state: Option<&'a str>,
    /// `_meta`
    pub meta: Meta<'a>,
}

/// `params._meta`
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta<'a> {
    /// All of it; empty if there is none.
    pub raw: &'a str,
    /// `io.modelcontextprotocol/protocolVersion`: the message is of MCP 2026-07-28 or later.
    pub protocol_version: Option<&'a str>,
    /// `io.modelcontextprotocol/clientInfo`
    pub client_info: Option<&'a str>,
    /// `io.modelcontextprotocol/subscriptionId`
    pub subscription_id: Option<&'a str>,
    /// `progressToken`
    pub progress_token: Option<&'a str>,
    /// Some key begins with `io.modelcontextprotocol/`.
    pub is_mcp: bool,
}

/// `result` of a response. Each member is the JSON text of its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultMembers<'a> {
    /// All of it.
    pub raw: &'a str,
    /// `isError` of a tool result.
    pub is_error: Option<&'a str>,
    /// `resultType` (MCP 2026-07-28)
    pub result_type: Option<&'a str>,
    /// `requestState` of a result that asks for input.
    pub request_state: Option<&'a str>,
    /// `protocolVersion` of an initialize result: the one in force.
    pub protocol_version: Option<&'a str>,
    /// `serverInfo` of an initialize result.
    pub server_info: Option<&'a str>,
    /// `tools` of a list.
    pub tools: Option<&'a str>,
    /// `prompts` of a list.
    pub prompts: Option<&'a str>,
    /// `resourceTemplates` of a list.
    pub resource_templates: Option<&'a str>,
    /// `instructions` of an initialize or discover result.
    pub instructions: Option<&'a str>,
    /// `supportedVersions` of a discover result (MCP 2026-07-28).
    pub supported_versions: Option<&'a str>,
    /// `nextCursor` of a list; empty still means that more follows.
    pub next_cursor: Option<&'a str>,
    /// `taskId` of a created task (flat, tasks extension).
    pub task_id: Option<&'a str>,
    /// `task` of a created task (MCP 2025-11-25).
    pub task: Option<&'a str>,
}

impl ResultMembers<'_> {
    /// It says something that models go by later: a list, or what a server is and wants.
    pub fn shows(&self) -> bool {
        let members = [
            self.tools,
            self.prompts,
            self.resource_templates,
            self.instructions,
            self.server_info,
            self.supported_versions,
        ];
        members.iter().any(Option::is_some)
    }
}

impl<'a> Params<'a> {
    /// Reads the value at the cursor, whatever it is.
    pub(super) fn read(scanner: &mut Scanner<'a>) -> Result<Self, Stop> {
        let mut params = Self::default();
        if scanner.peek() != Some(b'{') {
            params.raw = scanner.value()?;
            return Ok(params);
        }
        let (raw, ()) = scanner.spanned(|scanner| {
            scanner.object(|scanner, name| {
                let slot = match &*unescape(name) {
                    "name" => &mut params.name,
                    "arguments" => &mut params.arguments,
                    "uri" => &mut params.uri,
                    "taskId" => &mut params.task_id,
                    "id" => &mut params.id,
                    "requestId" => &mut params.request_id,
                    "protocolVersion" => &mut params.protocol_version,
                    "cursor" => &mut params.cursor,
                    "progressToken" => &mut params.progress_token,
                    "inputResponses" => &mut params.input_responses,
                    "requestState" => &mut params.request_state,
                    "_meta" => {
                        params.meta = Meta::read(scanner)?;
                        return Ok(());
                    }
                    other => {
                        blame_case_variant(scanner, other, &PARAMS);
                        return scanner.skip();
                    }
                };
                *slot = Some(scanner.value()?);
                Ok(())
            })
        })?;
        params.raw = raw;
        Ok(params)
    }
}

impl<'a> Meta<'a> {
    fn read(scanner: &mut Scanner<'a>) -> Result<Self, Stop> {
        let mut meta = Self::default();
        if scanner.peek() != Some(b'{') {
            meta.raw = scanner.value()?;
            return Ok(meta);
        }
        let (raw, ()) = scanner.spanned(|scanner| {
            scanner.object(|scanner, name| {
                let name = unescape(name);
                let own = name.strip_prefix("io.modelcontextprotocol/");
                meta.is_mcp |= own.is_some();
                let slot = match own.unwrap_or(&name) {
                    "protocolVersion" if own.is_some() => &mut meta.protocol_version,
                    "clientInfo" if own.is_some() => &mut meta.client_info,
                    "subscriptionId" if own.is_some() => &mut meta.subscription_id,
                    "progressToken" if own.is_none() => &mut meta.progress_token,
                    _ => {
                        blame_case_variant(scanner, &name, &META);
                        return scanner.skip();
                    }
                };
                *slot = Some(scanner.value()?);
                Ok(())
            })
        })?;
        meta.raw = raw;
        Ok(meta)
    }
}

impl<'a> ResultMembers<'a> {
    /// Reads the value at the cursor, whatever it is.
    pub(super) fn read(scanner: &mut Scanner<'a>) -> Result<Self, Stop> {
        let mut result = Self::default();
        scanner.lenient = true;
        let (raw, ()) = scanner.spanned(|scanner| {
            if scanner.peek() != Some(b'{') {
                return scanner.skip();
            }
            scanner.object(|scanner, name| {
                let slot = match &*unescape(name) {
                    "isError" => &mut result.is_error,
                    "resultType" => &mut result.result_type,
                    "requestState" => &mut result.request_state,
                    "protocolVersion" => &mut result.protocol_version,
                    "serverInfo" => &mut result.server_info,
                    "tools" => &mut result.tools,
                    "prompts" => &mut result.prompts,
                    "resourceTemplates" => &mut result.resource_templates,
                    "instructions" => &mut result.instructions,
                    "supportedVersions" => &mut result.supported_versions,
                    "nextCursor" => &mut result.next_cursor,
                    "taskId" => &mut result.task_id,
                    "task" => &mut result.task,
                    _ => return scanner.skip(),
                };
                *slot = Some(scanner.value()?);
                Ok(())
            })
        })?;
        scanner.lenient = false;
        result.raw = raw;
        Ok(result)
    }
}

/// Notes a fault if `name` is one of `known` but for case, as decoders that ignore case (Go's `encoding/json`, which
/// folds U+017F and U+212A too) would take it for that one. Gives the name that is meant.
pub(super) fn blame_case_variant(
    scanner: &mut Scanner<'_>,
    name: &str,
    known: &[&'static str],
) -> Option<&'static str> {
    let same = |known: &str| {
        let mut letters = name.chars();
        known.bytes().all(|byte| letters.next().is_some_and(|letter| fold(letter) == fold(char::from(byte))))
            && letters.next().is_none()
    };
    let meant = known.iter().copied().find(|known| same(known))?;
    scanner.blame(Undecodable::CaseVariant(Undecodable::evidence(name)));
    Some(meant)
}

/// The letter, or the one it is to a decoder that ignores case.
pub(super) fn fold(letter: char) -> char {
    match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        _ => letter.to_ascii_lowercase(),
    }
}

const PARAMS: [&str; 8] =
    ["name", "arguments", "uri", "taskId", "requestId", "protocolVersion", "id", "_meta"];
const META: [&str; 2] = ["io.modelcontextprotocol/protocolVersion", "progressToken"];
