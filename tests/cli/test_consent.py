"""Consent: no task gets a variable of tbench's environment that was not allowed by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import in_process
import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

pytestmark = pytest.mark.engine
TBENCH = str(Path(sys.executable).with_name("tbench"))
KEY = "sk-planted-for-the-tasks"
LIMITS = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
DEMANDS = LIMITS + 'env = { K = "${OPENAI_API_KEY}" }\n'
ASKS = LIMITS + "".join(
    f'[{section}.env]\nFOR_{section.upper()} = "${{OPENAI_API_KEY:-nothing}}"\n'
    for section in ("environment", "solution", "verifier")
)
SOLVE = 'echo "$FOR_ENVIRONMENT $FOR_SOLUTION" > /app/got\n'
TEST = """[ "$(cat /app/got; echo $FOR_VERIFIER)" = "$(printf '%s %s\\n%s' $WANTED $WANTED $WANTED)" ]
echo $((1 - $?)) > /logs/verifier/reward.txt
"""


def tbench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    return subprocess.run(
        [TBENCH, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**known, "COLUMNS": "200", **variables},
        input="echo got=$K=; exit\n",
    )


@pytest.fixture
def run_dir(engine: Engine, tools_volume: str, tmp_path: Path) -> Iterator[Path]:
    """Directory of a run; asserts at the end that none of its containers are left."""
    directory = tmp_path / f"consent-{uuid.uuid4().hex[:8]}"
    yield directory
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}) == []


def results(run_dir: Path) -> dict[tuple[str, int], Any]:
    lines = [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]
    return {(line["task"], line["seed"]): line for line in lines if line["final"]}


def test_the_key_of_the_user_reaches_neither_container_nor_file_without_consent(make_task: Any, run_dir: Path) -> None:
    make_task("demands", toml=DEMANDS)
    tasks = make_task("asks", toml=ASKS, solve=SOLVE, test=f"WANTED=nothing\n{TEST}").parent
    done = tbench("run", str(tasks), "-a", "oracle", "-k", "2", "-o", str(run_dir), OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done
    said = "requested by tasks and set here, but not allowed: OPENAI_API_KEY; allow with --allow-env OPENAI_API_KEY"
    assert done.stderr.count(said) == 1
    for (task, _), result in results(run_dir).items():
        error = result["error"] or {}
        assert (result["reward"], error.get("type")) == ((1.0, None) if task == "asks" else (None, "env_missing"))
        assert task == "asks" or "K = ${OPENAI_API_KEY}: " in error["message"]
        assert task == "asks" or "--allow-env OPENAI_API_KEY" in error["message"]
    texts = [done.stdout, done.stderr, *(path.read_text() for path in run_dir.rglob("*") if path.is_file())]
    assert [text for text in texts if KEY in text] == []


@pytest.mark.slow
def test_with_consent_every_table_gets_it_also_when_the_run_is_resumed(make_task: Any, run_dir: Path) -> None:
    make_task("demands", toml=DEMANDS, test='[ "$K" ] && echo 1 > /logs/verifier/reward.txt\n')
    tasks = make_task("asks", toml=ASKS, solve=SOLVE, test=f"WANTED={KEY}\n{TEST}").parent
    command = ("run", str(tasks), "-a", "oracle", "-o", str(run_dir), "--allow-env", "OPENAI_API_KEY")
    done = tbench(*command)
    assert done.returncode == 0, done
    assert "not given" not in done.stderr
    assert json.loads((run_dir / "run.json").read_text())["config"]["sandbox"]["allow_env"] == ["OPENAI_API_KEY"]
    demands = results(run_dir)["demands", 0]
    assert demands["error"]["message"].endswith("set OPENAI_API_KEY in tbench's environment")
    assert results(run_dir)["asks", 0]["reward"] == 0.0  # the variable was allowed, but is not set

    refused = in_process.tbench(*command[:-1], "OTHER", "--resume", OPENAI_API_KEY=KEY)
    assert refused.returncode == 2 and 'sandbox.allow_env: ["OPENAI_API_KEY"] → ["OTHER"]' in refused.stderr
    resumed = tbench("resume", str(run_dir), "--retry-errors", "env_missing", OPENAI_API_KEY=KEY)
    assert resumed.returncode == 0, resumed
    assert results(run_dir)["demands", 0]["reward"] == 1.0

    fresh = run_dir.with_name(f"{run_dir.name}-2")
    assert tbench(*command[:5], str(fresh), *command[6:], "-t", "asks", OPENAI_API_KEY=KEY).returncode == 0
    assert results(fresh)["asks", 0]["reward"] == 1.0


def test_a_dry_run_says_who_asks_for_what_and_who_gets_it(make_task: Any) -> None:
    make_task("demands", toml=DEMANDS)
    tasks = make_task("asks", toml=ASKS + 'X = "${SURELY_UNSET:-}"\n').parent
    command = ("run", str(tasks), "-a", "nop", "--dry-run", "--allow-env", "SURELY_UNSET")
    lines = in_process.tbench(*command, OPENAI_API_KEY=KEY, COLUMNS="200").stdout.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("variables")] == [
        "OPENAI_API_KEY is not allowed; --allow-env OPENAI_API_KEY allows it: asks, demands",
        "SURELY_UNSET (not set here) is allowed: asks",
    ]


def test_a_shell_takes_consent_and_capabilities_as_a_run_does(make_task: Any, tools_volume: str) -> None:
    path = make_task(toml=DEMANDS.replace("OPENAI_API_KEY", "FOR_SHELL"))
    refused = in_process.tbench("shell", str(path), FOR_SHELL="given")
    assert refused.returncode == 2
    assert "but not allowed: FOR_SHELL; allow with --allow-env FOR_SHELL" in refused.stderr
    assert "env_missing: K = ${FOR_SHELL}" in refused.stderr
    allowed = tbench(
        "shell", str(path), "--no-verify", "--allow-env", "FOR_SHELL", "--cap-add", "CAP_SYS_PTRACE", FOR_SHELL="given"
    )
    assert allowed.returncode == 0 and "got=given=" in allowed.stdout, allowed
    assert "not given" not in allowed.stderr
    mistaken = in_process.tbench("shell", str(path), "--cap-add", "net-raw")
    assert mistaken.returncode == 2 and "'net-raw' is not a Linux capability; did you mean NET_RAW?" in mistaken.stderr
