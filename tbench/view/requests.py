"""What each request gets: pages out of the folder, the live page, its stream, a trial in large."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import parse_qs, urlencode, urlsplit

from tbench.serving.local_server import LocalHandler
from tbench.view.address import cookie_name, token_in
from tbench.view.files import ServedFile
from tbench.view.heads import head_lines
from tbench.view.large import large_view
from tbench.view.live_page import live_page, message_page
from tbench.view.stream import send_news
from tbench.view.viewing import Viewing

IDLE_SEC = 15.0
"""A connection that says nothing is closed after this, and one that takes nothing."""
_ASSETS = Path(__file__).parent / "assets"
_OWN_ASSETS = {"live.js": "text/javascript", "large.js": "text/javascript", "live.css": "text/css"}
_HTML, _JSON, _SCRIPT = "text/html; charset=utf-8", "application/json", "text/javascript; charset=utf-8"
_PIECE_BYTES = 1 << 16


class HasViewing(Protocol):
    """The server of a connection."""

    viewing: Viewing
    server_address: tuple[Any, ...]


class ViewHandler(LocalHandler):
    """One connection of a browser. Only what reads is answered."""

    server_version = "tbench-view"
    timeout = IDLE_SEC

    @property
    def view(self) -> Viewing:
        return cast(HasViewing, self.server).viewing

    @property
    def _port(self) -> int:
        return int(cast(HasViewing, self.server).server_address[1])

    def do_GET(self) -> None:  # noqa: N802 - a name of the standard library
        url = urlsplit(self.path)
        query = parse_qs(url.query, max_num_fields=20) if url.query.count("&") < 20 else {}
        if not self.view.address.answers_to(self.headers.get("Host")):
            self._send_text(HTTPStatus.MISDIRECTED_REQUEST, "This server answers to names of this machine only.\n")
        elif self._is_for_another_page():
            self._send_text(HTTPStatus.FORBIDDEN, "Pages of other servers get nothing from this one.\n")
        elif (given := query.pop("token", [None])[-1]) is not None and self.view.address.knows(given):
            self._remember(given, f"{url.path}{'?' if query else ''}{urlencode(query, doseq=True)}")
        elif not self.view.address.knows(token_in(self.headers.get("Cookie"), self._port)):
            words = "A token is needed: open the address that `tbench view` has printed, with its ?token=.\n"
            self._send_text(HTTPStatus.FORBIDDEN, words)
        else:
            self._answer(url.path, {name: values[-1] for name, values in query.items()})

    def do_POST(self) -> None:  # noqa: N802
        """Refuse whatever may change something."""
        self.close_connection = True  # what is left unread would be taken for the next request
        self._send_text(HTTPStatus.METHOD_NOT_ALLOWED, "Nothing can be changed here.\n", {"Allow": "GET, HEAD"})

    do_HEAD = do_GET  # noqa: N815
    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def _is_for_another_page(self) -> bool:
        """Whether a page of another origin asks, as for a script of this one; following a link is something else."""
        site, mode = self.headers.get("Sec-Fetch-Site"), self.headers.get("Sec-Fetch-Mode")
        return site in ("cross-site", "same-site") and mode != "navigate"

    def _remember(self, token: str, target: str) -> None:
        """Take the token out of the address, where it could be seen, into a cookie."""
        cookie = f"{cookie_name(self._port)}={token}; HttpOnly; SameSite=Strict; Path=/"
        place = "/" + target.lstrip("/")  # never another server's
        self._send(HTTPStatus.SEE_OTHER, b"", _HTML, {"Location": place, "Set-Cookie": cookie})

    def _answer(self, path: str, query: Mapping[str, str]) -> None:
        match path:
            case "/live" | "/live.html":
                self._send_live()
            case "/live/events":
                send_news(self, self.view)
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
        self.view.watch.interest()
        problem = self.view.keeper.problem
        notes = (f"The pages cannot be brought up to date: {problem}",) if problem else ()
        text = live_page(self.view.board.everything(), time.time(), notes)
        self._send_html(HTTPStatus.OK, text)

    def _send_large(self, query: Mapping[str, str]) -> None:
        trial = self.view.watch.trial(query.get("trial", ""))
        if trial is None:
            self._send(HTTPStatus.NOT_FOUND, b"{}", _JSON)
            return
        begin = query.get("begin", "0")
        place = int(begin) if begin.isdecimal() and len(begin) < 16 else 0
        told = large_view(trial, query.get("recording", ""), place)
        self._send(HTTPStatus.OK, _json(told), _JSON)

    def _state_script(self) -> bytes:
        """What runs, for pages that know nothing of it: by the places of their pages."""
        runs = [
            {"page": self.view.keeper.page_of(path), "ended": run.ended, "planned": run.facts.planned}
            for path, run in self.view.watch.running.items()
        ]
        told = {"runs": runs, "version": self.view.keeper.version}
        text = _json(told).replace(b"<", b"\\u003c").replace("\u2028".encode(), b"").replace("\u2029".encode(), b"")
        return b'window.TB = window.TB || {}; TB["live"] = ' + text + b";\n"

    def _send_page(self, path: str) -> None:
        if self.view.pages.is_folder(path):
            self._send(HTTPStatus.MOVED_PERMANENTLY, b"", _HTML, {"Location": "/" + path.lstrip("/") + "/"})
        elif (found := self.view.pages.file(path)) is not None:
            self._send_file(found)
        elif path == "/" or self.view.keeper.version == 0:
            problem = self.view.keeper.problem
            words = f"They cannot be written: {problem}" if problem else "They are being written for the first time."
            self._send_html(HTTPStatus.OK, message_page("No pages yet", words, path[1:], again_sec=2))
        else:
            words = "Pages of trials are written when their run has ended, and now and then before that."
            self._send_html(HTTPStatus.NOT_FOUND, message_page("There is no such page", words, path[1:]))

    def _send_file(self, found: ServedFile) -> None:
        if self.headers.get("If-None-Match") == found.mark:
            self._send(HTTPStatus.NOT_MODIFIED, None, found.content_type, {"ETag": found.mark})
            return
        try:
            with found.path.open("rb") as opened:
                self.send_head(HTTPStatus.OK, head_lines(found.content_type) | {"ETag": found.mark}, found.size)
                left = found.size if self.command == "GET" else 0
                while left > 0 and (piece := opened.read(min(left, _PIECE_BYTES))):
                    self.wfile.write(piece)
                    left -= len(piece)
                self.close_connection |= left > 0  # it has become shorter, and less came than was said
        except FileNotFoundError:
            self._send_text(HTTPStatus.NOT_FOUND, "This page has just been removed.\n")

    def _send_html(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode("utf-8", "replace"), _HTML)

    def _send_text(self, status: HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> None:
        self._send(status, text.encode(), "text/plain; charset=utf-8", more)

    def _send(
        self, status: HTTPStatus, body: bytes | None, content_type: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_answer(status, body, {**head_lines(content_type), **(more or {})})


@cache
def asset(name: str) -> bytes:
    """A script or style of the live pages."""
    return (_ASSETS / name).read_bytes()


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
