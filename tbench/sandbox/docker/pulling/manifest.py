"""What a registry itself says of an image: the sizes of its layers, and how long it asks to wait.

Neither is worth a failure: where it cannot be had within a few seconds, it is unknown. Blocks; for threads.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

from tbench.sandbox.docker.pulling.login import Login
from tbench.sandbox.docker.pulling.name import HUB, ImageName
from tbench.web import Unanswered, WebAnswer, WebRequest, is_loopback

_HUB_HOST = "registry-1.docker.io"
_KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_ANSWER_SEC = 4.0
_MOST_BYTES = 4 << 20
"""The largest manifest that registries take."""


class SizeUnknown(Exception):
    """A registry does not tell how large an image is."""


def layer_sizes(name: ImageName, login: Login | None, architecture: str) -> dict[str, int]:
    """Bytes of each layer as it is transferred, by digest. Raises SizeUnknown."""
    try:
        registry = _Questions(name, login)
        manifest = registry.manifest(name.version)
        if (entries := manifest.get("manifests")) is not None:
            manifest = registry.manifest(_for_this_engine(entries, architecture))
        return {str(layer["digest"]): int(layer["size"]) for layer in manifest["layers"]}
    except (Unanswered, ValueError, KeyError, TypeError, AttributeError) as error:
        # Without the words: they may quote what was sent.
        raise SizeUnknown(f"{name.text}: {type(error).__name__}") from None


def asked_to_wait_sec(name: ImageName, login: Login | None) -> float | None:
    """Seconds that a registry asks to wait before the next pull; None where it asks for nothing."""
    with contextlib.suppress(Unanswered, ValueError, KeyError, TypeError):
        answer = _Questions(name, login).ask("HEAD", name.version)
        if answer.status in (429, 503):
            return _seconds(answer.headers.get("Retry-After", ""))
    return None


def _seconds(retry_after: str) -> float | None:
    """A Retry-After in seconds or as a date. Raises ValueError."""
    if not retry_after:
        return None
    if retry_after.isdigit():
        return float(retry_after)
    return max((parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds(), 0.0)


def _for_this_engine(entries: Any, architecture: str) -> str:
    """Digest of the image that an engine takes out of an index. Raises KeyError."""
    for entry in entries:
        platform = entry.get("platform") or {}
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return str(entry["digest"])
    raise KeyError(architecture)


class _Questions:
    """A short conversation about one repository."""

    def __init__(self, name: ImageName, login: Login | None) -> None:
        host = _HUB_HOST if name.registry == HUB else name.registry
        self._is_here = is_loopback(urlsplit(f"//{host}").hostname or "")
        # As engines do: TLS, but for this machine's own.
        self._repository = f"{'http' if self._is_here else 'https'}://{host}/v2/{name.path}"
        self._own = None if login is None or login.is_token else (login.user, login.secret)
        self._login: tuple[str, str] | None = None
        self._headers = {"Accept": _KINDS}

    def manifest(self, version: str) -> dict[str, Any]:
        """The manifest of a tag or digest. Raises Unanswered and ValueError."""
        return _content(self.ask("GET", version))

    def ask(self, method: str, version: str) -> WebAnswer:
        """Ask for a manifest; where the registry wants to know who asks, tell it and ask once more."""
        answer = self._send(method, version)
        if answer.status == 401:
            self._authorize(answer.headers.get("WWW-Authenticate", ""))
            answer = self._send(method, version)
        return answer

    def _send(self, method: str, version: str) -> WebAnswer:
        url = f"{self._repository}/manifests/{version}"
        request = WebRequest(
            url, _ANSWER_SEC, method=method, headers=self._headers, login=self._login, most_bytes=_MOST_BYTES
        )
        return request.answer()

    def _authorize(self, challenge: str) -> None:
        """Do as the registry says: name and password themselves, or a token of the server that it names."""
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic":
            self._login = self._own
        elif kind.lower() == "bearer":
            asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            self._headers["Authorization"] = f"Bearer {self._token(asked)}"

    def _token(self, asked: Mapping[str, str]) -> str:
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme != "https" and not self._is_here:
            raise ValueError("no TLS")  # a password does not go there
        query = urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        url = f"{realm}{'&' if urlsplit(realm).query else '?'}{query}" if query else realm
        told = _content(WebRequest(url, _ANSWER_SEC, login=self._own, most_bytes=_MOST_BYTES).answer())
        return str(told.get("token") or told["access_token"])


def _content(answer: WebAnswer) -> dict[str, Any]:
    if answer.status >= 400:
        raise ValueError(f"HTTP {answer.status}")
    content = json.loads(answer.body)
    if not isinstance(content, dict):
        raise TypeError("no object")
    return content
