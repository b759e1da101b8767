"""Names of published images, and the login at their registry, as Docker's own configuration has it."""

from __future__ import annotations

import binascii
import json
import shutil
import subprocess
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.sandbox.container_proxy import config_file as config_file

# The name of a published image, taken apart: registry, repository, tag, digest.

HUB = "docker.io"
"""The registry of names that name none."""


@dataclass(frozen=True)
class ImageName:
    """A name as a task gives it, such as `debian:12`, `HOST:5000/lab/tool:1` or `lab/tool:1@sha256:…`."""

    text: str
    """As it was given."""
    repository: str
    """Without tag and digest, with the registry where it was given."""
    tag: str | None
    digest: str | None
    """`sha256:…` of an image that is pinned; None for whatever the tag stands for."""

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Take a name apart; one without tag and digest stands for its tag `latest`."""
        named, _, digest = text.partition("@")
        repository, colon, tag = named.rpartition(":")
        if not colon or "/" in tag:
            repository, tag = named, "" if digest else "latest"
        return cls(text, repository, tag or None, digest or None)

    @property
    def version(self) -> str:
        """What is asked for: the digest where there is one, as engines take no tag beside it; else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def wanted(self) -> str:
        """The name by which the engine knows the image, and by which it is pulled."""
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.version}"

    @property
    def shown(self) -> str:
        """The name for a message, as it was given but for the greater part of a digest."""
        return f"{self.text.partition('@')[0]}@{self.digest[:19]}" if self.digest else self.text

    @property
    def registry(self) -> str:
        """Host and port, or `docker.io`."""
        return self._parts[0]

    @property
    def path(self) -> str:
        """The repository within its registry."""
        registry, path = self._parts
        return f"library/{path}" if registry == HUB and "/" not in path else path

    @property
    def _parts(self) -> tuple[str, str]:
        first, slash, rest = self.repository.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return first, rest
        return HUB, self.repository


# Who one is at a registry, as Docker's own configuration says: config.json, and the helper programs that it names.
#
# A secret is in `Login.secret` and in what is sent to the engine and to the registry; no message holds one, nor
# anything that a helper has printed.

_HUB_KEY = "https://index.docker.io/v1/"
"""What Docker Hub is called in config.json and asked for from helpers."""
_HUB_HOSTS = {"index.docker.io", "registry-1.docker.io", HUB}
_TOKEN_USER = "<token>"
"""The user name with which a helper says that its secret is an identity token."""
_HELPER_SEC = 30.0
_UNKNOWN = "credentials not found"
_MEND = "mend it, or let DOCKER_CONFIG name another directory"


class LoginUnreadable(UsageError):
    """Docker's own configuration does not tell the login that it promises; the message says where and what to do."""


@dataclass(frozen=True)
class Login:
    """A user name and a password, or a token, for one registry."""

    registry: str
    user: str
    secret: str = field(repr=False)
    is_token: bool = False
    """Whether the secret is an identity token, which the registry's own server turns into access."""

    @property
    def header(self) -> str:
        """What the engine is given with a pull, as X-Registry-Auth."""
        who = {"identitytoken": self.secret} if self.is_token else {"username": self.user, "password": self.secret}
        told = {**who, "serveraddress": _HUB_KEY if self.registry == HUB else self.registry}
        return urlsafe_b64encode(json.dumps(told).encode()).decode()


def read_docker_config(path: Path | None = None) -> dict[str, Any]:
    """The content of Docker's own configuration; empty where there is none. Raises LoginUnreadable."""
    path = path or config_file()
    try:
        content = json.loads(path.read_bytes())
    except OSError:
        return {}  # Docker's own client goes on without it, too
    except (ValueError, RecursionError) as error:
        raise LoginUnreadable(f"{path}: is no JSON ({error}); {_MEND}") from None
    if not isinstance(content, dict):
        raise LoginUnreadable(f"{path}: is no JSON object; {_MEND}")
    for key in ("auths", "credHelpers", "proxies"):
        table = content.get(key)
        if table is not None and not (isinstance(table, dict) and (key == "proxies" or _is_sound(key, table))):
            raise LoginUnreadable(f"{path}: {key!r} is not what Docker writes there; {_MEND}")
    return content


def _is_sound(key: str, table: Mapping[str, Any]) -> bool:
    if key == "credHelpers":
        return all(isinstance(name, str) for name in table.values())
    return all(isinstance(entry, dict) and _reads(entry) for entry in table.values())


def _reads(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of `auths` says what the SDK, too, expects of it."""
    if "identitytoken" in entry or "auth" not in entry:
        return True
    try:
        return _user_and_secret(entry) is not None and bool(entry["auth"])
    except ValueError:
        return False


def find_login(registry: str) -> Login | None:
    """The login for a registry; None where the configuration has none. Blocks while a helper works, in bounded time.

    Raises LoginUnreadable for a broken file, and for a helper that is missing or fails.
    """
    path = config_file()
    config = read_docker_config(path)
    key = _HUB_KEY if registry == HUB else registry
    helper = (config.get("credHelpers") or {}).get(key) or config.get("credsStore")
    if helper and (login := _ask_helper(str(helper), registry, key, path)) is not None:
        return login
    for host, entry in (config.get("auths") or {}).items():
        if _host(host) == registry:
            if token := entry.get("identitytoken"):
                return Login(registry, "", str(token), is_token=True)
            if (found := _user_and_secret(entry)) is not None:
                return Login(registry, *found)
    return None


def _host(key: str) -> str:
    """The registry that a key of `auths` means: older ones are whole URLs."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return HUB if host in _HUB_HOSTS else host


def _user_and_secret(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """User name and password of an entry of `auths`; None for one without. Raises ValueError."""
    if not (packed := entry.get("auth")):
        user, secret = entry.get("username"), entry.get("password")
        return (str(user), str(secret)) if user and secret else None
    try:
        user, colon, secret = b64decode(str(packed)).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("no base64") from None
    if not colon:
        raise ValueError("no user and password")
    return user, secret.strip("\0")


def _ask_helper(name: str, registry: str, key: str, path: Path) -> Login | None:
    program = f"docker-credential-{name}"
    command, where = shutil.which(program), f"{path}: {program}, which keeps the login for {registry},"
    if command is None:
        raise LoginUnreadable(f"{where} is not on PATH; install it, or take it out of the file")
    try:
        done = subprocess.run([command, "get"], input=key.encode(), capture_output=True, timeout=_HELPER_SEC)
        if done.returncode and _UNKNOWN in done.stdout.decode("utf-8", "replace"):
            return None
        # Raised without its words: they may be anything, the secret among them.
        if done.returncode:
            raise LoginUnreadable(f"{where} ended with {done.returncode}; try 'docker login {registry}'")
        told = json.loads(done.stdout)
        user, secret = str(told["Username"]), str(told["Secret"])
    except subprocess.TimeoutExpired:
        raise LoginUnreadable(f"{where} did not end within {_HELPER_SEC:.0f} s; call it by hand") from None
    except OSError as error:
        raise LoginUnreadable(f"{where} cannot be run: {error.strerror or error}; mend it") from None
    except (ValueError, KeyError, TypeError):
        raise LoginUnreadable(f"{where} did not print a login; call it by hand") from None
    return Login(registry, user, secret, is_token=user == _TOKEN_USER) if user or secret else None
