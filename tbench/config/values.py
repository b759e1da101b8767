"""Values of settings that have a grammar of their own: capabilities, proxies, errors to retry, shards."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from harness.endpoint.address import is_loopback
from tbench.errors import KINDS, REWOUND
from tbench.results import ErrorInfo

# The names of Linux capabilities, as a setting may give them.

_PREFIX = "CAP_"
_NAMES = {
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
    "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
    "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST",
    "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT",
    "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG",
    "SYSLOG", "WAKE_ALARM",
}  # fmt: skip
"""Those of Linux 5.9 and later, as capabilities(7) has them."""


def checked_capabilities(given: tuple[str, ...]) -> tuple[str, ...]:
    """The capabilities without their prefix, each once and sorted. Raises ValueError for what is none."""
    names = {name.removeprefix(_PREFIX) for name in given}
    if unknown := sorted(names - _NAMES):
        near = difflib.get_close_matches(unknown[0].upper().removeprefix(_PREFIX), sorted(_NAMES), n=1)
        meant = f"did you mean {near[0]}?" if near else "capabilities(7) has their names"
        raise ValueError(f"{unknown[0]!r} is no Linux capability; {meant}")
    return tuple(sorted(names))


# `--container-proxy`: of which proxy containers and builds are told, and what of that may be stored and shown.

HIDDEN = "***"
"""Stands for the user and the password of a proxy in whatever is stored or shown."""
_WORDS = Literal["inherit", "none"]
INHERIT, NONE = get_args(_WORDS)
_SCHEMES = {"http", "https", "socks4", "socks4a", "socks5", "socks5h"}
_HOW = "write inherit, none, or a URL such as http://user:password@host:3128, with %40 for an @ in a password"


def checked_proxy_choice(text: str) -> str:
    """A choice of the user's, or one that was stored. Raises ValueError, which quotes nothing of it."""
    if text in (INHERIT, NONE):
        return text
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    # What is taken apart here has lost its line breaks already.
    more = is_url and (parts.path not in ("", "/") or parts.query or parts.fragment)
    if not is_url or more or not text.isprintable() or set(text) & set(" '\"\\"):
        raise ValueError(_HOW)
    if is_loopback_proxy(text):
        raise ValueError("localhost is to each container itself; name the proxy by an address that containers reach")
    return text


def shown_proxy(url: str) -> str:
    """A proxy without its user and password, which stand before the last @."""
    scheme, separator, rest = url.rpartition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{separator}{HIDDEN}@{host}" if at and user else url


def is_loopback_proxy(url: str) -> bool:
    """Whether a proxy is at an address that every container has itself. It may be written without a scheme."""
    try:
        return is_loopback(urlsplit(url if "://" in url else f"//{url}").hostname or "")
    except ValueError:
        return False


# Which errors of trials are tried again: of those that another attempt may heal, all, only some, or all but some.


@dataclass(frozen=True)
class RetryChoice:
    """The types of error that `--retry-only` and `--retry-never` name."""

    only: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()

    def wants(self, error: ErrorInfo) -> bool:
        """Whether another attempt follows such an error. What somebody has rewound is no matter of choice."""
        if not error.retryable or error.type == REWOUND:
            return error.retryable
        return error.type not in self.never and (not self.only or error.type in self.only)


ALL_THAT_MAY_HEAL = RetryChoice()


def known_types(words: tuple[str, ...]) -> tuple[str, ...]:
    """Types of error, of which each word has one or several with commas. Raises ValueError."""
    types = dict.fromkeys(filter(None, (each.strip() for word in words for each in word.split(","))))
    for type_ in types:
        if type_ == REWOUND:
            raise ValueError(f"{type_}: is no failure, and goes on by itself; leave it out")
        if type_ not in KINDS:
            near = difflib.get_close_matches(type_, KINDS, n=1)
            raise ValueError(f"{type_}: no such type of error; {_advice(near)}")
    return tuple(types)


def retryable_types(words: tuple[str, ...]) -> tuple[str, ...]:
    """The same, of types that another attempt may heal. Raises ValueError."""
    types = known_types(words)
    for type_ in types:
        if not KINDS[type_].retryable:
            why = "stands, as another attempt would be a second chance at the same"
            raise ValueError(f"{type_}: {why}; 'tbench resume RUN --retry-errors {type_}' gives one")
    return types


def _advice(near: list[str]) -> str:
    known = ", ".join(name for name, kind in KINDS.items() if kind.retryable and name != REWOUND)
    return f"did you mean {near[0]}?" if near else f"these may be tried again: {known}"


# Which part of the whole a process takes: `I/N`, counted from 0.


@dataclass(frozen=True)
class Shard:
    """One of several parts, counted from 0."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard of a text such as `0/4`. Raises ValueError."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise ValueError("must be I/N with I from 0 to N-1, e.g. 0/4 to 3/4")
        return cls(int(found[1]), int(found[2]))


def checked_shard(text: str | None) -> str | None:
    """The same text, of a shard or none. Raises ValueError."""
    return None if text is None else str(Shard.parse(text))
