"""The stream of events to one browser: all that is there, then what changes, at a rate that it can take."""

from __future__ import annotations

import select
import socket
import time
from http import HTTPStatus

from tbench.serving.local_server import LocalHandler
from tbench.view.heads import head_lines
from tbench.view.viewing import Viewing
from tbench.view.watching import LOOK_SEC

MOST_TOLD = 96
"""Things that one message tells of; what else has changed comes with the next."""
BEAT_SEC = 10.0
_SLOW_SEC = 10.0
"""A browser that takes nothing for so long is dropped; it comes back by itself."""
_BUFFER_BYTES = 1 << 18
_AGAIN_MS = 1500


def send_news(handler: LocalHandler, view: Viewing) -> None:
    """Tell a browser what is on the board until it goes away, takes too long, or the server ends."""
    handler.close_connection = True
    with view.stream_slot() as has_slot:
        if not has_slot:
            handler.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many live pages are open")
            return
        lines = head_lines("text/event-stream; charset=utf-8") | {"Cache-Control": "no-store"}
        handler.send_head(HTTPStatus.OK, lines, None)
        if handler.command == "HEAD":
            return
        handler.wfile.flush()
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        handler.connection.settimeout(_SLOW_SEC)
        _follow_board(handler.connection, view, view.board.known_of(handler.headers.get("Last-Event-ID")))


def _follow_board(connection: socket.socket, view: Viewing, known: int) -> None:
    board = view.board
    connection.sendall(b"retry: %d\n\n" % _AGAIN_MS)
    is_first = True
    while not board.is_closed and not _has_gone(connection):
        if not is_first and not board.wait(known, BEAT_SEC):
            connection.sendall(b": beat\n\n")
            continue
        if board.is_closed:
            return
        news = board.news(known, MOST_TOLD)
        is_first, known = False, news.change
        head = b"id: %s-%d\nevent: news\ndata: " % (board.era.encode(), known)
        connection.sendall(b"%s%s\n\n" % (head, _with_clock(news.data)))
        view.stopping.wait(LOOK_SEC if news.is_all else LOOK_SEC / 8)


def _with_clock(data: bytes) -> bytes:
    """The message with this machine's time, by which the browser counts."""
    return b'{"clock":%d,%s' % (time.time(), data[1:])


def _has_gone(connection: socket.socket) -> bool:
    """Whether the browser has closed its end."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN | select.POLLHUP | select.POLLERR)
    if not waiting.poll(0):
        return False
    try:
        return not connection.recv(1 << 12)  # it has nothing to say; what it does say is not heard
    except OSError:
        return True
