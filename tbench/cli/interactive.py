"""A sandbox, or a stored trial from a step on, in the hands of a person at the keyboard; then the verifier."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from harness.terminal import TerminalSpec
from harness.terminal.plain_text import plain_text
from tbench.agents.trial_agent import agent_user
from tbench.api.debugging import DebugSession
from tbench.cli.attach import look_on
from tbench.cli.common import pieces_of_stdin
from tbench.cli.own_terminal import require_terminal
from tbench.cli.printing import print_line, print_text
from tbench.config.document import RunDocument
from tbench.config.settings import SandboxConfig
from tbench.datasets.reading import read_again, read_tasks
from tbench.errors import TrialError, UsageError
from tbench.fleet.engines import MachinesOfRun
from tbench.runs.live.commands import came_to
from tbench.runs.plan import as_configured, sandbox_settings
from tbench.runs.regrade import Kept, kept_of, kept_sandbox
from tbench.runs.task_steps import prepare_step
from tbench.sandbox.archive import tree_at
from tbench.sandbox.backend import (
    BUSYBOX,
    Backend,
    HasTty,
    MakeBackend,
    Reopens,
    Sandbox,
    SandboxSettings,
    TtyStream,
    opened,
    require,
    use_network,
)
from tbench.sandbox.container_proxy import container_proxy
from tbench.storage.read_run import read_run
from tbench.storage.run_files import RUN
from tbench.tasks.consent import about_withheld
from tbench.tasks.environment import agent_environment
from tbench.tasks.sources import BUNDLED, tasks_dir
from tbench.tasks.task import Task
from tbench.tasks.told import instruction_with_servers
from tbench.verify.policy import verify_by
from tbench.verify.verifier import Verdict, verify, verify_twice

_SOLVE = ["bash", "-c", "exec bash /solution/solve.sh </dev/null"]
_SHELL = [BUSYBOX, "sh", "-c", f"command -v bash >/dev/null && exec bash || exec {BUSYBOX} sh"]


def _say(text: str) -> None:
    print_text(text, err=True)


def _task(name: str) -> Task:
    path = Path(name) if Path(name).is_dir() else tasks_dir() / name
    if not path.is_dir():
        bundled = ", ".join(sorted(task.name for task in read_tasks(BUNDLED).tasks))
        raise UsageError(f"{name}: no such task directory, and no bundled task; bundled are {bundled}")
    tasks = read_tasks(str(path)).tasks
    if len(tasks) != 1:
        raise UsageError(f"{name}: holds {len(tasks)} tasks; name one of them")
    return tasks[0]


def _kept(name: str) -> tuple[Path, Kept, RunDocument] | None:
    """The run and the trial that RUN/TASK/SEED names, or its directory; None where it names no trial of a run.

    Raises UsageError where nothing of the trial is left.
    """
    found = re.fullmatch(r"(.+?)/(?:trials/)?([^/]+)/(?:seed-)?(\d+)/?", name)
    if found is None or not (run := Path(found[1]) / RUN.manifest).is_file():
        return None
    stored, seed = read_run(run.parent), int(found[3])
    trials = [result for result in stored.results if (result.task, result.seed, result.final) == (found[2], seed, True)]
    kept = kept_of(run.parent, trials[-1]) if trials else None
    if kept is None or stored.document is None:
        raise UsageError(f"{name}: nothing was kept of this trial; run with --keep or --snapshot")
    return run.parent, kept, stored.document


async def session(
    make_backend: MakeBackend, name: str, verifies: bool, sandbox: SandboxConfig, *, returns: bool = False
) -> None:
    """Start the sandbox, hand over the keyboard, verify, remove; a kept one stays as it is left. Raises UsageError.

    With `returns` the user may go back to the keyboard after each verdict.
    """
    if (found := _kept(name)) is not None:
        await _kept_session(make_backend, *found)
        return
    async with _ready(make_backend, name, sandbox) as (backend, task):
        await _in_sandbox(backend, task, verifies, returns)


async def solution(make_backend: MakeBackend, name: str, sandbox: SandboxConfig) -> float:
    """Run a task's solution as its agent would, with its output as it comes, then the verifier; the reward.

    Raises UsageError.
    """
    async with _ready(make_backend, name, sandbox) as (backend, task):
        if task.steps:
            raise UsageError(f"{name}: has steps, of which each has a solution; run it with tbench run -a oracle")
        if "solve.sh" not in task.solution:
            raise UsageError(f"{task.solve_script}: missing, so there is nothing to run")
        return await _solved(backend, task)


async def beside(
    make_backend: MakeBackend, name: str, sandbox: SandboxConfig, container: Callable[[str], str | None]
) -> float:
    """Judge a copy of what somebody has done in a shell of the task; `container` finds that. Raises UsageError."""
    async with _ready(make_backend, name, sandbox) as (backend, task):
        kept = container(f"{task.name}.shell")
        if kept is None or not isinstance(backend, Reopens):
            raise UsageError(f"{name}: no shell of it is open; open one with: tbench task shell {name}")
        part = task.steps[0] if task.steps else task
        verdict = await verify_by("isolated", part, await backend.reopen(agent_environment(task), task.name, kept))
        return _told(verdict)


@contextlib.asynccontextmanager
async def _ready(make_backend: MakeBackend, name: str, sandbox: SandboxConfig) -> AsyncIterator[tuple[Backend, Task]]:
    """A backend that is open, and the task of that name. Raises UsageError, also for errors of the sandbox within."""
    task = _task(name).allowing(sandbox.allow_env, host=sandbox.trust)
    if words := about_withheld(task.wishes, sandbox.allow_env):
        _say(words)
    proxy = container_proxy(sandbox.container_proxy)
    backend = make_backend(SandboxSettings(f"shell-{os.getpid()}", SandboxConfig(cap_add=sandbox.cap_add), proxy))
    require(backend, HasTty, "tbench shell")
    try:
        async with opened(backend, _say):
            yield backend, task
    except TrialError as error:
        raise UsageError(f"{error.type}: {error}") from None


async def _kept_session(make_backend: MakeBackend, run: Path, kept: Kept, document: RunDocument) -> None:
    """Enter what was kept of a trial; a container stays as it is left, one that is made of a snapshot is removed."""
    result, config = kept.result, document.config
    again = read_again(config.tasks.source, document.dataset, config.tasks.registry)
    tasks = {task.name: task for task in again.tasks}
    if (task := tasks.get(result.task)) is None:
        raise UsageError(f"{config.tasks.source}: {result.task} is gone; put it back to enter what it left")
    make = make_backend if result.machine is None else MachinesOfRun(config.sandbox)(result.machine)
    backend = make(sandbox_settings(document))
    require(backend, HasTty, "tbench shell")
    if not isinstance(backend, Reopens):
        raise UsageError(f"{run}: {backend.name} cannot find again what was kept; use another backend")
    try:
        async with opened(backend, _say):
            sandbox, is_new = await kept_sandbox(backend, kept, as_configured(task, config))
            what = "a snapshot from before the tests" if is_new else "its container, as it was left"
            _say(f"--- {result.task} seed {result.seed}: {what}; leave with exit or C-d ---")
            try:
                await _at_keyboard(sandbox)
            finally:
                if is_new:
                    await asyncio.shield(sandbox.remove())
    except TrialError as error:
        raise UsageError(f"{error.type}: {error}") from None
    if not is_new and not result.task_steps:
        _say(f"kept; verify it again with: tbench regrade {run} --task {result.task} --seed {result.seed}")


async def _at_keyboard(sandbox: Sandbox, user: str | None = None) -> None:
    assert isinstance(sandbox, HasTty)
    size = _window()
    await _hand_over(await sandbox.open_tty(_SHELL, TerminalSpec().environment, size.lines, size.columns, user))


async def _in_sandbox(backend: Backend, task: Task, verifies: bool, returns: bool) -> None:
    sandbox = await backend.sandbox(agent_environment(task), f"{task.name}.shell")
    try:
        title = task.name
        if task.steps:
            title, task = f"{task.name}: step 1 of {len(task.steps)}, {task.file.steps[0].name}", task.steps[0]
            await prepare_step(task, sandbox, 0)
        _say(f"--- {title} ---\n{instruction_with_servers(task)}--- leave with exit or C-d ---")
        for number in itertools.count():
            await use_network(sandbox, agent_environment(task), "agent")
            await _at_keyboard(sandbox, agent_user(task))
            if not verifies:
                return
            try:
                await _judge(task, sandbox, again=number > 0)
            except TrialError as error:
                if not returns:
                    raise
                _say(f"{error.type}: {error}")
            if not returns or not await wants_back():
                return
    finally:
        await asyncio.shield(sandbox.remove())


async def _judge(task: Task, sandbox: Sandbox, *, again: bool = False) -> float:
    """Run the verifier in the sandbox as it is, and print what it says; its reward."""
    await use_network(sandbox, agent_environment(task), "verifier")
    return _told(await verify_twice(lambda again: verify(task, sandbox, again=again), again=again))


def _told(verdict: Verdict) -> float:
    """Print what a verifier has said; its reward."""
    _say(plain_text(verdict.stdout))
    print_line(f"reward {verdict.reward:g}")
    return verdict.reward


async def wants_back() -> bool:
    """Whether the user wants to go on in the same sandbox."""
    _say("--- Enter goes back to it; q removes it ---")
    async for data in pieces_of_stdin():
        return b"q" not in data
    return False


async def _solved(backend: Backend, task: Task) -> float:
    """The reward of a task's solution, which runs in a sandbox of its own."""
    sandbox = await backend.sandbox(agent_environment(task), f"{task.name}.solve")
    try:
        assert isinstance(sandbox, HasTty)
        await use_network(sandbox, agent_environment(task), "agent")
        await sandbox.put(tree_at("/solution", task.solution))
        size = _window()
        variables = {
            **TerminalSpec().environment,
            "DEBIAN_FRONTEND": "noninteractive",
            **task.resolve_env(task.file.solution.env),
        }
        stream = await sandbox.open_tty(_SOLVE, variables, size.lines, size.columns, agent_user(task))
        try:
            async with asyncio.timeout(task.file.agent.timeout_sec):
                while data := await stream.read():
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
        except TimeoutError:
            _say(f"--- the solution was ended after {task.file.agent.timeout_sec:g} s ---")
        finally:
            await stream.close()
        return await _judge(task, sandbox)
    finally:
        await asyncio.shield(sandbox.remove())


