"""Settings whose values need parsing: capabilities, proxies, error types to retry, shards, durations, times of day."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from harness.endpoint.address import is_loopback
from tbench.errors import KINDS, REWOUND
from tbench.results import ErrorInfo

# Linux capabilities

_PREFIX = "CAP_"
_NAMES = {
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
    "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
    "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST",
    "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT",
    "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG",
    "SYSLOG", "WAKE_ALARM",
}  # fmt: skip
"""Capabilities of Linux 5.9 and later, from capabilities(7)."""


def validate_capabilities(given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the capabilities without prefix, unique and sorted. Raises ValueError for an unknown one."""
    names = {name.removeprefix(_PREFIX) for name in given}
    if unknown := sorted(names - _NAMES):
        near = difflib.get_close_matches(unknown[0].upper().removeprefix(_PREFIX), sorted(_NAMES), n=1)
        hint = f"did you mean {near[0]}?" if near else "see capabilities(7)"
        raise ValueError(f"{unknown[0]!r} is not a Linux capability; {hint}")
    return tuple(sorted(names))


# `--container-proxy`: the proxy of containers and builds, whose password is never stored or shown

HIDDEN = "***"
"""Replaces the user and password of a proxy in stored and shown values."""
_KEYWORDS = Literal["inherit", "none"]
INHERIT, NONE = get_args(_KEYWORDS)
_SCHEMES = {"http", "https", "socks4", "socks4a", "socks5", "socks5h"}
_EXPECTED = "must be inherit, none, or a URL such as http://user:password@host:3128 (write %40 for an @ in a password)"


def validate_proxy_choice(text: str) -> str:
    """Return `text` if it is inherit, none or a proxy's URL, also a masked one. ValueErrors do not quote it."""
    if text in (INHERIT, NONE):
        return text
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    # urlsplit removes line breaks, so `text` itself is checked for them, too.
    more = is_url and (parts.path not in ("", "/") or parts.query or parts.fragment)
    if not is_url or more or not text.isprintable() or set(text) & set(" '\"\\"):
        raise ValueError(_EXPECTED)
    if is_loopback_proxy(text):
        raise ValueError("in a container, localhost is the container itself; use an address that containers can reach")
    return text


def proxy_text(url: str) -> str:
    """Return a proxy URL in which user and password (everything before the last @) are hidden."""
    scheme, separator, rest = url.rpartition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{HIDDEN}@{host}" if at and user else url


def is_loopback_proxy(url: str) -> bool:
    """Whether a proxy, with or without a scheme, has a loopback address, which in a container is the container."""
    try:
        return is_loopback(urlsplit(url if "://" in url else f"//{url}").hostname or "")
    except ValueError:
        return False


# Retryable errors: all, only some, or all but some


@dataclass(frozen=True)
class RetryChoice:
    """The error types given by `--retry-only` and `--retry-never`."""

    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    def wants(self, error: ErrorInfo) -> bool:
        """Whether to retry after this error; a rewound trial always continues."""
        if not error.retryable or error.type == REWOUND:
            return error.retryable
        return error.type not in self.never and (not self.only or error.type in self.only)


RETRY_ALL = RetryChoice()


def known_types(given: tuple[str, ...]) -> tuple[str, ...]:
    """Split comma-separated error types. Raises ValueError for an unknown type."""
    types = dict.fromkeys(filter(None, (each.strip() for text in given for each in text.split(","))))
    for type_ in types:
        if type_ == REWOUND:
            raise ValueError(f"{type_}: is not a failure, and the trial always continues; leave it out")
        if type_ not in KINDS:
            near = difflib.get_close_matches(type_, KINDS, n=1)
            raise ValueError(f"{type_}: no such type of error; {_advice(near)}")
    return tuple(types)


def retryable_types(given: tuple[str, ...]) -> tuple[str, ...]:
    """Split comma-separated types of retryable errors. Raises ValueError for any other type."""
    types = known_types(given)
    for type_ in types:
        if not KINDS[type_].retryable:
            why = "is never retried automatically, because that would give the model a second chance"
            raise ValueError(f"{type_}: {why}; use 'tbench resume RUN --retry-errors {type_}'")
    return types


def _advice(near: list[str]) -> str:
    known = ", ".join(name for name, kind in KINDS.items() if kind.retryable and name != REWOUND)
    return f"did you mean {near[0]}?" if near else f"retryable: {known}"


# Shards: `I/N`, counted from 0


@dataclass(frozen=True)
class Shard:
    """One of several parts of a run."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard such as `0/4`. Raises ValueError."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise ValueError("must be I/N with I from 0 to N-1, e.g. 0/4 to 3/4")
        return cls(int(found[1]), int(found[2]))


def validate_shard(text: str | None) -> str | None:
    """Return a shard in canonical form; None stays None. Raises ValueError."""
    return None if text is None else str(Shard.parse(text))


_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNIT_SEC = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_sec(text: str) -> float:
    """Return a duration such as 90m, 24h or 0 in seconds. Raises ValueError."""
    if (found := _DURATION.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r}: write a number and s, m, h or d, such as 90m or 24h")
    return float(found[1]) * _UNIT_SEC[found[2]]


def validate_duration(text: str | None) -> str | None:
    """Return a duration, or None, unchanged. Raises ValueError for another text."""
    if text is not None:
        duration_sec(text)
    return text


def validate_time(text: str | None) -> str | None:
    """Return a time of day, or None, unchanged. Raises ValueError for another text."""
    if text is not None and re.fullmatch(r"([01]?\d|2[0-3]):[0-5]\d", text) is None:
        raise ValueError(f"{text!r}: write hours and minutes, such as 06:00")
    return text
