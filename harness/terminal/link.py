"""The way to the pane: one tmux control client, made anew where it was cut; what is typed arrives exactly once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from harness.errors import TerminalLost, TerminalUnreachable
from harness.stream import Connect
from harness.terminal.control_mode import CommandReply, ControlClient, Silent, text
from harness.terminal.spec import TerminalSpec

UNREACHABLE_SEC = 120.0
"""Longest time for which a terminal may be out of reach, as while an engine restarts."""
_REOPENINGS = 3
"""Most new sessions after the agent killed tmux."""
_REATTACHMENTS = 100
_LONGEST_PAUSE_SEC = 2.0
_WAS_HERE = b"show-options -qv -t main @tbench\n"
_LEAVE_TRACE = b"set-option -t main @tbench 1\n"
_TYPED = b"show-options -qv -t main @tbench_typed\n"
_SYNC = b"display-message -p ''\n"
_CLIENTS = b"list-clients -F '#{client_pid}'\n"


_NumberedLine = tuple[int | None, bytes]
"""A command line, and its number where it types."""
_REPLIES_OF_COUNTED = 2


class KeysLost(ConnectionError):
    """Raised where the session ended, and nobody can say how much of what was typed it had taken."""


class Listener(Protocol):
    """What is told about the pane."""

    def output(self, data: bytes) -> None:
        """Take what the pane printed."""

    def keys_arrived(self) -> None:
        """Note that tmux has taken what was typed, at this place in the stream."""

    def cut_off(self) -> None:
        """Note that the stream has ended."""

    def begin(self) -> None:
        """Note that a client is about to attach: what was known of the pane holds no longer."""


class Link:
    """Keeps one control client at a time on one session.

    Where the way to it is cut, it is tried again for `unreachable_sec`; `on_outage` is told of these seconds when that
    begins, and at its end, as a negative number, of those that were not needed.
    """

    def __init__(
        self,
        connect: Connect,
        spec: TerminalSpec,
        listener: Listener,
        *,
        unreachable_sec: float,
        on_outage: Callable[[float], None],
        remark: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._spec = spec
        self._listener = listener
        self._unreachable_sec = unreachable_sec
        self._on_outage = on_outage
        self._remark = remark
        self._client = self._new_client()
        self._typed = 0
        """Number of commands that typed so far. The session counts them, too, and does each wholly or not at all."""
        self._unconfirmed: list[_NumberedLine] = []
        """The commands that typed last, with their numbers."""
        self._done: asyncio.Future[list[CommandReply]] | None = None
        self.keys_lost = False
        self.reopened = 0
        self.reattached = 0
        """Number of times that the session was attached again."""

    def _new_client(self) -> ControlClient:
        listener = self._listener
        return ControlClient(on_output=listener.output, on_keys=listener.keys_arrived, on_lost=listener.cut_off)

    @property
    def is_cut(self) -> bool:
        return self._client.lost.is_set()

    @property
    def why_cut(self) -> str:
        return self._client.why_lost

    async def until_cut(self) -> None:
        await self._client.lost.wait()

    async def open(self) -> bool:
        """Attach; True where the session is a new one. Raises TerminalLost, and OSError where it cannot be reached."""
        await self._client.open(self._connect, self._spec.argv(), self._spec.variables())
        try:
            was_here, _ = await self._client.commands(_WAS_HERE, _LEAVE_TRACE)
        except Silent as error:
            raise TerminalLost(str(error)) from None
        return not text(was_here.lines)

    async def close(self) -> None:
        """End the client; the session lives on where it is."""
        await self._client.close()
        self._on_outage = lambda _: None  # it refers to whoever has this terminal

    async def commands(
        self, *commands: bytes, replies: int | None = None, at_end: Callable[[], None] | None = None
    ) -> list[CommandReply]:
        """Send command lines in one go, and return their replies, see ControlClient. Raises ConnectionError."""
        return await self._client.commands(*commands, replies=replies, at_end=at_end)

    async def sync(self) -> None:
        """Wait until tmux has answered, and all that came before its answer was handed on. Raises ConnectionError."""
        await self._client.commands(_SYNC)

    # -- typing exactly once ---------------------------------------------------------------------

    async def type(self, commands: Sequence[bytes], *, before: Sequence[bytes] = ()) -> None:
        """Send commands that type, each exactly once, also where the way is cut meanwhile.

        Does not wait until they are done. What `before` does may be done twice. Raises KeysLost where the session ended
        and a new one is attached, and TerminalLost and TerminalUnreachable as `reattach` does.
        """
        if self._all_arrived:
            self._unconfirmed.clear()
        self._done = None
        first = self._typed + 1
        self._typed += len(commands)
        lines: list[_NumberedLine] = [(None, command) for command in before]
        lines += [(number, _counted(command, number)) for number, command in enumerate(commands, first)]
        self._unconfirmed += lines
        try:
            await self._send(lines)
        except ConnectionError as error:
            if await self.reattach():
                raise KeysLost("the session ended while something was typed") from error

    async def _send(self, lines: Sequence[_NumberedLine]) -> None:
        replies = sum(1 if number is None else _REPLIES_OF_COUNTED for number, _ in lines)
        self._done = await self._client.type(*(command for _, command in lines), replies=replies)

    async def replies(self) -> list[CommandReply]:
        """The replies to the commands that typed last; none where those had arrived already.

        Raises ConnectionError, also where no reply comes in time.
        """
        await self.sync()
        return [] if self._done is None else self._done.result()

    @property
    def _all_arrived(self) -> bool:
        if not self._unconfirmed:
            return True
        return self._done is not None and self._done.done() and self._done.exception() is None

    async def _send_the_rest(self) -> None:
        """Send what was typed and did not arrive. Raises ConnectionError."""
        if self._all_arrived:
            return
        await self._others_are_gone()
        (reply,) = await self._client.commands(_TYPED)
        arrived = int(text(reply.lines) or 0)
        behind = [at for at, (number, _) in enumerate(self._unconfirmed, 1) if number is not None and number <= arrived]
        del self._unconfirmed[: max(behind, default=0)]
        if self._unconfirmed:
            await self._send(self._unconfirmed)

    async def _others_are_gone(self) -> None:
        """Wait until clients that were cut off are detached: what they have still to read must not be done later."""
        for pause_sec in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
            await asyncio.sleep(pause_sec)
            (reply,) = await self._client.commands(_CLIENTS)
            if len(reply.lines) <= 1:
                return

    # -- being cut off ---------------------------------------------------------------------------

    async def reattach(self) -> bool:
        """Attach again, and type what had not arrived; True where the session is a new one.

        With a new one, `keys_lost` says whether something that was typed had not arrived.
        Raises TerminalLost, TerminalUnreachable.
        """
        while True:
            if self.reopened > _REOPENINGS or self.reattached > _REATTACHMENTS:
                raise TerminalLost(f"the terminal was lost {self.reopened + self.reattached} times")
            if await self._attach_again():
                await self._begin_anew()
                return True
            self.reattached += 1
            self._remark("the connection was lost and made again: what was printed meanwhile is not recorded")
            with contextlib.suppress(ConnectionError):
                await self._send_the_rest()
                return False

    async def _begin_anew(self) -> None:
        self.reopened += 1
        self._remark("the terminal was lost and opened again")
        self.keys_lost = not self._all_arrived
        self._typed, self._done = 0, None
        self._unconfirmed.clear()
        if self.reopened > _REOPENINGS:
            await self._client.close()
            raise TerminalLost(f"the terminal was lost {self.reopened} times")

    async def _attach_again(self) -> bool:
        ends_at = _now() + self._unreachable_sec
        self._on_outage(self._unreachable_sec)
        try:
            return await self._attach_until(ends_at)
        finally:
            self._on_outage(_now() - ends_at)

    async def _attach_until(self, ends_at: float) -> bool:
        pause_sec = 0.05
        while True:
            await self._client.close()
            self._client = self._new_client()
            # Before attaching: the marks of a new session may come at once.
            self._listener.begin()
            try:
                return await self.open()
            except OSError as error:
                if _now() > ends_at:
                    raise TerminalUnreachable(f"out of reach for {self._unreachable_sec:g} s: {error}") from error
            await asyncio.sleep(pause_sec)
            pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)


def _counted(command: bytes, number: int) -> bytes:
    return command.rstrip(b"\n") + b" ; set-option -t main @tbench_typed %d\n" % number


def _now() -> float:
    return asyncio.get_running_loop().time()
