"""Addresses of engines: the forms that there are, and what is refused without a word of what is secret in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.errors import UsageError
from tbench.fleet.machine import DOCKER_SOCKET, EngineAddress


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("unix:///run/podman/podman.sock", ("unix", "", None, "/run/podman/podman.sock")),
        ("ssh://gpu-1", ("ssh", "gpu-1", None, DOCKER_SOCKET)),
        ("ssh://me@gpu-1", ("ssh", "me@gpu-1", None, DOCKER_SOCKET)),
        ("ssh://me@gpu-1:2222", ("ssh", "me@gpu-1", 2222, DOCKER_SOCKET)),
        ("ssh://me@gpu-1:2222/", ("ssh", "me@gpu-1", 2222, DOCKER_SOCKET)),
        ("ssh://me@gpu-1:/", ("ssh", "me@gpu-1", None, DOCKER_SOCKET)),
        ("ssh://me@gpu-1/run/user/1000/docker.sock", ("ssh", "me@gpu-1", None, "/run/user/1000/docker.sock")),
        ("ssh://me@[fd00::7]:22", ("ssh", "me@fd00::7", 22, DOCKER_SOCKET)),
        ("ssh://[fd00::7]", ("ssh", "fd00::7", None, DOCKER_SOCKET)),
        ("tcp://10.0.0.7:2376", ("tcp", "10.0.0.7", 2376, DOCKER_SOCKET)),
        ("tcp://[fd00::7]:2376/", ("tcp", "[fd00::7]", 2376, DOCKER_SOCKET)),
    ],
)
def test_an_address_is_read_in_all_its_forms(text: str, read: tuple[str, str, int | None, str]) -> None:
    address = EngineAddress.parse(text)
    assert (address.scheme, address.host, address.port, address.path) == read
    assert address.text == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpu-1",
        "gpu-1:2376",
        "http://gpu-1:2376",
        "npipe:////./pipe/docker",
        "unix://run/docker.sock",
        "unix:/var/run/docker.sock",
        "unix://",
        "unix:///",
        "ssh://",
        "ssh://me@",
        "ssh://:22",
        "ssh://-oProxyCommand=date@gpu-1",
        "ssh://gpu-1:0x16",
        "ssh://gpu-1:99999",
        "ssh://[fd00::7",
        "tcp://gpu-1",
        "tcp://gpu-1:0",
        "tcp://:2376",
        "tcp://gpu-1:2376/run/docker.sock",
        "tcp://gpu-1:2376?tls=no",
        "tcp://gpu-1:2376#x",
    ],
)
def test_what_is_no_address_is_refused_in_one_line_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        EngineAddress.parse(text)
    words = str(refused.value)
    assert words.startswith(f"{text or '(empty)'}: ") and "\n" not in words
    assert all(form in words for form in ("unix:///path/of.sock", "ssh://user@host", "tcp://host:2376", "oci:"))


@pytest.mark.parametrize(
    "text",
    [
        "ssh://me:hunter2@gpu-1",
        "ssh://me:hunter2@gpu-1:99999",
        "ssh://me:hunter2@[fd00::7",
        "ssh://me:hun/ter2@gpu-1",
        "ssh://me:hun@ter2@gpu-1",
        "ssh://:hunter2@gpu-1",
        "tcp://me:hunter2@gpu-1:2376",
        "https://me:hunter2@gpu-1",
        "me:hunter2@gpu-1",
    ],
)
def test_a_password_is_refused_and_never_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="must not contain a password; use an ssh key") as refused:
        EngineAddress.parse(text)
    assert not any(part in str(refused.value) for part in ("hunter2", "hun", "ter2"))


@given(st.text(alphabet="aA0:/@[]?#%.-\\ \n\u00e9", max_size=30), st.sampled_from(["", "ssh://", "unix://", "tcp://"]))
def test_every_text_is_an_address_or_is_refused(text: str, scheme: str) -> None:
    try:
        address = EngineAddress.parse(scheme + text)
    except UsageError:
        return
    assert address.scheme == "unix" or (address.host and not address.host.startswith("-"))
