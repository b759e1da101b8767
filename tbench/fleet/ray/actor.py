"""The actor on a node of a Ray cluster: connects to the node's engine, and starts a guard that cleans up after it.

Its code is sent to the node together with the modules that it imports, so that the node only needs Python, Ray and an
engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tbench.fleet.ray.channel import Channel, Connection, Message
from tbench.fleet.ray.guard import list_owners, remove_once, request
from tbench.sandbox.docker.discovery import DEFAULT, find_engine
from tbench.sandbox.owner import Owner, OwnerState

PROBE_SEC = 20.0
_KIND = "actor"
MIN_FREE_MB = 500
"""Free space on the engine's disk below which hardly any container starts."""


class NodeActor:
    """A Ray actor that serves one run on a node; its methods are called by the run's tunnel."""

    def __init__(self, guard_text: str, label: str, kept: str) -> None:
        """`label` is the key of owner labels, `kept` the prefix of the names of kept containers.

        `guard_text` is the source of the program that removes leftovers of the actor.
        """
        self._guard_text, self._label, self._kept = guard_text, label, kept
        self._address = engine_address(os.environ)
        self._owner = Owner.of_this_process(kind=_KIND).label()
        self._channel = Channel(self._connect)
        self._guard_pipe: int | None = None

    async def prepare(self) -> dict[str, Any]:
        """Check the engine, remove leftovers of dead actors, and start the guard.

        Returns `owner`, and `why_not` if the engine cannot be used, or `left`, the number of removed containers.
        """
        found: dict[str, Any] = {"owner": self._owner}
        if urlsplit(self._address).scheme not in ("unix", "tcp"):
            return found | {"why_not": f"DOCKER_HOST={self._address} is neither unix:// nor tcp://"}
        try:
            info = await asyncio.to_thread(request, self._address, "GET", "/info", PROBE_SEC)
        except OSError as error:
            return found | {"why_not": f"no container engine answers at {self._address} ({error.strerror or error})"}
        if info is None:
            why = f"no container engine answers at {self._address}, or it requires TLS, which is not supported here"
            return found | {"why_not": why}
        if why := disk_problem(info.get("DockerRootDir", "")):
            return found | {"why_not": why}
        with contextlib.suppress(OSError):
            found["left"] = await asyncio.to_thread(self._remove_gone)
        if self._guard_pipe is None:
            self._guard_pipe = await asyncio.to_thread(self._start_guard)
        return found

    def _remove_gone(self) -> int:
        # Runs of this machine may continue in the containers of their dead processes.
        here, gone = Owner.of_this_process(), []
        for label in list_owners(self._address, self._label):
            named = Owner.parse(label)
            if named is not None and named.kind == _KIND and named.seen_from(here)[0] is OwnerState.GONE:
                gone.append(label)
        return sum(remove_once(self._address, f"{self._label}={label}", self._kept) for label in gone)

    def _start_guard(self) -> int:
        """Start the guard; returns the end of a pipe that closes when this process ends for any reason."""
        settings = {"address": self._address, "label": self._label, "owner": self._owner, "kept": self._kept}
        ours, theirs = os.pipe()
        try:
            with subprocess.Popen(
                [sys.executable, "-c", self._guard_text, json.dumps(settings)],
                stdin=ours,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ):
                pass  # it continues as an orphan
        finally:
            os.close(ours)
        return theirs

    async def _connect(self) -> Connection:
        parts = urlsplit(self._address)
        async with asyncio.timeout(PROBE_SEC):
            if parts.scheme == "unix":
                return await asyncio.open_unix_connection(parts.path)
            return await asyncio.open_connection(parts.hostname, parts.port or 2375)

    async def push(self, messages: list[Message]) -> None:
        """Take messages of the streams."""
        self._channel.take(messages)

    async def pull(self) -> list[Message]:
        """Wait for messages of the streams."""
        return await self._channel.batch()


def engine_address(variables: Mapping[str, str]) -> str:
    """Return the address of this machine's engine: DOCKER_HOST, or else the first that answers."""
    if named := variables.get("DOCKER_HOST"):
        return named
    found = find_engine(variables, patience_sec=PROBE_SEC).found
    return DEFAULT if found is None else found.host


def disk_problem(root: str, min_free_mb: int = MIN_FREE_MB) -> str:
    """Return the problem if the engine's disk is full; empty if it is not, or cannot be seen."""
    if not root or not Path(root).is_dir():
        return ""
    free_mb = shutil.disk_usage(root).free >> 20
    return f"its engine's disk is full: {free_mb} MB free at {root}" if free_mb < min_free_mb else ""
