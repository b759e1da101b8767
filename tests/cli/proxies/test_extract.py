"""`tbench extract` as a user meets it, against the demo endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fault_server import FaultServer, Seen, answer, completion

from tbench.cli import app
from tbench.demo.server import DemoEndpoint
from tbench.errors import UsageError
from tbench.tasks.sources import BUNDLED, read_tasks

TBENCH = str(Path(sys.executable).with_name("tbench"))
TWO = ("-t", "lab-permissions", "-t", "note-board-service")
SECRET = "sk-planted-secret-4712"


def tbench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    environment.pop("OPENAI_BASE_URL", None)
    return subprocess.run(
        [TBENCH, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def inside(*arguments: str) -> Any:
    """The same without a process of its own."""
    return CliRunner().invoke(app, list(arguments), env={"OPENAI_BASE_URL": None})


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoEndpoint]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as endpoint:
        yield endpoint


def test_an_extraction_is_shown_stored_resumed_and_scored_again(demo: DemoEndpoint, tmp_path: Path) -> None:
    output = tmp_path / "x"
    base = ("extract", "bundled", *TWO, "--base-url", demo.base_url, "-o", str(output))
    done = tbench(*base, "-k", "2", OPENAI_API_KEY=SECRET)
    assert done.returncode == 0, done
    assert "extractable 50.00 ± 0.00 % of all 2 tasks (headline; sample std over 2 seeds; replies 4/4)" in done.stdout
    assert "lab-permissions" in done.stdout and "ls -lR /srv/lab" in done.stdout
    assert "note-board-service     0/2          0/2        0/2  - unclosed_block" in done.stdout
    assert all(SECRET not in path.read_text() for path in output.iterdir())
    lines = (output / "extraction.jsonl").read_text().splitlines()
    assert len(lines) == 4

    assert "is not empty" in str(inside(*base, "-k", "2").exception)
    (output / "extraction.jsonl").write_text("\n".join(lines[:3]) + '\n{"task": "torn')
    resumed = inside(*base, "-k", "3", "--resume", "--json")
    assert resumed.exit_code == 0, resumed
    assert resumed.stderr.splitlines()[-1] == "3/3 asked, 0 without a reply"
    result = json.loads(resumed.stdout)
    assert (result["replies"], result["planned"], result["levels"]["extractable"]["mean"]) == (6, 6, 0.5)

    again = inside("extract", "--score", str(output), "--relevance", "literal", "--json")
    stored = json.loads((output / "result.json").read_text())
    assert json.loads(again.stdout) == stored
    assert "execution_relevance_literal" in stored["rewards"]
    assert stored["levels"] == result["levels"]

    (output / "extraction.jsonl").write_text("")
    too_few = inside("extract", "--score", str(output), "--min-coverage", "0.9")
    assert too_few.exit_code == 3
    assert "6 x missing" in too_few.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/nowhere", "--base-url", "http://localhost:1"], "/nowhere: no such directory"),
        ([], "no endpoint: give --base-url"),
        (["--score", "/nowhere"], "/nowhere/extraction.json: No such file or directory; give the directory of an extr"),
        (["--base-url", "http://localhost:1", "--protocol", "morse"], "unknown protocol 'morse'"),
        (
            ["--base-url", "http://localhost:1", "--relevance", "x"],
            "--relevance: Input should be 'distinct'",
        ),
        (
            ["--base-url", "http://localhost:1", "--top-p", "7"],
            "--top-p: Input should be less than",
        ),
        (["--base-url", "http://localhost:1", "--resume"], "--resume: which extraction?"),
        (["--base-url", "http://localhost:1", "--retry-budget", "0"], "localhost:1/v1/models: cannot connect"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], said: str) -> None:
    done = inside("extract", *arguments)
    assert isinstance(done.exception, UsageError) and done.stdout == ""
    assert said in str(done.exception) and "\n" not in str(done.exception)


def test_a_mistake_has_exit_code_2_and_no_traceback() -> None:
    done = tbench("extract", "--score", "/nowhere")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_an_interrupted_extraction_keeps_its_replies_and_goes_on(endpoint: FaultServer, tmp_path: Path) -> None:
    """`--render server`: a chat request per task."""
    reply, stalling = completion("<thinking>a</thinking>\n```bash\nls\n```"), threading.Event()

    def second_stalls(seen: Seen) -> bytes | None:
        if len(endpoint.seen) == 2:
            stalling.set()
            return None
        return answer(200, reply)

    endpoint.always_list({"id": "tiny", "max_model_len": 8192})
    endpoint.answer_by(second_stalls)
    output = tmp_path / "x"
    command = ["extract", "bundled", *TWO, "--base-url", endpoint.base_url, "--render", "server", "-n", "1"]
    process = subprocess.Popen(
        [TBENCH, *command, "-o", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert stalling.wait(20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert (process.returncode, said.splitlines()[-1]) == (
        130, f"interrupted; what was answered is kept, go on with --resume --output {output}",
    )  # fmt: skip
    assert len((output / "extraction.jsonl").read_text().splitlines()) == 1
    resumed = inside(*command, "-o", str(output), "--resume", "--json")
    assert resumed.exit_code == 0 and json.loads(resumed.stdout)["replies"] == 2
    assert "1/1 asked" in resumed.stderr
