"""The actor on a node of a Ray cluster: a way to the node's engine, and what cleans up behind it.

It goes to the node by its text, with the modules that it names here: nothing but Python, Ray and an engine need be
there.
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
from tbench.fleet.ray.guard import ask, owners, remove_gone
from tbench.sandbox.docker.owner import Life, Owner

PROBE_SEC = 20.0
LEAST_FREE_MB = 500
"""Free space of the engine's disk below which hardly any container starts."""


class NodeActor:
    """What runs on a node for one run. Ray makes it an actor; every method is called by the run's tunnel."""

    def __init__(self, guard_text: str, label: str, kept: str) -> None:
        """`label` names owners of containers, and `kept` begins the names of those that stay.

        `guard_text` is the program that removes what the actor leaves.
        """
        self._guard_text, self._label, self._kept = guard_text, label, kept
        self._address = engine_address(os.environ)
        self._owner = Owner.of_this_process().label()
        self._channel = Channel(self._connect)
        self._guard_pipe: int | None = None

    async def look(self) -> dict[str, Any]:
        """What there is here: owner, and `why_not` where the engine cannot be used; then nothing is started.

        Where it can, what owners have left who are gone is removed (`left`: containers), and a guard waits.
        """
        found: dict[str, Any] = {"owner": self._owner}
        if urlsplit(self._address).scheme not in ("unix", "tcp"):
            return found | {"why_not": f"DOCKER_HOST={self._address} is neither unix:// nor tcp://"}
        try:
            info = await asyncio.to_thread(ask, self._address, "GET", "/info", PROBE_SEC)
        except OSError as error:
            return found | {"why_not": f"no container engine answers at {self._address} ({error.strerror or error})"}
        if info is None:
            why = f"no container engine answers at {self._address}, or one that wants TLS, which is not spoken here"
            return found | {"why_not": why}
        if why := without_disk(info.get("DockerRootDir", "")):
            return found | {"why_not": why}
        with contextlib.suppress(OSError):
            found["left"] = await asyncio.to_thread(self._remove_gone)
        if self._guard_pipe is None:
            self._guard_pipe = await asyncio.to_thread(self._start_guard)
        return found

    def _remove_gone(self) -> int:
        here = Owner.of_this_process()
        gone = []
        for label in owners(self._address, self._label):
            named = Owner.parse(label)
            if named is not None and named.seen_from(here)[0] is Life.GONE:
                gone.append(label)
        return remove_gone(self._address, self._label, self._kept, gone)

    def _start_guard(self) -> int:
        """Start the guard; the end of the pipe that closes with this process, however that ends."""
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
                pass  # it goes on as an orphan
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
        """Messages of the streams, as soon as there are some."""
        return await self._channel.batch()


def engine_address(variables: Mapping[str, str]) -> str:
    """Where the engine of this machine is: DOCKER_HOST says, else Docker's socket, else one of Podman's."""
    if named := variables.get("DOCKER_HOST"):
        return named
    places = ["/var/run/docker.sock", "/run/podman/podman.sock"]
    if runtime := variables.get("XDG_RUNTIME_DIR"):
        places += [f"{runtime}/docker.sock", f"{runtime}/podman/podman.sock"]
    return f"unix://{next((place for place in places if Path(place).exists()), places[0])}"


def without_disk(root: str, least_free_mb: int = LEAST_FREE_MB) -> str:
    """Why the engine's directory has no room for containers; empty where it has, or where that cannot be seen."""
    if not root or not Path(root).is_dir():
        return ""
    free_mb = shutil.disk_usage(root).free >> 20
    return f"its engine's disk is full: {free_mb} MB are free at {root}" if free_mb < least_free_mb else ""
