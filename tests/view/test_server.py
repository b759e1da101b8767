"""The viewer over HTTP: what it answers and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from live_runs import RunBeingWritten
from run_trees import a_result, write_run
from viewers import DEADLINE_SEC, until, viewed

from tbench.view.server import ENTRIES_PER_MESSAGE, ViewServer
from tbench.view.viewer_state import MAX_STREAMS


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    write_run(tmp_path / "done", [a_result("a", 0, 1.0)], {"a": None}, [0])
    with viewed(tmp_path) as running:
        until(lambda: running.viewing.refresher.version > 0)
        yield running


@dataclass(frozen=True)
class Answer:
    """Response of a server."""

    status: int
    headers: Message
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()

    def json(self) -> Any:
        return json.loads(self.content)


def get(
    server: ViewServer,
    path: str,
    params: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    method: str = "GET",
) -> Answer:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_SEC)) as connection:
        connection.request(method, f"{path}?{urlencode(params)}" if params else path, headers=headers or {})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


class Followed:
    """Event stream, as a browser reads it."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.id = ""
        self.things: dict[str, Any] = {}

    def message(self) -> dict[str, Any]:
        for line in self._lines:
            if line.startswith("id: "):
                self.id = line[4:]
            if line.startswith("data: "):
                news: dict[str, Any] = json.loads(line[6:])
                self.things = {} if news.get("anew") else self.things
                self.things |= news["set"]
                for key in news["gone"]:
                    self.things.pop(key, None)
                return news
        raise AssertionError("the stream has ended")

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(200):
            if is_so(self.things):
                return self.things
            self.message()
        raise AssertionError(self.things)

    def tile(self, task: str) -> dict[str, Any]:
        return next((value for key, value in self.things.items() if key[:5] == "trial" and value["task"] == task), {})


@contextmanager
def following(server: ViewServer, last: str | None = None) -> Iterator[Followed]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=DEADLINE_SEC)) as connection:
        connection.request("GET", "/live/events", headers={} if last is None else {"Last-Event-ID": last})
        stream = connection.getresponse()
        assert stream.headers["Content-Type"].startswith("text/event-stream")
        yield Followed(raw.decode().rstrip("\n") for raw in stream)
        stream.close()


def test_the_pages_are_served_with_a_policy_in_the_head(server: ViewServer) -> None:
    page = get(server, "/")
    assert page.status == 200 and "done" in page.text
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe-inline" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    style = get(server, "/assets/site.css")
    assert style.headers["Content-Type"].startswith("text/css")
    assert get(server, "/runs/done/").status == 200
    assert get(server, "/runs/done").headers["Location"] == "/runs/done/"


def test_what_has_not_changed_is_not_sent_again(server: ViewServer) -> None:
    mark = get(server, "/").headers["ETag"]
    again = get(server, "/", headers={"If-None-Match": mark})
    assert (again.status, again.content) == (304, b"")


def test_head_has_no_body_and_nothing_else_is_answered(server: ViewServer) -> None:
    for path in ("/", "/live", "/live/state.js", "/live/events", "/nothing"):
        head = get(server, path, method="HEAD")
        assert head.content == b"", path
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        refused = get(server, "/live", method=method)
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


def test_a_missing_page_gives_a_message(server: ViewServer) -> None:
    missing = get(server, "/runs/x/y.html")
    assert missing.status == 404 and "Page not found" in missing.text and "../../live.html" in missing.text
    for path in ("/runs/", "/../done/run.json", "/%2e%2e/index.sqlite", "/.pages/index.sqlite", "/live/../live.py"):
        assert get(server, path).status == 404, path


