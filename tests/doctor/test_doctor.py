"""Findings of the doctor, on real sockets, real TLS and real containers; states that are hard to make, from facts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer
from own_tls import make_certificate
from small_context import SmallContext, Style

from tbench.demo.server import DemoEndpoint
from tbench.doctor import Check, CheckStatus, Finding, endpoint, examine, examine_all, ok
from tbench.doctor.connection import ProcessContext, cannot_start, check_address
from tbench.doctor.containers import (
    LIMITS_SCRIPT,
    check_dns,
    check_limits,
    check_network,
    check_start,
    check_storage,
    check_tools,
    judge_limits,
    run_probe,
)
from tbench.doctor.examination import Subject, examination
from tbench.doctor.machine import (
    check_clock,
    check_engine_disk,
    check_runs,
    judge_certificates,
    judge_disk,
)
from tbench.sandbox.docker.discovery import DEFAULT
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.owner import LABEL_RUN, LABEL_SHARED

FREE = ProcessContext(host=DEFAULT, is_container=False, may_administrate=True, patience_sec=1.0)
CONFINED = replace(FREE, is_container=True, may_administrate=False)
PONG = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
NO_TLS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"


def at(host: str, here: ProcessContext = FREE, **more: Any) -> Finding:
    return check_address(replace(here, host=host, **more))


@contextlib.contextmanager
def listening(
    answer: bytes | None, *, family: int = socket.AF_INET, address: Any = ("127.0.0.1", 0), tls: Path | None = None
) -> Iterator[Any]:
    """Answers every connection with the same bytes; with None, never."""
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        if tls is not None:
            context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
        held = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError):
                    connection.settimeout(20)
                    served = context.wrap_socket(connection, server_side=True) if tls else connection
                    held.append(served)
                    if answer is not None:
                        served.recv(4096)
                        served.sendall(answer)
                        served.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)
            for connection in held:
                connection.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A directory with a certificate for localhost, which is its own CA."""
    return make_certificate(tmp_path)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """One into which every user may look; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may open everything."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was == 0:
            os.seteuid(0)


# -- the engine's address --------------------------------------------------------------------------------


def test_a_socket_without_permission_is_distinguished_from_an_engine_that_does_not_run(open_directory: Path) -> None:
    path = open_directory / "docker.sock"
    with listening(PONG, family=socket.AF_UNIX, address=str(path)):
        path.chmod(0)
        with as_nobody():
            seen = at(f"unix://{path}")
    assert (seen.status, seen.seen) == (CheckStatus.FAIL, f"no permission on {path}")
    assert "usermod -aG docker" in seen.advice


def test_no_socket_means_that_no_engine_runs(tmp_path: Path) -> None:
    seen = at(f"unix://{tmp_path}/docker.sock")
    assert (seen.status, seen.seen) == (CheckStatus.FAIL, f"no engine runs: {tmp_path}/docker.sock does not exist")
    assert seen.advice.startswith("start that engine, leave out its address")


def test_a_socket_that_an_engine_left_means_that_none_runs(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert at(f"unix://{path}").seen == f"no engine runs: {path} is left over from one that has ended"


def test_a_container_without_privileges_is_distinguished_from_an_engine_that_does_not_run(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    for make in (lambda: None, path.touch):
        make()
        path.unlink(missing_ok=True)
        seen = at(f"unix://{path}", CONFINED)
        assert "a container without the privileges" in seen.seen
        assert "--privileged" in seen.advice and "docker.sock:/var/run/docker.sock" in seen.advice


@pytest.mark.parametrize(("capabilities", "may"), [("000001ffffffffff", True), ("00000000a80425fb", False)])
def test_a_container_and_its_privileges_are_read_from_the_system(tmp_path: Path, capabilities: str, may: bool) -> None:
    """The second is what Docker gives a container by default."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
    assert ProcessContext.of_this_process(tmp_path).is_container is False
    (tmp_path / ".dockerenv").touch()
    here = ProcessContext.of_this_process(tmp_path)
    assert (here.is_container, here.may_administrate, here.is_confined) == (True, may, not may)


