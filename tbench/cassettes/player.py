"""Serves a cassette as an OpenAI-compatible endpoint."""

from __future__ import annotations

import threading
from typing import Any, cast

from tbench.cassettes.bodies import request_in
from tbench.cassettes.cassette import Cassette
from tbench.cassettes.matching import Deck, Mismatch
from tbench.serving.local_server import JsonHandler, LocalServer

_V1 = "/v1"


class CassettePlayer(LocalServer):
    """A server in a thread, as a context manager. What was not recorded is refused with HTTP 400, and why."""

    def __init__(self, cassette: Cassette, address: tuple[str, int] = ("127.0.0.1", 0), *, exact: bool = False) -> None:
        """With `exact` no request is answered that was recorded with other times in it. Raises OSError."""
        self.cassette = cassette
        self.answered = self.refused = 0
        self._deck, self._deck_lock = Deck(cassette, exact=exact), threading.Lock()
        super().__init__(address, _PlayerHandler)

    @property
    def alike(self) -> int:
        """How many requests were answered that were recorded with other times, or the like, in them."""
        return self._deck.alike

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of the answer to a request."""
        with self._deck_lock:
            try:
                found = self._deck.answer(path, request)
            except Mismatch as mismatch:
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
            request = request_in(body)
        except (ValueError, RecursionError):
            self.send_json(400, _error("the body is no JSON object"))
            return
        self.send_json(*self.player.answer(path.removeprefix(_V1), request))


def _error(message: str, status: int = 400) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
