"""The connection to the pane: one tmux control client, replaced when it is lost; typed keys arrive exactly once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from harness.concurrency import loop_time
from harness.errors import TerminalLost, TerminalUnreachable
from harness.stream import Connect
from harness.terminal.control_mode import CommandReply, ControlClient, NoAnswer, text
from harness.terminal.pane import PaneMonitor
from harness.terminal.spec import TerminalSpec

UNREACHABLE_SEC = 120.0
"""Longest time for which a terminal may be out of reach, such as during an engine's restart."""
_MAX_REOPENINGS = 3
"""Maximum number of new sessions after the agent killed tmux."""
_MAX_REATTACHMENTS = 100
_LONGEST_PAUSE_SEC = 2.0
_IS_MARKED = b"show-options -qv -t main @tbench\n"
_MARK_SESSION = b"set-option -t main @tbench 1\n"
# Own clients use the control mode.
_COUNT_VISITORS = (
    b'set-hook -t main client-attached \'if-shell -F "#{client_control_mode}" "" '
    b'{ set-option -F -t main @tbench_visitors "#{e|+:#{@tbench_visitors},1}" }\'\n'
)
_VISITORS = b"show-options -qv -t main @tbench_visitors\n"
_TYPED = b"show-options -qv -t main @tbench_typed\n"
_SYNC = b"display-message -p ''\n"
_CLIENTS = b"list-clients -F '#{client_pid}'\n"


class Typed(NamedTuple):
    """Position of a typing command. The session records the position of the last executed one."""

    number: int = 0
    """Number of the command: each is executed fully or not at all."""
    step: int = 0
    action: int = 0
    """Number of the action in its step, from 1."""
    reached: int = 0
    """How much of the action has then been typed: a number of bytes, or the id of a delivered command."""

    @classmethod
    def parse(cls, words: str) -> Self:
        """Parse the session's record; nothing was typed if there is none."""
        return cls(*map(int, words.split()))

    def added_to(self, command: bytes) -> bytes:
        """Return a typing command that also records this position in the session."""
        return command.rstrip(b"\n") + b' ; set-option -t main @tbench_typed "%d %d %d %d"\n' % self


_NumberedLine = tuple[int | None, bytes]
"""A command line, and its number if it types."""
_REPLIES_PER_COUNTED = 2


class KeysLost(ConnectionError):
    """Raised if the session ended and it is unknown which of the typed keys it had received."""


