"""`tbench view` as a process, beside a real run: its output and its end."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from in_process import tbench
from live_runs import RunBeingWritten
from run_trees import a_result, write_run

from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.sources import BUNDLED, read_tasks

DEADLINE_SEC = 120.0


@contextmanager
def viewer(*arguments: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the printed address, and the process."""
    command = [sys.executable, "-m", "tbench", "view", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("view: ").strip(), process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_SEC)


def page(url: str, path: str) -> str:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def wait_for(url: str, path: str, words: str) -> str:
    ends_at = time.monotonic() + DEADLINE_SEC
    while words not in (found := page(url, path)):
        assert time.monotonic() < ends_at, found
        time.sleep(0.1)
    return found


def test_it_says_where_it_is_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    write_run(tmp_path / "done", [a_result("a", 0, 1.0)], {"a": None}, [0])
    with RunBeingWritten(tmp_path / "now"), viewer(str(tmp_path)) as (url, process):
        wait_for(url, "/", "done")
        wait_for(url, "/live", ">now<")
        kept = {path.name.partition("-")[0] for path in (tmp_path / ".tbench-view").iterdir()}
        assert kept == {"index.sqlite", "pages"}
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as stream:
            stream.sendall(b"GET /live/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stream.recv(100).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert process.stderr is not None and process.stderr.read() == "tbench: interrupted\n"


def test_elsewhere_the_address_has_a_token(tmp_path: Path) -> None:
    with viewer(str(tmp_path), "--host", "0.0.0.0") as (url, _):
        assert "?token=" in url


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_shown_all_the_same(tmp_path: Path) -> None:
    write_run(tmp_path / "done", [a_result("a", 0, 1.0)], {"a": None}, [0])
    tmp_path.chmod(0o500)
    with viewer(str(tmp_path)) as (url, _):
        wait_for(url, "/", "done")
    tmp_path.chmod(0o700)


def test_what_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    missing = tbench("view", str(tmp_path / "none"))
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "no such directory; give a folder of runs" in missing.stderr
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        taken = tbench("view", str(tmp_path), "--port", str(other.getsockname()[1]))
    assert (taken.returncode, taken.stderr.count("\n")) == (2, 1)
    assert "cannot listen: Address already in use; choose another --port, or 0" in taken.stderr
    nowhere = tbench("view", str(tmp_path), "--host", "no.such.host.example")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (2, 1)


@pytest.mark.slow
@pytest.mark.engine
def test_a_real_run_is_seen_while_it_goes_on(tmp_path: Path, engine: Engine, tools_volume: str) -> None:
    instructions = {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
    directory = tmp_path / f"view-{uuid.uuid4().hex[:8]}"
    with DemoEndpoint(instructions, latency_sec=2.0) as endpoint, viewer(str(tmp_path)) as (url, _):
        command = [
            sys.executable,
            "-m",
            "tbench",
            "run",
            BUNDLED,
            "-o",
            str(directory),
            "--base-url",
            endpoint.base_url,
        ]
        command += ["-t", "tidy-notes", "-t", "broken-makefile", "-n", "2", "-k", "1", "--cpu-overcommit", "4"]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(url, "/live", "root@")
            snapshot = wait_for(url, "/live", "step 3")
            assert directory.name in snapshot and 'data-phase="agent"' in snapshot
            wait_for(url, "/live", "reward 1")
            assert run.wait(DEADLINE_SEC) == 0
            ended = wait_for(url, "/live", "✓ ended")
            assert '<span data-at="ended">2</span>' in ended
            wait_for(url, "/", directory.name)
        finally:
            run.terminate()
            run.wait(60)
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}) == []
