"""MCP client of the OpenAI Agents SDK: discovers 2026-07-28, and falls back to `initialize`. It answers no questions."""

from agents.mcp import MCPServerStreamableHttp

import peer

args = peer.client_args()


async def main():
    # Its own limit on a call (5 s unless told otherwise) is not what is looked at.
    server = MCPServerStreamableHttp({"url": args.url}, client_session_timeout_seconds=600)
    error = {"type": "timeout", "code": None, "message": "no session before the deadline"}
    with peer.deadline(args.timeout, connected=False, error=error):
        await server.connect()
    try:

        async def list_tools():
            return [tool.name for tool in await server.list_tools()]

        async def call_tool(tool, arguments):
            result = await server.call_tool(tool, arguments)
            return result.is_error, peer.text_of(result)

        connected = {"connected": True, "revision": server.session.protocol_version}
        await peer.run_script(args, connected, list_tools, call_tool)
    finally:
        await server.cleanup()


peer.run_client(main)
