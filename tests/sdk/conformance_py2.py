"""What the conformance suites ask a server for, of data/conformance.json, on the Python SDK 2.x: every revision on one URL."""

import json
import re
import warnings
from pathlib import Path

import anyio
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    INVALID_PARAMS,
    CallToolResult,
    CompleteResult,
    CreateMessageRequest,
    CreateMessageResult,
    ElicitRequest,
    ElicitResult,
    EmptyResult,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListRootsRequest,
    ListRootsResult,
    ListToolsResult,
    ReadResourceResult,
)

import peer

# Logging and push-style requests are for clients up to 2025-11-25.
warnings.simplefilter("ignore")
args = peer.server_args()
FIXTURE = json.loads((Path(__file__).parents[1] / "data/conformance.json").read_text())
QUESTIONS = {
    "elicitation/create": ("elicitation", ElicitRequest, ElicitResult),
    "sampling/createMessage": ("sampling", CreateMessageRequest, CreateMessageResult),
    "roots/list": ("roots", ListRootsRequest, ListRootsResult),
}


def fill(value, given):
    """`{name}` in a text of the fixture is what the client has given under that name."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: str(given.get(found[1], found[0])), value)
    if isinstance(value, list):
        return [fill(part, given) for part in value]
    return {key: fill(part, given) for key, part in value.items()} if isinstance(value, dict) else value


def said(response):
    """What is to be said of an answer, or None when it is none to its question."""
    match response:
        case CreateMessageResult():
            return response.content.text
        case ListRootsResult():
            return " ".join(str(root.uri) for root in response.roots)
        case ElicitResult():
            content = response.content or {}
            if len(content) == 1:
                return str(next(iter(content.values())))
            return f"action={response.action}, content={json.dumps(content)}"
    return None


def state_of(params):
    return json.loads(params.request_state) if params.request_state else {"round": 0, "given": {}}


async def ask(ctx, question):
    """Asks a client of up to 2025-11-25 while its call waits."""
    _, request, result = QUESTIONS[question["method"]]
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    return said(await ctx.session.send_request(request.model_validate(question), result, metadata=metadata))


async def answer(ctx, params, entry, result):
    """The next round of questions, or the result with all that was answered."""
    state = state_of(params)
    given = {**(params.arguments or {}), **state["given"]}
    rounds = entry.get("rounds", [])
    if ctx.protocol_version < "2026":
        for questions in rounds:
            for key, question in fill(questions, given).items():
                given[key] = await ask(ctx, question)
        return await finish(ctx, entry, result, given)
    turn = state["round"]
    if turn < len(rounds) and params.input_responses:
        answers = {key: said(params.input_responses.get(key)) for key in rounds[turn]}
        if None not in answers.values():
            given |= answers
            turn += 1
    if turn == len(rounds):
        return await finish(ctx, entry, result, given)
    able = (ctx.meta or {}).get("io.modelcontextprotocol/clientCapabilities", {})
    wanted = {
        key: question
        for key, question in rounds[turn].items()
        if not entry.get("supported") or QUESTIONS[question["method"]][0] in able
    }
    return InputRequiredResult.model_validate(
        {
            "inputRequests": fill(wanted, given),
            "requestState": json.dumps({"round": turn, "given": given}) if entry.get("state") else None,
        }
    )


async def finish(ctx, entry, result, given):
    for line in entry.get("logs", []):
        await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)
        await anyio.sleep(0.05)
    for progress in entry.get("progress", []):
        await ctx.session.report_progress(progress, 100)
        await anyio.sleep(0.05)
    return result.model_validate(fill(entry["result"], given))


def find(kind, name):
    if name not in FIXTURE[kind]:
        raise MCPError(INVALID_PARAMS, f"{name} is unknown")
    return FIXTURE[kind][name]


async def list_tools(ctx, params):
    tools = [
        {"name": name, "description": tool["description"], "inputSchema": tool["inputSchema"]}
        for name, tool in FIXTURE["tools"].items()
    ]
    return ListToolsResult.model_validate({"tools": tools})


async def call_tool(ctx, params):
    return await answer(ctx, params, find("tools", params.name), CallToolResult)


async def list_prompts(ctx, params):
    prompts = [
        {
            "name": name,
            "description": prompt["description"],
            "arguments": [{"name": argument, "required": True} for argument in prompt["arguments"]],
        }
        for name, prompt in FIXTURE["prompts"].items()
    ]
    return ListPromptsResult.model_validate({"prompts": prompts})


async def get_prompt(ctx, params):
    return await answer(ctx, params, find("prompts", params.name), GetPromptResult)


async def list_resources(ctx, params):
    resources = [
        {"uri": uri, "name": uri, "description": uri, "mimeType": resource["mimeType"]}
        for uri, resource in FIXTURE["resources"].items()
    ]
    return ListResourcesResult.model_validate({"resources": resources})


async def list_templates(ctx, params):
    template = FIXTURE["template"]
    listed = {"uriTemplate": template["uri"], "name": "template", "mimeType": template["mimeType"]}
    return ListResourceTemplatesResult.model_validate({"resourceTemplates": [listed]})


async def read_resource(ctx, params):
    uri = str(params.uri)
    if found := re.fullmatch(r"test://template/([^/]+)/data", uri):
        template = FIXTURE["template"]
        content = {"mimeType": template["mimeType"], "text": template["text"].replace("ID", found[1])}
    elif uri in FIXTURE["resources"]:
        content = FIXTURE["resources"][uri]
    else:
        raise MCPError(INVALID_PARAMS, "Resource not found", {"uri": uri})
    return ReadResourceResult.model_validate({"contents": [{"uri": uri, **content}]})


async def nothing(ctx, params):
    return EmptyResult()


async def complete(ctx, params):
    values = ["paris", "park", "party"]
    return CompleteResult.model_validate({"completion": {"values": values, "total": 3, "hasMore": False}})


server = Server(
    "conformance-py2",
    version="1.0.0",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=nothing,
    on_unsubscribe_resource=nothing,
    on_set_logging_level=nothing,
    on_completion=complete,
)
server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="conformance"))
security = TransportSecuritySettings(allowed_hosts=[f"{args.host}:*"])
peer.serve(server.streamable_http_app(transport_security=security), args)
