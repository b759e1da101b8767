"""What a registry itself says of an image: the sizes of its layers, and how long it asks to wait.

Neither is worth a failure: where it cannot be had within a few seconds, it is unknown. Blocks; for threads.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests

from tbench.sandbox.docker.pulling.login import Login
from tbench.sandbox.docker.pulling.name import HUB, ImageName

_HUB_HOST = "registry-1.docker.io"
_KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_CONNECT_SEC, _SILENCE_SEC = 3.0, 4.0
_MOST_BYTES = 4 << 20
"""The largest manifest that registries take."""


class SizeUnknown(Exception):
    """A registry does not tell how large an image is."""


def layer_sizes(name: ImageName, login: Login | None, architecture: str) -> dict[str, int]:
    """Bytes of each layer as it is transferred, by digest. Raises SizeUnknown."""
    try:
        with _Questions(name, login) as registry:
            manifest = registry.manifest(name.version)
            if (entries := manifest.get("manifests")) is not None:
                manifest = registry.manifest(_for_this_engine(entries, architecture))
            return {str(layer["digest"]): int(layer["size"]) for layer in manifest["layers"]}
    except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as error:
        # Without the words: they may quote what was sent.
        raise SizeUnknown(f"{name.text}: {type(error).__name__}") from None


def asked_to_wait_sec(name: ImageName, login: Login | None) -> float | None:
    """Seconds that a registry asks to wait before the next pull; None where it asks for nothing."""
    with contextlib.suppress(requests.RequestException, ValueError), _Questions(name, login) as registry:
        response = registry.ask("HEAD", name.version)
        if response.status_code in (429, 503):
            return _seconds(response.headers.get("Retry-After", ""))
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
        self._is_here = _is_loopback(host)
        # As engines do: TLS, but for this machine's own.
        self._repository = f"{'http' if self._is_here else 'https'}://{host}/v2/{name.path}"
        self._login = login
        self._authorization: str | tuple[str, str] | None = None
        self._answers = contextlib.ExitStack()
        """Closes them: what was not read to its end keeps its connection."""

    def __enter__(self) -> _Questions:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()

    def manifest(self, version: str) -> dict[str, Any]:
        """The manifest of a tag or digest. Raises ValueError and what requests raises."""
        response = self.ask("GET", version)
        response.raise_for_status()
        manifest = json.loads(_content(response))
        if not isinstance(manifest, dict):
            raise TypeError("no object")
        return manifest

    def ask(self, method: str, version: str) -> requests.Response:
        """Ask for a manifest; where the registry wants to know who asks, tell it and ask once more."""
        response = self._send(method, version)
        if response.status_code == 401 and self._authorization is None:
            self._authorize(response.headers.get("WWW-Authenticate", ""))
            response = self._send(method, version)
        return response

    def _send(self, method: str, version: str) -> requests.Response:
        url = f"{self._repository}/manifests/{version}"
        return self._answer(method, url, headers={"Accept": _KINDS}, auth=self._sign)

    def _answer(self, method: str, url: str, **question: Any) -> requests.Response:
        # A session each: a connection that is kept may be closed by the server just when the next question goes out.
        session = self._answers.enter_context(requests.Session())
        # A proxy would look for this machine's own registry on its own.
        session.trust_env = not self._is_here
        response = session.request(method, url, timeout=(_CONNECT_SEC, _SILENCE_SEC), stream=True, **question)
        return self._answers.enter_context(response)

    def _sign(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add who asks. Given in any case, as requests would look into ~/.netrc without it."""
        if isinstance(self._authorization, tuple):
            requests.auth.HTTPBasicAuth(*self._authorization)(request)
        elif self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        return request

    def _authorize(self, challenge: str) -> None:
        """Do as the registry says: name and password themselves, or a token of the server that it names."""
        kind, _, rest = challenge.partition(" ")
        own = None if self._login is None or self._login.is_token else (self._login.user, self._login.secret)
        if kind.lower() == "basic" and own is not None:
            self._authorization = own
        elif kind.lower() == "bearer":
            asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            self._authorization = f"Bearer {self._token(asked, own)}"

    def _token(self, asked: Mapping[str, str], own: tuple[str, str] | None) -> str:
        realm = asked.get("realm", "")
        if urlsplit(realm).scheme != "https" and not self._is_here:
            raise ValueError("no TLS")  # a password does not go there
        response = self._answer(
            "GET",
            realm,
            params={key: asked[key] for key in ("service", "scope") if key in asked},
            auth=requests.auth.HTTPBasicAuth(*own) if own else _nobody,
        )
        response.raise_for_status()
        told = json.loads(_content(response))
        return str(told.get("token") or told["access_token"])


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _content(response: requests.Response) -> bytes:
    content = bytearray()
    for piece in response.iter_content(1 << 16):
        content += piece
        if len(content) > _MOST_BYTES:
            raise ValueError("too large")
    return bytes(content)


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] or host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    return name == "localhost"
