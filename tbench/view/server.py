"""The server of `tbench view`: pages of the folder, the live page with its event stream, the large view of a trial."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from pydantic import ValidationError

from harness.trajectory import Step
from reports.page_frame import POLICY, Crumb, page
from tbench.serving import LocalHandler, LocalServer
from tbench.storage.read_run import StoredRun
from tbench.storage.recording import cast_head, cast_piece
from tbench.storage.run_files import STEPS_NAME
from tbench.view.address import cookie_name, token_in
from tbench.view.files import ServedFile
from tbench.view.run_state import MARKS, PHASES, WatchedRun
from tbench.view.run_watch import POLL_SEC
from tbench.view.screen import Line
from tbench.view.trials import RunningTrial
from tbench.view.viewer_state import ViewerState

# Pages that exist only on a server: the live page, and messages in place of missing pages.

LIVE_POLICY = f"{POLICY}; connect-src 'self'"
_NOTHING = StoredRun(path=Path(), name="", planned_tasks=[], planned_seeds=[], results=[])
_BLANK = {**WatchedRun(_NOTHING).as_json(0.0), "state": "running", "page": "", "path": ""}
"""Empty run, copies of which the page's script fills."""
_STATES = ("running", "ended", "killed")
"""States of runs, in the order in which they are shown."""


def live_page(state: Mapping[str, Mapping[str, Any]], clock: float, notes: tuple[str, ...]) -> str:
    """Render the live page as of now; its script then keeps it up to date."""
    runs = [(key.partition(" ")[2], value) for key, value in state.items() if key.startswith("run ")]
    trials = [(key.partition(" ")[2], value) for key, value in state.items() if key.startswith("trial ")]
    return page(
        "live.html.j2",
        "live.html",
        policy=LIVE_POLICY,
        crumbs=[Crumb("live")],
        runs=sorted(runs, key=lambda each: _STATES.index(each[1]["state"])),
        trials=sorted(trials, key=lambda each: each[1]["order"]),
        notes=(*state.get("notes", {}).get("texts", ()), *notes),
        clock=clock,
        marks=MARKS,
        phases=PHASES,
        blank=_BLANK,
        screen_text=screen_text,
    )


def screen_text(lines: list[Line]) -> str:
    """Return the lines of a screen as plain text."""
    return "\n".join(line if isinstance(line, str) else "".join(line[::2]) for line in lines)


def message_page(heading: str, words: str, here: str, *, again_sec: int | None = None) -> str:
    """Render a message in place of a missing page; with `again_sec` the browser reloads it."""
    place = "x/" * here.count("/") + "message.html"
    crumbs = [Crumb(heading)]
    return page("live_message.html.j2", place, crumbs=crumbs, heading=heading, words=words, again_sec=again_sec)


# Headers of all responses: security policies, and revalidation of caches.


