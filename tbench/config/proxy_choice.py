"""`--container-proxy`: of which proxy containers and builds are told, and what of that may be stored and shown."""

from __future__ import annotations

from typing import Literal, get_args
from urllib.parse import urlsplit

from harness.endpoint.address import is_loopback

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
