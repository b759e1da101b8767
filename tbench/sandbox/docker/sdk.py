"""The Docker SDK's private names that are used here; its public interface has no raw socket that can be awaited.

Written for docker 7.1 over requests and urllib3. Where a name is gone, `UnknownSdk` says which.
"""

from __future__ import annotations

import socket
from typing import Any


class UnknownSdk(RuntimeError):
    """The installed Docker SDK, or an HTTP library below it, is not built as this module expects."""


def forget_proxies(api: Any) -> None:
    """Make a client add nothing to containers and builds that Docker's own configuration says about proxies."""
    if not hasattr(api, "_proxy_configs"):
        raise UnknownSdk(f"a {type(api).__name__} has no `_proxy_configs` any more, of which it makes variables")
    api._proxy_configs = type(api._proxy_configs)()


def socket_of(raw: Any) -> socket.socket:
    """The socket behind what `exec_start(socket=True)` gives: a SocketIO, or over TLS the socket itself."""
    found = getattr(raw, "_sock", raw)
    if not isinstance(found, socket.socket):
        raise UnknownSdk(f"exec_start(socket=True) gave a {type(raw).__name__} without the socket in `_sock`")
    return found


def bytes_already_read(raw: Any) -> bytes:
    """What the HTTP client read together with the response's headers: the first output is often among it.

    The socket must not block. A bare socket, as a test has it, has no response that could have read anything.
    """
    if isinstance(raw, socket.socket) and not hasattr(raw, "_response"):
        return b""
    reader: Any = raw
    for name in ("_response", "raw", "_fp", "fp"):
        try:
            reader = getattr(reader, name)
        except AttributeError:
            raise UnknownSdk(f"a {type(reader).__name__} has no `{name}` any more, where output may wait") from None
    if reader is None:  # the response was read to its end
        return b""
    waiting = reader.peek()
    return bytes(reader.read(len(waiting))) if waiting else b""


def release_stream(stream: Any) -> None:
    """Close the HTTP response under a stream of events; the stream's own `close` only shuts its socket down."""
    stream._response.close()


def release(raw: Any) -> None:
    """Close the HTTP response that holds the socket's descriptor; the number may be another's from then on."""
    getattr(raw, "_response", raw).close()


def asking_always(api: Any, **parameters: str) -> Any:
    """The same client, over the same connections, with parameters in each call that the SDK has no argument for."""
    client = object.__new__(type(api))
    client.__dict__ = {**vars(api), "params": parameters}
    return client