def test_an_engine_that_starts_no_container_because_it_is_nested_is_distinguished_from_another_failure() -> None:
    words = "failed to mount overlay: operation not permitted"
    assert "a container without the privileges for it" in cannot_start(words, CONFINED).seen
    assert cannot_start(words, FREE).seen == f"no container starts: {words}"
    assert cannot_start("no space left on device", CONFINED).seen == "no container starts: no space left on device"


def test_an_address_that_is_none_or_leads_nowhere_names_docker_host(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "cannot connect: Connection refused" in at(f"tcp://127.0.0.1:{port}").seen
    assert "unknown host" in at("tcp://no-such-host.invalid:2375").seen
    assert "is not an address" in at("ftp://somewhere").seen
    (tmp_path / "file").touch()
    assert at(f"unix://{tmp_path}/file").seen.endswith("is not a socket")
    with listening(b"HTTP/1.1 404 Not Found\r\n\r\n") as (host, port):
        assert "unlike an engine" in at(f"tcp://{host}:{port}").seen


def test_an_engine_that_takes_connections_and_does_not_answer_hangs() -> None:
    with listening(None) as (host, port):
        seen = at(f"tcp://{host}:{port}", patience_sec=0.2)
    assert "takes connections but does not answer" in seen.seen


def test_tls_problems_are_distinguished_from_each_other(certificate: Path, tmp_path: Path) -> None:
    with listening(PONG, tls=certificate) as (_, port):
        secure = {"host": f"tcp://localhost:{port}", "verifies_tls": True}
        assert at(**secure, certificates=str(certificate)).status is CheckStatus.OK
        assert "TLS files in /nowhere cannot be used" in at(**secure, certificates="/nowhere").seen
        foreign = make_certificate(tmp_path / "foreign", "other")
        assert "TLS failed: " in at(**secure, certificates=str(foreign)).seen
    with listening(NO_TLS) as (host, port):
        assert at(f"tcp://{host}:{port}").seen == f"tcp://{host}:{port} requires TLS"


async def test_without_an_engine_the_rest_is_looked_at_all_the_same(tmp_path: Path) -> None:
    here = replace(FREE, host=f"unix://{tmp_path}/none.sock")
    found = {finding.name: finding for finding in await examination(Subject(tmp_path / "runs"), here)}
    assert found["engine"].status is CheckStatus.FAIL
    assert {
        found[name].status
        for name in ("storage", "containers", "limits", "tools", "network", "network of builds", "dns")
    } == {CheckStatus.SKIPPED}
    assert found["disk of runs"].status in (CheckStatus.OK, CheckStatus.WARN)
    assert found["endpoint"].status is CheckStatus.SKIPPED


@pytest.mark.engine
async def test_a_broken_configuration_of_docker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    found = {finding.name: finding for finding in await examination(Subject(tmp_path / "runs"))}
    assert found["engine"].status is CheckStatus.FAIL
    assert found["engine"].seen.startswith(f"{tmp_path / 'config.json'}: not valid JSON")


# -- every check is bounded and on its own -----------------------------------------------------------------


async def test_a_check_that_breaks_or_hangs_is_a_finding_and_the_others_go_on() -> None:
    async def breaks() -> Finding:
        raise KeyError("x")

    async def hangs() -> Finding:
        await asyncio.Event().wait()
        raise AssertionError

    async def works() -> Finding:
        return ok("fine")

    async def is_refused() -> Finding:
        raise EngineError("the engine did not answer info within 10 s")

    checks = [Check("a", breaks), Check("b", hangs, 0.05), Check("c", works), Check("d", is_refused)]
    made = await examine_all(checks)
    assert [(finding.name, finding.status) for finding in made] == [
        ("a", CheckStatus.FAIL), ("b", CheckStatus.FAIL), ("c", CheckStatus.OK), ("d", CheckStatus.FAIL),
    ]  # fmt: skip
    assert made[3].seen == "the engine did not answer info within 10 s"
    assert "overloaded" in made[3].advice and "bug" not in made[3].advice
    assert made[0].seen == "the check itself failed: KeyError: 'x'"
    assert made[1].seen == "no answer within 0 s"
    assert all(finding.advice for finding in made[:2])


# -- containers --------------------------------------------------------------------------------------------

GOOD = {"memory": str(64 << 20), "pids": "40", "cpu": "50000 100000", "hog": "0", "forks": ""}


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"memory": "max"}, "memory is max bytes instead of"),
        ({"hog": str(184 << 20)}, "192 MB were used where 64 were allowed"),
        ({"pids": "max"}, "pids is max instead of 40"),
        ({"forks": "all"}, "120 processes ran where 40 were allowed"),
        ({"cpu": "max 100000"}, "cpu is max 100000 instead of 0.5"),
        ({"cpu": "-1 100000"}, "cpu is -1 100000 instead of 0.5"),
        ({"cpu": "", "memory": ""}, "memory is unknown bytes"),
    ],
)
def test_a_limit_that_is_not_in_force_is_named(seen: dict[str, str], words: str) -> None:
    assert judge_limits(GOOD, "2").status is CheckStatus.OK
    found = judge_limits(GOOD | seen, "2")
    assert found.status is CheckStatus.FAIL
    assert words in found.seen


