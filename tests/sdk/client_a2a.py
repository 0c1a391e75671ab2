"""A2A client on the Python SDK. `--url` ends in `/rest` for the binding HTTP+JSON; without that it is JSON-RPC. The steps of
its script are operations: `send` and `stream` a text, `get` and `cancel` the task that began last."""

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers import get_stream_response_text, new_text_message
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskState,
)

import peer

args = peer.client_args()
BINDING = "HTTP+JSON" if args.url.endswith("/rest") else "JSONRPC"


def client(http, streaming):
    interface = AgentInterface(url=args.url, protocol_binding=BINDING, protocol_version="1.0")
    card = AgentCard(name="bank-a2a", capabilities=AgentCapabilities(streaming=True), supported_interfaces=[interface])
    config = ClientConfig(streaming=streaming, httpx_client=http, supported_protocol_bindings=[BINDING])
    return ClientFactory(config).create(card)


async def main():
    # One connection, if it lives.
    http = httpx.AsyncClient(timeout=args.timeout, limits=httpx.Limits(max_connections=1), trust_env=False)
    task = None

    async def call(operation, arguments):
        nonlocal task
        if operation in ("send", "stream"):
            message = new_text_message(arguments["text"], context_id=arguments.get("context"), role=Role.ROLE_USER)
            configuration = SendMessageConfiguration(return_immediately=arguments.get("immediately", False))
            request = SendMessageRequest(message=message, configuration=configuration, tenant=arguments.get("tenant", ""))
            said = []
            async for event in client(http, operation == "stream").send_message(request):
                task = event.task.id if event.HasField("task") else task
                said.append(get_stream_response_text(event))
            return False, " ".join(word for word in said if word)
        request = {"get": GetTaskRequest, "cancel": CancelTaskRequest}[operation](id=task)
        method = {"get": "get_task", "cancel": "cancel_task"}[operation]
        found = await getattr(client(http, False), method)(request)
        return False, TaskState.Name(found.status.state)

    async def list_tools():
        return []

    await peer.run_script(args, {"connected": True, "revision": "1.0"}, list_tools, call)


peer.run_client(main)
