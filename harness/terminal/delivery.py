"""Runs a command's text in the terminal's shell without typing it.

tmux writes the text and a script (deliver.sh) to files, and the shell runs the script at its next prompt: only an empty
line is typed. So the text arrives and is read as a whole, and is not echoed into the output.
"""

from __future__ import annotations

import dataclasses
import math
import random
import re
import shlex
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path

from harness.concurrency import loop_time
from harness.errors import TerminalLost
from harness.protocols.base import CommandResult
from harness.terminal import control_mode
from harness.terminal.control_mode import text as reply_text
from harness.terminal.link import KeysLost, Link
from harness.terminal.pane import PaneMonitor
from harness.terminal.settling import Mark, looks_like_shell_prompt
from harness.terminal.spec import TerminalSpec
from harness.terminal.waiting import Foreground, ForegroundProbe, PromptWaiter

_SCRIPT = "".join(
    line.lstrip(" ")
    for line in Path(__file__).with_name("deliver.sh").read_text().splitlines(keepends=True)
    if not line.lstrip().startswith("#")
)
_IN_HOOK = """{ case ${BASH_SOURCE-} in PATH)
__tbench_status=$? __tbench_x=$- __tbench_hook=${PROMPT_COMMAND+x$PROMPT_COMMAND}
PROMPT_COMMAND='\\builtin eval "$(<PATH)"'; __tbench_hooked=1
esac; } 2>/dev/null; case ${BASH_SOURCE-} in PATH) ;; *)
"""
"""Makes a sourced script wait for the prompt's hook. Only there does bash read it like a script, and a `return` in the
text ends no sourced file."""
_PRELUDE = (
    "{ __tbench_code=${__tbench_status-$?} __tbench_options=${__tbench_x-$-} __tbench_do=${BASH_VERSION:+builtin}; "
    '"${__tbench_do:=command}" set +axve; } 2>/dev/null;'
)
_SHOWN_CHARS = 2000
_MAY_END_EARLY = re.compile(r"\$\{!?(?:\w+(?:\[[^\n]*?\])?|[@*#?$!-]):?\?|\bset\b[^;\n]*-\w*u|\bnounset\b")
_SUBSTITUTES = re.compile(r"[$<>]\(")
"""Start of a process substitution. An unfinished one corrupts bash 5.2's memory, so the text is tried in a subshell."""
_NOT_SHOWN = re.compile(r"[^\t\n\x20-\x7e\xa0-\U0010ffff]")
_FIRST_CHECK_SEC, _LONGEST_PAUSE_SEC = 0.05, 1.0
_MAX_REQUESTS = 4
_DIRECTORY = b"display-message -p -t main '#{pane_current_path}'\n"
_READ_BACK = b"capture-pane -p -J -t main -S -2000\n"
_PROBE, _PROBE_SEC = "/opt/tbench/bin/busybox stty sane </dev/tty", 3.0
"""Command that tests the shell, and resets terminal modes that a killed program may have left."""
_AFTER_END_SEC = 1.0
"""Longest wait for the prompt after a command's end."""
_NEW_SHELL_SEC = 10.0
_WAITS_FOR_KEYS = "waits_for_keys: The command waited for somebody to type, which nobody does, so it was ended early."
_SHELL_HUNG = "shell_restarted: The command did not react, so its shell was ended."
_SHELL_REFUSES = "shell_restarted: The shell did not take commands any more, so it was ended before this one."
_SHELL_ENDED = "shell_ended: The command ended its shell; what was left of it did not run."
_SHELL_LOST = (
    "shell_lost: The shell had ended before this command, which ran in a new one, with the exported variables as the "
    "command before left them; other variables, functions, aliases and options were gone."
)
_IN_COPY = (
    "ran_in_copy: The command's text is broken: what could be run of its last part ran in a copy of the shell. Files "
    "are written, but variables, functions, options and the directory are as they were."
)
_LIMITED = (
    "shell_limited: The shell may not open what the terminal needs (ulimit -n, set -r): messages about that may be the "
    "terminal's own."
)
_NOTES = {"copy": _IN_COPY, "limited": _LIMITED}
_ESCALATION = (("C-c", b"^C", 0.8), ("C-\\", b"^\\", 0.4))
_KILLED_SEC = 1.0


