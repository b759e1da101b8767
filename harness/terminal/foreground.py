"""Finds out, from beside the terminal, which process has its foreground, and whether it waits for input.

The tools volume's `tty` (images/tools/tty.c) looks; tmux runs it. Where it cannot (an image without /bin/sh), nothing
is known.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from harness.terminal.control_mode import read_file
from harness.terminal.link import Link
from harness.terminal.spec import TerminalSpec

SHELLS = frozenset({"bash", "zsh", "fish", "dash", "ash", "sh", "ksh", "ksh93", "mksh", "tcsh", "csh"})
_BETWEEN_LOOKS_SEC = 0.02
_FIELD = re.compile(rb"(\w+)=(\S*)")


@dataclass(frozen=True)
class Foreground:
    """The foreground's process group at one moment."""

    group: int
    running: int
    """Number of processes that run, or wait for the disk."""
    waiting: bool | None
    """Whether a process sleeps until something can be read; None where the kernel does not say."""
    cpu_ns: int
    queued: int
    """Number of bytes that were typed and not read yet; in canonical mode those of whole lines."""
    canonical: bool | None
    """Whether the terminal hands over whole lines; full-screen programs and line editors switch that off."""
    echo: bool | None
    """Whether the terminal shows what is typed; line editors show it themselves."""
    crnl: bool | None
    """Whether the Enter key's carriage return becomes a line feed."""
    name: str
    """The name of the group's first process."""
    first_waits: bool | None = None
    """Whether the group's first process sleeps until something can be read, as a shell does at its prompt."""

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs and nothing typed is left, so that only more input, or time, makes something happen."""
        return self.running == 0 and self.waiting is not False and self.queued == 0

    @property
    def is_shell(self) -> bool:
        return self.name in SHELLS

    @property
    def edits_line(self) -> bool:
        """Whether a shell's line editor has the terminal, and not a question that one key answers (`read -n1`)."""
        raw = self.canonical is False and self.echo is False
        return self.is_shell and raw and (self.crnl is False or self.name != "bash")

    def is_still(self, before: Foreground | None) -> bool:
        """Whether nothing has changed since `before`, some time ago, and nothing ran in between."""
        return before is not None and (self.group, self.cpu_ns) == (before.group, before.cpu_ns)


class Watcher:
    """Looks at a pane's terminal through the link to it. Every call raises ConnectionError."""

    def __init__(self, link: Link, spec: TerminalSpec) -> None:
        self._link = link
        self._watcher = spec.watcher
        self._file = f"{spec.socket}.look"

    async def look(self) -> Foreground | None:
        """The foreground as it is now; None where nobody can tell."""
        return _parse(await self._ask("look"))

    async def look_again(self) -> Foreground | None:
        """The foreground a moment later: what only slept in passing has run by then, and tmux has typed its keys."""
        await asyncio.sleep(_BETWEEN_LOOKS_SEC)
        return await self.look()

    async def waits_for_keys(self) -> tuple[bytes, ...]:
        """The CPU time of all that the shell has begun, if nothing of it goes on until somebody types; else nothing."""
        return await self._ask("keys")

    async def interrupt_shell(self) -> None:
        """Send SIGINT to the terminal's shell, whatever has the foreground: it drops what it has still to run."""
        await self._ask("interrupt")

    async def kill_foreground(self) -> None:
        """Kill the foreground's processes, but not the terminal's shell."""
        await self._ask("kill")

    async def clear(self, younger_than_sec: float) -> list[str]:
        """Kill younger processes that hold the terminal from sessions of their own; gives their names."""
        killed = await self._ask(f"clear #{{pane_pid}} #{{pane_tty}} {younger_than_sec:.2f}")
        return [line.decode("utf-8", "replace").partition(" ")[2] for line in killed]

    async def _ask(self, words: str) -> tuple[bytes, ...]:
        what, _, more = words.partition(" ")
        arguments = more or "#{pane_pid} #{pane_tty}"
        # Not run-shell, which shows failures in the pane. Both branches give two replies.
        reading = " ; ".join(line.decode().strip() for line in read_file(self._file))
        nothing = "display-message -p '' ; display-message -p ''"
        look = f"{{ {self._watcher} {what} {arguments}; echo; }} >{self._file}"
        line = f'if-shell "{look}" "{reading}" "{nothing}"\n'
        *_, reply = await self._link.commands(line.encode(), replies=3)  # if-shell's own, and those of a branch
        return tuple(text for text in reply.lines if text) if reply.ok else ()


def _parse(lines: tuple[bytes, ...]) -> Foreground | None:
    found = {name.decode(): value.decode("utf-8", "replace") for name, value in _FIELD.findall(b" ".join(lines))}
    try:
        return Foreground(
            group=int(found["group"]),
            running=int(found["running"]),
            waiting=_ANSWERS[found["waiting"]],
            cpu_ns=int(found["cpu"]),
            queued=int(found["queue"]),
            canonical=_ANSWERS[found["canonical"]],
            echo=_ANSWERS[found["echo"]],
            crnl=_ANSWERS[found["crnl"]],
            name=found["name"],
            first_waits=_ANSWERS[found.get("first", "?")],
        )
    except (KeyError, ValueError):
        return None


_ANSWERS = {"y": True, "n": False, "?": None}
