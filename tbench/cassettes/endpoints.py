"""Cassette servers: one serves recorded answers, one is a recording proxy for a real endpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harness.endpoint.address import full_url, without_password
from tbench.cassettes.cassette import (
    AnswerLookup,
    Cassette,
    CassetteWriter,
    Json,
    NotRecorded,
    RecordedAnswer,
    decode_request,
)
from tbench.serving import JsonHandler, LocalServer
from tbench.web import Unanswered, WebRequest

_V1 = "/v1"


class CassettePlayer(LocalServer):
    """A server in a thread, as a context manager. Requests that were not recorded get HTTP 400 with the reason."""

    def __init__(self, cassette: Cassette, address: tuple[str, int] = ("127.0.0.1", 0), *, exact: bool = False) -> None:
        """With `exact`, a request must equal a recorded one, including times and hashes. Raises OSError."""
        self.cassette = cassette
        self.answered = self.refused = 0
        self._lookup, self._lookup_lock = AnswerLookup(cassette, exact=exact), threading.Lock()
        super().__init__(address, _PlayerHandler)

    @property
    def alike(self) -> int:
        """Number of answered requests that differ from the recorded ones in times or hashes."""
        return self._lookup.alike

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, Any]:
        """Return the status and body of the answer to a request."""
        with self._lookup_lock:
            try:
                found = self._lookup.answer(path, request)
            except NotRecorded as mismatch:
                self.refused += 1
                return 400, _error(f"not on this cassette: {mismatch}")
            self.answered += 1
        return found.status, found.answer


class _PlayerHandler(JsonHandler):
    server_version = "tbench-cassette"

    @property
    def player(self) -> CassettePlayer:
        return cast(CassettePlayer, self.server)

    def get(self, path: str) -> None:
        if path == "/health":
            self.send_body(200, b"")
        elif path == f"{_V1}/models":
            self.send_json(200, {"object": "list", "data": list(self.player.cassette.models)})
        else:
            self.send_json(404, _error("Not Found", 404))

    def post(self, path: str, body: bytes) -> None:
        if not path.startswith(f"{_V1}/"):
            self.send_json(404, _error("Not Found", 404))
            return
        try:
            request = decode_request(body)
        except (ValueError, RecursionError):
            self.send_json(400, _error("the body is not a JSON object"))
            return
        self.send_json(*self.player.answer(path.removeprefix(_V1), request))


def _error(message: str, status: int = 400) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


_ANSWER_SEC = 1800.0
_ASK_SEC = 20.0
_TEMPORARY_STATUSES = {401, 403, 404, 405, 408, 409, 429}
"""Statuses that do not depend on the request: if it is repeated, it may get another answer."""


class EndpointNotListing(Exception):
    """Raised if an endpoint does not list its models; the message has the reason."""


class CassetteRecorder(LocalServer):
    """A proxy that records each request with its answer in a file."""

    def __init__(
        self, file: Path, base_url: str, address: tuple[str, int], *, headers: Mapping[str, str] | None = None
    ) -> None:
        """`headers` are sent with every request. Raises EndpointNotListing, and OSError for the file and the port."""
        self._endpoint = full_url(base_url)
        self.base = without_password(self._endpoint)
        self._headers = dict(headers or {})
        self.kept = 0
        self._file_lock = threading.Lock()
        models = self._models()
        super().__init__(address, _RecorderHandler)
        try:
            self._writer = CassetteWriter(file, models)
        except OSError:
            self.server_close()
            raise

    def close(self) -> None:
        super().close()
        self._writer.__exit__()

    def _models(self) -> list[Json]:
        status, body = self._pass_on("/models", None, _ASK_SEC)
        try:
            models = json.loads(body)["data"]
            if status == 200 and all(isinstance(model["id"], str) for model in models):
                return list(models)
        except (ValueError, LookupError, TypeError):
            pass
        raise EndpointNotListing(f"{self.base}/models: HTTP {status}: {body[:200].decode('utf-8', 'replace')}")

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and body of the endpoint's answer, and record it unless its status is temporary."""
        try:
            request = decode_request(body)
        except (ValueError, RecursionError):
            return 400, _recorder_error("the body is not a JSON object")
        if request.get("stream"):
            return 400, _recorder_error("a stream cannot be recorded; send the request without `stream`")
        status, answer = self._pass_on(path, body, _ANSWER_SEC)
        if status < 500 and status not in _TEMPORARY_STATUSES:
            self._keep(path, request, status, answer)
        return status, answer

    def _keep(self, path: str, request: dict[str, Any], status: int, answer: bytes) -> None:
        try:
            decoded = json.loads(answer)
        except (ValueError, RecursionError):
            return
        with self._file_lock:
            self._writer.append(RecordedAnswer(path, request, status, decoded))
            self.kept += 1

    def _pass_on(self, path: str, body: bytes | None, deadline_sec: float) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", **self._headers}
        method = "GET" if body is None else "POST"
        try:
            url = f"{self._endpoint}{path}"
            answer = WebRequest(url, deadline_sec, method=method, headers=headers, body=body).answer()
        except Unanswered as why:
            return 502, _recorder_error(f"{self.base}: {why}", 502)
        return answer.status, answer.body


class _RecorderHandler(JsonHandler):
    server_version = "tbench-cassette"

    @property
    def recorder(self) -> CassetteRecorder:
        return cast(CassetteRecorder, self.server)

    def get(self, path: str) -> None:
        status, body = self.recorder._pass_on(path.removeprefix("/v1"), None, _ASK_SEC)
        self.send_body(status, body, "application/json")

    def post(self, path: str, body: bytes) -> None:
        status, answer = self.recorder.answer(path.removeprefix("/v1"), body)
        self.send_body(status, answer, "application/json")


def _recorder_error(message: str, status: int = 400) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "code": status}}).encode()
