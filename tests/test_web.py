"""Requests to others than models: how long, how much, through what, and what is said of those that fail."""

from __future__ import annotations

import gzip
import socket
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from fault_server import FaultServer, Seen, answer

from tbench.threads import in_thread
from tbench.web import Unanswered, WebRequest

SECRET = "s3cret"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def why(url: str, deadline_sec: float = 5.0, **more: Any) -> str:
    with pytest.raises(Unanswered) as caught:
        WebRequest(url, deadline_sec, **more).answer()
    return str(caught.value)


@pytest.mark.parametrize("status", [200, 204, 304, 404, 500])
async def test_an_answer_is_one_whatever_its_status(endpoint: FaultServer, status: int) -> None:
    endpoint.will_answer(status, b"" if status in (204, 304) else b"body", {"Date": "today"})
    request = WebRequest(endpoint.base_url, 5.0)
    for got in (request.answer(), await in_thread(request.answer)):
        assert (got.status, got.headers["DATE"], got.body[:4]) == (status, "today", got.body)


def test_a_body_is_sent_with_its_method_and_headers(endpoint: FaultServer) -> None:
    endpoint.will_answer(201, b"")
    WebRequest(endpoint.base_url, 5.0, method="POST", headers={"X-Own": "1"}, body=b"{}").answer()
    (seen,) = endpoint.seen
    assert (seen.method, seen.body, seen.headers["x-own"]) == ("POST", b"{}", "1")


def test_a_body_that_is_packed_all_the_same_is_not_unpacked_beyond_its_bound(endpoint: FaultServer) -> None:
    packed = gzip.compress(bytes(1 << 24))
    endpoint.will_answer(200, packed, {"content-encoding": "gzip"})
    assert WebRequest(endpoint.base_url, 5.0).answer().body == packed
    assert endpoint.seen[0].headers["accept-encoding"] == "identity"


def test_a_body_has_a_bound_and_may_be_left_unread(endpoint: FaultServer) -> None:
    endpoint.will_trickle(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(3 << 20), 60.0)
    assert why(endpoint.base_url, most_bytes=2 << 20) == "more than 2 MB"
    assert WebRequest(endpoint.base_url, 5.0, most_bytes=0).answer().body == b""


