"""The proxy that containers and builds are told of, and its password hidden in what comes out of them.

`inherit` is what Docker's own configuration says under `proxies`, which is meant for containers, or else what the
environment of this process names.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

from tbench.config.values import HIDDEN, INHERIT, NONE, is_loopback_proxy, shown_proxy
from tbench.errors import UsageError

# Hides secrets in what comes out of a sandbox, byte by byte: columns of a screen and sizes of an archive stay.

_BETWEEN = rb"(?:\r?\n(?:%(?:extended-)?output %\d+ (?:\d+ : )?)?)?"
"""What may stand in the midst of a secret: a line break, as of a screen that is too narrow, and a new piece of what
tmux passes on."""


class Masks:
    """The secrets that are hidden; each byte of one becomes a star."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may hold another.
        found = sorted({each.encode() for each in secrets if each}, key=lambda each: -len(each))
        self.secrets = tuple(found)
        # Of one that a line break cuts, half is whole: to look for these takes a hundredth of the time.
        halves = {half for each in found for half in (each[: len(each) // 2], each[len(each) // 2 :])}
        self._halves = [half for half in halves if not any(other in half for other in halves - {half})]
        one = (_BETWEEN.join(re.escape(each[at : at + 1]) for at in range(len(each))) for each in found)
        self._pattern = re.compile(b"|".join(one)) if found else None

    def masked(self, data: bytes) -> bytes:
        """`data` with all secrets hidden."""
        if self._pattern is None or not any(half in data for half in self._halves):
            return data
        return self._pattern.sub(_stars, data)

    def masked_text(self, text: str) -> str:
        """The same of a text."""
        if self._pattern is None:
            return text
        return self.masked(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self) -> MaskedStream:
        """What hides them in output that comes in pieces."""
        return MaskedStream(self)


class MaskedStream:
    """Hides secrets in one stream; what may be the beginning of one is held back until more comes."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held = b""

    def take(self, data: bytes) -> bytes:
        """The next piece that is to be told."""
        data = self._masks.masked(self._held + data)
        kept = max((_begun(data, secret) for secret in self._masks.secrets), default=0)
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept]

    def rest(self) -> bytes:
        """What was held back, where nothing more comes."""
        held, self._held = self._held, b""
        return held


_BREAK = re.compile(_BETWEEN[: -len(b"?")])
_BEGUN_BREAK = re.compile(rb"\r?(?:\n(?:%[^\r\n]{0,40})?)?")
"""A break, or the beginning of one, at the end of what there is."""
_LONGEST_BREAK = 44
_FEWEST_BEFORE_A_BREAK = 4
"""Bytes of a secret before a break that are held back with it in any line: an answer of tmux may end in fewer."""


def _stars(found: re.Match[bytes]) -> bytes:
    if b"\n" not in found[0]:
        return b"*" * len(found[0])
    parts, at = [], 0
    for between in _BREAK.finditer(found[0]):
        parts += [b"*" * (between.start() - at), between[0]]
        at = between.end()
    return b"".join([*parts, b"*" * (len(found[0]) - at)])


def _begun(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of a secret, all of which is not there yet."""
    at = max(0, len(data) - len(secret) * _LONGEST_BREAK)
    while (at := data.find(secret[:1], at)) >= 0:
        if _goes_on_to_the_end(data, at, secret):
            return len(data) - at
        at += 1
    return 0


def _goes_on_to_the_end(data: bytes, start: int, secret: bytes) -> bool:
    """Whether `data` from `start` on is the beginning of the secret, perhaps with breaks in its midst or behind it."""
    at = start
    for number in range(len(secret)):
        if at == len(data):
            return True
        if number and _BEGUN_BREAK.fullmatch(data, at):
            return number >= _FEWEST_BEFORE_A_BREAK or _is_output(data, start)
        if number and (between := _BREAK.match(data, at)) is not None:
            at = between.end()
        if data[at] != secret[number]:
            return False
        at += 1
    return False


def _is_output(data: bytes, at: int) -> bool:
    """Whether the line at `at` is known to be output, and none that tmux answers with, for which somebody waits."""
    begins_at = data.rfind(b"\n", 0, at) + 1
    is_output = data.startswith((b"%output ", b"%extended-output "), begins_at)
    return is_output or (begins_at > 0 and not data.startswith(b"%", begins_at))


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
