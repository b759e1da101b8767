"""An endpoint's URL and key: what a user gives, checked, and what may be shown of it."""

from __future__ import annotations

from urllib.parse import urlsplit

from harness.errors import EndpointError


def full_url(base_url: str) -> str:
    """The URL that requests go to, `/v1` added where no path is given. Raises EndpointError."""
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


def without_password(url: str) -> str:
    """`url` without user name and password, as it may be stored and shown."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def usable_key(api_key: str | None) -> str | None:
    """The key without white space around it, None where that leaves nothing. Raises EndpointError."""
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise EndpointError("the API key has characters that cannot be sent; check OPENAI_API_KEY")
    return key or None
