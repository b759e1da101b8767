"""Waits until the shell has settled: by the invisible marks (OSC 133) around its prompt, or else by inspecting the
foreground process.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from harness.concurrency import loop_time
from harness.terminal.control_mode import read_file
from harness.terminal.link import Link
from harness.terminal.pane import PaneMonitor
from harness.terminal.settling import looks_like_prompt, looks_like_shell_prompt, same_prompt
from harness.terminal.spec import TerminalSpec

# Inspection of the terminal's foreground process from outside: which it is, and whether it waits for input.
#
# tmux runs `tty` from the tools volume (images/tools/tty.c). Without /bin/sh in the image, nothing is known.

SHELLS = frozenset({"bash", "zsh", "fish", "dash", "ash", "sh", "ksh", "ksh93", "mksh", "tcsh", "csh"})
_RECHECK_SEC = 0.02
_MAX_CLEARINGS = 5
_FIELD = re.compile(rb"(\w+)=(\S*)")


@dataclass(frozen=True)
class Foreground:
    """State of the foreground process group at one moment."""

    group: int
    running: int
    """Number of processes that run or wait for the disk."""
    waiting: bool | None
    """Whether a process waits for input; None if the kernel does not report it."""
    cpu_ns: int
    queued: int
    """Number of typed bytes not read yet; in canonical mode, only those of complete lines."""
    canonical: bool | None
    """Whether the terminal delivers whole lines; full-screen programs and line editors turn this off."""
    echo: bool | None
    """Whether the terminal echoes typed keys; line editors echo them themselves."""
    crnl: bool | None
    """Whether the Enter key's carriage return becomes a line feed."""
    name: str
    """Name of the group's first process."""
    first_waits: bool | None = None
    """Whether the group's first process waits for input, like a shell at its prompt."""

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing runs and all keys were read, so that it continues only after more input or some time."""
        return self.running == 0 and self.waiting is not False and self.queued == 0

    @property
    def is_shell(self) -> bool:
        return self.name in SHELLS

    @property
    def edits_line(self) -> bool:
        """Whether a shell's line editor has the terminal, as opposed to a question for one key (`read -n1`)."""
        raw = self.canonical is False and self.echo is False
        return self.is_shell and raw and (self.crnl is False or self.name != "bash")

    def is_still(self, before: Foreground | None) -> bool:
        """Whether it is the same group as `before` and has not run since."""
        return before is not None and (self.group, self.cpu_ns) == (before.group, before.cpu_ns)


class ForegroundProbe:
    """Inspects a pane's terminal through its link. Every method raises ConnectionError."""

    def __init__(self, link: Link, spec: TerminalSpec) -> None:
        self._link = link
        self._probe = spec.probe
        self._file = f"{spec.socket}.look"

    async def inspect(self) -> Foreground | None:
        """Return the current foreground; None if unknown."""
        return _parse(await self._ask("look"))

    async def inspect_again(self) -> Foreground | None:
        """Return the foreground a moment later: short sleeps are over by then, and tmux has typed its keys."""
        await asyncio.sleep(_RECHECK_SEC)
        return await self.inspect()

    async def cpu_times_if_waiting(self) -> tuple[bytes, ...]:
        """Return the CPU times of all processes started by the shell if they all wait for keys; else nothing."""
        return await self._ask("keys")

    async def interrupt_shell(self) -> None:
        """Send SIGINT to the terminal's shell, whatever the foreground: it drops the lines that it has yet to run."""
        await self._ask("interrupt")

    async def kill_foreground(self) -> None:
        """Kill the foreground processes, but not the terminal's shell."""
        await self._ask("kill")

    async def clear(self, younger_than_sec: float) -> list[str]:
        """Kill processes of at most this age that keep the terminal open from other sessions; return their names."""
        names: dict[str, str] = {}
        for _ in range(_MAX_CLEARINGS):  # a killed process may have started another one just before
            killed = await self._ask(f"clear #{{pane_pid}} #{{pane_tty}} {younger_than_sec:.2f}")
            if not killed:
                break
            for line in killed:
                pid, _, name = line.decode("utf-8", "replace").partition(" ")
                names[pid] = name
        return [*names.values()]

    async def _ask(self, words: str) -> tuple[bytes, ...]:
        what, _, more = words.partition(" ")
        arguments = more or "#{pane_pid} #{pane_tty}"
        # Not run-shell, which shows failures in the pane. Both branches give two replies.
        reading = " ; ".join(line.decode().strip() for line in read_file(self._file))
        nothing = "display-message -p '' ; display-message -p ''"
        look = f"{{ {self._probe} {what} {arguments}; echo; }} >{self._file}"
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


