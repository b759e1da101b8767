"""docs/python.md: its example of an agent does a task in a real container."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.trajectory import Outcome
from tbench.agents.model_agent import UserAgent
from tbench.agents.setup import AgentClass, load_agent_class
from tbench.agents.trial_agent import Workplace
from tbench.errors import TrialError
from tbench.sandbox.backend import Sandbox
from tbench.tasks.task import Task

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
StartSandbox = Callable[[Path], Awaitable[Sandbox]]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClass]:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if block.startswith('"""one_liner.py:')]
    (tmp_path / "one_liner.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield load_agent_class("one_liner:OneLiner")
    sys.modules.pop("one_liner", None)


def place(task: Path, sandbox: Sandbox, directory: Path, seen: list[Any]) -> Workplace:
    directory.mkdir()
    return Workplace(
        task=Task.read(task),
        sandbox=sandbox,
        seed=0,
        directory=directory,
        timeout_sec=60.0,
        on_step=lambda step, line: seen.append((step, line)),
    )


@pytest.mark.engine
async def test_the_example_does_a_task_in_a_container(
    example: AgentClass, start_sandbox: StartSandbox, make_task: Any, tmp_path: Path
) -> None:
    sandbox = await start_sandbox(make_task())
    model = ScriptedModel(["pwd", "touch done && ls", "DONE"])
    agent = UserAgent(example.make, model, Limits(), name=example.name)
    steps: list[Any] = []
    report = await agent.work(place(make_task(), sandbox, tmp_path / "trial", steps))
    assert report.outcome is Outcome.SUBMITTED
    assert report.trajectory is not None
    assert [step.actions for step in report.trajectory.steps] == [("pwd",), ("touch done && ls",), ()]
    assert [request.messages[-1].content.strip() for request in model.requests[1:]] == ["/app", "done"]
    assert [step for step, _ in steps] == [1, 2, 3]
    assert (await sandbox.shell("test -e /app/done", timeout_sec=10)).exit_code == 0
    lines = (tmp_path / "trial" / "session.cast").read_text().splitlines()
    events = [event[2] for event in map(json.loads, lines[1:]) if event[1] in "im"]
    assert events == ["step 1", "pwd", "step 2", "touch done && ls", "step 3"]


@pytest.mark.engine
async def test_without_a_model_the_example_crashes_and_says_where(
    example: AgentClass, start_sandbox: StartSandbox, make_task: Any, tmp_path: Path
) -> None:
    agent = UserAgent(example.make, None, Limits(), name=example.name)
    with pytest.raises(TrialError, match=r"AttributeError: 'NoneType' .*one_liner.py:\d+\)") as caught:
        await agent.work(place(make_task(), await start_sandbox(make_task()), tmp_path / "trial", []))
    assert caught.value.type == "agent_crashed"
    assert b"one_liner.py" in caught.value.files["traceback.txt"]
