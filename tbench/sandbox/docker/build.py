"""Builds images with BuildKit or the engine's classic builder, and keeps the builder's output."""

from __future__ import annotations

import re
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from tbench.sandbox.build_context import BuildContext
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.sdk import with_parameters
from tbench.sandbox.dockerfile import directive, without_syntax
from tbench.sandbox.owner import LABEL_SHARED
from tbench.text import one_line

_OWN_SEC = 1800.0
_ATTEMPTS = 3
"""Attempts at a build whose cached images are removed meanwhile."""
_TRACE = "moby.buildkit.trace"
_VERTEX, _LOG = 1, 3
_STEP = re.compile(rb"\[(?!internal\])")
_MIN_SECRET_LENGTH = 8
"""Minimum length of a build argument's value to be hidden; a shorter one is not a secret, and may occur in any word."""
_IMAGE_GONE = re.compile(r"(?<!@)sha256:[0-9a-f]{64}|layer does not exist")
"""Matches an error about an image id, which no Dockerfile contains, so the builder took it from its cache."""


class BuildFailed(Exception):
    """A build ended without an image; the message is the builder's."""


class BuildLog(list[str]):
    """Output of a builder in pieces, with passwords masked."""

    def __init__(self, masks: Masks) -> None:
        super().__init__()
        self._masks = masks

    def append(self, text: str) -> None:
        super().append(self._masks.mask_text(text))


class CacheGone(BuildFailed):
    """A cached image that a build needed was removed meanwhile, for example by another run."""


def has_buildkit(engine: Engine) -> bool:
    """Whether the engine has BuildKit, as Docker does; Podman has its own builder."""
    return not engine.info.is_podman and tuple(map(int, engine.api.api_version.split("."))) >= (1, 39)


def build(
    api: Any,
    context: BuildContext,
    tag: str,
    *,
    limit_sec: float,
    labels: dict[str, str],
    log: list[str],
    args: Mapping[str, str] | None = None,
    target: str | None = None,
    network: str | None = None,
    no_cache: bool = False,
    uses_buildkit: bool = False,
) -> None:
    """Build an image with BuildKit or the engine's classic builder. Raises BuildFailed, TimeoutError.

    Output is appended to `log`. Steps use `network` (default: the engine's own bridge); `no_cache` runs all of them.
    If cached images vanish during the build, it is repeated within the same time limit.
    """
    ends = time.monotonic() + limit_sec
    client = with_parameters(api, version="2") if uses_buildkit else api
    options = {"tag": tag, "labels": labels, "network_mode": network, "nocache": no_cache, "target": target}

    def attempt(context: BuildContext) -> None:
        retrying = Retrying(retry=retry_if_exception_type(CacheGone), stop=stop_after_attempt(_ATTEMPTS), reraise=True)
        with tempfile.TemporaryFile() as packed:
            context.pack(packed, uses_buildkit=uses_buildkit)
            named = {**options, "dockerfile": context.dockerfile, "buildargs": dict(args or {})}
            retrying(_build, client, packed, limit_sec, ends, log, **named)

    try:
        attempt(context)
    except BuildFailed as error:
        if not uses_buildkit or not _lacks_frontend(context.text, str(error)):
            raise
        log.append(f"{error}; building with the engine's own frontend instead\n")
        attempt(replace(context, text=without_syntax(context.text), is_edited=True))


async def build_own(engine: Engine, recipe: Path, tag: str, kind: str, log: list[str]) -> None:
    """Build an image of tbench's own from its folder in images/. Raises BuildFailed, TimeoutError, EngineError."""
    building = partial(build, limit_sec=_OWN_SEC, labels={LABEL_SHARED: kind}, log=log)
    await engine.call(building, engine.api, BuildContext.for_folder(recipe), tag, deadline_sec=_OWN_SEC + 30)


def _lacks_frontend(dockerfile: str, error: str) -> bool:
    """Whether a build failed because Docker's frontend, named in the Dockerfile, cannot be pulled."""
    name = (directive(dockerfile, "syntax") or "").partition("@")[0].partition(":")[0]
    is_docker = name in ("docker/dockerfile", "docker.io/docker/dockerfile")
    return is_docker and "docker/dockerfile" in error and "parse error" not in error


def _build(client: Any, packed: IO[bytes], limit_sec: float, ends: float, log: list[str], **options: Any) -> None:
    packed.seek(0)
    # The request's timeout limits a silent step; the engine stops when the client disconnects.
    left_sec = max(int(ends - time.monotonic()), 0) + 1
    stream = client.build(
        fileobj=packed, custom_context=True, rm=True, forcerm=True, decode=True, timeout=left_sec, **options
    )
    trace = _Trace([value for value in options["buildargs"].values() if len(value) >= _MIN_SECRET_LENGTH])
    try:
        for message in stream:
            if message.get("id") == _TRACE:
                with suppress(IndexError, KeyError, ValueError):  # unreadable messages are skipped
                    for line in trace.lines(b64decode(message["aux"])):
                        log.append(line)
            else:
                log.append(message.get("stream") or f"{message.get('status', '')}\n")
            # If the build does not even start, there is only a message.
            if (failed := message.get("error") or message.get("message")) is not None:
                raise (CacheGone if _IMAGE_GONE.search(failed) else BuildFailed)(failed)
            if time.monotonic() > ends:
                raise TimeoutError(f"longer than {limit_sec:.0f} s")
    finally:
        stream.close()


class _Trace:
    """Parses BuildKit's trace messages into lines: the steps that begin, and their output."""

    def __init__(self, secrets: list[str]) -> None:
        """`secrets` are values to be hidden in the names of steps."""
        self._begun: set[bytes] = set()
        self._secrets = secrets

    def lines(self, message: bytes) -> Iterator[str]:
        for kind, data in _fields(message):
            fields = dict(_fields(data)) if kind in (_VERTEX, _LOG) else {}
            if kind == _LOG:
                yield fields.get(4, b"").decode("utf-8", "replace")
            elif _STEP.match(fields.get(3, b"")) and 5 in fields and fields[1] not in self._begun:
                self._begun.add(fields[1])
                yield f"{self._shown(fields[3].decode('utf-8', 'replace'))}\n"

    def _shown(self, name: str) -> str:
        for secret in self._secrets:
            name = name.replace(secret, "...")
        return name


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Parse a Protocol Buffers message; yields number and bytes of each field except plain integers."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            number()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or number()
            yield key >> 3, message[at : at + length]
            at += length


def last_lines(log: list[str]) -> str:
    """Return the builder's last lines as the end of a message; empty if there are none."""
    chatter = (" --->", "Removing intermediate container")
    last = [line for line in "".join(log).splitlines() if line.strip() and not line.startswith(chatter)][-2:]
    return f"; last lines: {one_line(' | '.join(last), 200)}" if last else ""
