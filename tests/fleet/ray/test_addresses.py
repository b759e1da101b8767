"""Addresses of clusters that cannot be used: one line each, before anything is started. No Ray is needed for these."""

from __future__ import annotations

import inspect
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from tbench.errors import UsageError
from tbench.fleet.ray import actor, channel, guard
from tbench.fleet.ray.actor import MIN_FREE_MB, NodeActor, disk_problem, engine_address
from tbench.fleet.ray.cluster import require_address, with_advice
from tbench.sandbox import owner
from tbench.sandbox.docker import discovery
from tbench.sandbox.docker.discovery import DEFAULT, find_engine


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://head:10001", "is for clients outside the cluster"),
        ("head", "not the address of a cluster"),
        ("head:", "not the address of a cluster"),
        (":6379", "not the address of a cluster"),
        ("head:six", "not the address of a cluster"),
        ("head:0", "not the address of a cluster"),
        ("head:99999", "not the address of a cluster"),
        ("http://head:8265", "not the address of a cluster"),
        ("me@head:6379", "not the address of a cluster"),
        ("a head:6379", "not the address of a cluster"),
        ("", "not the address of a cluster"),
    ],
)
def test_what_is_no_address_is_refused_with_the_forms_that_there_are(address: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        require_address(address, has_ray=True)
    assert said in str(refused.value) and "HOST:PORT" in str(refused.value)
    assert str(refused.value).startswith(f"--ray {address or '(empty)'}:") and "\n" not in str(refused.value)


def test_where_no_one_listens_the_address_is_named_with_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"{address}: no head of a cluster answers there: Connection refused"):
            require_address(address, has_ray=True)


def test_without_ray_it_is_said_how_to_install_it() -> None:
    with pytest.raises(UsageError, match=r"pip install 'tbench\[ray\]'"):
        require_address("auto", has_ray=False)


@pytest.mark.parametrize(
    ("why", "said"),
    [
        ("Could not find any running Ray instance. Please specify", "no Ray runs on this machine"),
        ("no Ray runs at 10.0.0.1:6379, where one ran before", "no Ray runs on this machine"),
        ("Token authentication is enabled but no authentication token was found", "the cluster refuses the token"),
        ("Version mismatch: The cluster was started with: Ray: 2.59.0", "Version mismatch"),
    ],
)
def test_what_ray_says_becomes_what_to_do_about_it_where_that_is_known(why: str, said: str) -> None:
    assert said in with_advice(why)


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"DOCKER_HOST": "tcp://10.0.0.1:2375"}, "tcp://10.0.0.1:2375"),
        ({"DOCKER_HOST": "unix:///a.sock", "XDG_RUNTIME_DIR": "/nowhere"}, "unix:///a.sock"),
    ],
)
def test_the_engine_of_a_node_is_the_one_that_its_own_docker_host_names(
    variables: dict[str, str], address: str
) -> None:
    assert engine_address(variables) == address


def test_without_docker_host_it_is_the_one_that_a_run_on_that_machine_finds(tmp_path: Path) -> None:
    found = find_engine().found
    assert engine_address({"HOME": str(tmp_path)}) == (found.host if found is not None else DEFAULT)


@pytest.mark.parametrize("module", [actor, channel, discovery, guard, owner])
def test_what_is_sent_to_nodes_does_not_hold_this_process_s_environment(module: ModuleType) -> None:
    """Ray sends functions with their defaults."""
    functions = [each for each in vars(module).values() if inspect.isfunction(each)]
    functions += [
        each for kind in vars(module).values() if inspect.isclass(kind) for each in vars(kind).values()
        if inspect.isfunction(each)
    ]  # fmt: skip
    assert functions
    assert not [each for each in functions if any(value is os.environ for value in each.__defaults__ or ())]


async def test_a_node_whose_engine_is_another_service_or_none_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NoEngine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(400)  # as an engine that wants TLS says to whoever does not speak it

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), NoEngine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("DOCKER_HOST", address)
        seen = await NodeActor("", "label", "kept").prepare()
        server.shutdown()
    assert seen["why_not"].startswith(f"no container engine answers at {address}, or it requires TLS")
    seen = await NodeActor("", "label", "kept").prepare()
    assert seen["why_not"] == f"no container engine answers at {address} (Connection refused)"
    monkeypatch.setenv("DOCKER_HOST", "ssh://gpu-1")
    seen = await NodeActor("", "label", "kept").prepare()
    assert seen["why_not"] == "DOCKER_HOST=ssh://gpu-1 is neither unix:// nor tcp://"


def test_a_disk_that_cannot_be_seen_is_not_judged_and_one_with_room_has_nothing_wrong(tmp_path: Path) -> None:
    assert disk_problem("") == disk_problem(str(tmp_path / "nowhere")) == ""
    assert disk_problem(str(tmp_path), min_free_mb=0) == ""
    assert "its engine's disk is full" in disk_problem(str(tmp_path), min_free_mb=1 << 40)
    assert MIN_FREE_MB > 0