class Link:
    """Keeps one control client attached to one session.

    A lost connection is retried for `unreachable_sec`; `on_outage` receives these seconds when an outage begins, and
    the unused ones as a negative number when it ends.
    """

    def __init__(
        self,
        connect: Connect,
        spec: TerminalSpec,
        pane: PaneMonitor,
        *,
        unreachable_sec: float,
        on_outage: Callable[[float], None],
        remark: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._spec = spec
        self._pane = pane
        self._unreachable_sec = unreachable_sec
        self._on_outage = on_outage
        self._remark = remark
        self._client = self._new_client()
        self._typed = Typed()
        """Position of the last typing command."""
        self._unconfirmed: list[_NumberedLine] = []
        """Last commands that may not have arrived, with the numbers of those that type."""
        self._done: asyncio.Future[list[CommandReply]] | None = None
        self.keys_lost = False
        self.reopened = 0
        self.reattached = 0
        """Number of reattachments to the same session."""
        self.visitors = 0
        """Number of times that others had attached to the session before `go_on`."""

    def _new_client(self) -> ControlClient:
        pane = self._pane
        return ControlClient(on_output=pane.output, on_keys=pane.keys_arrived, on_lost=pane.cut_off)

    @property
    def is_cut(self) -> bool:
        return self._client.lost.is_set()

    @property
    def why_cut(self) -> str:
        return self._client.why_lost

    async def wait_until_cut(self) -> None:
        await self._client.lost.wait()

    async def open(self) -> bool:
        """Attach; return whether the session is new. Raises TerminalLost, and OSError if it cannot be reached."""
        await self._client.open(self._connect, self._spec.argv(), self._spec.variables())
        try:
            marked, *_ = await self._client.commands(_IS_MARKED, _MARK_SESSION, _COUNT_VISITORS)
        except NoAnswer as error:
            raise TerminalLost(str(error)) from None
        return not text(marked.lines)

    async def go_on(self) -> Typed | None:
        """Attach to a session that another process has left, and return what it has typed; None for a new session.

        Raises like `open`.
        """
        self._pane.begin()
        if await self.open():
            return None
        await self._wait_for_old_clients()
        typed, visitors = await self._client.commands(_TYPED, _VISITORS)
        self._typed, self.visitors = Typed.parse(text(typed.lines)), int(text(visitors.lines) or 0)
        return self._typed

    async def close(self) -> None:
        """End the client; the session keeps running."""
        await self._client.close()
        self._on_outage = lambda _: None  # it refers to the terminal's owner

    async def commands(
        self, *commands: bytes, replies: int | None = None, on_end: Callable[[], None] | None = None
    ) -> list[CommandReply]:
        """Send command lines at once and return their replies, see ControlClient. Raises ConnectionError."""
        return await self._client.commands(*commands, replies=replies, on_end=on_end)

    async def sync(self) -> None:
        """Wait until tmux has answered and all earlier output has been passed on. Raises ConnectionError."""
        await self._client.commands(_SYNC)

    # -- typing exactly once ---------------------------------------------------------------------

    def begin_action(self, step: int, action: int) -> None:
        """Attribute later typing to an action."""
        self._typed = Typed(self._typed.number, step, action)

    async def type(
        self, commands: Sequence[bytes], *, before: Sequence[bytes] = (), reached: Sequence[int] | None = None
    ) -> None:
        """Send commands that type, each exactly once, even if the connection is lost meanwhile.

        Does not wait for their execution. The commands in `before` may be executed twice. `reached` says how much of
        the action is typed after each; without it, they are not part of the action. Raises KeysLost if the session
        ended and a new one is attached, and TerminalLost and TerminalUnreachable like `reattach`.
        """
        if self._all_arrived:
            self._unconfirmed.clear()
        self._done = None
        lines: list[_NumberedLine] = [(None, command) for command in before]
        for index, command in enumerate(commands):
            now = self._typed.reached if reached is None else reached[index]
            self._typed = self._typed._replace(number=self._typed.number + 1, reached=now)
            lines.append((self._typed.number, self._typed.added_to(command)))
        self._unconfirmed += lines
        try:
            await self._send(lines)
        except ConnectionError as error:
            if await self.reattach():
                raise KeysLost("the session ended while keys were typed") from error

    async def _send(self, lines: Sequence[_NumberedLine]) -> None:
        replies = sum(1 if number is None else _REPLIES_PER_COUNTED for number, _ in lines)
        self._done = await self._client.type(*(command for _, command in lines), replies=replies)

    async def replies(self) -> list[CommandReply]:
        """Return the replies to the last typing commands; none if those had arrived already.

        Raises ConnectionError, also if a reply does not come in time.
        """
        await self.sync()
        return [] if self._done is None else self._done.result()

    @property
    def _all_arrived(self) -> bool:
        if not self._unconfirmed:
            return True
        return self._done is not None and self._done.done() and self._done.exception() is None

    async def _resend(self) -> None:
        """Send the typing commands that did not arrive. Raises ConnectionError."""
        if self._all_arrived:
            return
        await self._wait_for_old_clients()
        (reply,) = await self._client.commands(_TYPED)
        arrived = Typed.parse(text(reply.lines)).number
        behind = [at for at, (number, _) in enumerate(self._unconfirmed, 1) if number is not None and number <= arrived]
        del self._unconfirmed[: max(behind, default=0)]
        if self._unconfirmed:
            await self._send(self._unconfirmed)

    async def _wait_for_old_clients(self) -> None:
        """Wait until lost clients are detached: commands that tmux has yet to read from them must not run later."""
        for pause_sec in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
            await asyncio.sleep(pause_sec)
            (reply,) = await self._client.commands(_CLIENTS)
            if len(reply.lines) <= 1:
                return

    # -- reattaching -----------------------------------------------------------------------------

    async def reattach(self) -> bool:
        """Attach again and resend keys that had not arrived; return whether the session is new.

        For a new session, `keys_lost` says whether typed keys had not arrived. Raises TerminalLost and
        TerminalUnreachable.
        """
        while True:
            if self.reopened > _MAX_REOPENINGS or self.reattached > _MAX_REATTACHMENTS:
                raise TerminalLost(f"the terminal was lost {self.reopened + self.reattached} times")
            if await self._attach_again():
                await self._begin_session()
                return True
            self.reattached += 1
            self._remark("the connection was lost and restored: output in between is not recorded")
            with contextlib.suppress(ConnectionError):
                await self._resend()
                return False

    async def _begin_session(self) -> None:
        self.reopened += 1
        self._remark("the terminal was lost and reopened")
        self.keys_lost = not self._all_arrived
        self._typed, self._done = self._typed._replace(number=0), None
        self._unconfirmed.clear()
        if self.reopened > _MAX_REOPENINGS:
            await self._client.close()
            raise TerminalLost(f"the terminal was lost {self.reopened} times")

    async def _attach_again(self) -> bool:
        ends_at = loop_time() + self._unreachable_sec
        self._on_outage(self._unreachable_sec)
        try:
            return await self._attach_until(ends_at)
        finally:
            self._on_outage(loop_time() - ends_at)

    async def _attach_until(self, ends_at: float) -> bool:
        pause_sec = 0.05
        while True:
            await self._client.close()
            self._client = self._new_client()
            # Before attaching, as a new session's marks may arrive at once.
            self._pane.begin()
            try:
                return await self.open()
            except OSError as error:
                if loop_time() > ends_at:
                    raise TerminalUnreachable(f"unreachable for {self._unreachable_sec:g} s: {error}") from error
            await asyncio.sleep(pause_sec)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
