"""Stands between a client and an OpenAI-compatible endpoint, and writes what is asked and answered."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from harness.endpoint.address import full_url, without_password
from tbench.cassettes.bodies import request_in
from tbench.cassettes.cassette import CassetteWriter, Json, RecordedAnswer
from tbench.serving.local_server import JsonHandler, LocalServer
from tbench.web import Unanswered, WebRequest

_ANSWER_SEC = 1800.0
_ASK_SEC = 20.0
_NOT_KEPT = {401, 403, 404, 405, 408, 409, 429}
"""Statuses that say nothing about the request; it is asked again, and gets another one."""


class EndpointSilent(Exception):
    """Raised where an endpoint does not list its models; the message says why."""


class CassetteRecorder(LocalServer):
    """A server that passes requests on, and keeps each with its answer in a file."""

    def __init__(
        self, file: Path, base_url: str, address: tuple[str, int], *, headers: Mapping[str, str] | None = None
    ) -> None:
        """`headers` go with every request. Raises EndpointSilent, and OSError for the file and the port."""
        self._endpoint = full_url(base_url)
        self.base = without_password(self._endpoint)
        self._headers = dict(headers or {})
        self.kept = 0
        self._lock_of_file = threading.Lock()
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
        raise EndpointSilent(f"{self.base}/models: HTTP {status}: {body[:200].decode('utf-8', 'replace')}")

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of what the endpoint answers, kept where that says something about the request."""
        try:
            request = request_in(body)
        except (ValueError, RecursionError):
            return 400, _error("the body is no JSON object")
        if request.get("stream"):
            return 400, _error("a stream cannot be recorded; ask without one")
        status, answer = self._pass_on(path, body, _ANSWER_SEC)
        if status < 500 and status not in _NOT_KEPT:
            self._keep(path, request, status, answer)
        return status, answer

    def _keep(self, path: str, request: dict[str, Any], status: int, answer: bytes) -> None:
        try:
            decoded = json.loads(answer)
        except (ValueError, RecursionError):
            return
        with self._lock_of_file:
            self._writer.append(RecordedAnswer(path, request, status, decoded))
            self.kept += 1

    def _pass_on(self, path: str, body: bytes | None, deadline_sec: float) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json", **self._headers}
        method = "GET" if body is None else "POST"
        try:
            url = f"{self._endpoint}{path}"
            answer = WebRequest(url, deadline_sec, method=method, headers=headers, body=body).answer()
        except Unanswered as why:
            return 502, _error(f"{self.base}: {why}", 502)
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


def _error(message: str, status: int = 400) -> bytes:
    return json.dumps({"error": {"message": message, "type": "BadRequestError", "code": status}}).encode()
