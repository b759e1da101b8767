"""model_agent: an agent's instruction, on a real engine; files come from environment/ without a Dockerfile."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask

from harness.checkpoint import Checkpoint, Conversation, Counts
from harness.history import HistoryCounts
from harness.trajectory import Reply, Step
from tbench.agents.model_agent import _open, full_instruction
from tbench.agents.trial_agent import Workplace
from tbench.errors import TrialError
from tbench.sandbox.backend import Copies, Sandbox, SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
TOML = """[agent]
user = "nobody"
[environment]
docker_image = "debian:bookworm-slim"
workdir = "/work/here"
memory_mb = 256
allow_internet = false
skills_dir = "{folder}"
healthcheck = {{ command = "chmod 600 skills/hidden/SKILL.md && test -x run.sh", retries = 1 }}
"""
SKILL = "---\nname: {name}\ndescription: d\n---\n"
Start = Callable[[Path], Coroutine[Any, Any, Sandbox]]


def loose(make_task: MakeTask, folder: str = "/work/here/skills") -> Path:
    """A task whose environment/ holds files and no Dockerfile."""
    path: Path = make_task(toml=TOML.format(folder=folder), dockerfile=None, instruction="Do it.\n")
    files = {
        "run.sh": "#!/bin/sh\n",
        "skills/SKILL.md": SKILL.format(name="too-high"),
        "skills/b c/SKILL.md": SKILL.format(name="second"),
        "skills/a/SKILL.md": SKILL.format(name="first"),
        "skills/a/deep/SKILL.md": SKILL.format(name="too-deep"),
        "skills/hidden/SKILL.md": SKILL.format(name="unreadable"),
    }
    for name, text in files.items():
        file = path / "environment" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (path / "environment" / "run.sh").chmod(0o755)
    return path


async def instruction_of(path: Path, start: Start, directory: Path) -> str:
    sandbox = await start(path)
    return await full_instruction(Workplace(Task.read(path), sandbox, 0, directory, 60.0, lambda *_: None))


@pytest.mark.parametrize("folder", ["/work/here/skills", "skills"])
async def test_readable_skills_one_folder_down_are_in_the_instruction(
    make_task: MakeTask, start_sandbox: Start, tmp_path: Path, folder: str
) -> None:
    instruction = await instruction_of(loose(make_task, folder), start_sandbox, tmp_path)
    names = [line.strip() for line in instruction.splitlines() if "<name>" in line or "<location>" in line]
    assert instruction.startswith("Do it.\n\n<available_skills>")
    assert names == [
        "<name>first</name>", f"<location>{folder}/a/SKILL.md</location>",
        "<name>second</name>", f"<location>{folder}/b c/SKILL.md</location>",
    ]  # fmt: skip


async def test_a_missing_skills_folder_adds_nothing(make_task: MakeTask, start_sandbox: Start, tmp_path: Path) -> None:
    assert await instruction_of(loose(make_task, "/nowhere"), start_sandbox, tmp_path) == "Do it.\n"


async def test_loose_files_are_roots_and_in_every_sandbox_of_the_task(
    make_task: MakeTask, start_sandbox: Start
) -> None:
    sandbox = await start_sandbox(loose(make_task))
    listing = "cd /work/here && stat -c '%U %a %n' run.sh skills/a"
    own = (await sandbox.shell(listing, timeout_sec=20)).output
    assert own == b"root 755 run.sh\nroot 755 skills/a\n"
    assert isinstance(sandbox, Copies)
    fresh = await sandbox.make_fresh()
    try:
        assert (await fresh.shell(listing, timeout_sec=20)).output == own
    finally:
        await fresh.remove()


async def test_loose_files_that_changed_are_not_copied(make_task: MakeTask, engine: Engine) -> None:
    task = Task.read(loose(make_task))
    assert task.hash
    (task.path / "environment" / "run.sh").write_text("#!/bin/sh\necho other\n")
    async with open_backend(DockerBackend(engine, SandboxSettings("tests"))) as backend:
        with pytest.raises(TrialError, match=r"run\.sh changed"):
            await backend.sandbox(agent_environment(task), "tests")


@pytest.mark.parametrize(
    ("is_pending", "typed", "is_known"), [(1, 2, True), (1, 3, False), (0, 1, True), (0, 2, False)]
)
async def test_a_terminal_in_which_a_reply_was_typed_that_is_not_on_disk_is_given_up(
    is_pending: int, typed: int, is_known: bool
) -> None:
    class Left:
        async def go_on(self, step: int) -> int:
            assert step == 2 * is_pending
            return typed

    pending = Step(index=2, reply=Reply(content="ls")) if is_pending else None
    before = Conversation(Checkpoint(0.0, 1, HistoryCounts(), Counts(), pending))
    terminal: Any = Left()
    if is_known:
        await _open(terminal, before)
        return
    with pytest.raises(TrialError, match="the disk may have been full"):
        await _open(terminal, before)
