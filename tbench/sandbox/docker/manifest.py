"""Sizes of published images from their registries, to predict downloads and disk space."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.login import Login, LoginUnreadable, find_login
from tbench.sandbox.image import HUB, ImageName
from tbench.text import counted, size_text
from tbench.web import Unanswered, WebAnswer, WebRequest, is_loopback

# Requests to registries block, so they run in threads. Sizes and waiting times are optional: what does not arrive
# within a few seconds is unknown.

_HUB_HOST = "registry-1.docker.io"
_MEDIA_TYPES = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_ANSWER_SEC = 4.0
_MAX_BYTES = 4 << 20
"""Largest manifest that registries accept."""


class SizeUnknown(Exception):
    """The size of an image cannot be determined."""


def layer_sizes(name: ImageName, login: Login | None, architecture: str) -> dict[str, int]:
    """Return the compressed size of each layer in bytes, by digest. Raises SizeUnknown."""
    try:
        registry = _RegistryClient(name, login)
        manifest = registry.manifest(name.version)
        if (entries := manifest.get("manifests")) is not None:
            manifest = registry.manifest(_for_this_engine(entries, architecture))
        return {str(layer["digest"]): int(layer["size"]) for layer in manifest["layers"]}
    except (Unanswered, ValueError, KeyError, TypeError, AttributeError) as error:
        # Without the message, which may quote the request.
        raise SizeUnknown(f"{name.text}: {type(error).__name__}") from None


def requested_wait_sec(name: ImageName, login: Login | None) -> float | None:
    """Return the seconds that a registry asks to wait before the next pull; None if it does not."""
    with contextlib.suppress(Unanswered, ValueError, KeyError, TypeError):
        answer = _RegistryClient(name, login).ask("HEAD", name.version)
        if answer.status in (429, 503):
            return _seconds(answer.headers.get("Retry-After", ""))
    return None


def _seconds(retry_after: str) -> float | None:
    """Parse a Retry-After in seconds or as a date. Raises ValueError."""
    if not retry_after:
        return None
    if retry_after.isdigit():
        return float(retry_after)
    return max((parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds(), 0.0)


def _for_this_engine(entries: Any, architecture: str) -> str:
    """Return the digest of an index's image for an architecture. Raises KeyError."""
    for entry in entries:
        platform = entry.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return str(entry["digest"])
    raise KeyError(architecture)


