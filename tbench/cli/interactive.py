"""Interactive sandboxes: a person works in a task's sandbox or a forked trial, then the verifier runs."""

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
from tbench.cli.attach import watch_terminal
from tbench.cli.common import stdin_chunks
from tbench.cli.full_screen import require_terminal
from tbench.cli.printing import print_line, print_lines, print_progress, print_text
from tbench.config.document import RunDocument
from tbench.config.settings import SandboxConfig
from tbench.datasets.read_tasks import read_again, read_tasks
from tbench.errors import TrialError, UsageError
from tbench.fleet.engines import MachineConnector
from tbench.runs.live.commands import outcome_text
from tbench.runs.plan import as_configured, sandbox_settings
from tbench.runs.regrade import Kept, find_kept, kept_sandbox
from tbench.runs.task_steps import prepare_step
from tbench.sandbox.archive import place_tree
from tbench.sandbox.backend import (
    BUSYBOX,
    Backend,
    HasTty,
    MakeBackend,
    Reopens,
    Sandbox,
    SandboxSettings,
    TtyStream,
    open_backend,
    require,
    use_network,
)
from tbench.sandbox.container_proxy import container_proxy
from tbench.storage.read_run import read_run
from tbench.storage.run_files import RUN
from tbench.tasks.consent import withheld_variables_note
from tbench.tasks.environment import agent_environment
from tbench.tasks.prompt_parts import instruction_with_servers
from tbench.tasks.sources import BUNDLED, tasks_dir
from tbench.tasks.task import Task
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
        raise UsageError(f"{name}: no such task directory or bundled task; bundled tasks: {bundled}")
    tasks = read_tasks(str(path)).tasks
    if len(tasks) != 1:
        raise UsageError(f"{name}: contains {len(tasks)} tasks; name one of them")
    return tasks[0]


def _find_kept_trial(name: str) -> tuple[Path, Kept, RunDocument] | None:
    """Return the run and the kept trial named by RUN/TASK/SEED or by a trial's directory; None for other names.

    Raises UsageError if nothing was kept of the trial.
    """
    found = re.fullmatch(r"(.+?)/(?:trials/)?([^/]+)/(?:seed-)?(\d+)/?", name)
    if found is None or not (run := Path(found[1]) / RUN.manifest).is_file():
        return None
    stored, seed = read_run(run.parent), int(found[3])
    trials = [result for result in stored.results if (result.task, result.seed, result.final) == (found[2], seed, True)]
    kept = find_kept(run.parent, trials[-1]) if trials else None
    if kept is None or stored.document is None:
        raise UsageError(f"{name}: nothing was kept of this trial; run with --keep or --snapshot")
    return run.parent, kept, stored.document


async def shell_session(
    make_backend: MakeBackend, name: str, verifies: bool, sandbox: SandboxConfig, *, returns: bool = False
) -> None:
    """Open a shell in a task's sandbox, verify, and remove the sandbox; or enter a kept one. Raises UsageError.

    With `returns` the user can go back to the shell after each verdict.
    """
    if (found := _find_kept_trial(name)) is not None:
        await _enter_kept(make_backend, *found)
        return
    async with _open_backend(make_backend, name, sandbox) as (backend, task):
        await _open_task_shell(backend, task, verifies, returns)


async def run_solution(make_backend: MakeBackend, name: str, sandbox: SandboxConfig) -> float:
    """Run a task's solution as its agent would, showing its output, then the verifier; return the reward.

    Raises UsageError.
    """
    async with _open_backend(make_backend, name, sandbox) as (backend, task):
        if task.steps:
            raise UsageError(f"{name}: has several steps, each with its own solution; run it with tbench run -a oracle")
        if "solve.sh" not in task.solution:
            raise UsageError(f"{task.solve_script}: missing; the task has no solution to run")
        return await _solution_reward(backend, task)


async def verify_open_shell(
    make_backend: MakeBackend, name: str, sandbox: SandboxConfig, container: Callable[[str], str | None]
) -> float:
    """Verify a copy of the open shell's container, whose id `container` finds; return the reward. Raises UsageError."""
    async with _open_backend(make_backend, name, sandbox) as (backend, task):
        kept = container(f"{task.name}.shell")
        if kept is None or not isinstance(backend, Reopens):
            raise UsageError(
                f"{name}: has no open shell; open one with: tbench task shell {name}{sandbox.engine_options}"
            )
        part = task.steps[0] if task.steps else task
        verdict = await verify_by("isolated", part, await backend.reopen(agent_environment(task), task.name, kept))
        return _print_verdict(verdict)


