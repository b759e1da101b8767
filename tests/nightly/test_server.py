"""Model servers of a night: real processes, whether they get ready, and that they always end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from nightly_bench import NightlyBench

from tbench.errors import UsageError
from tbench.nightly.configuration import Checkpoint, ServeSection
from tbench.nightly.server import ServerFailed, SupervisedProcess, server_command, serving

CHECKPOINT = Checkpoint("/c/step-*", "/c/step-5")
BOUND_SEC = 20


@pytest.fixture
def lock(tmp_path: Path) -> int:
    return os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)


def section(bench: NightlyBench, mode: str, **settings: object) -> ServeSection:
    words = (sys.executable, str(bench.folder / "server.py"), mode, "{port}", str(bench.folder / "children"))
    known = {"command": words, "port": 0, "ready_timeout_sec": BOUND_SEC, "stop_timeout_sec": 0.1}
    return ServeSection.model_validate({**known, **settings})


def is_gone(pid: int, within_sec: float = BOUND_SEC) -> bool:
    """Whether a process has ended, now or within a bound."""
    ends_at = time.monotonic() + within_sec
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z" or time.monotonic() > ends_at:
            return state == "Z"
        time.sleep(0.02)


def children_of(bench: NightlyBench) -> list[int]:
    return [int(line) for line in (bench.folder / "children").read_text().split()]


@pytest.mark.parametrize("mode", [pytest.param("good", marks=pytest.mark.slow), "stubborn"])
async def test_a_server_is_ready_and_then_ended_with_all_its_processes(
    bench: NightlyBench, lock: int, mode: str
) -> None:
    log = bench.folder / "serve.log"
    async with serving(section(bench, mode), CHECKPOINT, log, lock) as server:
        assert server.process.code is None and server.base_url.endswith("/v1")
        (child,) = children_of(bench)
        assert not is_gone(child, within_sec=0)
    assert is_gone(child) and log.read_text() == "serving\n"


async def test_a_server_with_other_weights_is_refused(bench: NightlyBench, lock: int) -> None:
    log, words = bench.folder / "serve.log", section(bench, "good").command
    serve = section(bench, "good", command=(*words, "{checkpoint}"))
    other = bench.folder / "step-5"
    with pytest.raises(ServerFailed, match=r"/v1: serves /.* instead of /.*/step-5: another server uses its port"):
        async with serving(serve, Checkpoint("l", str(other)), log, lock):
            raise AssertionError("it is another server")
    other.symlink_to(bench.folder)
    async with serving(serve, Checkpoint("l", str(other)), log, lock) as server:
        assert server.process.code is None


async def test_a_server_that_fails_to_start_is_reported_with_its_last_output(bench: NightlyBench, lock: int) -> None:
    with pytest.raises(ServerFailed, match=r"failed to start: .* code 1: ValueError: no such checkpoint"):
        async with serving(section(bench, "dies"), CHECKPOINT, bench.folder / "serve.log", lock):
            raise AssertionError("it is not ready")


async def test_a_server_that_never_gets_ready_is_given_up_and_ended(bench: NightlyBench, lock: int) -> None:
    log = bench.folder / "serve.log"
    with pytest.raises(ServerFailed, match=r"not ready within 2\.5 s; .*HTTP 503.*: serving"):
        async with serving(section(bench, "never", ready_timeout_sec=2.5), CHECKPOINT, log, lock):
            raise AssertionError("it is not ready")
    assert all(map(is_gone, children_of(bench)))


async def test_a_port_in_use_is_refused_before_anything_is_started(bench: NightlyBench, lock: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UsageError, match=f":{port}/health: another process uses this port"):
            async with serving(section(bench, "good", port=port), CHECKPOINT, bench.folder / "serve.log", lock):
                raise AssertionError("it is not ready")
    assert not (bench.folder / "children").exists() and not (bench.folder / "serve.log").exists()


async def test_a_missing_command_and_an_invalid_url_are_reported(bench: NightlyBench, lock: int) -> None:
    log = bench.folder / "serve.log"
    with pytest.raises(ServerFailed, match="code 127: no-such-server: cannot be started: No such file"):
        async with serving(section(bench, "good", command=("no-such-server", "{port}")), CHECKPOINT, log, lock):
            pass
    with pytest.raises(UsageError, match=r"serve\.health_url: http://127\.0\.0\.1:x/: is not a valid URL"):
        async with serving(section(bench, "good", health_url="http://127.0.0.1:x/"), CHECKPOINT, log, lock):
            pass


def test_placeholders_are_filled_in_once() -> None:
    serve = ServeSection(command=("s", "{checkpoint}", "--name={name}:{port}", '{"a": 1}'))
    checkpoint = Checkpoint("l", "/c/{port}")
    assert server_command(serve, checkpoint, 7) == ["s", "/c/{port}", "--name={port}:7", '{"a": 1}']


def test_a_command_is_ended_when_who_started_it_is_killed(tmp_path: Path) -> None:
    starter = f"""
import asyncio, os, pathlib
from tbench.nightly.server import SupervisedProcess
async def main():
    lock = os.open({str(tmp_path / "lock")!r}, os.O_CREAT | os.O_RDWR)
    command = ["sh", "-c", "trap '' TERM; echo $$ > {tmp_path}/pid; sleep 300 & wait; sleep 300"]
    async with await SupervisedProcess.start(command, pathlib.Path({str(tmp_path / "log")!r}), stop_sec=0.2, lock=lock):
        await asyncio.sleep(300)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", starter]) as process:
        ends_at = time.monotonic() + BOUND_SEC
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            assert time.monotonic() < ends_at and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert is_gone(int((tmp_path / "pid").read_text()))


async def test_the_output_of_a_command_is_what_it_has_written_itself(tmp_path: Path, lock: int) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    async with await SupervisedProcess.start(["sh", "-c", "echo one; exit 7"], log, stop_sec=1, lock=lock) as process:
        assert await process.wait() == 7
    assert (process.output(), process.last_lines()) == ("one\n", "one")
    async with await SupervisedProcess.start(["sh", "-c", "kill -9 $$"], log, stop_sec=1, lock=lock) as process:
        assert await process.wait() == 137
    assert process.last_lines() == "no output"