@pytest.mark.parametrize("begins", [b"HTTP/1.1", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_the_deadline_is_that_of_the_whole_answer(endpoint: FaultServer, begins: bytes) -> None:
    endpoint.will_trickle(begins, 0.02)
    assert why(endpoint.base_url, 0.2) == "no complete answer within 0.2 s"
    with pytest.raises(Unanswered, match=r"no complete answer within 0\.2 s"):
        await in_thread(WebRequest(endpoint.base_url, 0.2).answer)


def test_silence_can_have_a_bound_of_its_own(endpoint: FaultServer) -> None:
    endpoint.will_hang()
    assert why(endpoint.base_url, 60.0, silence_sec=0.1) == "no data for 0.1 s"


@pytest.mark.parametrize(
    ("play", "words"),
    [
        (lambda server: server.will_disconnect(), "no usable answer: "),
        (lambda server: server.will_reset(), "no usable answer: "),
        (lambda server: server.will_send(b"\0\0 no http \n\n"), "no usable answer: "),
        (
            lambda server: server.will_send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello"),
            "no usable answer: peer closed connection without sending complete message body (received 5 bytes",
        ),
        (lambda server: server.go_away(), "cannot be reached: [Errno 111] Connection refused"),
    ],
)
def test_a_server_that_gives_no_answer_is_one_line(
    endpoint: FaultServer, play: Callable[[FaultServer], None], words: str
) -> None:
    play(endpoint)
    told = why(endpoint.base_url)
    assert told.startswith(words) and "\n" not in told


@pytest.mark.parametrize(
    ("url", "more", "words"),
    [
        (f"hooks.host/{SECRET}", {}, "not an http or https URL"),
        (f"ftp://me:{SECRET}@host/", {}, "not an http or https URL"),
        (f"http://me:{SECRET}@host:{SECRET}/", {}, "it cannot be sent (InvalidURL)"),
        (f"http://127.0.0.1:9/\n{SECRET}", {}, "it cannot be sent (InvalidURL)"),
        ("http://127.0.0.1:{port}/", {"headers": {"X-Key": f"{SECRET}\n"}}, "it cannot be sent (LocalProtocolError)"),
        (f"http://me:{SECRET}@127.0.0.1:9/", {}, "cannot be reached: [Errno 111] Connection refused"),
    ],
)
def test_what_cannot_be_sent_is_reported_without_its_secrets(
    endpoint: FaultServer, url: str, more: dict[str, Any], words: str
) -> None:
    port = endpoint.base_url.rpartition(":")[2].partition("/")[0]
    request = WebRequest(url.replace("{port}", port), 5.0, **more)
    with pytest.raises(Unanswered) as caught:
        request.answer()
    assert str(caught.value) == words and SECRET not in repr(request)


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [(301, "GET", "GET"), (302, "POST", "GET"), (303, "POST", "GET"), (307, "POST", "POST")],
)
def test_a_redirect_is_followed_and_a_key_stays_with_its_server(
    endpoint: FaultServer, status: int, method: str, then: str
) -> None:
    other = FaultServer()
    other.will_answer(200, b"here")
    # A redirect's own body is not read, as it may be endless.
    head = f"HTTP/1.1 {status} Moved\r\nLocation: {other.base_url}/new\r\n\r\n".encode()
    endpoint.will_trickle(head, 60.0)
    body = b"{}" if method == "POST" else None
    key = {"Authorization": f"Bearer {SECRET}"}
    assert WebRequest(endpoint.base_url, 5.0, method=method, headers=key, body=body).answer().body == b"here"
    other.close()
    (seen,) = other.seen
    assert (seen.method, seen.path, seen.body) == (then, "/v1/new", b"{}" if then == "POST" else b"")
    assert "authorization" not in seen.headers and "authorization" in endpoint.seen[0].headers


def test_redirects_have_an_end_and_lead_to_http_only(endpoint: FaultServer) -> None:
    endpoint.will_answer(302, b"", {"Location": "/v1/again"})
    assert why(endpoint.base_url) == "redirected more than 10 times"
    endpoint.answer_by(lambda _: answer(302, b"", {"Location": "file:///etc/hostname"}))
    assert why(endpoint.base_url) == "it cannot be sent (UnsupportedProtocol)"


def test_user_and_password_are_sent_as_such(endpoint: FaultServer) -> None:
    endpoint.will_answer(200, b"")
    WebRequest(endpoint.base_url, 5.0, login=("me", SECRET)).answer()
    WebRequest(endpoint.base_url.replace("//", f"//me:{SECRET}@"), 5.0).answer()
    expected = f"Basic {b64encode(f'me:{SECRET}'.encode()).decode()}"
    assert [seen.headers["authorization"] for seen in endpoint.seen] == [expected, expected]


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_the_environment_s_proxy_is_asked_for_all_but_this_machine(
    endpoint: FaultServer, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    def proxy(seen: Seen) -> bytes:
        return answer(200, b"proxied" if seen.path.startswith("http://") else b"direct")

    endpoint.answer_by(proxy)
    place = endpoint.base_url.removeprefix("http://").removesuffix("/v1")
    monkeypatch.setenv(variable, f"{scheme}me:{SECRET}@{place}")
    assert WebRequest("http://registry.invalid/x", 5.0).answer().body == b"proxied"
    assert "proxy-authorization" in endpoint.seen[0].headers
    assert WebRequest(endpoint.base_url, 5.0).answer().body == b"direct"
    monkeypatch.setenv("NO_PROXY", "registry.invalid")
    assert why("http://registry.invalid/x").startswith("cannot be reached: ")


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        (f"socks5://me:{SECRET}@px:1", "SOCKS proxy; install the package socksio"),
        (f"ftp://me:{SECRET}@px:1", "cannot be sent"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_one_line(monkeypatch: pytest.MonkeyPatch, proxy: str, words: str) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    told = why("http://registry.invalid/x")
    assert words in told and SECRET not in told


def test_a_server_that_takes_no_connection_costs_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for each in (first, second):  # they fill the queue of those who wait to be taken
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert why(f"http://127.0.0.1:{full.getsockname()[1]}/", 0.3) == "no complete answer within 0.3 s"
