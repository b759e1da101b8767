"""Access to private attributes of the Docker SDK, whose public interface has no raw socket that can be awaited.

Written for docker 7.1 with requests and urllib3. Raises `UnknownSdk` if an attribute is missing.
"""

from __future__ import annotations

import socket
from typing import Any


class UnknownSdk(RuntimeError):
    """The installed Docker SDK, or an HTTP library below it, lacks an attribute that this module needs."""


def forget_proxies(api: Any) -> None:
    """Stop a client from adding the proxies of Docker's own configuration to containers and builds."""
    if not hasattr(api, "_proxy_configs"):
        raise UnknownSdk(f"a {type(api).__name__} has no `_proxy_configs`, where proxies were stored")
    api._proxy_configs = type(api._proxy_configs)()


def exec_socket(raw: Any) -> socket.socket:
    """Return the socket of the result of `exec_start(socket=True)`: a SocketIO, or with TLS the socket itself."""
    found = getattr(raw, "_sock", raw)
    if not isinstance(found, socket.socket):
        raise UnknownSdk(f"exec_start(socket=True) returned a {type(raw).__name__} without a socket in `_sock`")
    return found


def bytes_already_read(raw: Any) -> bytes:
    """Return the bytes that the HTTP client has read beyond the response's headers, often the first output.

    The socket must be non-blocking. For a bare socket, as in tests, there are none.
    """
    if isinstance(raw, socket.socket) and not hasattr(raw, "_response"):
        return b""
    reader: Any = raw
    for name in ("_response", "raw", "_fp", "fp"):
        try:
            reader = getattr(reader, name)
        except AttributeError:
            raise UnknownSdk(f"a {type(reader).__name__} has no `{name}`, which led to buffered output") from None
    if reader is None:  # the response was read completely
        return b""
    waiting = reader.peek()
    return bytes(reader.read(len(waiting))) if waiting else b""


def release_stream(stream: Any) -> None:
    """Close the HTTP response of a stream of events; the stream's own `close` only shuts down its socket."""
    stream._response.close()


def release(raw: Any) -> None:
    """Close the HTTP response that owns the socket's descriptor, whose number may be reused afterwards."""
    getattr(raw, "_response", raw).close()


def with_parameters(api: Any, **parameters: str) -> Any:
    """Return a client on the same connections that sends `parameters` for which the SDK has no arguments."""
    client = object.__new__(type(api))
    client.__dict__ = {**vars(api), "params": parameters}
    return client
