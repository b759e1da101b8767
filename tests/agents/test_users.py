"""Users in a sandbox, on a real engine: the agent's user solves, the verifier's user tests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask

from tbench.agents.trial_agent import OracleAgent, Workplace
from tbench.errors import TrialError
from tbench.sandbox.backend import Sandbox
from tbench.tasks.task import Task
from tbench.verify.verifier import verify

pytestmark = pytest.mark.engine
TOML = (
    "[agent]\nuser = {agent}\n[verifier]\nuser = {verifier}\n[environment]\nmemory_mb = 256\nallow_internet = false\n"
)
TWO_USERS = "FROM debian:bookworm-slim\nRUN useradd -m -u 1234 worker && useradd -m judge\nWORKDIR /home/worker\n"
SOLVE = "cat /solution/solve.sh >/dev/null && id -un >/home/worker/me && echo $HOME >>me && touch /logs/artifacts/a\n"
TEST = """[ "$(id -un) $(tr "\\n" " " </home/worker/me)" = "{verifier} {agent} " ]
echo $((1 - $?)) >/logs/verifier/reward.txt
"""
Start = Callable[[Path], Coroutine[Any, Any, Sandbox]]


async def reward(make_task: MakeTask, start: Start, directory: Path, users: tuple[str, str], seen: str) -> float:
    toml = TOML.format(agent=users[0], verifier=users[1])
    test = TEST.format(verifier="judge", agent=seen)
    task = Task.read(make_task(toml=toml, dockerfile=TWO_USERS + "RUN chmod 755 .\n", solve=SOLVE, test=test))
    sandbox = await start(task.path)
    await OracleAgent().work(Workplace(task, sandbox, 0, directory, 60.0, lambda *_: None))
    verdict = await verify(task, sandbox)
    assert verdict.files["artifacts/a"] == b""
    return verdict.reward


@pytest.mark.parametrize("user", ["'worker'", "1234"])
async def test_the_oracle_works_as_the_agents_user_and_the_tests_run_as_the_verifiers(
    make_task: MakeTask, start_sandbox: Start, tmp_path: Path, user: str
) -> None:
    assert await reward(make_task, start_sandbox, tmp_path, (user, "'judge'"), "worker /home/worker") == 1.0


async def test_the_healthcheck_runs_as_the_images_user_whatever_the_agents_is(
    make_task: MakeTask, start_sandbox: Start
) -> None:
    check = '[environment.healthcheck]\ncommand = \'[[ "$(id -un) $PWD" = "root /home/worker" ]]\'\nretries = 1\n'
    toml = TOML.format(agent="'worker'", verifier="'judge'")
    sandbox = await start_sandbox(make_task(toml=toml + check, dockerfile=TWO_USERS))
    assert sandbox.workdir == "/home/worker"


async def test_a_user_that_the_image_lacks_is_the_tasks_fault(make_task: MakeTask, start_sandbox: Start) -> None:
    sandbox = await start_sandbox(make_task())
    with pytest.raises(TrialError, match="the image has no user 'nobody-known'") as caught:
        await sandbox.shell("true", timeout_sec=20, user="nobody-known")
    assert caught.value.type == "task_invalid"
