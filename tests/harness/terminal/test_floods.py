"""terminal: large input and output in bounded memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from pathlib import Path

import pytest
from terminals import LONG, Open, body, output_of, press, type_in

from harness.protocols.base import Keys, View
from harness.terminal import COLUMNS, ROWS, Terminal
from harness.terminal.tap import Recording

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# -- much of everything --------------------------------------------------------------------------


async def test_a_heredoc_of_100_kilobytes_is_typed_in_one_go(terminal: Terminal) -> None:
    content = "".join(f"line {number:06} {'.' * 40}\n" for number in range(1900))
    assert len(content) > 100_000
    settled = await terminal.send(Keys(f"cat > /tmp/big <<'E'\n{content}E\ncksum < /tmp/big\n", LONG))
    assert settled.at_prompt
    size = await output_of(terminal, "wc -c < /tmp/big")
    assert int(size) == len(content)
    assert await output_of(terminal, "tail -1 /tmp/big") == content.splitlines(keepends=True)[-1]


async def test_a_flood_is_stopped_by_a_key(terminal: Terminal) -> None:
    assert not (await terminal.send(Keys("yes\n", 1.0))).at_prompt
    assert await press(terminal, "C-c")
    view = await terminal.view()
    assert view.new_output is None or view.elided_lines > 1000
    assert "^C\n" in view.screen
    assert body(await type_in(terminal, "echo usable\n")) == ["usable"]


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / (1 << 20)


async def growth_mb(work: Awaitable[object]) -> float:
    """Return the memory growth of this process while `work` runs."""
    gc.collect()
    before = peak = resident_mb()
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0.01)
        peak = max(peak, resident_mb())
    await task
    return peak - before


async def flood(terminal: Terminal, duration_sec: float) -> None:
    assert not (await terminal.send(Keys("yes 'a line of a flood that nobody reads'\n", duration_sec))).at_prompt
    assert await press(terminal, "C-c")


async def test_a_flood_stays_in_bounded_memory(open_terminal: Open, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "session.cast", columns=COLUMNS, rows=ROWS)
    terminal = await open_terminal(recording=recording)
    await type_in(terminal, "echo warm\n")
    assert await growth_mb(flood(terminal, 2.0)) < 20


@pytest.mark.slow
async def test_ten_seconds_of_yes_stay_in_bounded_memory(open_terminal: Open, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "session.cast", columns=COLUMNS, rows=ROWS)
    terminal = await open_terminal(recording=recording)
    await type_in(terminal, "echo warm\n")
    assert await growth_mb(flood(terminal, 10.0)) < 20
    assert await output_of(terminal, "echo usable") == "usable\n"


@pytest.mark.slow
async def test_a_file_of_256_megabytes_is_shown_to_its_end_in_bounded_memory(terminal: Terminal) -> None:
    line = "every line of this long file is the same one, so that its end can be told: "
    await type_in(terminal, f"yes '{line}' | head -c 256M > /var/tmp/big; echo the end >> /var/tmp/big\n", 600)
    results: list[View] = []

    async def show() -> None:
        results.append(await terminal.run("cat /var/tmp/big; rm /var/tmp/big", 900))

    assert await growth_mb(show()) < 20
    (result,) = results
    assert result.exit_code == 0
    assert result.output.endswith("the end\n")
    assert result.elided_bytes > 250 << 20


@pytest.mark.slow
async def test_a_megabyte_is_pasted_in_one_go(terminal: Terminal) -> None:
    content = "".join(f"line {number:06} {'.' * 40}\n" for number in range(20_000))
    assert len(content) > 1_000_000
    assert (await terminal.send(Keys(f"cat > /tmp/big <<'E'\n{content}E\n", 300))).at_prompt
    assert int(await output_of(terminal, "wc -c < /tmp/big")) == len(content)
    assert await output_of(terminal, "tail -1 /tmp/big") == content.splitlines(keepends=True)[-1]


@pytest.mark.slow
async def test_a_command_returns_the_head_and_tail_of_what_flooded_the_terminal(terminal: Terminal) -> None:
    result = await terminal.run("yes | head -c 4M; echo; echo last", 300)
    assert result.output.startswith("y\ny\n")
    assert result.output.endswith("\nlast\n")
    assert len(result.output) + result.elided_bytes >= 4 << 20