@pytest.mark.engine
async def test_limits_are_seen_to_be_in_force_from_inside(engine: Engine) -> None:
    seen = await check_limits(engine)
    assert seen.status is CheckStatus.OK, seen


@pytest.mark.engine
async def test_without_limits_the_same_container_shows_that_there_are_none(engine: Engine) -> None:
    said = await run_probe(engine, LIMITS_SCRIPT, limit_sec=60)
    values = {name: value.strip() for name, _, value in (line.partition(" ") for line in said.text.splitlines())}
    seen = judge_limits(values, engine.info.cgroup_version)
    for words in ("memory is ", "192 MB were used", "pids is ", "120 processes ran", "cpu is "):
        assert words in seen.seen, seen


@pytest.mark.engine
async def test_a_container_starts_and_nothing_of_it_is_left(engine: Engine) -> None:
    assert (await check_start(engine, FREE)).status is CheckStatus.OK
    mine = {"label": f"{LABEL_RUN}=doctor-{os.getpid()}"}
    assert engine.api.containers(all=True, filters=mine) == []
    check = Check("x", partial(run_probe, engine, "sleep 60"), 1.0)  # type: ignore[arg-type]
    assert (await examine(check)).status is CheckStatus.FAIL
    assert engine.api.containers(all=True, filters=mine) == []


@pytest.mark.engine
async def test_a_slow_storage_driver_is_pointed_out(engine: Engine) -> None:
    slow = Engine(engine.api, None, replace(engine.info, storage_driver="vfs"))  # type: ignore[arg-type]
    seen = await check_storage(slow)
    assert (seen.status, "overlay2" in seen.advice) == (CheckStatus.WARN, True)
    assert (await check_storage(engine)).seen == engine.info.storage_driver


@pytest.mark.engine
async def test_tools_that_are_missing_or_broken_are_distinguished(engine: Engine, tools_volume: str) -> None:
    assert (await check_tools(engine)).status is CheckStatus.OK
    name = f"tbench-test-empty-{os.getpid()}"
    assert (await check_tools(engine, name)).status is CheckStatus.WARN
    engine.api.create_volume(name, labels={LABEL_SHARED: "test"})
    try:
        seen = await check_tools(engine, name)
    finally:
        engine.api.remove_volume(name)
    assert seen.status is CheckStatus.FAIL
    assert f"tmux in volume {name} does not start" in seen.seen


@pytest.mark.engine
async def test_a_bridge_that_lets_nothing_out_is_distinguished_from_a_machine_without_internet(
    engine: Engine, tools_volume: str
) -> None:
    with listening(PONG) as (host, port):  # on the loopback of this machine, where no container gets
        seen = await check_network(engine, (host, port))
    assert seen.status is CheckStatus.FAIL
    assert f"this machine reaches {host}:{port}, but a container on tbench does not" in seen.seen
    assert (await check_network(engine, ("127.0.0.1", port))).status is CheckStatus.WARN
    assert (await check_dns(engine, "no-such-host.invalid")).status is CheckStatus.WARN
    assert (await check_dns(engine, "localhost")).status is CheckStatus.OK


