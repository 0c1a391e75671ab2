"""The client that the conformance suites drive, on the Python SDK 2.x: it connects, logging in where it is told to, and
calls every tool. Its last argument is the server's URL; the rest is in MCP_CONFORMANCE_*."""

import json
import os
import sys
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

URL = sys.argv[-1]
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
MODE = "2026-07-28" if os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "") >= "2026" else "legacy"
# Where the user would be sent back to with the code: nobody listens there, the redirect is read instead.
CALLBACK = "http://localhost:3999/callback"


class Storage:
    def __init__(self):
        self.tokens = None
        self.client = None
        if "client_id" in CONTEXT:
            self.client = OAuthClientInformationFull(redirect_uris=[CALLBACK], **CONTEXT)

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


class Browser:
    """A user who agrees to everything."""

    async def visit(self, page):
        async with httpx2.AsyncClient() as http:
            answer = await http.get(page, follow_redirects=False)
        self.query = parse_qs(urlsplit(answer.headers["location"]).query)

    async def result(self):
        one = {name: values[0] for name, values in self.query.items()}
        return AuthorizationCodeResult(code=one["code"], state=one.get("state"), iss=one.get("iss"))


async def elicit(_context, _params):
    return ElicitResult(action="accept", content={})


async def sample(_context, _params):
    return CreateMessageResult(role="assistant", model="none", content=TextContent(type="text", text="Paris"))


async def roots(_context):
    return ListRootsResult(roots=[Root(uri="file:///work", name="work")])


async def main():
    browser = Browser()
    auth = OAuthClientProvider(
        server_url=URL,
        client_metadata=OAuthClientMetadata(
            client_name="conformance-py2",
            redirect_uris=[CALLBACK],
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
        ),
        storage=Storage(),
        redirect_handler=browser.visit,
        callback_handler=browser.result,
        client_metadata_url="https://conformance-test.local/client-metadata.json",
    )
    async with httpx2.AsyncClient(auth=auth, timeout=20) as http:
        client = Client(
            streamable_http_client(URL, http_client=http),
            mode=MODE,
            elicitation_callback=elicit,
            sampling_callback=sample,
            list_roots_callback=roots,
            cache=None,
        )
        async with client:
            given = {call["name"]: call["arguments"] for call in CONTEXT.get("toolCalls", [])}
            for tool in (await client.list_tools()).tools:
                known = {"a": 5, "b": 3}
                wanted = {key: known[key] for key in tool.input_schema.get("properties", {}) if key in known}
                try:
                    await client.call_tool(tool.name, given.get(tool.name, wanted))
                except Exception as error:
                    print(tool.name, error, file=sys.stderr)


anyio.run(main)
