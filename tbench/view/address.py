"""Address that a viewer listens on, and the token that requests need if other machines can reach the address."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

_LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})
_EVERY = frozenset({"", "0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class ViewAddress:
    """Address to listen on, and the token that it requires: None if only this machine can reach the address."""

    host: str
    port: int
    token: str | None

    @classmethod
    def for_host(cls, host: str, port: int) -> ViewAddress:
        """Return the address, with a new token if other machines can reach it."""
        return cls(host, port, None if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def url(self, port: int) -> str:
        """Return the URL for users; `port` is the actual port."""
        host = socket.gethostname() if self.host in _EVERY else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")

    def answers_to(self, host_header: str | None) -> bool:
        """Whether a request is meant for this server.

        Without a token, Host must be a loopback name: a foreign name may resolve to this machine (DNS rebinding).
        """
        return self.token is not None or is_loopback(_host_of(host_header or ""))

    def knows(self, given: str | None) -> bool:
        """Whether a token is correct, or none is required."""
        return self.token is None or hmac.compare_digest((given or "").encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine only."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(header: str) -> str:
    """Return the host of a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


def cookie_name(port: int) -> str:
    """Return the cookie's name, which contains the port because cookies are shared by all ports of a host."""
    return f"tbench-view-{port}"


def token_in(cookies: str | None, port: int) -> str | None:
    """Return the token in a Cookie header; None if there is none."""
    try:
        found = SimpleCookie(cookies or "").get(cookie_name(port))
    except CookieError:
        return None
    return found.value if found is not None else None