async def _hand_over(stream: TtyStream) -> None:
    """Connect this process's terminal, or other stdin, with the sandbox's until that one ends."""
    loop = asyncio.get_running_loop()
    writing: set[asyncio.Task[None]] = set()

    def resized() -> None:
        size = _window()
        resizing = asyncio.ensure_future(stream.resize(size.lines, size.columns))
        writing.add(resizing)
        resizing.add_done_callback(writing.discard)

    typing = asyncio.create_task(_type(stream), name="keyboard")
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        with _raw_mode():
            while data := await stream.read():
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in (typing, *writing):
            task.cancel()
        await asyncio.gather(typing, *writing, return_exceptions=True)
        await stream.close()


def _window() -> os.terminal_size:
    """The window's own size; COLUMNS and LINES may be those of another one."""
    try:
        return os.get_terminal_size(0)
    except OSError:
        return os.terminal_size((80, 24))


async def _type(stream: TtyStream) -> None:
    """Pass stdin on to the sandbox; at its end the shell is left as by C-d."""
    with contextlib.suppress(ConnectionError):
        async for data in pieces_of_stdin():
            await stream.write(data)
        await stream.write(b"\x04")


@contextlib.contextmanager
def _raw_mode() -> Iterator[None]:
    """Raw mode for the block: every key goes into the sandbox, C-c too; nothing is echoed here."""
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead stays
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)


# A trial done again up to a step, and then in a person's hands.


async def hand_over(
    begin: Callable[[Callable[[str], None]], AbstractAsyncContextManager[DebugSession]], at_step: int
) -> None:
    """Give the user the trial's terminal, and judge a copy of its container each time that they give it back.

    Raises UsageError where the user has no terminal, or the trial ends before.
    """
    require_terminal("--shell needs a terminal; --debug takes commands from stdin as well")
    async with begin(_tell) as session:
        await session.rests()
        if session.is_over:
            came = came_to(session.result) if session.result is not None else "no result"
            raise UsageError(
                f"{session.trial}: has ended before step {at_step}: {came}; its files: {session.directory}"
            )
        if session.differs:
            _tell(f"it is not quite the same: {session.differs}")
        while True:
            print_line(await look_on(session.directory, session.trial, take=True, leaving="has it judged"), err=True)
            _tell("judging a copy of it")
            verdict = await session.verify()
            for line in verdict.output.rstrip("\n").split("\n"):
                print_line(line)
            print_line(verdict.words)
            if not await wants_back():
                return


def _tell(text: str) -> None:
    print_line(text, err=True)
