"""Ctrl-C at any moment: exit code 130, one line, and files in the state `interrupted`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from debugging_users import User
from fault_server import FaultServer
from lost_trials import lost_trial
from replay_steps import record, write_dataset

TBENCH = str(Path(sys.executable).with_name("tbench"))
BOUND_SEC = 60
ENGINE = "/var/run/docker.sock"


class Stalls:
    """Proxy socket that stops forwarding as soon as it sees `marked`."""

    def __init__(self, listening: socket.socket, behind: str | None, marked: bytes) -> None:
        self.reached = threading.Event()
        self._listening, self._behind, self._marked = listening, behind, marked
        self._open: list[socket.socket] = [listening]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                server = None
                if self._behind is not None:
                    server = socket.socket(socket.AF_UNIX)
                    server.connect(self._behind)
                    self._open.append(server)
                    threading.Thread(target=self._pass_on, args=(server, client), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._marked in data:
                    self.reached.set()
                if self.reached.is_set() or target is None:
                    continue
                target.sendall(data)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def endpoint() -> Iterator[tuple[str, Stalls]]:
    """Server that accepts requests and never answers."""
    listening = socket.create_server(("127.0.0.1", 0))
    stalls = Stalls(listening, None, b"/models")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", stalls
    stalls.close()


@pytest.fixture
def engine_that_stalls() -> Iterator[tuple[str, Stalls]]:
    """Proxy to the engine that stalls when networks are requested, just before a run begins."""
    with tempfile.TemporaryDirectory(prefix="tbs-") as directory:
        path = f"{directory}/d.sock"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        stalls = Stalls(listening, ENGINE, b"/networks")
        yield f"unix://{path}", stalls
        stalls.close()


@pytest.fixture
def interrupted() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Start a command, send it a signal when it stalls, and wait for its end."""

    def run(stalls: Stalls, *arguments: str, number: int = signal.SIGINT, **variables: str) -> Any:
        environment = {name: value for name, value in os.environ.items() if name != "OPENAI_BASE_URL"} | variables
        with subprocess.Popen(
            [TBENCH, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert stalls.reached.wait(BOUND_SEC)
                process.send_signal(number)
                out, errors = process.communicate(timeout=BOUND_SEC)
            finally:
                process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, out, errors)

    return run


@pytest.mark.engine
@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_run_that_is_interrupted_before_its_first_trial_says_so(
    engine_that_stalls: tuple[str, Stalls], interrupted: Any, make_task: Any, tmp_path: Path, number: int
) -> None:
    host, stalls = engine_that_stalls
    directory = tmp_path / "run"
    done = interrupted(
        stalls, "run", str(make_task()), "--agent", "nop", "-o", str(directory), number=number, DOCKER_HOST=host
    )
    assert done.returncode == 130, done
    assert "Traceback" not in done.stderr
    assert "stopping; finished trials are kept; Ctrl-C again exits at once" in done.stderr
    assert done.stderr.endswith(f"tbench: interrupted; resume with: tbench resume {directory}\n")
    assert "coverage 0/1" in done.stdout
    assert json.loads((directory / "run.json").read_text())["status"] == "interrupted"


@pytest.mark.engine
def test_a_run_that_waits_for_its_endpoint_can_be_interrupted(
    endpoint: tuple[str, Stalls], interrupted: Any, make_task: Any, tmp_path: Path
) -> None:
    url, stalls = endpoint
    done = interrupted(stalls, "run", str(make_task()), "--base-url", url, "-o", str(tmp_path / "run"))
    assert done.returncode == 130, done
    assert "Traceback" not in done.stderr


def test_a_replay_that_waits_for_its_endpoint_can_be_interrupted(
    endpoint: tuple[str, Stalls], interrupted: Any, tmp_path: Path
) -> None:
    url, stalls = endpoint
    dataset = write_dataset(tmp_path / "dataset.jsonl", [record(1)])
    done = interrupted(stalls, "replay", "run", str(dataset), "--base-url", url, "-o", str(tmp_path / "replay"))
    assert done.returncode == 130, done
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr


def test_an_extraction_that_waits_for_its_endpoint_can_be_interrupted(
    endpoint: tuple[str, Stalls], interrupted: Any, make_task: Any, tmp_path: Path
) -> None:
    url, stalls = endpoint
    done = interrupted(stalls, "extract", str(make_task()), "--base-url", url, "-o", str(tmp_path / "extraction"))
    assert done.returncode == 130, done
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("command", ["blame --k 1", "fork --at-step 3"])
def test_trials_that_are_done_again_end_with_ctrl_c_and_no_others_begin(
    interrupted: Any, make_task: Any, tools_volume: str, tmp_path: Path, command: str
) -> None:
    with contextlib.closing(FaultServer()) as server:
        trial = asyncio.run(lost_trial(server, make_task, tmp_path / "lost"))
        asked = SimpleNamespace(reached=threading.Event())
        server.answer_by(lambda _: asked.reached.set())
        name, *options = command.split()
        done = interrupted(asked, name, trial, *options, "-o", str(tmp_path / "again"))
    assert (done.returncode, done.stdout) == (130, ""), done
    assert "Traceback" not in done.stderr and "stopping: containers are being removed" in done.stderr
    statuses = [json.loads(path.read_text())["status"] for path in (tmp_path / "again").rglob("run.json")]
    assert statuses == ["interrupted"]


# With a live view on a terminal.

WATCHED = """
import asyncio, contextlib, sys
import click
sys.path.insert(0, sys.argv[1])
from run_plans import a_plan
from tbench.cli.interruption import print_notice, run_interruptibly
from tbench.cli.progress import progress
from tbench.config.settings import OutputConfig
from tbench.events import Note, RunStarted, TrialPhase
from tbench.tasks.sources import TaskSet

async def run(view):
    with view:
        show = view.enter_context(progress(a_plan(), TaskSet((), {}), OutputConfig()))
        show(RunStarted(run="r", trials=99))
        for number in range(int(sys.argv[3])):
            show(TrialPhase(trial=str(number), attempt=1, task="t" * 30, seed=number, phase="agent"))
        show(Note(text="a note as wide as the screen " + "=" * 200))
        try:
            await asyncio.sleep(60)
        finally:
            show(Note(text="a container is gone"))
            await asyncio.sleep(float(sys.argv[2]))
    print("score 50.0 %")

view = contextlib.ExitStack()
stopping = "stopping; finished trials are kept; Ctrl-C again exits at once"
print("the prompt of a shell")
at_once = lambda: print_notice("exiting at once")
try:
    run_interruptibly(run(view), stopping=stopping, end_view=view.close, at_once=at_once)
except click.exceptions.Exit as end:
    sys.exit(end.exit_code)
"""


class Watcher(User):
    """Someone who watches a run on a terminal."""

    program: ClassVar[tuple[str, ...]] = ("-c", WATCHED, str(Path(__file__).parents[1]))


@pytest.mark.parametrize(
    ("size", "trials", "presses"), [((80, 24), 2, 1), ((80, 24), 90, 2), ((160, 50), 2, 2), ((40, 6), 90, 1)]
)
def test_ctrl_c_is_answered_at_once_and_leaves_nothing_of_the_live_view(
    size: tuple[int, int], trials: int, presses: int
) -> None:
    with Watcher("0" if presses == 1 else "60", str(trials), size=size) as watcher:
        watcher.sees("=…$")
        watcher.press("\x03", until="gone")
        if presses == 2:
            watcher.press("\x03", until="exiting at once")
        assert watcher.ends() == 130
        shown = re.sub(" +", " ", "".join(watcher.lines))  # a long line is broken, and its rest indented
    notice = "tbench: stopping; finished trials are kept; Ctrl-C again exits at once"
    assert shown.endswith(f"{notice}a container is gone{'tbench: exiting at once' if presses == 2 else ''}")
    assert "0/99 done" not in shown and " · 0" not in shown


@pytest.mark.engine
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_a_run_that_is_watched_says_that_it_stops_and_leaves_its_summary(
    make_task: Any, tmp_path: Path, size: tuple[int, int]
) -> None:
    class Runner(User):
        program: ClassVar[tuple[str, ...]] = ("-m", "tbench")

    task = str(make_task(test="sleep 60\n"))
    with Runner("run", task, "--agent", "nop", "-o", str(tmp_path / "r"), size=size) as user:
        user.sees("verifier")
        user.press("\x03", until="tbench: stopping; finished trials are kept; Ctrl-C again exits at once")
        assert user.ends() == 130
        assert not any("0/1 done" in line or "last line of the terminal" in line for line in user.lines)
        assert any(line.startswith("score not available") for line in user.lines)
