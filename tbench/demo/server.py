"""HTTP server of `scripted-demo`: an OpenAI-compatible server for trials and tests.

For local use only: it does not check keys.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Self, cast

from tbench.demo.replies import (
    DEFAULT_SERVING,
    RefusedError,
    ServedReply,
    Serving,
    chat_body,
    chunk_bodies,
    error_body,
    models_body,
    reply_for_step,
    text_body,
    thinking_for_step,
)
from tbench.demo.requests import (
    AnyRequest,
    ChatRequest,
    cut_to_limit,
    read_chat_request,
    read_text_request,
    reply_limit,
)
from tbench.demo.scripts import SCRIPTS, Scripts
from tbench.serving import JsonHandler, LocalServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class DemoEndpoint:
    """A `scripted-demo` server in a thread, as a context manager.

    `instructions` maps task names to instruction texts; port 0 selects a free one; each reply is delayed by
    `latency_sec`.
    """

    def __init__(
        self,
        instructions: Mapping[str, str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        latency_sec: float = 0.0,
        scripts: Path = SCRIPTS,
    ) -> None:
        self._scripts = Scripts(instructions, scripts)
        self._address = (host, port)
        self._latency_sec = latency_sec
        self._server: _Server | None = None

    @property
    def base_url(self) -> str:
        """URL with `/v1`, available after the start."""
        if self._server is None:
            raise RuntimeError("the demo endpoint is not running")
        return self._server.base_url

    def start(self) -> Self:
        """Bind and serve. Raises OSError if the port is taken."""
        self._server = _Server(self._address, self._scripts, self._latency_sec).__enter__()
        return self

    def stop(self) -> None:
        """Close all connections and end all threads. May be called again."""
        server, self._server = self._server, None
        if server:
            server.__exit__()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(
    host: str,
    port: int,
    instructions: Mapping[str, str],
    *,
    latency_sec: float = 0.0,
    pass_rates: Mapping[str, float] = MappingProxyType({}),
    serving: Serving = DEFAULT_SERVING,
    announce: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted (KeyboardInterrupt propagates)."""
    server = _Server((host, port), Scripts(instructions, pass_rates=pass_rates), latency_sec, serving)
    try:
        # Flushed, so that a reader of a pipe gets the port at once.
        (announce or partial(print, flush=True))(
            f"{serving.model} at {server.base_url}: a script that plays prepared replies, not a model"
        )
        server.serve_forever()
    finally:
        server.close()


class _Server(LocalServer):
    def __init__(
        self, address: tuple[str, int], scripts: Scripts, latency_sec: float, serving: Serving = DEFAULT_SERVING
    ) -> None:
        self.scripts = scripts
        self.serving = serving
        self.latency_sec = latency_sec
        self.created = int(time.time())
        self.stopping = threading.Event()
        super().__init__(address, _Handler)

    def close(self) -> None:
        self.stopping.set()
        super().close()


class _Handler(JsonHandler):
    server_version = "tbench-demo"

    @property
    def demo(self) -> _Server:
        return cast(_Server, self.server)

    def get(self, path: str) -> None:
        if path == "/health":
            self.send_body(200, b"")
        elif path == "/v1/models":
            self.send_json(200, models_body(self.demo.created, self.demo.serving))
        else:
            self._no_such_path(path in {CHAT, TEXT})

    def post(self, path: str, body: bytes) -> None:
        if path not in {CHAT, TEXT}:
            self._no_such_path(path in {"/health", "/v1/models"})
            return
        try:
            self._complete(read_chat_request(body) if path == CHAT else read_text_request(body))
        except RefusedError as refused:
            self.send_json(refused.status, refused.body)

    def _complete(self, request: AnyRequest) -> None:
        serving = self.demo.serving
        reply_limit(request, serving)  # refuse before the latency
        messages = request.conversation
        step = self.demo.scripts.step(messages, request.seed or 0)
        scripted = reply_for_step(step, messages, request.functions)
        if serving.thinking is not None and isinstance(request, ChatRequest):
            scripted = scripted._replace(thinking=thinking_for_step(step))
        reply = cut_to_limit(request, scripted, serving)
        pace = serving.tokens_per_sec
        spoken_sec = reply.usage["completion_tokens"] / pace if pace is not None else 0.0
        if self.demo.stopping.wait(self.demo.latency_sec + spoken_sec):
            self.send_json(503, error_body(503, "The demo endpoint is stopping.", "Service Unavailable"))
            return
        if request.stream:
            options = request.stream_options
            self._stream(reply, include_usage=options is not None and options.include_usage)
        else:
            self.send_json(200, chat_body(reply) if isinstance(request, ChatRequest) else text_body(reply))

    def _stream(self, reply: ServedReply, *, include_usage: bool) -> None:
        chunked = {"Content-Type": "text/event-stream; charset=utf-8", "Transfer-Encoding": "chunked"}
        self.send_head(200, chunked, None)
        for chunk in chunk_bodies(reply, include_usage):
            self._send_event(json.dumps(chunk, ensure_ascii=False))
        self._send_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def _no_such_path(self, path_exists: bool) -> None:
        status, detail = (405, "Method Not Allowed") if path_exists else (404, "Not Found")
        self.send_json(status, {"detail": detail})
