"""MCP client on the Python SDK before 2.0: `initialize`, up to 2025-11-25."""

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

import peer

args = peer.client_args()


async def accept(_context, _params):
    return types.ElicitResult(action="accept", content={"ok": True})


async def main():
    if bridge := peer.bridge(args.url):
        command, arguments = bridge
        transport = stdio_client(StdioServerParameters(command=command, args=arguments))
    else:
        transport = (sse_client if args.url.endswith("/sse") else streamable_http_client)(args.url)
    async with transport as (read, write, *_):
        async with ClientSession(read, write, elicitation_callback=accept) as session:
            error = {"type": "timeout", "code": None, "message": "no session before the deadline"}
            with peer.deadline(args.timeout, connected=False, error=error):
                started = await session.initialize()

            async def list_tools():
                return [tool.name for tool in (await session.list_tools()).tools]

            async def call_tool(tool, arguments):
                result = await session.call_tool(tool, arguments, progress_callback=peer.progressed)
                return result.isError, peer.text_of(result)

            connected = {"connected": True, "revision": started.protocolVersion}
            await peer.run_script(args, connected, list_tools, call_tool)


peer.run_client(main)