class _RegistryClient:
    """Requests manifests of one repository."""

    def __init__(self, name: ImageName, login: Login | None) -> None:
        host = _HUB_HOST if name.registry == HUB else name.registry
        self._is_here = is_loopback(urlsplit(f"//{host}").hostname or "")
        # TLS except for registries on this machine, as engines do.
        self._repository = f"{'http' if self._is_here else 'https'}://{host}/v2/{name.path}"
        self._own = None if login is None or login.is_token else (login.user, login.secret)
        self._login: tuple[str, str] | None = None
        self._headers = {"Accept": _MEDIA_TYPES}

    def manifest(self, version: str) -> dict[str, Any]:
        """Fetch the manifest of a tag or digest. Raises Unanswered and ValueError."""
        return _content(self.ask("GET", version))

    def ask(self, method: str, version: str) -> WebAnswer:
        """Request a manifest, a second time with credentials if the registry asks for them."""
        answer = self._send(method, version)
        if answer.status == 401:
            self._authorize(answer.headers.get("WWW-Authenticate", ""))
            answer = self._send(method, version)
        return answer

    def _send(self, method: str, version: str) -> WebAnswer:
        url = f"{self._repository}/manifests/{version}"
        request = WebRequest(
            url, _ANSWER_SEC, method=method, headers=self._headers, login=self._login, most_bytes=_MAX_BYTES
        )
        return request.answer()

    def _authorize(self, challenge: str) -> None:
        """Prepare the credentials of the registry's challenge: user and password, or a token from its server."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            self._login = self._own
        elif kind.lower() == "bearer":
            parameters = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            self._headers["Authorization"] = f"Bearer {self._token(parameters)}"

    def _token(self, parameters: Mapping[str, str]) -> str:
        realm = parameters.get("realm", "")
        if urlsplit(realm).scheme != "https" and not self._is_here:
            raise ValueError("no TLS")  # passwords are not sent unencrypted
        query = urlencode({key: parameters[key] for key in ("service", "scope") if key in parameters})
        url = f"{realm}{'&' if urlsplit(realm).query else '?'}{query}" if query else realm
        granted = _content(WebRequest(url, _ANSWER_SEC, login=self._own, most_bytes=_MAX_BYTES).answer())
        return str(granted.get("token") or granted["access_token"])


def _content(answer: WebAnswer) -> dict[str, Any]:
    if answer.status >= 400:
        raise ValueError(f"HTTP {answer.status}")
    content = json.loads(answer.body)
    if not isinstance(content, dict):
        raise TypeError("not an object")
    return content


ASKING_SEC = 10.0
"""Time limit for all registries together."""
_ASKED_AT_ONCE = 8
_UNPACKING_FACTOR = 2.5
"""Size of layers on the disk relative to the download. A rough value: more for text, less for models."""


@dataclass(frozen=True)
class Forecast:
    """Expected download and disk space of the pulls ahead."""

    images: int
    """Number of images to be pulled."""
    transfer_bytes: int
    """Total bytes of all layers of known size, each counted once."""
    unknown: int
    """Number of images of unknown size."""
    free_bytes: int | None
    """Free space on the engine's disk; None if unknown."""
    root: str

    @property
    def disk_bytes(self) -> float:
        """Estimated space on the engine's disk for the images of known size."""
        return self.transfer_bytes * _UNPACKING_FACTOR

    @property
    def summary(self) -> str:
        """One line for the user."""
        parts = [f"{counted(self.images, 'image')} to be pulled"]
        if self.unknown < self.images:
            parts.append(f"{size_text(self.transfer_bytes)}, about {size_text(self.disk_bytes)} on the disk")
        if self.unknown:
            parts.append("size unknown" if self.unknown == self.images else f"size of {self.unknown} more unknown")
        if self.free_bytes is not None:
            parts.append(f"{size_text(self.free_bytes)} free in {self.root}")
        return "; ".join(parts)

    @property
    def warning(self) -> str:
        """Warning and advice if the space may not suffice; otherwise empty."""
        if self.free_bytes is None or self.disk_bytes <= self.free_bytes:
            return ""
        advice = "make room with 'docker system prune', or use --drop-images"
        return (
            f"the images may not fit: they need about {size_text(self.disk_bytes)}, and {self.root} has "
            f"{size_text(self.free_bytes)} free; {advice}"
        )


async def free_bytes(engine: Engine) -> int | None:
    """Return the free space on the engine's disk; None if it is on another machine."""
    if not engine.is_local:
        return None
    try:
        return (await asyncio.to_thread(shutil.disk_usage, engine.info.root)).free
    except OSError:
        return None  # not a directory of this machine


async def forecast(engine: Engine, names: Collection[ImageName], *, ask: bool = True) -> Forecast:
    """Predict the pulls of these images; without `ask` no registry is asked. Bounded; never raises."""
    once = {name.reference: name for name in names}
    slots = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def sizes(name: ImageName) -> dict[str, int] | None:
        try:
            async with asyncio.timeout(ASKING_SEC), slots:
                return await engine.call(
                    lambda: layer_sizes(name, find_login(name.registry), engine.info.architecture),
                    deadline_sec=ASKING_SEC,
                )
        except (TimeoutError, EngineError, SizeUnknown, LoginUnreadable):
            return None

    known = await asyncio.gather(*map(sizes, once.values())) if ask else [None] * len(once)
    layers: dict[str, int] = {}
    for each in known:
        layers |= each or {}
    unknown = sum(each is None for each in known)
    return Forecast(len(once), sum(layers.values()), unknown, await free_bytes(engine), engine.info.root)


async def describe_pulls(engine: Engine, names: Collection[ImageName], *, ask: bool) -> list[str]:
    """Return a line about the pulls of these images, and a warning if they may not fit; empty without images."""
    if not names:
        return []
    expected = await forecast(engine, names, ask=ask)
    return [line for line in (expected.summary, expected.warning) if line]
