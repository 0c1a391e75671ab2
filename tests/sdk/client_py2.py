"""MCP client on the Python SDK 2.x: `--mode auto` discovers 2026-07-28, `--mode legacy` starts with `initialize`."""

from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import ElicitResult

import peer

args = peer.client_args(modes=("auto", "legacy"))


async def accept(_context, _params):
    return ElicitResult(action="accept", content={"ok": True})


async def main():
    if bridge := peer.bridge(args.url):
        command, arguments = bridge
        server = stdio_client(StdioServerParameters(command=command, args=arguments))
    else:
        server = sse_client(args.url) if args.url.endswith("/sse") else args.url
    client = Client(server, mode=args.mode, elicitation_callback=accept, cache=None)
    error = {"type": "timeout", "code": None, "message": "no session before the deadline"}
    with peer.deadline(args.timeout, connected=False, error=error):
        await client.__aenter__()
    try:

        async def list_tools():
            return [tool.name for tool in (await client.list_tools()).tools]

        async def call_tool(tool, arguments):
            result = await client.call_tool(tool, arguments, progress_callback=peer.progressed)
            return result.is_error, peer.text_of(result)

        connected = {"connected": True, "revision": client.protocol_version}
        await peer.run_script(args, connected, list_tools, call_tool)
    finally:
        await client.__aexit__(None, None, None)


peer.run_client(main)
