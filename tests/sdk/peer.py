"""What the Python peers share: the log of received calls, and the script a client runs.

Nothing here imports an SDK, so that both generations of it can use this file from their own venv.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import anyio


def say(**line):
    print(json.dumps(line), flush=True)


# --- servers ---


def server_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", help="file to which received tool calls are appended")
    parser.add_argument("--json", action="store_true", help="answer with plain JSON instead of SSE")
    parser.add_argument("--sse", action="store_true", help="serve HTTP+SSE (2024-11-05), at /sse")
    parser.add_argument("--lines", action="store_true", help="serve lines over TCP, with a process for each connection")
    parser.add_argument("--stdio", action="store_true", help="serve stdin and stdout")
    parser.add_argument("--callers", action="store_true", help="say where each request comes from")
    args = parser.parse_args()
    if args.lines:
        serve_lines(args)
    return args


def listener_of(args):
    """The port is taken before it is announced, so nobody has to retry."""
    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((args.host, args.port))
    listener.listen(128)
    say(listening=listener.getsockname()[1])
    return listener


def serve_lines(args):
    """What `socat TCP-LISTEN:…,fork EXEC:…` does with this program in its stdio mode."""
    listener = listener_of(args)
    command = [sys.executable, "-B", sys.argv[0], "--stdio"] + (["--log", args.log] if args.log else [])
    while True:
        conn, _ = listener.accept()
        child = subprocess.Popen(command, stdin=conn, stdout=conn)
        conn.close()
        threading.Thread(target=child.wait, daemon=True).start()


class Log:
    """One JSON line per phase of a received tool call, in nanoseconds of the monotonic clock."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1) if path else None

    def write(self, tool, args, phase):
        if self.file:
            line = {"at_ns": time.monotonic_ns(), "tool": tool, "args": args, "phase": phase}
            self.file.write(json.dumps(line) + "\n")

    @contextmanager
    def call(self, tool, **args):
        self.write(tool, args, "start")
        try:
            yield
        except BaseException:
            self.write(tool, args, "cancelled")
            raise
        self.write(tool, args, "end")


def serve(app, args):
    """Serves an ASGI app."""
    import uvicorn

    listener = listener_of(args)
    if args.callers:
        app = name_callers(app)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def name_callers(app):
    async def named(scope, receive, send):
        if scope["type"] == "http":
            say(caller=scope["client"][0])
        await app(scope, receive, send)

    return named


async def sleep_in_steps(seconds):
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await anyio.sleep(min(left, 0.05))


# --- clients ---


def client_args(modes=()):
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--script", required=True, help="JSON list of steps: list, call, together, sleep, wait_line")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds a step may take")
    parser.add_argument("--mode", choices=modes, default=modes[0] if modes else None)
    return parser.parse_args()


@contextmanager
def deadline(seconds, **line):
    """Ends the process with `line` when the block takes longer: some SDK calls cannot be cancelled from within."""

    def give_up():
        say(**line)
        say(done=True)
        os._exit(0)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def error_of(exception):
    while getattr(exception, "exceptions", None):  # an exception group: the first cause will do
        exception = exception.exceptions[0]
    error = getattr(exception, "error", None)
    kind = "protocol" if hasattr(error, "code") else type(exception).__name__
    message = getattr(error, "message", None) or str(exception)
    return {"type": kind, "code": getattr(error, "code", None), "message": message}


told = []


async def progressed(_progress, _total=None, message=None):
    """What a server says of its progress, for whoever wants to know that it is not lost."""
    told.append(message)


async def run_script(args, connected, list_tools, call_tool):
    """Runs the steps; prints one line for each, and leaves no way to hang."""
    say(**connected)
    for index, step in enumerate(json.loads(args.script)):
        head = {"step": index, "op": step["op"]}
        calls = step["calls"] if step["op"] == "together" else [step]
        seconds = step.get("timeout", args.timeout)
        async with anyio.create_task_group() as group:
            for part, call in enumerate(calls):
                group.start_soon(run_step, {**head, "part": part}, step["op"], call, seconds, list_tools, call_tool)
    say(done=True)
    # The session gets a moment to say goodbye; then the process ends, whatever the SDK waits for.
    timer = threading.Timer(2.0, os._exit, [0])
    timer.daemon = True
    timer.start()


async def run_step(head, op, step, seconds, list_tools, call_tool):
    started = time.monotonic()
    outcome = {"ok": True, "is_error": False, "text": "", "error": None}
    try:
        with anyio.fail_after(seconds):
            if op == "list":
                outcome["text"] = " ".join(await list_tools())
            elif op in ("call", "together"):
                outcome["is_error"], outcome["text"] = await call_tool(step["tool"], step.get("args", {}))
            elif op == "sleep":
                await anyio.sleep(step["seconds"])
            elif op == "wait_line":
                line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
                outcome["text"] = line.rstrip("\n")
            else:
                raise ValueError(f"unknown op {op}")
    except TimeoutError:
        error = {"type": "timeout", "code": None, "message": "no answer before the deadline"}
        outcome.update(ok=False, is_error=True, error=error)
    except Exception as exception:
        outcome.update(ok=False, is_error=True, error=error_of(exception))
    say(**head, **outcome, told=[message for message in told if message], ms=round((time.monotonic() - started) * 1000, 3))


def bridge(url):
    """The command of a bridge to the server of a `tcp:` URL; `None` for any other URL."""
    if not url.startswith("tcp://"):
        return None
    host, port = url.removeprefix("tcp://").rsplit(":", 1)
    return sys.executable, ["-B", os.path.join(os.path.dirname(__file__), "bridge.py"), host, port]


def text_of(result):
    return "".join(block.text for block in result.content if block.type == "text")


def run_client(main):
    try:
        anyio.run(main)
    except BaseException as exception:
        say(connected=False, error=error_of(exception))
        say(done=True)
    os._exit(0)
