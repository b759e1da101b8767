"""The proxy that containers and builds with a network are told of, by variables that most programs read.

`inherit` is what Docker's own configuration says under `proxies`, which is meant for containers, or else what the
environment of this process names.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

from tbench.config.proxy_choice import HIDDEN, INHERIT, NONE, is_loopback_proxy, shown_proxy
from tbench.errors import UsageError
from tbench.sandbox.masking import Masks

_KEYS = {
    "HTTP_PROXY": "httpProxy",
    "HTTPS_PROXY": "httpsProxy",
    "FTP_PROXY": "ftpProxy",
    "ALL_PROXY": "allProxy",
    "NO_PROXY": "noProxy",
}
"""Names in Docker's configuration by variable; programs read the variables in small or in capital letters."""
_EXCEPTIONS = "NO_PROXY"
PROXY_VARIABLES = tuple(name for each in _KEYS for name in (each, each.lower()))
_LOCAL = ("localhost", "127.0.0.1", "::1")
_GIVEN = "TBENCH_SANDBOX_CONTAINER_PROXY"
_SHORTEST = 8
"""Fewest bytes of what is hidden wherever it stands: a shorter password may be an ordinary word."""


@dataclass(frozen=True)
class ContainerProxy:
    """Variables about a proxy, by their names in capital letters; without any there is no proxy."""

    variables: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""
    """What keeps a proxy from being used that there is."""

    def told(self, *, own: Mapping[str, str], direct: Iterable[str | None] = ()) -> dict[str, str]:
        """The variables for a container, or for a build, that has a network.

        `own` are those that it has anyway: where one of them is about a proxy, also to name none, it is told of no
        other. Hosts in `direct` are reached straight, as this machine itself is.
        """
        has = {name.upper(): value for name, value in own.items()}
        if not self.variables or any(name in has for name in _KEYS if name != _EXCEPTIONS):
            return {}
        exceptions = [*has.get(_EXCEPTIONS, "").split(","), *self.variables.get(_EXCEPTIONS, "").split(",")]
        exceptions += [*_LOCAL, *(host for host in direct if host)]
        listed = dict.fromkeys(filter(None, (each.strip() for each in exceptions)))
        # Not everybody finds the star among others.
        told = {**self.variables, _EXCEPTIONS: "*" if "*" in listed else ",".join(listed)}
        return {name: told[name.upper()] for name in PROXY_VARIABLES if name.upper() in told}

    @property
    def shown(self) -> dict[str, str]:
        """The variables as they may be stored and shown."""
        return {name: value if name == _EXCEPTIONS else shown_proxy(value) for name, value in self.variables.items()}

    @property
    def words(self) -> str:
        """What a user is told of it before the first container is made; empty where there is nothing to tell."""
        urls = {value: None for name, value in self.shown.items() if name != _EXCEPTIONS}
        told = f"containers and builds that have a network use the proxy {', '.join(urls)}" if urls else ""
        return "; ".join(filter(None, (told, self.remark)))

    @cached_property
    def masks(self) -> Masks:
        """What hides its passwords, in all forms in which programs write them."""
        return Masks(form for name, url in self.variables.items() if name != _EXCEPTIONS for form in _forms(url))


WITHOUT_PROXY = ContainerProxy()


def container_proxy(choice: str, variables: Mapping[str, str] = os.environ) -> ContainerProxy:
    """The proxy that a choice stands for on this machine. Raises UsageError where its password is not known."""
    if choice == NONE:
        return WITHOUT_PROXY
    configured, named = _configured(variables), _of_environment(variables)
    inherited = configured if configured.keys() - {_EXCEPTIONS} else named
    excepted = [each[_EXCEPTIONS] for each in (configured, named) if _EXCEPTIONS in each]
    exceptions = {_EXCEPTIONS: ",".join(excepted)} if excepted else {}
    if choice != INHERIT:
        url = _with_password(choice, variables)
        return ContainerProxy({"HTTP_PROXY": url, "HTTPS_PROXY": url, **exceptions})
    local = sorted(name for name, url in inherited.items() if name != _EXCEPTIONS and is_loopback_proxy(url))
    usable = {name: value for name, value in inherited.items() if name not in (*local, _EXCEPTIONS)}
    remark = ""
    if local:
        remark = f"{', '.join(local)} names localhost, where no container finds this machine's proxy; it is left out"
    return ContainerProxy({**usable, **exceptions} if usable else {}, remark)


def config_file(variables: Mapping[str, str] = os.environ) -> Path:
    """Path of Docker's own configuration: below DOCKER_CONFIG, else below ~/.docker."""
    directory = variables.get("DOCKER_CONFIG")
    return (Path(directory) if directory else Path.home() / ".docker") / "config.json"


def _configured(variables: Mapping[str, str]) -> dict[str, str]:
    """The proxies of Docker's own configuration, those for the engine's address before the `default`."""
    try:
        tables = json.loads(config_file(variables).read_bytes())["proxies"]
        table = tables.get(variables.get("DOCKER_HOST", "")) or tables.get("default") or {}
        return {name: str(table[key]).strip() for name, key in _KEYS.items() if table.get(key)}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}  # what is broken there is said where an engine is connected


def _of_environment(variables: Mapping[str, str]) -> dict[str, str]:
    found = ((name, variables.get(name.lower()) or variables.get(name) or "") for name in _KEYS)
    return {name: value.strip() for name, value in found if value.strip()}


def _with_password(choice: str, variables: Mapping[str, str]) -> str:
    """A proxy that was given, also where it was stored since. Raises UsageError."""
    if f"{HIDDEN}@" not in choice:
        return choice
    known = [variables.get(_GIVEN, ""), *_configured(variables).values(), *_of_environment(variables).values()]
    for url in known:
        if shown_proxy(url) == choice != url:
            return url
    raise UsageError(f"--container-proxy: the password for {choice} is stored nowhere; give its URL as {_GIVEN}")


def _forms(url: str) -> Iterator[str]:
    """What must not be told of a proxy: its user and password, as they are written, decoded, and in a header."""
    user_and_password, at, _ = url.rpartition("://")[2].rpartition("@")
    if not at or not user_and_password:
        return
    user, colon, password = user_and_password.partition(":")
    encoded = quote(unquote(user), "") + colon + quote(unquote(password), "")
    written = {user_and_password, unquote(user_and_password), encoded}
    yield from (f"{each}@" for each in written if len(each) < _SHORTEST)
    plain = f"{unquote(user)}:{unquote(password)}"
    secret = password if colon else user
    bare: Collection[str] = (
        *written, secret, unquote(secret), quote(unquote(secret), ""),
        *(b64encode(each.encode()).decode() for each in (plain, user_and_password)),
    )  # fmt: skip
    yield from (each for each in bare if len(each) >= _SHORTEST)
