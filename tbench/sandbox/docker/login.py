"""Logins at the registries of published images, from Docker's own configuration."""

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
from tbench.sandbox.image import HUB

# Logins come from Docker's config.json and the credential helpers that it names. Secrets are only in `Login.secret`
# and in requests to engine and registry; no message contains one, nor any output of a helper.

_HUB_KEY = "https://index.docker.io/v1/"
"""Key of Docker Hub in config.json and for helpers."""
_HUB_HOSTS = {"index.docker.io", "registry-1.docker.io", HUB}
_TOKEN_USER = "<token>"
"""User name with which a helper marks its secret as an identity token."""
_HELPER_SEC = 30.0
_UNKNOWN = "credentials not found"
_REMEDY = "repair it, or set DOCKER_CONFIG to another directory"


class LoginUnreadable(UsageError):
    """A login in Docker's own configuration cannot be read; the message says where and what to do."""


@dataclass(frozen=True)
class Login:
    """A user name and a password, or a token, for one registry."""

    registry: str
    user: str
    secret: str = field(repr=False)
    is_token: bool = False
    """Whether the secret is an identity token, which the registry's server exchanges for access."""

    @property
    def header(self) -> str:
        """Value of X-Registry-Auth, which the engine gets with a pull."""
        who = {"identitytoken": self.secret} if self.is_token else {"username": self.user, "password": self.secret}
        fields = {**who, "serveraddress": _HUB_KEY if self.registry == HUB else self.registry}
        return urlsafe_b64encode(json.dumps(fields).encode()).decode()


def read_docker_config(path: Path | None = None) -> dict[str, Any]:
    """Read Docker's own configuration; empty if there is none. Raises LoginUnreadable."""
    path = path or config_file()
    try:
        content = json.loads(path.read_bytes())
    except OSError:
        return {}  # Docker's own client also continues without it
    except (ValueError, RecursionError) as error:
        raise LoginUnreadable(f"{path}: not valid JSON ({error}); {_REMEDY}") from None
    if not isinstance(content, dict):
        raise LoginUnreadable(f"{path}: not a JSON object; {_REMEDY}")
    for key in ("auths", "credHelpers", "proxies"):
        table = content.get(key)
        if table is not None and not (isinstance(table, dict) and (key == "proxies" or _is_sound(key, table))):
            raise LoginUnreadable(f"{path}: {key!r} does not have Docker's format; {_REMEDY}")
    return content


def _is_sound(key: str, table: Mapping[str, Any]) -> bool:
    if key == "credHelpers":
        return all(isinstance(name, str) for name in table.values())
    return all(isinstance(entry, dict) and _is_readable(entry) for entry in table.values())


def _is_readable(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of `auths` has the format that the SDK expects, too."""
    if "identitytoken" in entry or "auth" not in entry:
        return True
    try:
        return _user_and_secret(entry) is not None and bool(entry["auth"])
    except ValueError:
        return False


def find_login(registry: str) -> Login | None:
    """Return the login for a registry; None if the configuration has none. Blocks while a credential helper runs.

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
    """Return the registry of a key of `auths`, which may be a whole URL."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return HUB if host in _HUB_HOSTS else host


def _user_and_secret(entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return user name and password of an entry of `auths`, or None. Raises ValueError."""
    if not (packed := entry.get("auth")):
        user, secret = entry.get("username"), entry.get("password")
        return (str(user), str(secret)) if user and secret else None
    try:
        user, colon, secret = b64decode(str(packed)).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("not base64") from None
    if not colon:
        raise ValueError("no user and password")
    return user, secret.strip("\0")


def _ask_helper(name: str, registry: str, key: str, path: Path) -> Login | None:
    program = f"docker-credential-{name}"
    command, where = shutil.which(program), f"{path}: {program}, the credential helper for {registry},"
    if command is None:
        raise LoginUnreadable(f"{where} is not on PATH; install it, or remove it from the file")
    try:
        done = subprocess.run([command, "get"], input=key.encode(), capture_output=True, timeout=_HELPER_SEC)
        if done.returncode and _UNKNOWN in done.stdout.decode("utf-8", "replace"):
            return None
        # Without the helper's output, which may contain the secret.
        if done.returncode:
            raise LoginUnreadable(f"{where} failed with exit code {done.returncode}; try 'docker login {registry}'")
        printed = json.loads(done.stdout)
        user, secret = str(printed["Username"]), str(printed["Secret"])
    except subprocess.TimeoutExpired:
        raise LoginUnreadable(f"{where} did not end within {_HELPER_SEC:.0f} s; run it manually") from None
    except OSError as error:
        raise LoginUnreadable(f"{where} cannot be run: {error.strerror or error}; repair it") from None
    except (ValueError, KeyError, TypeError):
        raise LoginUnreadable(f"{where} did not print a login; run it manually") from None
    return Login(registry, user, secret, is_token=user == _TOKEN_USER) if user or secret else None
