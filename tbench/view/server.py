"""The server of `tbench view`: a thread for each connection, beside those that watch runs and write pages."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Self

from tbench.view.requests import ViewHandler
from tbench.view.viewing import Viewing


class ViewServer(ThreadingHTTPServer):
    """Serves the pages in a folder, and what happens below others. A context manager, whose end ends every thread."""

    daemon_threads = False  # joined by server_close()
    request_queue_size = 64

    def __init__(self, viewing: Viewing) -> None:
        """Raises OSError where the port is taken."""
        self.viewing = viewing
        self.address_family = viewing.address.family
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((viewing.address.host, viewing.address.port), ViewHandler)

    @property
    def port(self) -> int:
        """The port that was taken."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """What a user opens."""
        return self.viewing.address.url(self.port)

    def server_bind(self) -> None:
        # HTTPServer's own asks DNS for the host's name, which can take seconds.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def __enter__(self) -> Self:
        self.viewing.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Close every connection and end every thread."""
        self.viewing.end()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
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
        # A browser that left, or took nothing for too long, is no error.
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)
