"""MCP tools of LangChain (langchain-mcp-adapters): up to 2025-11-25, and a new session for each call."""

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.types import ElicitResult

import peer

args = peer.client_args()


async def accept(_mcp_context, _params, _context):
    return ElicitResult(action="accept", content={"ok": True})


async def progressed(*_):
    pass


async def main():
    client = MultiServerMCPClient(
        {"bank": {"transport": "http", "url": args.url}},
        callbacks=Callbacks(on_progress=progressed, on_elicitation=accept),
    )
    error = {"type": "timeout", "code": None, "message": "no session before the deadline"}
    with peer.deadline(args.timeout, connected=False, error=error):
        tools = {tool.name: tool for tool in await client.get_tools()}
        started = (await client.get_server_info())["bank"]

    async def list_tools():
        return [tool.name for tool in await client.get_tools()]

    async def call_tool(tool, arguments):
        # The form in which a model's call reaches a tool; the answer is what the model is shown.
        call = {"type": "tool_call", "id": "call-1", "name": tool, "args": arguments}
        message = await tools[tool].ainvoke(call)
        return message.status == "error", str(message.text)

    connected = {"connected": True, "revision": started.protocolVersion}
    await peer.run_script(args, connected, list_tools, call_tool)


peer.run_client(main)
