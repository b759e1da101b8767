"""The way to the pane: one tmux control client, made anew where it was cut; what is typed arrives exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from harness.errors import TerminalLost, TerminalUnreachable
from harness.stream import Connect
from harness.terminal.control_client import ControlClient, Silent, text
from harness.terminal.control_mode import CommandReply
from harness.terminal.spec import TerminalSpec

UNREACHABLE_SEC = 120.0
"""How long a terminal may be out of reach, as while an engine restarts."""
_REOPENINGS = 3
"""New sessions after the agent killed tmux."""
_REATTACHMENTS = 100
_LONGEST_PAUSE_SEC = 2.0
_WAS_HERE = b"show-options -qv -t main @tbench\n"
_LEAVE_TRACE = b"set-option -t main @tbench 1\n"
_TYPED = b"show-options -qv -t main @tbench_typed\n"
_CLIENTS = b"list-clients -F '#{client_pid}'\n"


class KeysLost(ConnectionError):
    """The session ended, and nobody can say how much of what was typed it had taken."""


class Listener(Protocol):
    """Who hears what comes out of the pane."""

    def output(self, data: bytes) -> None:
        """The pane printed something."""

    def keys_arrived(self) -> None:
        """Called at the moment in the stream when tmux has taken what was typed."""

    def cut_off(self) -> None:
        """The stream has ended."""

    def begin(self) -> None:
        """A client is about to attach: what was known of the pane holds no longer."""


class Link:
    """One control client at a time, on one session.

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
        self.reopened = 0
        self._reattached = 0

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
        """Whether the session is a new one. Raises TerminalLost, and OSError where it cannot be reached."""
        await self._client.open(self._connect, self._spec.argv(), self._spec.variables())
        try:
            was_here, _ = await self._client.commands(_WAS_HERE, _LEAVE_TRACE)
        except Silent as error:
            raise TerminalLost(str(error)) from None
        return not text(was_here.lines)

    async def close(self) -> None:
        """End the client; the session lives on where it is."""
        await self._client.close()

    async def commands(self, *commands: bytes, replies: int | None = None) -> list[CommandReply]:
        """Send command lines in one go; their replies, see ControlClient. Raises ConnectionError."""
        return await self._client.commands(*commands, replies=replies)

    # -- typing exactly once ---------------------------------------------------------------------

    async def type(self, commands: Sequence[bytes], *, before: Sequence[bytes] = ()) -> list[CommandReply]:
        """Send commands that type, each exactly once, also where the way is cut meanwhile; the replies to `before`.

        What `before` does may be done twice. Raises KeysLost where the session ended and a new one is attached, and
        TerminalLost and TerminalUnreachable as `reattach` does.
        """
        # The session itself remembers how far it came: one command line is done as a whole, or not at all.
        first = self._typed + 1
        self._typed += len(commands)
        counted = [_counted(command, number) for number, command in enumerate(commands, first)]
        try:
            return await self._send(before, counted)
        except ConnectionError:
            return await self._send_the_rest(before, counted, first)

    async def _send(self, before: Sequence[bytes], counted: Sequence[bytes]) -> list[CommandReply]:
        replies = len(before) + _REPLIES_OF_COUNTED * len(counted)
        return (await self._client.commands(*before, *counted, replies=replies, keystrokes=True))[: len(before)]

    async def _send_the_rest(self, before: Sequence[bytes], counted: Sequence[bytes], first: int) -> list[CommandReply]:
        while True:
            if await self.reattach():
                raise KeysLost("the session ended while something was typed")
            try:
                await self._others_are_gone()
                (reply,) = await self._client.commands(_TYPED)
                rest = counted[max(0, int(text(reply.lines) or 0) - first + 1) :]
                return await self._send(before, rest) if rest else []
            except ConnectionError:
                continue

    async def _others_are_gone(self) -> None:
        """Until the client that was cut off is detached: what it has still to read must not be done later."""
        for pause_sec in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
            await asyncio.sleep(pause_sec)
            (reply,) = await self._client.commands(_CLIENTS)
            if len(reply.lines) <= 1:
                return

    # -- being cut off ---------------------------------------------------------------------------

    async def reattach(self) -> bool:
        """Attach again; whether the session is a new one. Raises TerminalLost, TerminalUnreachable."""
        if self.reopened > _REOPENINGS or self._reattached > _REATTACHMENTS:
            raise TerminalLost(f"the terminal was lost {self.reopened + self._reattached} times")
        is_new = await self._attach_again()
        if is_new:
            self.reopened += 1
            self._typed = 0
            self._remark("the terminal was lost and opened again")
        else:
            self._reattached += 1
            self._remark("the connection was lost and made again: what was printed meanwhile is not recorded")
        if self.reopened > _REOPENINGS:
            await self._client.close()
            raise TerminalLost(f"the terminal was lost {self.reopened} times")
        return is_new

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


_REPLIES_OF_COUNTED = 2


def _counted(command: bytes, number: int) -> bytes:
    return command.rstrip(b"\n") + b" ; set-option -t main @tbench_typed %d\n" % number


def _now() -> float:
    return asyncio.get_running_loop().time()