@contextlib.asynccontextmanager
async def _open_backend(
    make_backend: MakeBackend, name: str, sandbox: SandboxConfig
) -> AsyncIterator[tuple[Backend, Task]]:
    """Yield an open backend and the named task. Raises UsageError, also for errors of the sandbox in the block."""
    task = _task(name).with_access(sandbox.allow_env, host=sandbox.trust, ignored_keys=sandbox.ignore_keys)
    if words := withheld_variables_note(task.requested_variables, sandbox.allow_env):
        _say(words)
    proxy = container_proxy(sandbox.container_proxy)
    backend = make_backend(SandboxSettings(f"shell-{os.getpid()}", SandboxConfig(cap_add=sandbox.cap_add), proxy))
    async with _opened(backend):
        yield backend, task


@contextlib.asynccontextmanager
async def _opened(backend: Backend) -> AsyncIterator[None]:
    """Open a backend for the block. Raises UsageError, also for errors of the sandbox in the block."""
    require(backend, HasTty, "tbench shell")
    try:
        async with open_backend(backend, _say):
            yield
    except TrialError as error:
        raise UsageError(f"{error.type}: {error}") from None


@contextlib.asynccontextmanager
async def _removed(sandbox: Sandbox) -> AsyncIterator[None]:
    """Remove a sandbox at the end of the block, also after Ctrl-C."""
    try:
        yield
    finally:
        await asyncio.shield(sandbox.remove())


async def _enter_kept(make_backend: MakeBackend, run: Path, kept: Kept, document: RunDocument) -> None:
    """Open a shell in a kept container, which stays, or in a container made from a snapshot, which is removed."""
    result, config = kept.result, document.config
    again = read_again(config.tasks.source, document.dataset, config.tasks.registry)
    tasks = {task.name: task for task in again.tasks}
    if (task := tasks.get(result.task)) is None:
        raise UsageError(f"{config.tasks.source}: {result.task} is missing; restore the task to enter its sandbox")
    has_own = result.machine is not None or config.sandbox.has_no_engine
    make = MachineConnector(config.sandbox)(result.machine or "") if has_own else make_backend
    backend = make(sandbox_settings(document))
    if not isinstance(backend, Reopens):
        raise UsageError(f"{run}: {backend.name} cannot reopen kept sandboxes; use another backend")
    async with _opened(backend):
        sandbox, is_new = await kept_sandbox(backend, kept, as_configured(task, config))
        what = "a snapshot from before the tests" if is_new else "the kept container"
        _say(f"--- {result.task} seed {result.seed}: {what}; leave with exit or Ctrl-D ---")
        async with _removed(sandbox) if is_new else contextlib.nullcontext():
            await _open_shell(sandbox)
    if not is_new and not result.task_steps:
        _say(f"kept; verify it again with: tbench regrade {run} --task {result.task} --seed {result.seed}")


async def _open_shell(sandbox: Sandbox, user: str | None = None) -> None:
    assert isinstance(sandbox, HasTty)
    size = _window_size()
    await _connect_terminal(await sandbox.open_tty(_SHELL, TerminalSpec().environment, size.lines, size.columns, user))


async def _open_task_shell(backend: Backend, task: Task, verifies: bool, returns: bool) -> None:
    sandbox = await backend.sandbox(agent_environment(task), f"{task.name}.shell")
    async with _removed(sandbox):
        title = task.name
        if task.steps:
            title, task = f"{task.name}: step 1 of {len(task.steps)}, {task.file.steps[0].name}", task.steps[0]
            await prepare_step(task, sandbox, 0)
        _say(f"--- {title} ---\n{instruction_with_servers(task)}--- leave with exit or Ctrl-D ---")
        for number in itertools.count():
            await use_network(sandbox, agent_environment(task), "agent")
            await _open_shell(sandbox, agent_user(task))
            if not verifies:
                return
            try:
                await _run_verifier(task, sandbox, again=number > 0)
            except TrialError as error:
                if not returns:
                    raise
                _say(f"{error.type}: {error}")
            if not returns or not await asks_to_continue():
                return


async def _run_verifier(task: Task, sandbox: Sandbox, *, again: bool = False) -> float:
    """Run the verifier in the sandbox, print its output, and return the reward."""
    await use_network(sandbox, agent_environment(task), "verifier")
    return _print_verdict(await verify_twice(lambda again: verify(task, sandbox, again=again), again=again))


