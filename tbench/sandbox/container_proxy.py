"""The proxy for containers and builds, and the redaction of its password in their output.

`inherit` stands for `proxies` in Docker's own configuration, which is meant for containers, or else for the proxy
variables of this process.
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

from tbench.config.values import HIDDEN, INHERIT, NONE, is_loopback_proxy, proxy_text
from tbench.errors import UsageError

# Secrets are masked byte by byte, so that columns of a screen and sizes in an archive do not change.

_BETWEEN = rb"(?:\r?\n(?:%(?:extended-)?output %\d+ (?:\d+ : )?)?)?"
"""Pattern of a break within a secret: a line break, as on a narrow screen, and the prefix of tmux's next output."""


class Masks:
    """Masks secrets: each of their bytes becomes a star."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: a secret may contain another.
        found = sorted({each.encode() for each in secrets if each}, key=lambda each: -len(each))
        self.secrets = tuple(found)
        # A line break leaves one half of a secret intact: searching for halves first takes a hundredth of the time.
        halves = {half for each in found for half in (each[: len(each) // 2], each[len(each) // 2 :])}
        self._halves = [half for half in halves if not any(other in half for other in halves - {half})]
        one = (_BETWEEN.join(re.escape(each[at : at + 1]) for at in range(len(each))) for each in found)
        self._pattern = re.compile(b"|".join(one)) if found else None

    def mask(self, data: bytes) -> bytes:
        """Return `data` with all secrets masked."""
        if self._pattern is None or not any(half in data for half in self._halves):
            return data
        return self._pattern.sub(_stars, data)

    def mask_text(self, text: str) -> str:
        """Return `text` with all secrets masked."""
        if self._pattern is None:
            return text
        return self.mask(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def stream(self) -> MaskedStream:
        """Return a masker for output that arrives in pieces."""
        return MaskedStream(self)


class MaskedStream:
    """Masks secrets in one stream; holds back bytes that may be the beginning of a secret."""

    def __init__(self, masks: Masks) -> None:
        self._masks = masks
        self._held = b""

    def take(self, data: bytes) -> bytes:
        """Take the next piece of output and return the masked bytes that can be passed on."""
        data = self._masks.mask(self._held + data)
        kept = max((_possible_start(data, secret) for secret in self._masks.secrets), default=0)
        self._held = data[len(data) - kept :]
        return data[: len(data) - kept]

    def flush(self) -> bytes:
        """Return the bytes held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held


_BREAK = re.compile(_BETWEEN[: -len(b"?")])
_BREAK_PREFIX = re.compile(rb"\r?(?:\n(?:%[^\r\n]{0,40})?)?")
"""A break, or the beginning of one, at the end of the data."""
_LONGEST_BREAK = 44
_MIN_BEFORE_BREAK = 4
"""From this number on, bytes of a secret before a break are always held back; fewer may be the end of tmux's answer."""


def _stars(found: re.Match[bytes]) -> bytes:
    if b"\n" not in found[0]:
        return b"*" * len(found[0])
    parts, at = [], 0
    for between in _BREAK.finditer(found[0]):
        parts += [b"*" * (between.start() - at), between[0]]
        at = between.end()
    return b"".join([*parts, b"*" * (len(found[0]) - at)])


def _possible_start(data: bytes, secret: bytes) -> int:
    """Return the number of bytes at the end of `data` that may begin an incomplete secret."""
    at = max(0, len(data) - len(secret) * _LONGEST_BREAK)
    while (at := data.find(secret[:1], at)) >= 0:
        if _is_prefix_to_end(data, at, secret):
            return len(data) - at
        at += 1
    return 0


def _is_prefix_to_end(data: bytes, start: int, secret: bytes) -> bool:
    """Whether `data` from `start` to its end is a prefix of the secret, ignoring breaks."""
    at = start
    for number in range(len(secret)):
        if at == len(data):
            return True
        if number and _BREAK_PREFIX.fullmatch(data, at):
            return number >= _MIN_BEFORE_BREAK or _is_output(data, start)
        if number and (between := _BREAK.match(data, at)) is not None:
            at = between.end()
        if data[at] != secret[number]:
            return False
        at += 1
    return False


def _is_output(data: bytes, at: int) -> bool:
    """Whether the line at `at` is known to be output, and not an answer of tmux that is being waited for."""
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
"""Keys in Docker's configuration by variable; programs read the variables in lower or upper case."""
_EXCEPTIONS = "NO_PROXY"
PROXY_VARIABLES = tuple(name for each in _KEYS for name in (each, each.lower()))
_LOCAL = ("localhost", "127.0.0.1", "::1")
_SETTING = "TBENCH_SANDBOX_CONTAINER_PROXY"
_MIN_SECRET_BYTES = 8
"""Minimum length of a secret that is masked everywhere: a shorter password may be an ordinary word."""


