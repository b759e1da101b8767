"""An endpoint's URL, proxy and key: validated, and without secrets for display."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from harness.errors import EndpointError

_MAX_LIKELY = 12


def full_url(base_url: str) -> str:
    """Return the URL for requests, with `/v1` added if there is no path. Raises EndpointError."""
    url = base_url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise EndpointError("the base URL must look like http://host:8000/v1")
    if parts.query or parts.fragment:
        raise EndpointError("the base URL must not have a query or fragment")
    return url if parts.path else url + "/v1"


def likely_urls(url: str) -> list[str]:
    """Return the base URLs that may be meant by a wrong one, likeliest first.

    They have a shorter path, `/v1`, or another scheme, since people paste the URL of a request, or leave out `/v1`.
    """
    parts = urlsplit(url)
    names = parts.path.strip("/").split("/")
    starts = ["/".join(["", *names[:count]]) for count in range(len(names), -1, -1)]
    paths = [path for start in starts for path in (start, f"{start}/v1") if path.count("/v1") <= 1]
    schemes = (parts.scheme, "http" if parts.scheme == "https" else "https")
    found = (f"{scheme}://{parts.netloc}{path}" for scheme in schemes for path in dict.fromkeys(paths))
    return [each for each in dict.fromkeys(each.rstrip("/") for each in found) if each != url][:_MAX_LIKELY]


def without_password(url: str) -> str:
    """Remove user name and password from `url`, which may lack its scheme, so that it can be stored and shown."""
    return re.sub(r"^((?:[^/?#]*//)?)[^/?#]*@", r"\1", url)


@dataclass(frozen=True)
class Proxy:
    """A proxy from an environment variable."""

    variable: str
    url: str
    """Without user name and password."""

    def __str__(self) -> str:
        return f"the proxy {self.url} ({self.variable})"


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy for requests to a URL according to the environment; None for a direct connection.

    Connections to this machine are always direct: a proxy would look for the server on its own machine.
    """
    parts = urlsplit(url)
    proxies = getproxies_environment()
    scheme = next((each for each in (parts.scheme, "all") if each in proxies), None)
    host = parts.hostname or ""
    if scheme is None or is_loopback(host) or proxy_bypass(host):
        return None
    names = [name for name in os.environ if name.lower() == f"{scheme}_proxy" and os.environ[name] == proxies[scheme]]
    return Proxy(names[0] if names else f"{scheme.upper()}_PROXY", without_password(proxies[scheme]))


def bypasses_proxies(url: str) -> bool:
    """Whether the environment names proxies but the URL is on this machine."""
    return bool(getproxies_environment()) and is_loopback(urlsplit(url).hostname or "")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as seen from itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def usable_key(api_key: str | None) -> str | None:
    """Return the key without surrounding white space; None if it is empty. Raises EndpointError."""
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise EndpointError("the API key has characters that cannot be sent; check OPENAI_API_KEY")
    return key or None
