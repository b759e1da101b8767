"""The private names of the Docker SDK that are used are there, and their absence is told."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker import sdk
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine


@pytest.mark.engine
@pytest.mark.slow
async def test_the_installed_sdk_is_built_as_expected(engine: Engine, start_sandbox: Any, make_task: Any) -> None:
    container = await start_sandbox(make_task())
    assert isinstance(container, Container)
    created = engine.api.exec_create(container.container_id, [BUSYBOX, "echo", "said"])
    raw = engine.api.exec_start(created["Id"], socket=True)
    found = sdk.exec_socket(raw)
    assert found.family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
    found.setblocking(False)
    output = sdk.bytes_already_read(raw)
    async with asyncio.timeout(20):
        while data := await asyncio.get_running_loop().sock_recv(found, 1000):
            output += data
    assert output.endswith(b"said\n")
    sdk.release(raw)
    assert raw._response.raw.closed


class Raw:
    """A result as an SDK with another internal structure might give it."""

    def __init__(self, **known: Any) -> None:
        self.__dict__.update(known)


def test_an_sdk_without_the_socket_is_named() -> None:
    with pytest.raises(sdk.UnknownSdk, match=r"exec_start\(socket=True\) returned a Raw without a socket in `_sock`"):
        sdk.exec_socket(Raw())


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (Raw(), "_response"),
        (Raw(_response=Raw()), "raw"),
        (Raw(_response=Raw(raw=Raw())), "_fp"),
        (Raw(_response=Raw(raw=Raw(_fp=Raw()))), "fp"),
    ],
)
def test_an_sdk_whose_response_is_built_otherwise_is_named(raw: Raw, name: str) -> None:
    with pytest.raises(sdk.UnknownSdk, match=f"has no `{name}`, "):
        sdk.bytes_already_read(raw)
