"""A2A agent on the Python SDK: the bindings JSON-RPC, at /, and HTTP+JSON, at /rest, with 0.3 beside 1.0."""

from a2a.helpers import (
    new_task_from_user_message,
    new_text_artifact_update_event,
    new_text_message,
    new_text_status_update_event,
)
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette

import peer

args = peer.server_args()
log = peer.Log(args.log)


class Bank(AgentExecutor):
    """Says the text back; with `task` in front, in a task that says it word by word; `slow` sleeps before the last word."""

    async def execute(self, context, queue):
        text = context.get_user_input()
        words = text.split()
        with log.call("execute", text=text):
            if words[0] != "task":
                await queue.enqueue_event(new_text_message(text, context_id=context.context_id))
                return
            task = context.current_task or new_task_from_user_message(context.message)
            await queue.enqueue_event(task)
            for word in words[1:]:
                if word == "slow":
                    await peer.sleep_in_steps(20)
                event = new_text_artifact_update_event(task.id, task.context_id, "words", word, append=False)
                await queue.enqueue_event(event)
                log.write("word", {"word": word}, "end")
            done = new_text_status_update_event(task.id, task.context_id, TaskState.TASK_STATE_COMPLETED, "done")
            await queue.enqueue_event(done)

    async def cancel(self, context, queue):
        log.write("cancel", {"task": context.task_id}, "start")
        state = TaskState.TASK_STATE_CANCELED
        await queue.enqueue_event(new_text_status_update_event(context.task_id, context.context_id, state, "canceled"))


def main():
    card = AgentCard(
        name="bank-a2a",
        description="An agent of the tests",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="echo", name="Echo", description="Says the text back", tags=["test"])],
        # Clients put their own host in front.
        supported_interfaces=[AgentInterface(url="http://agent.test/", protocol_binding="JSONRPC", protocol_version="1.0")],
    )
    handler = DefaultRequestHandlerV2(Bank(), InMemoryTaskStore(), card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
        *create_rest_routes(handler, enable_v0_3_compat=True, path_prefix="/rest"),
    ]
    peer.serve(Starlette(routes=routes), args)


main()
