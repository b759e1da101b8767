"""terminal: a step never ends before what was typed has run, whatever the machine is busy with.

The truth: the last command of each step leaves an exit code that no other command in it can have.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from terminals import LONG, NO_BASH, NO_SHELL, Open, opened, started, under_load, write_task

from harness.protocols.base import Keys
from harness.terminal import Terminal
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


def a_command(chance: random.Random) -> str:
    """A random command that could make a shell look idle meanwhile. Exit codes stay below 10."""
    kinds: list[Callable[[], str]] = [
        lambda: f"echo {chance.randrange(1000)}",
        lambda: f"sleep 0.0{chance.randrange(1, 9)}",
        lambda: f"cat <<'E'\n{'text $x `y`' * chance.randrange(4)}\n\nE",
        lambda: f"cat <<E | sort | tail -{chance.randrange(1, 5)}\n{chance.randrange(9)}\n$((6 * 7))\nE",
        lambda: f"seq {chance.randrange(3000)} | sort -r | tail -{chance.randrange(1, 5)}",
        lambda: f"(sleep 0.0{chance.randrange(1, 9)}; echo late) &",
        lambda: "for i in 1 2 3; do\n  sleep 0.01\n  echo $i\ndone",
        lambda: "if true; then\n  false\nfi",
        lambda: "echo 'a quote\nof two lines'",
        lambda: "echo a \\\n  b",
        lambda: "",
        lambda: "# a comment",
        lambda: "wait",
        lambda: "( exit 3 )",
        lambda: "no-such-command 2>/dev/null; true",
        lambda: f"printf %s {'x' * chance.randrange(1, 400)}",
        lambda: f"f() {{\n  sleep 0.0{chance.randrange(1, 5)}\n}}; f",
        lambda: "sh -c 'sleep 0.02; exit 2'",
    ]
    return chance.choice(kinds)()


async def type_steps(terminal: Terminal, steps: int, seed: int) -> None:
    """Check that every step settles at its last command; the typing sometimes pauses in mid-step."""
    chance = random.Random(seed)
    for number in range(steps):
        code = 10 + number % 200
        commands = [a_command(chance) for _ in range(chance.randrange(0, 8))]
        pause = chance.randrange(len(commands) + 1) if chance.random() < 0.2 else 0
        if pause:
            first = "".join(f"{command}\n" for command in commands[:pause])
            await terminal.send(Keys(first, chance.choice([0.0, 0.005, 0.05])))
        lines = "".join(f"{command}\n" for command in commands[pause:])
        settled = await terminal.send(Keys(f"{lines}sleep 0.0{chance.randrange(3)}; (exit {code})\n", LONG))
        assert (settled.at_prompt, settled.exit_code) == (True, code), (number, commands, pause)


async def test_no_mix_of_lines_settles_before_its_last_command_has_ended(terminal: Terminal) -> None:
    await type_steps(terminal, 50, 133)


@pytest.mark.slow
async def test_no_mix_of_lines_settles_early_on_a_busy_machine(box: Container, terminal: Terminal) -> None:
    async with under_load(box):
        await type_steps(terminal, 40, 134)


@pytest.mark.parametrize("dockerfile", [NO_BASH, NO_SHELL], ids=["dash", "busybox"])
@pytest.mark.slow
async def test_shells_that_only_count_their_prompts_do_not_settle_early_either(
    engine: Engine, tools_volume: str, tmp_path: Path, dockerfile: str
) -> None:
    async with (
        started(engine, tools_volume, write_task(tmp_path / "no-bash", dockerfile)) as container,
        opened(container) as terminal,
        under_load(container),
    ):
        await type_steps(terminal, 30, 135)


@pytest.mark.slow
async def test_not_one_step_in_a_thousand_settles_early_on_a_busy_machine(box: Container, open_terminal: Open) -> None:
    async with under_load(box):
        for seed in range(4):
            await type_steps(await open_terminal(), 250, seed)