# -- this machine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_gb", "inodes", "status"),
    [(50, 0.5, "ok"), (50, None, "ok"), (5, 0.5, "warn"), (0.5, 0.5, "fail"), (50, 0.03, "warn"), (50, 0.001, "fail")],
)
def test_a_disk_without_room_or_inodes_is_pointed_out(free_gb: float, inodes: float | None, status: str) -> None:
    assert judge_disk("/x", free_gb, inodes, "delete").status == status


def test_looking_for_room_leaves_nothing(tmp_path: Path) -> None:
    asyncio.run(check_runs(tmp_path / "runs"))
    assert list(tmp_path.iterdir()) == []


async def test_a_place_for_runs_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    seen = await check_runs(Path("/proc/runs"))
    assert (seen.status, seen.seen.startswith("/proc cannot be written")) == (CheckStatus.FAIL, True)
    assert (await check_runs(tmp_path / "not" / "yet")).seen.startswith(str(tmp_path))


def test_certificates_that_only_this_machine_trusts_are_distinguished_from_broken_ones(certificate: Path) -> None:
    own: Callable[[], ssl.SSLContext] = partial(ssl.create_default_context, cafile=str(certificate / "cert.pem"))
    others = partial(ssl.SSLContext, ssl.PROTOCOL_TLS_CLIENT)  # verifies, and trusts nobody
    with listening(PONG, tls=certificate) as (_, port):
        hosts = ("no-such-host.invalid", "localhost")
        assert judge_certificates(hosts, port, own, own).status is CheckStatus.OK
        assert judge_certificates(hosts, port, own, others).status is CheckStatus.WARN
        assert judge_certificates(hosts, port, others, own).status is CheckStatus.FAIL
        assert judge_certificates(hosts[:1], port, own, own).status is CheckStatus.SKIPPED


@pytest.mark.engine
async def test_the_engine_s_disk_and_a_container_clock_can_be_asked(engine: Engine) -> None:
    assert "GB free" in (await check_engine_disk(engine)).seen
    assert "the same in a container" in (await check_clock(engine)).seen


# -- the endpoint ------------------------------------------------------------------------------------------


async def asked(base_url: str, model: str | None = None, key: str | None = None) -> dict[str, Any]:
    found = await examine_all(endpoint.checks(base_url, model, key))
    return {finding.name: finding for finding in found}


async def test_an_endpoint_that_works_shows_model_context_speed_and_clock() -> None:
    with DemoEndpoint({}) as demo:
        found = await asked(demo.base_url)
    assert found["endpoint"].seen.startswith("scripted-demo")
    assert " tokens in " in found["model"].seen
    assert {finding.status for finding in found.values()} == {CheckStatus.OK}


async def test_a_model_that_is_not_served_or_a_refused_key_says_what_to_do() -> None:
    with DemoEndpoint({}) as demo:
        found = await asked(demo.base_url, model="gpt-17")
    assert "does not serve 'gpt-17'" in found["endpoint"].seen
    server = FaultServer()
    server.will_answer(401, {"error": {"message": "no such key sk-planted"}})
    found = await asked(server.base_url, key="sk-planted")
    server.close()
    assert (found["endpoint"].status, "OPENAI_API_KEY" in found["endpoint"].advice) == (CheckStatus.FAIL, True)
    assert "sk-planted" not in str(found)


@pytest.mark.parametrize("style", ["vllm", "vllm-old", "litellm", "halving"])
async def test_a_context_that_is_not_told_is_found_out_by_what_a_run_would_ask_for(style: Style) -> None:
    server = FaultServer()
    server.answer_by(SmallContext(style, "ok"))
    found = await asked(server.base_url)
    server.close()
    assert found["endpoint"].status is CheckStatus.OK
    assert (found["model"].status, "--max-tokens 16,384" in found["model"].advice) == (CheckStatus.WARN, True)


async def test_a_server_with_another_time_is_pointed_out() -> None:
    server = FaultServer()
    late = format_datetime(datetime.now(UTC) - timedelta(hours=1), usegmt=True)
    server.will_answer(200, {}, headers={"date": late})
    seen = await endpoint.check_clock(server.base_url)
    server.close()
    assert seen.status is CheckStatus.WARN
    assert "-3600 s" in seen.seen or "-3601 s" in seen.seen
    assert (await endpoint.check_clock("http://127.0.0.1:1/v1")).status is CheckStatus.SKIPPED
