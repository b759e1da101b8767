"""Waits until the shell has settled, by its marks, else by looking at the process in the foreground."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from harness.terminal.control_mode import read_file
from harness.terminal.link import Link
from harness.terminal.settling import looks_like_prompt, looks_like_shell_prompt, same_prompt
from harness.terminal.spec import TerminalSpec
from harness.terminal.watch import Watch

# Finds out, from beside the terminal, which process has its foreground, and whether it waits for input.
#
# The tools volume's `tty` (images/tools/tty.c) looks; tmux runs it. Where it cannot (an image without /bin/sh),
# nothing is known.

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


_FIRST_LOOK_SEC = 0.02
"""Time after the last news at which the foreground is looked at, where the marks leave a doubt."""
_LONGEST_PAUSE_SEC = 0.5
_KNOWN_PROMPT_SEC, _NEW_PROMPT_SEC = 0.15, 0.5
"""Quiet that is asked for, at a known and at a new prompt, where the shell is behind something such as ssh."""
_EDITORS = frozenset({"bash", "zsh", "fish"})
"""Shells that have a line editor, unless it was switched off."""
_PLAIN_PROMPT = ("$", "#")


class _ShellActivity(Enum):
    """What a look at the foreground says about the shell."""

    AT_MARKED_PROMPT = 1
    """The shell that prints the marks waits at its prompt."""
    AT_UNMARKED_PROMPT = 2
    BUSY = 3
    UNKNOWN = 4


class Waiting:
    """Waits for one pane's shell.

    Proof comes first: bash's marks. Where they are missing (another shell, another machine, a prompt of the agent's
    own), the shell has settled when it waits for input with nothing typed left, seen from beside the terminal; or,
    where it cannot be seen, when the prompt that stood there before was drawn again.
    """

    def __init__(self, watch: Watch, link: Link, watcher: Watcher) -> None:
        self._watch = watch
        self._link = link
        self._watcher = watcher
        self.recognised = False
        """Whether the shell is at a prompt that has no marks."""
        self._was_recognised = False
        """Whether it was at one when something was typed."""
        self._prompt = ""
        """The line of the last such prompt."""
        self._prompt_lines: bool | None = None
        """Whether the terminal was in canonical mode there: what edits lines at a prompt does not at a question."""
        self._entered = False
        self._before: Foreground | None = None
        self._pause_sec = _FIRST_LOOK_SEC
        self._looked_at = -math.inf

    @property
    def at_prompt(self) -> bool:
        """Whether the shell waits for a command."""
        return self._watch.shell.at_prompt or self.recognised

    def typed(self, *, entered: bool) -> None:
        """Note that something is going to be typed; `entered`: it makes a shell do something, as a line's end does."""
        self._entered = entered or (self._entered and not self.at_prompt)
        self._was_recognised = self.recognised or (self._was_recognised and not self.at_prompt)
        self.recognised = False
        self._before = None
        self._pause_sec = _FIRST_LOOK_SEC
        self._watch.line.begin()

    async def until_settled(self, duration_sec: float, *, or_when: Callable[[], bool] = lambda: False) -> None:
        """Wait until things settle, `or_when` holds or the time is over. Raises ConnectionError for an ended stream."""
        watch, started_at = self._watch, _now()
        ends_at = started_at + duration_sec
        watch.output_matters = False
        while True:
            if self._link.is_cut:
                raise ConnectionResetError(self._link.why_cut)
            if watch.shell.wait_sec == 0 or self.recognised or or_when():
                return
            look_at, now = self._next_look_at(), _now()
            if look_at <= now:
                await self._look()
            elif now >= ends_at:
                self._remember_prompt()
                return
            elif not self._entered or watch.output_matters:
                await watch.changes(min(look_at, ends_at))
            elif now < started_at + _FIRST_LOOK_SEC:
                # Most commands end in this time: being told of output would wake this for nothing.
                await watch.changes(min(look_at, ends_at, started_at + _FIRST_LOOK_SEC))
            else:
                watch.output_matters = True

    def _next_look_at(self) -> float:
        """The time at which to look at the foreground next; infinite where there is no doubt."""
        watch = self._watch
        quiet_sec = _FIRST_LOOK_SEC
        if watch.shell.wait_sec is None:
            if not (watch.output_matters and watch.line.is_fresh and (watch.line.text or self._was_recognised)):
                return math.inf
            if not watch.line.text:  # perhaps because something in the background has printed a line behind the prompt
                quiet_sec = _LONGEST_PAUSE_SEC
        return max(watch.last_news_at + quiet_sec, self._looked_at + self._pause_sec)

    async def _look(self) -> None:
        watch, marks, is_first = self._watch, self._watch.marks, self._before is None
        seen = self._judge(await self._watcher.look())
        self._looked_at = _now()
        if watch.marks != marks:
            return
        if seen is _ShellActivity.AT_MARKED_PROMPT:
            watch.shell.settle()
        elif seen is _ShellActivity.AT_UNMARKED_PROMPT:
            self._settle_at_prompt()
        elif seen is _ShellActivity.BUSY:
            self._pause_sec = self._pause_sec if is_first else min(2 * self._pause_sec, _LONGEST_PAUSE_SEC)
        elif watch.shell.wait_sec is not None and _now() >= watch.last_mark_at + watch.shell.wait_sec:
            # Nobody can say more: quiet has to do. On a busy machine it may only mean that nothing was read yet.
            await self._link.sync()
            if watch.marks == marks:
                watch.shell.settle()

    def _settle_at_prompt(self) -> None:
        self._know_prompt()
        if self._watch.shell.wait_sec is not None:
            self._watch.shell.settle()
        else:
            self.recognised = True

    def _judge(self, now: Foreground | None) -> _ShellActivity:
        before, self._before = self._before, now
        if now is None:
            return _ShellActivity.UNKNOWN
        if not now.is_at_rest or not (now.waiting or now.is_still(before)):
            return _ShellActivity.BUSY
        if self._watch.shell.wait_sec is not None and self._is_the_marks_shell(now):
            return _ShellActivity.AT_MARKED_PROMPT
        # Marks may also come from where a shell's number is another one, or is not known here.
        line = self._watch.line
        may_be_prompt = line.is_fresh and (bool(line.text) or now.edits_line) and now.is_still(before)
        if may_be_prompt and self._is_at_some_prompt(now):
            return _ShellActivity.AT_UNMARKED_PROMPT
        return _ShellActivity.BUSY

    def _is_the_marks_shell(self, now: Foreground) -> bool:
        pid = self._watch.shell.pid
        return now.is_shell if pid is None else now.group == pid and self._reads_command(now)

    def _reads_command(self, now: Foreground) -> bool:
        """Whether a waiting shell waits for a command, and not for a command's input."""
        if now.first_waits is False:
            return False
        if now.canonical is None or now.edits_line:
            return True
        # A line editor takes the terminal out of canonical mode; without one, the prompt has to look like one.
        text = self._watch.line.text
        return self._is_known(now) or (now.name not in _EDITORS and text.endswith(_PLAIN_PROMPT))

    def _is_at_some_prompt(self, now: Foreground) -> bool:
        text = self._watch.line.text
        if now.is_shell:
            return self._reads_command(now)
        is_known, is_shells = self._is_known(now), looks_like_shell_prompt(text)
        if is_shells and now.canonical:
            return False  # who passes a person's keys on to a shell takes them one by one; a script of expect does not
        quiet_sec = _KNOWN_PROMPT_SEC if is_known else _NEW_PROMPT_SEC
        return (is_known or is_shells) and _now() >= self._watch.last_news_at + quiet_sec

    def _is_known(self, now: Foreground) -> bool:
        return self._prompt_lines in (None, now.canonical) and same_prompt(self._prompt, self._watch.line.text)

    def _know_prompt(self) -> None:
        if self._watch.line.text:
            self._prompt = self._watch.line.text
            self._prompt_lines = None if self._before is None else self._before.canonical

    def _remember_prompt(self) -> None:
        """Note what may be a prompt when the time is over, to know it when it comes again."""
        line = self._watch.line
        if self._entered and line.is_fresh and looks_like_prompt(line.text):
            self._know_prompt()


def _now() -> float:
    return asyncio.get_running_loop().time()