_FIRST_CHECK_SEC = 0.02
"""Time after the last output at which the foreground is inspected, if the marks leave doubt."""
_LONGEST_PAUSE_SEC = 0.5
_KNOWN_PROMPT_SEC, _NEW_PROMPT_SEC = 0.15, 0.5
"""Quiet period required at a known and at a new prompt of a shell behind a program such as ssh."""
_EDITORS = frozenset({"bash", "zsh", "fish"})
"""Shells with a line editor, unless it was turned off."""
_PLAIN_PROMPT = ("$", "#")


class _ShellActivity(Enum):
    """State of the shell according to the foreground."""

    AT_MARKED_PROMPT = 1
    """The shell that prints the marks waits at its prompt."""
    AT_UNMARKED_PROMPT = 2
    BUSY = 3
    UNKNOWN = 4


class PromptWaiter:
    """Waits until one pane's shell has settled.

    bash's marks are proof. Without them (another shell, another machine, a prompt set by the agent), the shell has
    settled when it waits for input and has read all keys, according to an inspection from outside; or, if that is not
    possible, when the earlier prompt was drawn again.
    """

    def __init__(self, pane: PaneMonitor, link: Link, probe: ForegroundProbe) -> None:
        self._pane = pane
        self._link = link
        self._probe = probe
        self.recognised = False
        """Whether the shell is at a prompt without marks."""
        self._was_recognised = False
        """Whether the shell was at such a prompt when keys were typed."""
        self._prompt = ""
        """The line of the last such prompt."""
        self._prompt_is_canonical: bool | None = None
        """Whether the terminal was in canonical mode at this prompt: line editors turn it off at a prompt, not at a
        question."""
        self._entered = False
        self._before: Foreground | None = None
        self._pause_sec = _FIRST_CHECK_SEC
        self._inspected_at = -math.inf

    @property
    def at_prompt(self) -> bool:
        """Whether the shell waits for a command."""
        return self._pane.shell.at_prompt or self.recognised

    def note_typed(self, *, entered: bool) -> None:
        """Record that keys are about to be typed; `entered`: they trigger an action, like a line end."""
        self._entered = entered or (self._entered and not self.at_prompt)
        self._was_recognised = self.recognised or (self._was_recognised and not self.at_prompt)
        self.recognised = False
        self._before = None
        self._pause_sec = _FIRST_CHECK_SEC
        self._pane.line.begin()

    async def wait_until_settled(self, duration_sec: float, *, or_when: Callable[[], bool] = lambda: False) -> None:
        """Wait until the shell settles, `or_when` is true or the time is over. Raises ConnectionError at stream end."""
        pane, started_at = self._pane, loop_time()
        ends_at = started_at + duration_sec
        pane.output_matters = False
        while True:
            if self._link.is_cut:
                raise ConnectionResetError(self._link.why_cut)
            if pane.shell.wait_sec == 0 or self.recognised or or_when():
                return
            inspect_at, now = self._next_inspection_at(), loop_time()
            if inspect_at <= now:
                await self._inspect()
            elif now >= ends_at:
                self._remember_prompt()
                return
            elif not self._entered or pane.output_matters:
                await pane.changes(min(inspect_at, ends_at))
            elif now < started_at + _FIRST_CHECK_SEC:
                # Most commands end in this time: waking up for their output would be useless.
                await pane.changes(min(inspect_at, ends_at, started_at + _FIRST_CHECK_SEC))
            else:
                pane.output_matters = True

    def _next_inspection_at(self) -> float:
        """Return the time of the next inspection of the foreground; infinite if there is no doubt."""
        pane = self._pane
        quiet_sec = _FIRST_CHECK_SEC
        if pane.shell.wait_sec is None:
            if not (pane.output_matters and pane.line.is_fresh and (pane.line.text or self._was_recognised)):
                return math.inf
            if not pane.line.text:  # perhaps because a background process has printed a line after the prompt
                quiet_sec = _LONGEST_PAUSE_SEC
        return max(pane.last_news_at + quiet_sec, self._inspected_at + self._pause_sec)

    async def _inspect(self) -> None:
        pane, marks, is_first = self._pane, self._pane.marks, self._before is None
        seen = self._judge(await self._probe.inspect())
        self._inspected_at = loop_time()
        if pane.marks != marks:
            return
        if seen is _ShellActivity.AT_MARKED_PROMPT:
            pane.shell.settle()
        elif seen is _ShellActivity.AT_UNMARKED_PROMPT:
            self._save_prompt()
            if pane.shell.wait_sec is not None:
                pane.shell.settle()
            else:
                self.recognised = True
        elif seen is _ShellActivity.BUSY:
            self._pause_sec = self._pause_sec if is_first else min(2 * self._pause_sec, _LONGEST_PAUSE_SEC)
        elif pane.shell.wait_sec is not None and loop_time() >= pane.last_mark_at + pane.shell.wait_sec:
            # A quiet period has to suffice. On a busy machine it may only mean that nothing was read yet.
            await self._link.sync()
            if pane.marks == marks:
                pane.shell.settle()

    def _judge(self, now: Foreground | None) -> _ShellActivity:
        before, self._before = self._before, now
        if now is None:
            return _ShellActivity.UNKNOWN
        if not now.is_at_rest or not (now.waiting or now.is_still(before)):
            return _ShellActivity.BUSY
        if self._pane.shell.wait_sec is not None and self._is_marking_shell(now):
            return _ShellActivity.AT_MARKED_PROMPT
        # Marks may also come from a shell whose pid differs, or is unknown here.
        line = self._pane.line
        may_be_prompt = line.is_fresh and (bool(line.text) or now.edits_line) and now.is_still(before)
        if may_be_prompt and self._is_at_unmarked_prompt(now):
            return _ShellActivity.AT_UNMARKED_PROMPT
        return _ShellActivity.BUSY

    def _is_marking_shell(self, now: Foreground) -> bool:
        pid = self._pane.shell.pid
        return now.is_shell if pid is None else now.group == pid and self._reads_command(now)

    def _reads_command(self, now: Foreground) -> bool:
        """Whether a waiting shell waits for a command, rather than for a command's input."""
        if now.first_waits is False:
            return False
        if now.canonical is None or now.edits_line:
            return True
        # A line editor turns canonical mode off; without one, the line has to look like a prompt.
        text = self._pane.line.text
        return self._is_known(now) or (now.name not in _EDITORS and text.endswith(_PLAIN_PROMPT))

    def _is_at_unmarked_prompt(self, now: Foreground) -> bool:
        text = self._pane.line.text
        if now.is_shell:
            return self._reads_command(now)
        is_known, is_shells = self._is_known(now), looks_like_shell_prompt(text)
        if is_shells and now.canonical:
            return False  # programs that pass a person's keys on to a shell read them one by one; expect scripts do not
        quiet_sec = _KNOWN_PROMPT_SEC if is_known else _NEW_PROMPT_SEC
        return (is_known or is_shells) and loop_time() >= self._pane.last_news_at + quiet_sec

    def _is_known(self, now: Foreground) -> bool:
        return self._prompt_is_canonical in (None, now.canonical) and same_prompt(self._prompt, self._pane.line.text)

    def _save_prompt(self) -> None:
        if self._pane.line.text:
            self._prompt = self._pane.line.text
            self._prompt_is_canonical = None if self._before is None else self._before.canonical

    def _remember_prompt(self) -> None:
        """Remember a possible prompt when the time is over, to recognise it later."""
        line = self._pane.line
        if self._entered and line.is_fresh and looks_like_prompt(line.text):
            self._save_prompt()
