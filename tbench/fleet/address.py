"""Addresses of container engines, as users give them: a socket of this machine, ssh, or TCP."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from tbench.errors import UsageError

DOCKER_SOCKET = "/var/run/docker.sock"
_FORMS = "give unix:///path/of.sock, ssh://user@host or tcp://host:2376"


@dataclass(frozen=True)
class EngineAddress:
    """Where an engine is."""

    text: str
    """As it was given; the machine's name in messages and results."""
    scheme: Literal["unix", "ssh", "tcp"]
    host: str = ""
    """With the user, where one is given."""
    port: int | None = None
    path: str = DOCKER_SOCKET
    """Of the engine's socket, on its machine."""

    @classmethod
    def parse(cls, text: str) -> EngineAddress:
        """Read an address. Raises UsageError with the forms that there are."""
        scheme, is_url, rest = text.partition("://") if "://" in text else ("", "", text)
        user, _, where = rest.rpartition("@")
        if ":" in user:
            # Before anything repeats it.
            raise UsageError(f"{scheme}{is_url}{where}: a password does not belong here; use a key of ssh")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{text}: {error}; {_FORMS}") from None
        host = parts.netloc.removesuffix(f":{port}") if port is not None else parts.netloc.removesuffix(":")
        match parts.scheme if is_url and not parts.query and not parts.fragment else "":
            case "unix" if not host and len(parts.path) > 1:
                return cls(text, "unix", path=parts.path)
            case "ssh" if parts.hostname and not host.startswith("-"):
                path = parts.path if len(parts.path) > 1 else DOCKER_SOCKET
                # ssh takes brackets for a part of the name.
                return cls(text, "ssh", re.sub(r"[][]", "", host), port, path)
            case "tcp" if parts.hostname and port and parts.path in ("", "/"):
                return cls(text, "tcp", host, port)
        raise UsageError(f"{text or '(empty)'}: is no address of an engine; {_FORMS}")
