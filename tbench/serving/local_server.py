"""The part that all our HTTP servers share: a thread for each connection, and an end that leaves none."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any


class LocalServer(ThreadingHTTPServer):
    """Serves until `close`, which closes every connection and ends every thread."""

    daemon_threads = False  # joined by server_close()
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        """Raises OSError where the port is taken."""
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    @property
    def port(self) -> int:
        """The port that was taken."""
        return int(self.server_address[1])

    def server_bind(self) -> None:
        # HTTPServer's own asks DNS for the host's name, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.port

    def close(self) -> None:
        """Close every connection and end every thread; `serve_forever` has to have returned."""
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
        # A client that left, or took nothing for too long, is no error.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class JsonHandler(BaseHTTPRequestHandler):
    """Answers with JSON, as vLLM's server does."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    timeout = 5.0  # vLLM closes an idle connection after this
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet

    def do_GET(self) -> None:
        self.get(self.path.partition("?")[0])

    def do_POST(self) -> None:
        # Read in any case: what is left unread would be taken for the next request.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.post(self.path.partition("?")[0], body)

    def get(self, path: str) -> None:
        """Answer a GET."""
        raise NotImplementedError

    def post(self, path: str, body: bytes) -> None:
        """Answer a POST."""
        raise NotImplementedError

    def send_json(self, status: int, body: Any) -> None:
        """Answer with a body."""
        self.send_body(status, json.dumps(body, ensure_ascii=False).encode(), "application/json")

    def send_body(self, status: int, body: bytes, content_type: str | None = None) -> None:
        """Answer with bytes."""
        self.send_response(status)
        if content_type:
            self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: requests are not logged."""
