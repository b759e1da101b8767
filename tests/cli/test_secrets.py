"""Plant secrets that tasks and servers repeat, and search for them in all that a run writes, prints and starts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

pytestmark = pytest.mark.engine
TBENCH = str(Path(sys.executable).with_name("tbench"))
KEY = "sk-planted-key-in-the-environment"
PASSWORD = "planted-password-in-the-url"
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
TOKEN = "planted-token-of-the-task"
TOML = """
[environment]
memory_mb = 256
allow_internet = false
[environment.env]
TASK_TOKEN = "${PLANTED_TOKEN}"
[verifier.env]
VERIFIER_TOKEN = "${PLANTED_TOKEN}"
"""
TEST = 'if [ "$VERIFIER_TOKEN" = "$TASK_TOKEN" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
# The terminal is recorded unchanged, so only a hash proves that the token was there.
PROOF = 'printf %s "$TASK_TOKEN" | sha256sum'
CRASHING = """
import os
class Crasher:
    async def run(self, assignment):
        raise RuntimeError(f"no luck with {os.environ['OPENAI_API_KEY']} and {os.environ['PLANTED_TOKEN']}")
"""


class Witness:
    """Record the arguments of all processes on the machine, and the containers of a run, while watching."""

    def __init__(self, engine: Engine, run: str) -> None:
        self.arguments: set[bytes] = set()
        self.inspections: dict[str, dict[str, Any]] = {}
        self._engine = engine
        self._filters = {"label": f"{LABEL_RUN}={run}"}
        self._ending = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        threads = [threading.Thread(target=look) for look in (self._look_at_processes, self._look_at_containers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()

    def _look_at_processes(self) -> None:
        while not self._ending.wait(0.01):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.arguments.add(path.read_bytes())

    def _look_at_containers(self) -> None:
        while not self._ending.wait(0.1):
            with contextlib.suppress(Exception):  # a process may have ended
                for found in self._engine.api.containers(all=True, filters=self._filters):
                    self.inspections[found["Id"]] = self._engine.api.inspect_container(found["Id"])


@pytest.fixture
def run_dir(engine: Engine, tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / f"secrets-{uuid.uuid4().hex[:8]}"
    yield directory
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}) == []


def tbench(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    planted = {"OPENAI_API_KEY": KEY, "PLANTED_TOKEN": TOKEN, "TBENCH_SANDBOX_ALLOW_ENV": "PLANTED_TOKEN"}
    environment = {**os.environ, **planted, **variables}
    return subprocess.run(
        [TBENCH, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=cwd
    )


def leaks(directory: Path, *printed: str) -> list[str]:
    """Return where a secret occurs, in whole or with its first half."""
    secrets = [part for secret in (KEY, PASSWORD, BASIC, TOKEN) for part in (secret, secret[: len(secret) // 2 + 4])]
    files = [path for path in directory.rglob("*") if path.is_file()]
    texts = {str(path.relative_to(directory)): path.read_bytes() for path in files}
    texts |= {f"printed {number}": text.encode() for number, text in enumerate(printed)}
    assert len(files) > 5
    return sorted(f"{name}: {secret}" for name, data in texts.items() for secret in secrets if secret.encode() in data)


def repeating_server() -> FaultServer:
    """Endpoint that fails once, replies with one command, then refuses; every failure repeats key and URL."""
    server = FaultServer()
    words = f"{'x' * 470} key {KEY} at http://me:{PASSWORD}@host/v1 {KEY}"
    server.always_list({"id": "tiny", "object": "model"})
    server.will_answer(500, {"error": {"message": words}})
    commands = [{"keystrokes": f"{PROOF}\n", "duration": 1}]
    server.will_reply(json.dumps({"analysis": "a", "plan": "p", "commands": commands}))
    server.will_answer(403, {"error": {"message": f"no access with {KEY} at http://me:{PASSWORD}@host/v1"}})
    return server


@pytest.mark.slow
def test_no_secret_is_stored_printed_labelled_or_on_a_command_line(
    engine: Engine, make_task: Any, run_dir: Path, tools_volume: str
) -> None:
    tasks = make_task(toml=TOML, test=TEST).parent
    server, witness = repeating_server(), Witness(engine, run_dir.name)
    with contextlib.closing(server), witness.watching():
        url = server.base_url.replace("://", f"://me:{PASSWORD}@")
        done = tbench(
            "run", str(tasks), "-k", "2", "-n", "1", "-o", str(run_dir), cwd=run_dir.parent, OPENAI_BASE_URL=url
        )
    assert done.returncode == 0, done
    assert server.seen[0].headers["authorization"] == f"Basic {BASIC}"
    report, summary = tbench("report", str(run_dir), cwd=tasks), tbench("summary", str(run_dir), "--json", cwd=tasks)

    first = json.loads((run_dir / "trials/small-task/seed-0/result.json").read_text())
    assert first["error"]["type"] == "endpoint_refused"
    assert "no access with [key] at http://[password]@host" in first["error"]["message"]
    assert "x key [k" in done.stderr  # printed while waiting
    recording = (run_dir / "trials/small-task/seed-0/session.cast").read_text()
    assert hashlib.sha256(TOKEN.encode()).hexdigest() in recording  # the task's own token did reach its container
    printed = [text for each in (done, report, summary) for text in (each.stdout, each.stderr)]
    assert leaks(run_dir, *printed) == []

    assert any(b"/opt/tbench/bin/init" in arguments for arguments in witness.arguments)
    assert [argv for argv in witness.arguments for secret in (KEY, PASSWORD, TOKEN) if secret.encode() in argv] == []
    assert witness.inspections
    for inspection in witness.inspections.values():
        assert f"TASK_TOKEN={TOKEN}" in inspection["Config"].pop("Env")
        assert [secret for secret in (KEY, PASSWORD, TOKEN) if secret in json.dumps(inspection)] == []


def test_notes_and_the_lines_of_steps_are_stored_without_secrets(
    make_task: Any, run_dir: Path, endpoint: FaultServer, tools_volume: str
) -> None:
    """The recording contains the terminal as it is; the journal and the log do not."""
    tasks = make_task(toml=TOML, test=TEST).parent
    endpoint.always_list({"id": "tiny", "object": "model"})
    commands = [{"keystrokes": 'printf "now: %s\\\\n" "$TASK_TOKEN"\n', "duration": 5}]
    endpoint.will_reply(json.dumps({"analysis": "a", "plan": "p", "commands": commands}))
    endpoint.will_answer(500, {"error": {"message": f"no luck with the prompt: {TOKEN}, {KEY}"}})
    endpoint.will_answer(403, {"error": {"message": "enough"}})
    done = tbench(
        "run", str(tasks), "--base-url", endpoint.base_url, "-o", str(run_dir), "--log-level", "debug",
        cwd=run_dir.parent,
    )  # fmt: skip
    assert done.returncode == 3, done
    assert TOKEN in (run_dir / "trials/small-task/seed-0/session.cast").read_text()
    for name in ("journal.jsonl", "run.log"):
        text = (run_dir / name).read_text()
        assert "now: [PLANTED_TOKEN]" in text
        assert "no luck with the prompt: [PLANTED_TOKEN], [key]" in text
        assert [secret for secret in (KEY, TOKEN, TOKEN[:16]) if secret in text] == []


def test_an_agent_that_crashes_with_a_secret_in_its_hand_does_not_leave_it_in_the_traceback(
    make_task: Any, run_dir: Path, tools_volume: str
) -> None:
    tasks = make_task(toml=TOML, test=TEST).parent
    (run_dir.parent / "agent_with_secrets.py").write_text(CRASHING)
    done = tbench("run", str(tasks), "--agent", "agent_with_secrets:Crasher", "-o", str(run_dir), cwd=run_dir.parent)
    assert done.returncode == 3, done
    trial = run_dir / "trials/small-task/seed-0"
    assert "RuntimeError: no luck with [key] and [PLANTED_TOKEN]" in (trial / "traceback.txt").read_text()
    assert "no luck with [key]" in json.loads((trial / "result.json").read_text())["error"]["message"]
    assert leaks(run_dir, done.stdout, done.stderr) == []
