"""Waits until the shell has settled, by its marks, else by looking at what has the foreground."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from enum import Enum

from harness.terminal.foreground import Foreground, Watcher
from harness.terminal.last_line import looks_like_prompt, looks_like_shell_prompt, same_prompt
from harness.terminal.link import Link
from harness.terminal.watch import Watch

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
