"""MCP client of FastMCP: `--mode auto` discovers 2026-07-28, `--mode legacy` starts with `initialize`."""

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

import peer

args = peer.client_args(modes=("auto", "legacy"))


async def accept(_message, _response_type, _params, _context):
    return ElicitResult(action="accept", content={"ok": True})


async def main():
    client = Client(args.url, mode=args.mode, elicitation_handler=accept)
    error = {"type": "timeout", "code": None, "message": "no session before the deadline"}
    with peer.deadline(args.timeout, connected=False, error=error):
        await client.__aenter__()
    try:

        async def list_tools():
            return [tool.name for tool in await client.list_tools()]

        async def call_tool(tool, arguments):
            async def progressed(*_):
                pass

            # As it is by default, a tool's error is an exception.
            result = await client.call_tool(tool, arguments, progress_handler=progressed)
            return result.is_error, peer.text_of(result)

        connected = {"connected": True, "revision": client.protocol_version}
        await peer.run_script(args, connected, list_tools, call_tool)
    finally:
        await client.__aexit__(None, None, None)


peer.run_client(main)
