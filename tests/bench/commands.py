"""Commands that are delivered instead of typed: a small one, a large one, and one in a process of its own.

The floor is the shell's own time: the same on a bare stream, typed, or sourced from a file that is there already.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from figures import Figures
from small_task import Place
from steps import ROUNDS, bare_stream, floor_ms, line_ms

from harness.limits import ShellMode
from harness.terminal import Terminal, TerminalSpec
from tbench.sandbox.backend import Sandbox

COMMANDS = 60
"""Per round."""
LARGE_ROUNDS = 5
LARGE = "cat > /tmp/large <<'END'\n" + "key = 'value'\t# of a megabyte\n" * 35_000 + "END\n"


async def command_ms(terminal: Terminal, commands: Sequence[str]) -> list[float]:
    """Run each to its end: milliseconds."""
    times = []
    for command in commands:
        started = time.perf_counter()
        result = await terminal.run(command, 20.0)
        times.append((time.perf_counter() - started) * 1e3)
        assert result.exit_code == 0, result
    return times


async def opened(sandbox: Sandbox, mode: ShellMode) -> Terminal:
    terminal = Terminal(
        sandbox.connect, TerminalSpec(socket=f"/opt/tbench/run/{mode}", attended=False, shell_mode=mode)
    )
    await terminal.open()
    return terminal


async def delivered(place: Place, figures: Figures, scratch: Path) -> None:
    """The time of a delivered command, and of a megabyte of one."""
    small = [f"echo step-{number}" for number in range(COMMANDS)]
    times, fresh_times, floors, large, large_floors = [], [], [], [], []
    async with place.sandboxes(1) as sandboxes:
        persistent, fresh = await opened(sandboxes[0], "persistent"), await opened(sandboxes[0], "fresh")
        stream = await bare_stream(sandboxes[0])
        for _ in range(ROUNDS):
            times += await command_ms(persistent, small)
            floors += await floor_ms(stream, COMMANDS)
            fresh_times += await command_ms(fresh, small)
        await persistent.run(f"cat > /tmp/large.sh <<'END OF FILE'\n{LARGE}END OF FILE\n", 20.0)
        for _ in range(LARGE_ROUNDS):
            large += await command_ms(persistent, [LARGE])
            large_floors.append(await line_ms(stream, ". /tmp/large.sh"))
        for each in (persistent, fresh, stream):
            await each.close()
    figures.add_quantiles("command_ms", times, floors)
    figures.add("command_fresh_ms_p50", statistics.median(fresh_times), "ms", statistics.median(floors))
    figures.add("command_1mb_ms_p50", statistics.median(large), "ms", statistics.median(large_floors))
