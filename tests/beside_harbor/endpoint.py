"""The scripted endpoint that both runners talk to: it notes when a request came and when its answer was on its way.

The script is eight steps of one command each; with the claim and its confirmation that makes ten replies.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any, NamedTuple, Self, cast

from tbench.demo.replies import chat_body, models_body, reply_for_step
from tbench.demo.requests import cut_to_limit, read_chat_request
from tbench.demo.scripts import ScriptedKeystrokes, ScriptStep

COMMANDS, REPLIES = 8, 10


def steps_of(duration_sec: float) -> tuple[ScriptStep, ...]:
    """The steps that type something; the last of them does what the task asks for."""
    lines = [f"echo {number}" for number in range(COMMANDS - 1)] + ["touch /app/done"]
    return tuple(
        ScriptStep(
            analysis=f"step {number}",
            plan="one command",
            commands=(ScriptedKeystrokes(keystrokes=f"{line}\n", duration=duration_sec),),
        )
        for number, line in enumerate(lines)
    )


class Exchange(NamedTuple):
    """A request and its answer; times are seconds on one clock."""

    step: int
    """Replies that its conversation held already."""
    arrived: float
    answered: float


def step_sec(exchanges: Sequence[Exchange]) -> float:
    """Median seconds from an answer that types something to the next request of the same trial."""
    gaps = [after.arrived - before.answered for before, after in pairwise(exchanges) if before.step < COMMANDS]
    return statistics.median(gaps)


class TimedEndpoint:
    """A server in a thread, as a context manager; one trial at a time may talk to it."""

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def begin(self, duration_sec: float) -> None:
        """Forget what was noted; from now on commands have this duration."""
        self._server.steps = steps_of(duration_sec)
        self._server.exchanges.clear()

    @property
    def exchanges(self) -> list[Exchange]:
        """What was noted since the beginning, in the order of arrival."""
        return sorted(self._server.exchanges, key=lambda each: each.arrived)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True  # clients may keep idle connections
    steps: tuple[ScriptStep, ...] = steps_of(0.1)

    def __init__(self, *arguments: Any) -> None:
        self.exchanges: list[Exchange] = []
        super().__init__(*arguments)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet

    def do_GET(self) -> None:
        self._send(models_body(created=0))

    def do_POST(self) -> None:
        arrived = time.perf_counter()
        request = read_chat_request(self.rfile.read(int(self.headers["Content-Length"])))
        messages = request.conversation
        done = sum(role == "assistant" for role, _ in messages)
        server = cast(_Server, self.server)
        step = server.steps[done] if done < len(server.steps) else None
        self._send(chat_body(cut_to_limit(request, reply_for_step(step, messages))))
        # Noted first: what was written is sent when this returns, and the next request may come at once.
        server.exchanges.append(Exchange(done, arrived, time.perf_counter()))

    def _send(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: nothing is logged."""