class _CommandEnd(Enum):
    """The way a command ended."""

    REPORTED = 1
    """The command's own mark reported its end."""
    ABANDONED = 2
    """The shell is back at its prompt without that mark: an interrupt, or an error that drops a whole line."""
    SHELL_ENDED = 3
    LIMIT = 4
    UNKNOWN = 5
    REFUSED = 6
    """The shell is at its prompt but does not run the command, because the hook was disabled."""


class Delivery:
    """Delivers commands to one pane's shell. Raises ConnectionError if the connection is lost, and TerminalLost."""

    def __init__(
        self,
        link: Link,
        pane: PaneMonitor,
        waiter: PromptWaiter,
        probe: ForegroundProbe,
        spec: TerminalSpec,
        *,
        show: Callable[[str], None],
        remark: Callable[[str], None],
    ) -> None:
        self._link = link
        self._pane = pane
        self._waiter = waiter
        self._probe = probe
        self._at = spec.command_file
        self._fresh = spec.shell_mode == "fresh"
        # A command in its own process has no terminal to read from.
        self._idle_sec = math.inf if self._fresh else spec.idle_sec
        self._show = show
        self._remark = remark
        # Not from 1: output of an earlier session may be printed again, including its marks.
        self._id = random.randrange(1 << 30)
        self._command = ""
        self._notes: list[str] = []
        self._missed_output = False
        """Whether output of the current command was missed, perhaps including its end."""
        self._read_back = ""
        """Output of the current command that was read from the screen, before the captured one."""
        self._uncharged_sec = 0.0
        """Seconds without a connection while the current command ran."""
        self.session_ended = False

    async def run(self, command: str, limit_sec: float, requested: int = 0) -> CommandResult:
        """Run shell text to its end or its limit, and return its exact output.

        An earlier process may have `requested` it, under this id: then it is awaited, and only run if it has not begun.
        If the session ends meanwhile, `session_ended` is set and a new session is attached.
        """
        self._notes, self._missed_output, self._read_back = [], False, ""
        started_at, self._uncharged_sec, self.session_ended = loop_time(), 0.0, False
        if "\0" in command:
            command = command.replace("\0", "")
            self._note("nul_dropped: NUL characters were left out of the command, as no shell can read them.")
        self._show(command)
        try:
            if requested:
                end = await self._wait_for_requested(requested, command, started_at + limit_sec)
            else:
                end = await self._request_and_wait(command, started_at + limit_sec)
            if end is _CommandEnd.REFUSED:
                await self._restart_shell(_SHELL_REFUSES)
                end = await self._request_and_wait(command, started_at + limit_sec)
            if end is _CommandEnd.REFUSED:
                raise TerminalLost("the shell does not take commands any more")
            if end is _CommandEnd.LIMIT:
                await self._stop(started_at)
            result = self._result(end)
            await self._apply_marks()
            await self._wait_until_ready(end)
            if end is _CommandEnd.ABANDONED and result.exit_code is None and not self._missed_output:
                result = await self._with_last_code(result)
        except ConnectionError as error:
            self.session_ended = isinstance(error, KeysLost) or await self._link.reattach()
            self._note("terminal_cut: The way to the terminal was cut, and how the command ended is unknown.")
            result = self._result(_CommandEnd.UNKNOWN)
        return dataclasses.replace(result, notes=tuple(self._notes))

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    async def _with_last_code(self, result: CommandResult) -> CommandResult:
        """Return an abandoned command's result with the exit code reported by the shell, if it is usable."""
        is_usable, capture = await self._is_usable("(exit $?)"), self._pane.capture
        background = result.background + capture.background
        code = capture.ended.exit_code if is_usable and capture.ended is not None else None
        # Without the command's own mark, the prompt is the last line of its output.
        output = result.output[: result.output.rfind("\n") + 1]
        return dataclasses.replace(result, output=output, exit_code=code, background=background)

    async def _apply_marks(self) -> None:
        """Record the notes in the command's marks, and save the files that the shell could not write."""
        capture = self._pane.capture
        if capture.shell_lost:
            self._note(_SHELL_LOST)
        kinds = (capture.ended.note or "").split("_") if capture.ended is not None else []
        for note in _NOTES.keys() & kinds:
            self._note(_NOTES[note])
        if "unsaved" in kinds:
            kept = ("exports", "directory")
            await self._link.commands(*(f"save-buffer -b {name} {self._at}.{name}\n".encode() for name in kept))

    def _result(self, end: _CommandEnd) -> CommandResult:
        capture = self._pane.capture
        printed, exit_code = capture.output(), self._exit_code(end)
        capture.release()
        gap = printed.gap and dataclasses.replace(printed.gap, head=self._read_back + printed.gap.head)
        return CommandResult(
            output=self._read_back + printed.text,
            exit_code=exit_code,
            timed_out=end is _CommandEnd.LIMIT,
            gap=gap,
            background=capture.background,
        )

    async def _wait_until_ready(self, end: _CommandEnd) -> None:
        """Wait until the shell, or a new one, is ready for the next command."""
        if end is _CommandEnd.LIMIT:
            if self._pane.capture.shell_ended is not None:
                await self._new_shell(_SHELL_HUNG)
            # The shell has to run a command to its end; if not, a new shell is started.
            if not (await self._has_shell_back() and await self._is_usable()):
                await self._restart_shell(_SHELL_HUNG)
        elif end is _CommandEnd.SHELL_ENDED:
            await self._new_shell(_SHELL_ENDED)
        else:
            await self._wait_until_settled(_AFTER_END_SEC)

    def _exit_code(self, end: _CommandEnd) -> int | None:
        capture = self._pane.capture
        if end is _CommandEnd.REPORTED and capture.ended is not None:
            return capture.ended.exit_code
        if end is _CommandEnd.SHELL_ENDED and capture.shell_ended is not None:
            return capture.shell_ended.exit_code
        return self._pane.shell.exit_code if end is _CommandEnd.ABANDONED and not self._missed_output else None

    # -- requesting ------------------------------------------------------------------------------

    async def _request_and_wait(self, command: str, ends_at: float, how: str | None = None) -> _CommandEnd:
        """Request the command from the shell, again if it does not begin, then wait for its end."""
        self._id += 1
        self._command = command
        self._pane.capture.expect(self._id)
        files, reattached = self._files(command, how or self._mode_for(command)), self._link.reattached
        # Commands of our own are not part of the action.
        reached = None if how else (self._id,)
        for asked in range(_MAX_REQUESTS):
            # The script is emptied when it runs, so a repeated request must not write it again.
            await self._request(() if asked else files, asked, reached)
            if self._link.reattached != reattached:
                await self._catch_up()
            if await self._wait_until_begun(ends_at) or loop_time() >= ends_at:
                return await self._wait_for_end(ends_at)
        return _CommandEnd.REFUSED

    async def _wait_for_requested(self, id: int, command: str, ends_at: float) -> _CommandEnd:
        """Wait for the end of a command that an earlier process requested; repeat the request if it does not begin."""
        capture, asked = self._pane.capture, 1
        capture.expect(id)
        self._id = id
        self._command = command
        waits = await self._awaits_shell(id)
        await self._catch_up()
        if not (capture.begun or waits):
            # It has begun and ended: the state file is about a later command of our own.
            capture.take(Mark("C", id=id))
            capture.take(Mark("D", id=id))
            await self._read_output_back()
        while not await self._wait_until_begun(ends_at) and loop_time() < ends_at:
            if asked == _MAX_REQUESTS:
                return _CommandEnd.REFUSED
            await self._request((), asked, (id,))
            asked += 1
        self._id = random.randrange(1 << 30)
        return await self._wait_for_end(ends_at)

    async def _awaits_shell(self, id: int) -> bool:
        """Whether the script of a command is still to be run: it is emptied when the command begins."""
        # An empty file does not replace the buffer.
        *_, loaded, shown = await self._link.commands(b"delete-buffer -b tbench\n", *control_mode.read_file(self._at))
        return loaded.ok and shown.ok and f"__tbench_id={id} ".encode() in b"\n".join(shown.lines)

    def _mode_for(self, command: str) -> str:
        if self._fresh:
            return "fresh"
        if _MAY_END_EARLY.search(command):
            return "whole"
        return "tried" if _SUBSTITUTES.search(command) else "line"

    def _files(self, command: str, how: str) -> list[bytes]:
        """Return the tmux commands that write the text and the script."""
        text = control_mode.write_file(f"{self._at}.text", (command or "\n").encode("utf-8", "replace"))
        return [*text, *control_mode.write_file(self._at, self._script(command, how))]

    async def _request(self, files: Sequence[bytes], asked: int, reached: Sequence[int] | None) -> None:
        """Make the shell read the script: by its prompt's hook, else by typing a line."""
        shell = self._pane.shell
        has_hook = asked == 0 and shell.pid is not None
        # If the hook cannot be changed (`readonly PROMPT_COMMAND`), sourcing does not work either.
        typed = f" . {self._at}" if asked < 2 or shell.pid is None else f' \\builtin eval "$(<{self._at})"'
        # C-u: discards text on the line, such as the terminal's answer to a program that has ended.
        line = "\x15\n" if has_hook else f"\x15{typed}\n"
        if asked > 1:
            # Another program may have read the typed line.
            await self._probe.clear(math.inf)
        shell.note_typed("\n")
        self._waiter.note_typed(entered=False)
        self._pane.capture.note_requested(line.strip("\x15\n").encode() + b"\r\n")
        await self._link.type(control_mode.type_bytes("main", line.encode()), before=files, reached=reached)

    def _script(self, command: str, how: str) -> bytes:
        values = {"at": self._at, "id": str(self._id), "how": how, "shown": _shown(command)}
        assignments = " ".join(f"__tbench_{name}={shlex.quote(value)}" for name, value in values.items())
        in_hook = _IN_HOOK.replace("PATH", self._at)
        return f"{in_hook}{_PRELUDE} {assignments}\n{_SCRIPT};; esac\n".encode("utf-8", "replace")

    async def _wait_until_begun(self, ends_at: float) -> bool:
        """Wait until the command begins; False if the shell is back at its prompt without having started it."""
        capture, pause_sec = self._pane.capture, _FIRST_CHECK_SEC
        while loop_time() < ends_at:
            wait_sec = min(pause_sec, ends_at - loop_time())
            await self._wait_until_settled(wait_sec, or_when=lambda: capture.begun or capture.is_over)
            if capture.begun or capture.is_over:
                return True
            if await self._is_idle() and not capture.begun:
                return False
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
        return False

    async def _check_files(self) -> None:
        refused = [reply_text(reply.lines) for reply in await self._link.replies() if not reply.ok]
        if refused:
            raise TerminalLost(f"the command cannot be written to {self._at}: {refused[0]}")

    async def _is_idle(self) -> bool:
        """Whether the shell waits for input and no typed keys are under way. Raises TerminalLost."""
        marks, before = self._pane.marks, await self._probe.inspect()
        if not self._may_be_idle(before):
            return False
        now = await self._probe.inspect_again()
        await self._check_files()
        if self._pane.marks != marks:
            return False
        return self._may_be_idle(now) and (now is None or now.is_still(before))

    def _may_be_idle(self, now: Foreground | None) -> bool:
        at_prompt = self._pane.shell.at_prompt
        return at_prompt if now is None else now.is_at_rest and (now.edits_line or at_prompt)

    # -- waiting ---------------------------------------------------------------------------------

    async def _wait_for_end(self, ends_at: float) -> _CommandEnd:
        capture, before = self._pane.capture, tuple[bytes, ...]()
        while not (capture.is_over or self._waiter.at_prompt) and loop_time() < ends_at + self._uncharged_sec:
            wait_sec = min(ends_at + self._uncharged_sec - loop_time(), self._idle_sec)
            await self._wait_until_settled(wait_sec, or_when=lambda: capture.is_over)
            if wait_sec < self._idle_sec or loop_time() < self._pane.last_news_at + self._idle_sec or capture.is_over:
                continue
            now = await self._probe.cpu_times_if_waiting()
            if now and now == before:
                self._note(_WAITS_FOR_KEYS)
                return _CommandEnd.LIMIT
            before = now
        if capture.ended is not None:
            return _CommandEnd.REPORTED
        if capture.shell_ended is not None:
            return _CommandEnd.SHELL_ENDED
        return _CommandEnd.ABANDONED if self._waiter.at_prompt else _CommandEnd.LIMIT

    async def _wait_until_settled(self, duration_sec: float, *, or_when: Callable[[], bool] = lambda: False) -> None:
        """Wait like `PromptWaiter.wait_until_settled`, but reattach if the stream is lost. Raises KeysLost."""
        try:
            await self._waiter.wait_until_settled(duration_sec, or_when=or_when)
        except ConnectionError as error:
            cut_at = loop_time()
            if await self._link.reattach():
                raise KeysLost("the session ended") from error
            await self._catch_up()
            self._uncharged_sec += loop_time() - cut_at

    async def _catch_up(self) -> None:
        """Read from the state file what happened to the command while the connection was lost."""
        capture = self._pane.capture
        loaded, shown = await self._link.commands(*control_mode.read_file(f"{self._at}.state"))
        words = reply_text(shown.lines).split() if loaded.ok else []
        if words[:1] != [str(self._id)]:
            return
        if not capture.begun:
            capture.take(Mark("C", id=self._id))
        if len(words) > 1 and capture.ended is None:
            capture.take(Mark("D", exit_code=int(words[1]), id=self._id))
        await self._read_output_back()

    async def _read_output_back(self) -> None:
        """Read the command's output so far from the screen, because a part of it was missed."""
        self._missed_output = True
        # Discards at the position in the stream up to which the screen shows everything.
        (shown,) = await self._link.commands(_READ_BACK, on_end=self._pane.capture.discard_output)
        found = _output_on_screen([line.decode("utf-8", "replace") for line in shown.lines], _shown(self._command))
        self._read_back = found or ""
        shown_how = "is not shown" if found is None else "is as on the screen"
        self._note(f"output_missed: The connection to the terminal was cut; what was printed until then {shown_how}.")

    async def _stop(self, started_at: float) -> None:
        """End a command that exceeded its limit, gently first, and its remaining processes in other sessions."""
        why = "waits for keys" if _WAITS_FOR_KEYS in self._notes else "has exceeded its limit"
        self._remark(f"the command {why}: interrupting it")
        if not await self._is_over_after_keys():
            self._remark("the command does not react: killing it")
            await self._probe.kill_foreground()
            await self._wait_until_settled(_KILLED_SEC)
        if killed := await self._probe.clear(loop_time() - started_at):
            self._remark(f"killed, because they kept the terminal open: {', '.join(killed)}")
            self._note(f"terminal_cleared: Left over, and killed: {', '.join(killed)}.")

    async def _is_usable(self, probe: str = _PROBE) -> bool:
        """Whether the shell runs a command to its end."""
        end = await self._request_and_wait(probe, loop_time() + _PROBE_SEC, "line")
        await self._wait_until_settled(_AFTER_END_SEC)
        return end is _CommandEnd.REPORTED

    async def _restart_shell(self, why: str) -> None:
        self._remark("restarting the shell")
        self._pane.begin()
        await self._link.commands(b"respawn-pane -k -t main\n")
        await self._new_shell(why)

    async def _is_over_after_keys(self) -> bool:
        # Interrupt the shell as well: after a command that handles C-c and exits, it would run the next line.
        await self._probe.interrupt_shell()
        for key, echo, wait_sec in _ESCALATION:
            self._pane.shell.note_pressed(key)
            self._waiter.note_typed(entered=False)
            self._pane.capture.note_pressed(echo)
            await self._link.type([control_mode.press_key("main", key)])
            await self._wait_until_settled(wait_sec)
            if await self._has_shell_back():
                return True
        return False

    async def _has_shell_back(self) -> bool:
        """Whether the shell has the terminal again, even if a key arrived while it drew its prompt."""
        return self._waiter.at_prompt or (self._pane.capture.is_abandoned and await self._is_idle())

    async def _new_shell(self, why: str) -> None:
        """Wait until a new shell is ready, and note which state it has kept."""
        await self._wait_until_settled(_NEW_SHELL_SEC)
        (reply,) = await self._link.commands(_DIRECTORY)
        self._note(
            f"{why} A new shell was started in {reply_text(reply.lines)}, with the exported variables as the command "
            "before left them; other variables, functions, aliases and options are gone."
        )


def _output_on_screen(lines: Sequence[str], command: str) -> str | None:
    """Return what the screen shows below a command, without the prompt at its end; None without the command."""
    first, *others = f"$ {command}".split("\n")
    at = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].rstrip() == first.rstrip()), None)
    if at is None:
        return None
    below = [line.rstrip() for line in lines[at + 1 + len(others) :]]
    while below and not below[-1]:
        below.pop()
    if below and looks_like_shell_prompt(below[-1]):
        below.pop()
    return "".join(f"{line}\n" for line in below)


def _shown(command: str) -> str:
    """Return the part of a command that the screen shows."""
    shown = command[:_SHOWN_CHARS].rstrip("\n")
    more = len(command) - len(shown)
    return _NOT_SHOWN.sub("�", shown) + (f"\n[... {more} characters more]" if more > 1 else "")
