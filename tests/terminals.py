"""Shared parts of the terminal's tests: containers, terminals in them, and short ways to use them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from harness.protocols.base import CommandResult, Keys, ScreenView, View
from harness.terminal import Terminal, TerminalSpec
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.container import Container, ContainerLimits, Recipe
from tbench.sandbox.docker.create import create_arguments
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

BASH = "FROM debian:bookworm-slim\nWORKDIR /app\n"
NO_BASH = "FROM debian:bookworm-slim\nRUN rm -f /bin/bash /usr/bin/bash\nWORKDIR /app\n"
NO_SHELL = "FROM debian:bookworm-slim\nRUN rm -f /bin/bash /usr/bin/bash /bin/sh /usr/bin/sh\nWORKDIR /app\n"
NO_ROOT = "FROM debian:bookworm-slim\nRUN useradd --create-home agent\nWORKDIR /home/agent\nUSER agent\n"
LONG = 30.0
"""A duration that no test waits for: returning before it is what is tested."""
PROGRAMS = """FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends vim-tiny nano less fzf procps git sqlite3 \\
    python3 python3-pexpect expect zsh fish busybox mksh ksh sudo openssh-server openssh-client
RUN useradd --create-home --shell /bin/bash agent && useradd --create-home --shell /bin/bash asked \\
    && echo 'asked ALL=(ALL) ALL' > /etc/sudoers.d/asked \\
    && echo 'asked:secret' | chpasswd && echo 'root:secret' | chpasswd
RUN mkdir -p /run/sshd /root/.ssh && ssh-keygen -qt ed25519 -N '' -f /root/.ssh/id_ed25519 \\
    && printf '%s\\n' 'StrictHostKeyChecking no' 'UserKnownHostsFile /dev/null' 'LogLevel ERROR' > /root/.ssh/config \\
    && for home in /root /home/agent; do install -D -m 600 /root/.ssh/id_ed25519.pub $home/.ssh/authorized_keys; done \\
    && chown -R agent: /home/agent/.ssh
WORKDIR /app
"""
"""Editors, pagers, shells of all kinds, programs that have shells in terminals of their own, sshd, and passwords."""
KILL_TMUX = "for p in /proc/[0-9]*; do read -r c < $p/comm; case $c in tmux*) kill -9 ${p#/proc/};; esac; done"
NUMBERS = count()
CLOSED: WeakKeyDictionary[Container, list[str]] = WeakKeyDictionary()
"""Sockets of tmux servers whose terminals are closed, by container."""
MAX_CLOSED = 8
"""So many servers are ended by one exec, which costs the engine more than they cost the container."""
BURNERS = 6
"""Three times as many as there may be processors for the container."""

Open = Callable[..., Awaitable[Terminal]]


@asynccontextmanager
async def started(
    engine: Engine, tools_volume: str, task: Path, user: str | None = None, *, read_only: bool = False
) -> AsyncIterator[Container]:
    """A task's container, which is removed afterwards; `read_only`: with a root file system nobody can write to."""
    recipe = Recipe(
        image=await Images(engine).get(agent_environment(Task.read(task))),
        limits=ContainerLimits(cpus=2, memory_mb=512, pids=512),
        tools_volume=tools_volume,
        run="tests",
        trial="terminal",
        has_internet=False,
        environment={},
        agent_user=user,
    )
    container = await (_start_read_only(engine, recipe) if read_only else Container.start(engine, recipe))
    try:
        yield container
    finally:
        await container.remove()


async def _start_read_only(engine: Engine, recipe: Recipe) -> Container:
    # The runner itself never asks for that.
    config = create_arguments(engine, recipe)
    config["host_config"]["ReadonlyRootfs"] = True
    created = await engine.call(engine.api.create_container, **config)
    await engine.call(engine.api.start, created["Id"])
    return Container(engine, created["Id"], recipe)


def write_task(directory: Path, dockerfile: str) -> Path:
    for name, text in {
        "task.toml": "[environment]\nmemory_mb = 512\n",
        "instruction.md": "Nothing.\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": "true\n",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


@asynccontextmanager
async def opened(container: Container, **options: Any) -> AsyncIterator[Terminal]:
    """A terminal on a tmux server of its own, which is ended soon afterwards."""
    environment = dict(TerminalSpec().environment) | options.pop("environment", {})
    kind = {name: options.pop(name) for name in ("attended", "shell_mode", "idle_sec") if name in options}
    spec = TerminalSpec(socket=f"/opt/tbench/run/{next(NUMBERS)}", environment=environment, **kind)
    terminal = Terminal(options.pop("connect", container.connect), spec, **options)
    await terminal.open()
    try:
        yield terminal
    finally:
        await terminal.close()
        closed = CLOSED.setdefault(container, [])
        closed.append(spec.socket)
        if len(closed) == MAX_CLOSED:
            await container.shell(
                f"for socket in {' '.join(closed)}; do {spec.tmux} -S $socket kill-server; done", timeout_sec=20
            )
            closed.clear()


@asynccontextmanager
async def under_load(box: Container) -> AsyncIterator[None]:
    burn = f"for i in {' '.join(map(str, range(BURNERS)))}; do (while :; do :; done) & done >/dev/null 2>&1"
    await box.shell(f"{burn}; echo $$ > /dev/shm/burners", timeout_sec=20)
    try:
        yield
    finally:
        await box.shell(
            f"for p in /proc/[0-9]*; do [ -r $p/stat ] && IFS= read -r s < $p/stat && set -- ${{s##*) }} && "
            f'[ "$3" = "$({BUSYBOX} cat /dev/shm/burners)" ] && kill -9 ${{p#/proc/}}; done',
            timeout_sec=20,
        )


async def type_in(terminal: Terminal, keystrokes: str, duration_sec: float = LONG) -> ScreenView:
    """Send keystrokes that end at the prompt; what is new then."""
    settled = await terminal.send(Keys(keystrokes, duration_sec))
    assert settled.at_prompt
    return await terminal.view()


async def press(terminal: Terminal, key: str, duration_sec: float = LONG) -> bool:
    return (await terminal.send(Keys("", duration_sec, key=key))).at_prompt


async def run(terminal: Terminal, command: str, limit_sec: float = LONG) -> CommandResult:
    return await terminal.run(command, limit_sec)


async def output_of(terminal: Terminal, command: str) -> str:
    return (await run(terminal, command)).output


def digest(text: str) -> str:
    """Its hash as sha256sum prints it."""
    return hashlib.sha256(text.encode()).hexdigest() + "  -\n"


def kinds(view: View) -> list[str]:
    """Kinds of its notes."""
    return [note.partition(":")[0] for note in view.notes]


def body(view: ScreenView) -> list[str]:
    """New lines between the command's and the prompt's."""
    assert view.new_output is not None
    return view.new_output.split("\n")[1:-1]


def now() -> float:
    return asyncio.get_running_loop().time()