def test_a_foreign_page_cannot_read_anything(server: ViewServer) -> None:
    """Its name may resolve to this machine, but its requests carry that name."""
    for path in ("/", "/live", "/live/events", "/live/state.js"):
        assert get(server, path, headers={"Host": f"evil.example:{server.port}"}).status == 421


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_foreign_page_may_link_here_but_load_no_script(server: ViewServer, site: str) -> None:
    """`same-site` is another port of this machine."""
    assert get(server, "/live/state.js").headers["Cross-Origin-Resource-Policy"] == "same-origin"
    for path in ("/live/state.js", "/live/events", "/assets/site.js"):
        assert get(server, path, headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"}).status == 403
    assert get(server, "/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}).status == 200


def test_the_live_page_says_that_nothing_is_running(server: ViewServer) -> None:
    page = get(server, "/live")
    assert "Nothing is running." in page.text and 'http-equiv="refresh"' in page.text


def test_every_page_shows_which_runs_are_running(server: ViewServer, tmp_path: Path) -> None:
    assert b'TB["live"]' not in get(server, "/assets/site.css").content
    assert "live/state.js" in get(server, "/assets/site.js").text
    assert '"runs":[]' in get(server, "/live/state.js").text
    with RunBeingWritten(tmp_path / "now"):
        until(lambda: '"ended":0,"planned":2' in get(server, "/live/state.js").text)
        until(lambda: '"page":"runs/now/index.html"' in get(server, "/live/state.js").text)


def test_a_run_is_followed_while_it_is_running(server: ViewServer, tmp_path: Path) -> None:
    with RunBeingWritten(tmp_path / "now", ("a", "b")) as run, following(server) as followed:
        assert followed.message()["anew"]
        followed.until(lambda things: any(value.get("name") == "now" for value in things.values()))
        run.begin("a", 0)
        followed.until(lambda _: followed.tile("a").get("phase") == "agent")
        run.step("a", 0, 1, "hello\r\n")
        followed.until(lambda _: "hello" in followed.tile("a")["rows"])
        run.judge("a", 0, 0.0)
        followed.until(lambda _: followed.tile("a").get("mark") == "fail")
        run.end()
        followed.until(lambda things: any(value.get("state") == "ended" for value in things.values()))


def test_a_returning_browser_gets_only_what_it_missed(server: ViewServer, tmp_path: Path) -> None:
    with RunBeingWritten(tmp_path / "now") as run:
        run.begin("a", 0)
        with following(server) as followed:
            followed.until(lambda _: followed.tile("a") != {})
            last = followed.id
        run.note("meanwhile")
        with following(server, last) as followed:
            assert "anew" not in followed.message()
        with following(server, "0000-12") as followed:
            assert followed.message()["anew"]


def test_a_large_run_comes_in_several_messages(server: ViewServer, tmp_path: Path) -> None:
    tasks = tuple(f"t{number}" for number in range(ENTRIES_PER_MESSAGE + 10))
    with RunBeingWritten(tmp_path / "now", tasks, 1) as run:
        for task in tasks:
            run.enter(task, 0, "queued", "agent")
        until(lambda: len(server.viewing.state.snapshot()) > len(tasks))
        with following(server) as followed:
            assert len(followed.message()["set"]) == ENTRIES_PER_MESSAGE
            followed.until(lambda things: sum(key[:5] == "trial" for key in things) == len(tasks))


def test_a_browser_that_has_gone_is_forgotten(server: ViewServer, tmp_path: Path) -> None:
    with RunBeingWritten(tmp_path / "now") as run:
        with following(server) as followed:
            followed.message()
            assert server.viewing.watch.readers == 1
        run.note("something")
        until(lambda: server.viewing.watch.readers == 0)


@pytest.mark.slow
def test_a_browser_that_takes_nothing_is_dropped(server: ViewServer) -> None:
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", server.port))
        reader.sendall(b"GET /live/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: server.viewing.watch.readers == 1)
        for number in range(40):
            server.viewing.state.put(str(number), {"text": "x" * 500_000})
        until(lambda: server.viewing.watch.readers == 0)


def test_the_number_of_streams_is_limited(server: ViewServer) -> None:
    server.viewing.watch.readers = MAX_STREAMS
    assert get(server, "/live/events").status == 503
    server.viewing.watch.readers = 0


def test_the_large_view_continues_where_the_last_answer_ended(server: ViewServer, tmp_path: Path) -> None:
    with RunBeingWritten(tmp_path / "now") as run, following(server) as followed:
        run.begin("a", 0)
        run.step("a", 0, 1, "one\r\n", typed="make\n")
        things = followed.until(lambda _: followed.tile("a") != {})
        key = next(key for key in things if key.startswith("trial ")).removeprefix("trial ")
        first = get(server, "/live/terminal", params={"trial": key}).json()
        assert (first["text"], first["anew"], first["columns"]) == ("one\r\n", True, 80)
        assert [step["typed"] for step in first["steps"]] == ["make"]
        run.step("a", 0, 2, "two\r\n", typed="x" * 5000)
        asked = {"trial": key, "recording": first["recording"], "begin": first["end"]}
        second = get(server, "/live/terminal", params=asked).json()
        assert (second["text"], second["anew"]) == ("two\r\n", False)
        assert [step["index"] for step in second["steps"]] == [2, 1] and len(second["steps"][0]["typed"]) < 500
        assert get(server, "/live/terminal", params=asked | {"recording": "other"}).json()["text"] == "one\r\ntwo\r\n"
        assert get(server, "/live/terminal", params=asked | {"begin": "-5"}).json()["anew"]
    for wrong in ("", "x", f"{key}x", "../../etc"):
        assert get(server, "/live/terminal", params={"trial": wrong}).status == 404


def test_texts_of_a_run_are_escaped_in_the_snapshot(server: ViewServer, tmp_path: Path) -> None:
    with RunBeingWritten(tmp_path / "now", ("<b>task</b>",)) as run:
        run.begin("<b>task</b>", 0)
        run.step("<b>task</b>", 0, 1, "<script>alert(1)</script>\x1b]0;x\x07\N{RIGHT-TO-LEFT OVERRIDE}\r\n")
        run.note("<img src=x onerror=alert(1)>")
        run.begin("<b>task</b>", 1)
        run.judge("<b>task</b>", 1, 0.5)
        get(server, "/live")
        until(lambda: "&lt;script&gt;alert(1)" in get(server, "/live").text)
        page = get(server, "/live").text
    assert "<img" not in page and "<b>" not in page and "\N{RIGHT-TO-LEFT OVERRIDE}" not in page
    assert "1</span><small> of <span" in page and "<script>" not in page


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    write_run(tmp_path / "done", [a_result("a", 0, 1.0)], {"a": None}, [0])
    with viewed(tmp_path, "0.0.0.0", "s3cret") as server:
        for path in ("/", "/live", "/live/events", "/assets/site.css", "/?token=wrong", "/live/state.js"):
            refused = get(server, path)
            assert refused.status == 403 and "done" not in refused.text, path
        entered = get(server, "/live?a=b&token=s3cret")
        assert (entered.status, entered.headers["Location"]) == (303, "/live?a=b")
        cookie = entered.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert get(server, "//evil.example/?token=s3cret").headers["Location"] == "/evil.example/"
        pair = cookie.partition(";")[0]
        assert get(server, "/live", headers={"Cookie": pair}).status == 200
        assert get(server, "/live", headers={"Cookie": f"{pair}x"}).status == 403
        assert "s3cret" in server.url


def test_malformed_requests_do_not_harm_the_server(server: ViewServer) -> None:
    for data in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n",
        b"\x16\x03\x01",
        b"G" * 70_000 + b"\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SEC) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
    assert get(server, "/").status == 200


def test_the_end_of_the_server_ends_its_streams(tmp_path: Path) -> None:
    with viewed(tmp_path) as server:
        reader = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_SEC)
        reader.sendall(b"GET /live/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert reader.recv(1 << 16).startswith(b"HTTP/1.1 200")
    with reader:
        while reader.recv(1 << 16):
            pass
    assert [thread.name for thread in threading.enumerate() if thread.name == "watch runs"] == []


def test_before_there_are_pages_the_browser_is_asked_to_wait(tmp_path: Path) -> None:
    with viewed(tmp_path) as server:
        until(lambda: server.viewing.refresher.version > 0)
        (tmp_path / ".pages" / "all" / "index.html").unlink()
        page = get(server, "/")
        assert page.status == 200 and "No pages yet" in page.text and 'content="2"' in page.text
