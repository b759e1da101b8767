"""Talks to the service that was left running."""

import http.client
import json
import os
import socket


def call(method: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", 8077, timeout=10)
    try:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, response.read()
    finally:
        connection.close()


def post(body: bytes) -> int:
    status, headers, answer = call("POST", "/notes", body)
    assert status == 201 and headers["content-type"].split(";")[0] == "application/json"
    assert int(headers["content-length"]) == len(answer)
    number = json.loads(answer)["id"]
    assert type(number) is int
    return number


def test_it_is_healthy() -> None:
    status, headers, body = call("GET", "/health")
    assert (status, body, headers["content-length"]) == (200, b"ok", "2")


def test_notes_come_back_byte_for_byte() -> None:
    for note in (b"plain", b"", bytes(range(256)), "zwölf\r\n".encode(), os.urandom(1 << 20)):
        status, headers, body = call("GET", f"/notes/{post(note)}")
        assert (status, headers["content-type"]) == (200, "application/octet-stream")
        assert body == note and int(headers["content-length"]) == len(note)


def test_ids_count_up_and_are_not_given_out_again() -> None:
    first = post(b"one")
    assert [post(b"two"), post(b"three")] == [first + 1, first + 2]
    status, _, body = call("DELETE", f"/notes/{first + 2}")
    assert (status, body) == (204, b"")
    assert post(b"four") == first + 3
    assert call("GET", f"/notes/{first + 2}")[0] == 404
    assert call("DELETE", f"/notes/{first + 2}")[0] == 404
    assert call("GET", f"/notes/{first}")[2] == b"one"


def test_unknown_notes_and_paths_are_not_found() -> None:
    unknown = post(b"last") + 1000
    for path in (f"/notes/{unknown}", "/notes/x", "/nothing", "/"):
        status, headers, body = call("GET", path)
        assert status == 404 and int(headers["content-length"]) == len(body)


def test_a_silent_client_keeps_nobody_waiting() -> None:
    with socket.create_connection(("127.0.0.1", 8077), timeout=5):
        assert call("GET", "/health")[0] == 200


def test_it_listens_on_the_loopback_address_only() -> None:
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    assert [row[1] for row in rows if row[3] == "0A" and row[1].endswith(":1F8D")] == ["0100007F:1F8D"]
