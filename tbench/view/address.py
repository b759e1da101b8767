"""Where a viewer listens, and who may ask it: everybody on this machine, and elsewhere who has the token."""

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
    """An address to listen on, with the token that is asked for there; None on this machine alone."""

    host: str
    port: int
    token: str | None

    @classmethod
    def of(cls, host: str, port: int) -> ViewAddress:
        """The address; beyond this machine with a new token."""
        return cls(host, port, None if is_loopback(host) else secrets.token_urlsafe(24))

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    def url(self, port: int) -> str:
        """What a user opens; the port is the one that was taken."""
        host = socket.gethostname() if self.host in _EVERY else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")

    def answers_to(self, host_header: str | None) -> bool:
        """Whether a request is meant for this server.

        On this machine a page of somebody else's may have its name point here: then the name is none of this machine's.
        """
        return self.token is not None or is_loopback(_host_of(host_header or ""))

    def knows(self, given: str | None) -> bool:
        """Whether a token is the right one, or none is asked for."""
        return self.token is None or hmac.compare_digest((given or "").encode(), self.token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if ":" in header else header


def cookie_name(port: int) -> str:
    """The cookie's name; cookies do not tell ports apart."""
    return f"tbench-view-{port}"


def token_in(cookies: str | None, port: int) -> str | None:
    """The token in a Cookie header."""
    try:
        found = SimpleCookie(cookies or "").get(cookie_name(port))
    except CookieError:
        return None
    return found.value if found is not None else None
