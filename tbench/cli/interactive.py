"""The body of `tbench shell`: sandbox, a human at the keyboard (pexpect), then the verifier."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pexpect
import typer

from harness.terminal import TerminalSpec
from tbench.errors import TrialError, UsageError
from tbench.sandbox.docker.backend import EngineSandboxes
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.tools import ensure_tools
from tbench.tasks.bundled import tasks_dir
from tbench.tasks.sources import BUNDLED, read_tasks
from tbench.tasks.task import Task
from tbench.verify.verifier import verify


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _task(name: str) -> Task:
    path = Path(name) if Path(name).is_dir() else tasks_dir() / name
    if not path.is_dir():
        bundled = ", ".join(sorted(task.name for task in read_tasks(BUNDLED).tasks))
        raise UsageError(f"{name}: no such task directory, and no bundled task; bundled are {bundled}")
    tasks = read_tasks(str(path)).tasks
    if len(tasks) != 1:
        raise UsageError(f"{name}: holds {len(tasks)} tasks; name one of them")
    return tasks[0]


async def session(name: str, verifies: bool) -> None:
    """Start the sandbox, hand over the keyboard, verify, remove."""
    task = _task(name)
    engine = Engine.connect(1)
    try:
        volume = await ensure_tools(engine, _say)
        await engine.ensure_network()
        make = EngineSandboxes(engine, Images(engine, say=_say), volume, f"shell-{os.getpid()}")
        sandbox = await make(task, f"{task.name}.shell", lambda _: None)
        try:
            _say(f"--- {task.name} ---\n{task.instruction}--- leave with exit or C-d ---")
            await asyncio.to_thread(_hand_over, sandbox.container_id, sandbox.workdir)
            if verifies:
                verdict = await verify(task, sandbox)
                _say(verdict.files.get("verifier/stdout.txt", b"").decode("utf-8", "replace"))
                typer.echo(f"reward {verdict.reward:g}")
        finally:
            await sandbox.remove()
    except TrialError as error:
        raise UsageError(f"{error.type}: {error}") from None
    finally:
        engine.close()


def _hand_over(container: str, workdir: str) -> None:
    variables = [part for key, value in TerminalSpec().environment.items() for part in ("-e", f"{key}={value}")]
    size = shutil.get_terminal_size()
    child: Any = pexpect.spawn(
        "docker",
        ["exec", "-it", "-w", workdir, *variables, container, "/opt/tbench/bin/busybox", "sh", "-c",
         "command -v bash >/dev/null && exec bash || exec /opt/tbench/bin/busybox sh"],
        dimensions=(size.lines, size.columns),
        timeout=None,
    )  # fmt: skip
    if hasattr(signal, "SIGWINCH") and os.isatty(0):
        child.interact()
    else:
        child.send("exit\n")
        child.expect(pexpect.EOF)
    child.close()
