"""Removes the containers of a node's actor after the actor has ended for any reason.

This program only uses the standard library, since its text is sent to nodes without tbench. Ray kills an actor and its
children when the driver, head or node is gone, so this runs in a new session and waits until the pipe to the actor
closes.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

CALL_SEC = 60.0
SEARCHES, BETWEEN_SEARCHES_SEC = 10, 0.5
"""Number of searches for containers, since the engine may still be creating some."""
AWAY_SEC = 600.0
"""Seconds to wait for an engine that does not answer."""


class EngineConnection(http.client.HTTPConnection):
    """A connection to an engine at unix:///PATH or tcp://HOST:PORT."""

    def __init__(self, address: str, timeout: float = CALL_SEC) -> None:
        parts = urlsplit(address)
        super().__init__(parts.hostname or "localhost", parts.port or 2375, timeout=timeout)
        self._path = parts.path if parts.scheme == "unix" else ""

    def connect(self) -> None:
        if not self._path:
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(address: str, method: str, path: str, timeout: float = CALL_SEC) -> Any:
    """Send a request to an engine; returns the JSON answer, or None for an error status. Raises OSError."""
    connection = EngineConnection(address, timeout)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
        return json.loads(text) if answer.status < 300 and text else None
    except (http.client.HTTPException, ValueError) as error:
        raise OSError(f"{address}: {error}") from error
    finally:
        connection.close()


def list_objects(address: str, what: str, label: str) -> list[dict[str, Any]]:
    """List containers, networks or volumes with a label (KEY or KEY=VALUE). Raises OSError."""
    filters = quote(json.dumps({"label": [label]}))
    path = "/containers/json?all=1&" if what == "containers" else f"/{what}?"
    found = request(address, "GET", f"{path}filters={filters}")
    if what == "volumes":
        found = (found or {}).get("Volumes")
    return found or []


def list_owners(address: str, label: str) -> set[str]:
    """Return the owners of all containers, networks and volumes with the label. Raises OSError."""
    return {
        (each.get("Labels") or {}).get(label, "")
        for what in ("containers", "networks", "volumes")
        for each in list_objects(address, what, label)
    } - {""}


def remove_once(address: str, label: str, kept: str) -> int:
    """Remove everything with the label, except containers whose name has the prefix `kept`.

    Returns the number of removed containers. Raises OSError.
    """
    removed = 0
    for each in list_objects(address, "containers", label):
        if not any(name.lstrip("/").startswith(kept) for name in each.get("Names") or ()):
            removed += 1
            request(address, "DELETE", f"/containers/{each['Id']}?force=1&v=1")
    for each in list_objects(address, "networks", label):
        request(address, "DELETE", f"/networks/{each['Id']}")
    for each in list_objects(address, "volumes", label):
        request(address, "DELETE", f"/volumes/{quote(each['Name'], safe='')}")
    return removed


def remove_all_labelled(
    address: str,
    label: str,
    kept: str,
    *,
    away_sec: float = AWAY_SEC,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Remove everything with the label in several searches; waits up to `away_sec` for an engine that is down."""
    ends_at = time.monotonic() + away_sec
    searches = 0
    while searches < SEARCHES and time.monotonic() < ends_at:
        with contextlib.suppress(OSError):
            remove_once(address, label, kept)
            searches += 1
        sleep(BETWEEN_SEARCHES_SEC)


def main(settings: Mapping[str, str]) -> None:
    """Wait for the end of standard input, then remove the leftovers of the owner in `settings`."""
    if os.fork():
        return  # the child continues as an orphan, which is not killed together with the actor
    while os.read(0, 4096):
        pass
    remove_all_labelled(settings["address"], f"{settings['label']}={settings['owner']}", settings["kept"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