def response_headers(content_type: str) -> dict[str, str]:
    """Return the headers of a response."""
    return {
        "Content-Type": content_type,
        "Content-Security-Policy": f"{LIVE_POLICY}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }


# The event stream to one browser: the whole state, then changes, at the browser's pace.

ENTRIES_PER_MESSAGE = 96
"""Maximum number of entries in one message; further changes come with the next."""
HEARTBEAT_SEC = 10.0
_SLOW_SEC = 10.0
"""Seconds after which a browser that reads nothing is dropped; it reconnects by itself."""
_BUFFER_BYTES = 1 << 18
_AGAIN_MS = 1500


def stream_state(handler: LocalHandler, view: ViewerState) -> None:
    """Send the state and its changes to a browser until it disconnects, is too slow, or the server ends."""
    handler.close_connection = True
    with view.stream_slot() as has_slot:
        if not has_slot:
            handler.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many live pages are open")
            return
        lines = response_headers("text/event-stream; charset=utf-8") | {"Cache-Control": "no-store"}
        handler.send_head(HTTPStatus.OK, lines, None)
        if handler.command == "HEAD":
            return
        handler.wfile.flush()
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        handler.connection.settimeout(_SLOW_SEC)
        _send_changes(handler.connection, view, view.state.last_seen(handler.headers.get("Last-Event-ID")))


def _send_changes(connection: socket.socket, view: ViewerState, known: int) -> None:
    state = view.state
    connection.sendall(b"retry: %d\n\n" % _AGAIN_MS)
    is_first = True
    while not state.is_closed and not _has_gone(connection):
        if not is_first and not state.wait(known, HEARTBEAT_SEC):
            connection.sendall(b": beat\n\n")
            continue
        if state.is_closed:
            return
        update = state.update_since(known, ENTRIES_PER_MESSAGE)
        is_first, known = False, update.change
        head = b"id: %s-%d\nevent: news\ndata: " % (state.epoch.encode(), known)
        connection.sendall(b"%s%s\n\n" % (head, _with_clock(update.data)))
        view.stopping.wait(POLL_SEC if update.is_all else POLL_SEC / 8)


def _with_clock(data: bytes) -> bytes:
    """Add this machine's time to a message; browsers compute durations from it."""
    return b'{"clock":%d,%s' % (time.time(), data[1:])


def _has_gone(connection: socket.socket) -> bool:
    """Whether the browser has closed its end."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN | select.POLLHUP | select.POLLERR)
    if not waiting.poll(0):
        return False
    try:
        return not connection.recv(1 << 12)  # anything that it sends is ignored
    except OSError:
        return True


# The large view of one trial: new output of its terminal, and its last steps.

STEPS_SHOWN = 4
_FIRST_BYTES = 1 << 19
"""Maximum number of bytes of a recording that are sent at once; earlier output is left out."""
_STEPS_BYTES = 1 << 16
_MAX_TEXT = 400


def large_view(trial: RunningTrial, recording: str, begin: int) -> dict[str, Any]:
    """Return the output of a trial after byte `begin` of the recording with this name, and its last steps.

    A different recording, such as the next task step's, is sent from its beginning; `anew` then says that the
    screen has to be cleared first.
    """
    view: dict[str, Any] = {"text": "", "end": 0, "recording": "", "anew": True, "steps": []}
    with contextlib.suppress(OSError, ValueError):  # ValueError: a name that no file can have
        cast = trial.cast
        if cast is None or (head := cast_head(cast)) is None:
            return view
        status = cast.stat()
        name = f"{trial.part_name or ''}.{status.st_ino}"
        begin = begin if name == recording and begin <= status.st_size else 0
        piece = cast_piece(cast, begin, status.st_size, _FIRST_BYTES)
        view |= {"columns": head.columns, "rows": head.rows, "text": piece.text, "end": piece.end, "recording": name}
        view["anew"] = begin == 0 or piece.skipped
        view["steps"] = _last_steps(cast.with_name(STEPS_NAME))
    return view


def _last_steps(file: Path) -> list[Mapping[str, Any]]:
    """Read the last steps, newest first."""
    with contextlib.suppress(OSError), file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - _STEPS_BYTES))
        whole = opened.read(_STEPS_BYTES).rpartition(b"\n")[0]
        lines = whole.split(b"\n")[1 if size > _STEPS_BYTES else 0 :]
        return [step for line in reversed(lines[-STEPS_SHOWN:]) if (step := _step(line)) is not None]
    return []


def _step(line: bytes) -> Mapping[str, Any] | None:
    try:
        step = Step.model_validate(json.loads(line))
    except (ValueError, RecursionError, ValidationError):
        return None
    return {
        "index": step.index,
        "typed": _cut(" ⏎ ".join(part for action in step.actions for part in action.splitlines())),
        "problem": step.format_error or "",
        "warnings": len(step.warnings),
        "model": round(step.model_sec, 1),
        "command": round(step.command_sec, 1),
        "code": step.exit_code,
    }


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


IDLE_SEC = 15.0
"""Seconds after which a connection that neither sends nor reads is closed."""
_ASSETS = Path(__file__).parent / "assets"
_OWN_ASSETS = {"live.js": "text/javascript", "large.js": "text/javascript", "live.css": "text/css"}
_HTML, _JSON, _SCRIPT = "text/html; charset=utf-8", "application/json", "text/javascript; charset=utf-8"
_PIECE_BYTES = 1 << 16


class ViewHandler(LocalHandler):
    """One connection of a browser. Answers only requests that read."""

    server_version = "tbench-view"
    timeout = IDLE_SEC

    server: ViewServer

    @property
    def view(self) -> ViewerState:
        return self.server.viewing

    def do_GET(self) -> None:  # noqa: N802 - a name of the standard library
        url = urlsplit(self.path)
        query = parse_qs(url.query, max_num_fields=20) if url.query.count("&") < 20 else {}
        if not self.view.address.answers_to(self.headers.get("Host")):
            self._send_text(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This server answers only to loopback names.\n",
            )
        elif self._is_for_another_page():
            self._send_text(HTTPStatus.FORBIDDEN, "This server does not answer requests from pages of other servers.\n")
        elif (given := query.pop("token", [None])[-1]) is not None and self.view.address.knows(given):
            self._remember(given, f"{url.path}{'?' if query else ''}{urlencode(query, doseq=True)}")
        elif not self.view.address.knows(token_in(self.headers.get("Cookie"), self.server.port)):
            words = "A token is required: open the address that `tbench view` printed, including ?token=.\n"
            self._send_text(HTTPStatus.FORBIDDEN, words)
        else:
            self._answer(url.path, {name: values[-1] for name, values in query.items()})

    def do_POST(self) -> None:  # noqa: N802
        """Refuse requests that may change something."""
        self.close_connection = True  # an unread body would be taken for the next request
        self._send_text(HTTPStatus.METHOD_NOT_ALLOWED, "This server is read-only.\n", {"Allow": "GET, HEAD"})

    do_HEAD = do_GET  # noqa: N815
    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def _is_for_another_page(self) -> bool:
        """Whether a page of another origin requests a resource, such as a script; following a link is allowed."""
        site, mode = self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")
        return site in ("cross-site", "same-site") and mode != "navigate"

    def _remember(self, token: str, target: str) -> None:
        """Move the token from the address, where others could see it, into a cookie."""
        cookie = f"{cookie_name(self.server.port)}={token}; HttpOnly; SameSite=Strict; Path=/"
        place = "/" + target.lstrip("/")  # never on another server
        self._send(HTTPStatus.SEE_OTHER, b"", _HTML, {"Location": place, "Set-Cookie": cookie})

    def _answer(self, path: str, query: Mapping[str, str]) -> None:
        match path:
            case "/live" | "/live.html":
                self._send_live()
            case "/live/events":
                stream_state(self, self.view)
            case "/live/terminal":
                self._send_large(query)
            case "/live/state.js":
                self._send(HTTPStatus.OK, self._state_script(), _SCRIPT)
            case "/assets/site.js" if (found := self.view.pages.file(path)) is not None:
                self._send(HTTPStatus.OK, found.path.read_bytes() + b"\n" + asset("badge.js"), _SCRIPT)
            case _ if path.removeprefix("/live/") in _OWN_ASSETS and path.startswith("/live/"):
                name = path.removeprefix("/live/")
                self._send(HTTPStatus.OK, asset(name), f"{_OWN_ASSETS[name]}; charset=utf-8")
            case _:
                self._send_page(path)

    def _send_live(self) -> None:
        self.view.watch.poll_often()
        problem = self.view.refresher.problem
        notes = (f"The pages could not be updated: {problem}",) if problem else ()
        text = live_page(self.view.state.snapshot(), time.time(), notes)
        self._send_html(HTTPStatus.OK, text)

    def _send_large(self, query: Mapping[str, str]) -> None:
        trial = self.view.watch.trial(query.get("trial", ""))
        if trial is None:
            self._send(HTTPStatus.NOT_FOUND, b"{}", _JSON)
            return
        begin = query.get("begin", "0")
        place = int(begin) if begin.isdecimal() and len(begin) < 16 else 0
        self._send(HTTPStatus.OK, _json(large_view(trial, query.get("recording", ""), place)), _JSON)

    def _state_script(self) -> bytes:
        """Return a script with the running runs, for the static pages."""
        runs = [
            {"page": self.view.refresher.page_of(path), "ended": run.ended, "planned": run.stored.planned}
            for path, run in self.view.watch.running.items()
        ]
        state = {"runs": runs, "version": self.view.refresher.version}
        text = _json(state).replace(b"<", b"\\u003c").replace("\u2028".encode(), b"").replace("\u2029".encode(), b"")
        return b'window.TB = window.TB || {}; TB["live"] = ' + text + b";\n"

    def _send_page(self, path: str) -> None:
        if self.view.pages.is_folder(path):
            self._send(HTTPStatus.MOVED_PERMANENTLY, b"", _HTML, {"Location": "/" + path.lstrip("/") + "/"})
        elif (found := self.view.pages.file(path)) is not None:
            self._send_file(found)
        elif path == "/" or self.view.refresher.version == 0:
            problem = self.view.refresher.problem
            words = f"They could not be written: {problem}" if problem else "They are being written for the first time."
            self._send_html(HTTPStatus.OK, message_page("No pages yet", words, path[1:], again_sec=2))
        else:
            words = "The pages of trials are written when their run has ended, and now and then before that."
            self._send_html(HTTPStatus.NOT_FOUND, message_page("Page not found", words, path[1:]))

    def _send_file(self, found: ServedFile) -> None:
        if self.headers.get("If-None-Match") == found.mark:
            self._send(HTTPStatus.NOT_MODIFIED, None, found.content_type, {"ETag": found.mark})
            return
        try:
            with found.path.open("rb") as opened:
                self.send_head(HTTPStatus.OK, response_headers(found.content_type) | {"ETag": found.mark}, found.size)
                left = found.size if self.command == "GET" else 0
                while left > 0 and (piece := opened.read(min(left, _PIECE_BYTES))):
                    self.wfile.write(piece)
                    left -= len(piece)
                self.close_connection |= left > 0  # the file has shrunk: less was sent than announced
        except FileNotFoundError:
            self._send_text(HTTPStatus.NOT_FOUND, "This page has just been removed.\n")

    def _send_html(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode("utf-8", "replace"), _HTML)

    def _send_text(self, status: HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> None:
        self._send(status, text.encode(), "text/plain; charset=utf-8", more)

    def _send(
        self, status: HTTPStatus, body: bytes | None, content_type: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_answer(status, body, {**response_headers(content_type), **(more or {})})


@cache
def asset(name: str) -> bytes:
    """Return a script or style sheet of the live pages."""
    return (_ASSETS / name).read_bytes()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


# The server: a thread for each connection, besides those that watch runs and write pages.


class ViewServer(LocalServer):
    """Serves the pages of a folder, and live runs. A context manager that ends all threads."""

    def __init__(self, viewing: ViewerState) -> None:
        """Raises OSError if the port is taken."""
        self.viewing = viewing
        self.address_family = viewing.address.family
        super().__init__((viewing.address.host, viewing.address.port), ViewHandler)

    @property
    def url(self) -> str:
        """URL for users."""
        return self.viewing.address.url(self.port)

    def __enter__(self) -> Self:
        self.viewing.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Close every connection and end every thread."""
        self.viewing.end()
        self.close()
