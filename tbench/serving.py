"""Local HTTP servers with a thread for each connection and a complete shutdown."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self


class LocalServer(ThreadingHTTPServer):
    """Serves until `close`, which closes all connections and ends all threads. A context manager serves in a thread."""

    daemon_threads = False  # joined by server_close()
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        """Raises OSError if the port is taken."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self.server_address[1])

    @property
    def base_url(self) -> str:
        """URL with `/v1`, as the base URL of an endpoint."""
        return f"http://{self.server_name}:{self.port}/v1"

    def __enter__(self) -> Self:
        polling = {"poll_interval": 0.02}
        self._thread = threading.Thread(target=self.serve_forever, kwargs=polling, name="server", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.close()

    def server_bind(self) -> None:
        # HTTPServer's method looks up the host's name in DNS, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.port

    def close(self) -> None:
        """Close all connections and end all threads; `serve_forever` must have returned."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that disconnects, or does not read for too long, is not an error.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class LocalHandler(BaseHTTPRequestHandler):
    """Handles one persistent connection, without logging."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet

    def send_answer(self, status: int, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Send an answer with or without a body."""
        self.send_head(status, headers, None if body is None else len(body))
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def send_head(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        """Send the head of an answer whose body follows; `length` is None if unknown."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if length is not None:
            self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log."""


class JsonHandler(LocalHandler):
    """Handler that answers with JSON, like vLLM's server."""

    timeout = 5.0  # vLLM closes an idle connection after this

    def do_GET(self) -> None:
        self.get(self.path.partition("?")[0])

    def do_POST(self) -> None:
        # Always read the body: unread bytes would be taken for the next request.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.post(self.path.partition("?")[0], body)

    def get(self, path: str) -> None:
        """Answer a GET."""
        raise NotImplementedError

    def post(self, path: str, body: bytes) -> None:
        """Answer a POST."""
        raise NotImplementedError

    def send_json(self, status: int, body: Any) -> None:
        """Send a JSON answer."""
        self.send_body(status, json.dumps(body, ensure_ascii=False).encode(), "application/json")

    def send_body(self, status: int, body: bytes, content_type: str | None = None) -> None:
        """Send an answer with bytes."""
        self.send_answer(status, body, {"Content-Type": content_type} if content_type else {})
