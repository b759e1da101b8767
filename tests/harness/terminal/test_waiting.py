"""waiting: inspection of the terminal's foreground from outside."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from terminals import LONG, Open

from harness.protocols.base import Keys
from harness.terminal import Terminal
from harness.terminal.waiting import Foreground, _parse

AT_PROMPT = b"group=7 running=0 waiting=y cpu=1200 queue=0 canonical=n echo=n crnl=n name=bash"
BASH = Foreground(
    group=7, running=0, waiting=True, cpu_ns=1200, queued=0, canonical=False, echo=False, crnl=False, name="bash"
)


def test_a_line_of_the_watcher_is_read() -> None:
    assert _parse((AT_PROMPT,)) == BASH
    assert _parse((b"group=7 running=0 waiting=? cpu=1 queue=0 canonical=? echo=? crnl=? name=",)) is not None


@pytest.mark.parametrize("line", [b"", b"sh: not found", b"group=x running=0", AT_PROMPT.replace(b"waiting=y", b"")])
def test_what_is_no_such_line_says_nothing(line: bytes) -> None:
    assert _parse((line,)) is None


@pytest.mark.parametrize(
    ("change", "at_rest"),
    [
        ({}, True),
        ({"running": 1}, False),
        ({"waiting": False}, False),
        ({"queued": 3}, False),
        ({"waiting": None}, True),
    ],
)
def test_who_waits_with_nothing_to_read_is_at_rest(change: dict[str, int | None], at_rest: bool) -> None:
    assert dataclasses.replace(BASH, **change).is_at_rest == at_rest  # type: ignore[arg-type]


def test_a_shell_edits_its_line_in_a_mode_of_its_own() -> None:
    assert BASH.edits_line
    assert not dataclasses.replace(BASH, canonical=True).edits_line  # a command runs
    assert not dataclasses.replace(BASH, crnl=True).edits_line  # bash's `read -n1`
    assert dataclasses.replace(BASH, crnl=True, name="zsh").edits_line
    assert not dataclasses.replace(BASH, name="vim").edits_line


def test_who_ran_in_between_is_not_still() -> None:
    assert BASH.is_still(BASH)
    assert not BASH.is_still(None)
    assert not dataclasses.replace(BASH, cpu_ns=1300).is_still(BASH)
    assert not dataclasses.replace(BASH, group=8).is_still(BASH)


@pytest.mark.engine
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("", {"name": "bash", "edits_line": True, "is_at_rest": True}),
        ("cat\n", {"name": "cat", "canonical": True, "is_at_rest": True}),
        ("sleep 100\n", {"name": "sleep", "is_at_rest": False, "running": 0}),
        ("while :; do :; done\n", {"name": "bash", "is_at_rest": False, "running": 1}),
        ("sleep 100\nmore\n", {"name": "sleep", "queued": 5}),
        ("stty raw -echo; sleep 100\n", {"name": "sleep", "canonical": False, "echo": False, "crnl": False}),
        ("read -n1 x\n", {"name": "bash", "canonical": False, "edits_line": False, "is_at_rest": True}),
        ("sleep 100 | cat\n", {"name": "sleep", "is_at_rest": False}),
        ("su -c cat\n", {"name": "su", "waiting": True, "is_at_rest": True}),
        ("su -c 'sleep 100; cat'\n", {"name": "su", "waiting": False}),
        ("(setsid sh -c 'while :; do :; done' &)\n", {"name": "bash", "running": 0, "is_at_rest": True}),
    ],
)
async def test_the_foreground_is_seen_from_beside_the_terminal(
    open_terminal: Open, typed: str, expected: dict[str, object]
) -> None:
    terminal: Terminal = await open_terminal()
    first, *rest = typed.splitlines(keepends=True) or [""]
    for keystrokes in (first, *rest):
        await terminal.send(Keys(keystrokes, 0.2))
    for _ in range(int(LONG)):
        now = await terminal._waiter._probe.inspect()
        assert now is not None
        seen = {name: getattr(now, name) for name in expected}
        if seen == expected:
            return
        await asyncio.sleep(0.1)
    assert seen == expected