def _print_verdict(verdict: Verdict) -> float:
    """Print a verifier's output and reward; return the reward."""
    _say(plain_text(verdict.stdout))
    print_line(f"reward {verdict.reward:g}")
    return verdict.reward


async def asks_to_continue() -> bool:
    """Ask whether the user wants to continue in the same sandbox."""
    _say("--- press Enter to go back to the sandbox, q to remove it ---")
    async for data in stdin_chunks():
        return b"q" not in data
    return False


async def _solution_reward(backend: Backend, task: Task) -> float:
    """Run a task's solution in a new sandbox, then the verifier; return the reward."""
    sandbox = await backend.sandbox(agent_environment(task), f"{task.name}.solve")
    async with _removed(sandbox):
        assert isinstance(sandbox, HasTty)
        await use_network(sandbox, agent_environment(task), "agent")
        await sandbox.put(place_tree("/solution", task.solution))
        size = _window_size()
        variables = {
            **TerminalSpec().environment,
            "DEBIAN_FRONTEND": "noninteractive",
            **task.resolve_env(task.file.solution.env),
        }
        stream = await sandbox.open_tty(_SOLVE, variables, size.lines, size.columns, agent_user(task))
        try:
            async with asyncio.timeout(task.file.agent.timeout_sec):
                await _show_output(stream)
        except TimeoutError:
            _say(f"--- the solution timed out after {task.file.agent.timeout_sec:g} s ---")
        finally:
            await stream.close()
        return await _run_verifier(task, sandbox)


async def _connect_terminal(stream: TtyStream) -> None:
    """Connect stdin and stdout to the sandbox's terminal until the terminal closes."""
    loop = asyncio.get_running_loop()
    writing: set[asyncio.Task[None]] = set()

    def resized() -> None:
        size = _window_size()
        resizing = asyncio.ensure_future(stream.resize(size.lines, size.columns))
        writing.add(resizing)
        resizing.add_done_callback(writing.discard)

    typing = asyncio.create_task(_forward_stdin(stream), name="keyboard")
    loop.add_signal_handler(signal.SIGWINCH, resized)
    try:
        with _raw_mode():
            await _show_output(stream)
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in (typing, *writing):
            task.cancel()
        await asyncio.gather(typing, *writing, return_exceptions=True)
        await stream.close()


async def _show_output(stream: TtyStream) -> None:
    """Copy what a sandbox's terminal prints to stdout until the terminal closes."""
    while data := await stream.read():
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _window_size() -> os.terminal_size:
    """Return the actual size of the terminal; COLUMNS and LINES may be outdated."""
    try:
        return os.get_terminal_size(0)
    except OSError:
        return os.terminal_size((80, 24))


async def _forward_stdin(stream: TtyStream) -> None:
    """Forward stdin to the sandbox, with a Ctrl-D at its end."""
    with contextlib.suppress(ConnectionError):
        async for data in stdin_chunks():
            await stream.write(data)
        await stream.write(b"\x04")


@contextlib.contextmanager
def _raw_mode() -> Iterator[None]:
    """Put the terminal into raw mode for the block: every key reaches the sandbox, including Ctrl-C; no echo."""
    if not os.isatty(0):
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # keeps type-ahead
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(0, termios.TCSADRAIN, before)


# `tbench fork --shell`


async def fork_at_terminal(
    begin: Callable[[Callable[[str], None]], AbstractAsyncContextManager[DebugSession]], at_step: int
) -> None:
    """Hand a forked trial's terminal to the user, and verify a copy of its container whenever they leave.

    Raises UsageError without a terminal, or if the trial ends before the step.
    """
    require_terminal("--shell needs a terminal; --debug takes commands from stdin as well")
    async with begin(print_progress) as session:
        await session.rests()
        if session.is_over:
            came = outcome_text(session.result) if session.result is not None else "no result"
            raise UsageError(f"{session.trial}: ended before step {at_step}: {came}; files: {session.directory}")
        if session.differs:
            print_progress(f"the replay differs from the original: {session.differs}")
        while True:
            print_line(await watch_terminal(session.directory, session.trial, take=True, leaving="verifies"), err=True)
            print_progress("verifying a copy")
            verdict = await session.verify()
            print_lines(verdict.output.rstrip("\n").split("\n"))
            print_line(verdict.words)
            if not await asks_to_continue():
                return
