"""MCP server on the Python SDK before 2.0: up to 2025-11-25, with sessions."""

from mcp.server.fastmcp import Context, FastMCP
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BaseModel

import peer

args = peer.server_args()
log = peer.Log(args.log)
server = FastMCP(
    "bank-py1",
    json_response=args.json,
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)


@server.tool(structured_output=False)
async def echo(text: str) -> str:
    """Says the text back."""
    with log.call("echo", text=text):
        return text


@server.tool(structured_output=False)
async def add(a: float, b: float) -> str:
    """Adds two numbers."""
    with log.call("add", a=a, b=b):
        return f"{a + b:g}"


@server.tool(structured_output=False)
async def slow(seconds: float) -> str:
    """Takes its time."""
    with log.call("slow", seconds=seconds):
        await peer.sleep_in_steps(seconds)
        return f"slept {seconds:g} s"


@server.tool(structured_output=False)
async def wire_transfer(amount: float) -> str:
    """Moves money."""
    with log.call("wire_transfer", amount=amount):
        return f"transferred {amount:g}"


class Reply(BaseModel):
    ok: bool


@server.tool(structured_output=False)
async def ask(ctx: Context) -> str:
    """Asks the user before it answers."""
    with log.call("ask"):
        reply = await ctx.elicit("may I?", Reply)
        return reply.action


@server.tool(structured_output=False)
async def big(kib: int) -> str:
    """Answers with that many KiB of text."""
    with log.call("big", kib=kib):
        return "x" * (kib * 1024)


@server.tool(structured_output=False)
async def progress(steps: int, ctx: Context) -> str:
    """Reports each step, then answers."""
    with log.call("progress", steps=steps):
        for step in range(1, steps + 1):
            await ctx.report_progress(step, steps)
        return f"{steps} steps"


@server.tool(structured_output=False)
async def turn(says: str, ctx: Context) -> str:
    """Says something else of `echo` from now on."""
    with log.call("turn", says=says):
        server.remove_tool("echo")
        server.add_tool(echo, description=says, structured_output=False)
        await ctx.session.send_tool_list_changed()
        return "turned"


if args.stdio:
    server.run()
else:
    peer.serve(server.sse_app() if args.sse else server.streamable_http_app(), args)