@dataclass(frozen=True)
class ContainerProxy:
    """Proxy variables by their upper-case names; empty if there is no proxy."""

    variables: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""
    """Explanation why a configured proxy cannot be used."""

    def variables_for(self, *, own: Mapping[str, str], direct: Iterable[str | None] = ()) -> dict[str, str]:
        """Return the variables for a container or build that has a network.

        `own` are the other variables there: if one of them sets a proxy, even to none, the result is empty. Hosts in
        `direct`, and this machine, are reached without the proxy.
        """
        has = {name.upper(): value for name, value in own.items()}
        if not self.variables or any(name in has for name in _KEYS if name != _EXCEPTIONS):
            return {}
        exceptions = [*has.get(_EXCEPTIONS, "").split(","), *self.variables.get(_EXCEPTIONS, "").split(",")]
        exceptions += [*_LOCAL, *(host for host in direct if host)]
        listed = dict.fromkeys(filter(None, (each.strip() for each in exceptions)))
        # Some programs understand the star only when it is alone.
        given = {**self.variables, _EXCEPTIONS: "*" if "*" in listed else ",".join(listed)}
        return {name: given[name.upper()] for name in PROXY_VARIABLES if name.upper() in given}

    @property
    def shown(self) -> dict[str, str]:
        """The variables without passwords, to be stored and shown."""
        return {name: value if name == _EXCEPTIONS else proxy_text(value) for name, value in self.variables.items()}

    @property
    def notice(self) -> str:
        """Line for the user before the first container is made; empty if there is nothing to say."""
        urls = {value: None for name, value in self.shown.items() if name != _EXCEPTIONS}
        use = f"containers and builds with a network use the proxy {', '.join(urls)}" if urls else ""
        return "; ".join(filter(None, (use, self.remark)))

    @cached_property
    def masks(self) -> Masks:
        """Masks of its passwords, in all forms in which programs write them."""
        return Masks(form for name, url in self.variables.items() if name != _EXCEPTIONS for form in _forms(url))


WITHOUT_PROXY = ContainerProxy()


def container_proxy(choice: str, variables: Mapping[str, str] = os.environ) -> ContainerProxy:
    """Return the proxy that the setting `choice` means on this machine. Raises UsageError if a password is missing."""
    if choice == NONE:
        return WITHOUT_PROXY
    configured, named = _configured_proxies(variables), _environment_proxies(variables)
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
        remark = f"{', '.join(local)} ignored: containers cannot reach a proxy on this machine's localhost"
    return ContainerProxy({**usable, **exceptions} if usable else {}, remark)


def config_file(variables: Mapping[str, str] = os.environ) -> Path:
    """Return the path of Docker's own configuration, in DOCKER_CONFIG or ~/.docker."""
    directory = variables.get("DOCKER_CONFIG")
    return (Path(directory) if directory else Path.home() / ".docker") / "config.json"


def _configured_proxies(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the proxies in Docker's own configuration for the engine's address, or else the `default`."""
    try:
        tables = json.loads(config_file(variables).read_bytes())["proxies"]
        table = tables.get(variables.get("DOCKER_HOST", "")) or tables.get("default") or {}
        return {name: str(table[key]).strip() for name, key in _KEYS.items() if table.get(key)}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return {}  # a broken file is reported when an engine is connected


def _environment_proxies(variables: Mapping[str, str]) -> dict[str, str]:
    found = ((name, variables.get(name.lower()) or variables.get(name) or "") for name in _KEYS)
    return {name: value.strip() for name, value in found if value.strip()}


def _with_password(choice: str, variables: Mapping[str, str]) -> str:
    """Return a proxy URL with its password, looked up if the stored URL hides it. Raises UsageError."""
    if f"{HIDDEN}@" not in choice:
        return choice
    known = [
        variables.get(_SETTING, ""),
        *_configured_proxies(variables).values(),
        *_environment_proxies(variables).values(),
    ]
    for url in known:
        if proxy_text(url) == choice != url:
            return url
    raise UsageError(f"--container-proxy: the password for {choice} is not stored; set {_SETTING} to the whole URL")


def _forms(url: str) -> Iterator[str]:
    """Yield the secrets of a proxy URL: user and password as written, decoded, and as in a header."""
    user_and_password, at, _ = url.rpartition("://")[2].rpartition("@")
    if not at or not user_and_password:
        return
    user, colon, password = user_and_password.partition(":")
    encoded = quote(unquote(user), "") + colon + quote(unquote(password), "")
    written = {user_and_password, unquote(user_and_password), encoded}
    yield from (f"{each}@" for each in written if len(each) < _MIN_SECRET_BYTES)
    plain = f"{unquote(user)}:{unquote(password)}"
    secret = password if colon else user
    bare: Collection[str] = (
        *written, secret, unquote(secret), quote(unquote(secret), ""),
        *(b64encode(each.encode()).decode() for each in (plain, user_and_password)),
    )  # fmt: skip
    yield from (each for each in bare if len(each) >= _MIN_SECRET_BYTES)
