"""What is said on the control socket of a run: JSON lines, each request with an answer of one line."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Literal, Protocol

from pydantic import Field, TypeAdapter

from harness.trajectory import Frozen
from tbench.control.debugging import AboutReplies, Debug, Debugged
from tbench.events import Phase

SOCKET_NAME = "control.sock"
"""Name of the socket in the run directory."""
CONTROL_VERSION = 1
LINE_LIMIT_BYTES = 1 << 16
"""Longest line of either side."""

Paused = Literal["no", "starting nothing", "holding all"]


class ListTrials(Frozen):
    """Ask for the trials under way."""

    do: Literal["list"] = "list"


class Pause(Frozen):
    """Hold a trial at its next model call; without a trial start no other, and with `now` hold all of them as well."""

    do: Literal["pause"] = "pause"
    trial: str | None = None
    now: bool = False


class Continue(Frozen):
    """Let a trial go on, or everything."""

    do: Literal["continue"] = "continue"
    trial: str | None = None


class Abort(Frozen):
    """End a trial without a verdict."""

    do: Literal["abort"] = "abort"
    trial: str


class Say(Frozen):
    """Tell the model something with the next message that it gets."""

    do: Literal["say"] = "say"
    trial: str
    text: str = Field(min_length=1, max_length=20_000)


class SetConcurrency(Frozen):
    """Have another number of trials under way at once; those that are go on."""

    do: Literal["concurrency"] = "concurrency"
    number: int = Field(ge=1, le=100_000)


class ReadScreen(Frozen):
    """Ask for a trial's screen."""

    do: Literal["screen"] = "screen"
    trial: str


class TypeKeys(Frozen):
    """Type into the terminal of a trial that is held."""

    do: Literal["type"] = "type"
    trial: str
    keys: str = Field(min_length=1, max_length=10_000)
    """Text, control characters included; a newline is the Enter key."""


class Attach(Frozen):
    """Look on at a trial's terminal until the connection ends, and with `take` type into it.

    After the answer comes what the pane prints, byte by byte, from a drawing of the screen on; or with `drawn` further
    answers, each with the screen as it has become.
    """

    do: Literal["attach"] = "attach"
    trial: str
    take: bool = False
    drawn: bool = False


Request = (
    ListTrials | Pause | Continue | Abort | Say | SetConcurrency | ReadScreen | TypeKeys | Attach | Debug | AboutReplies
)
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="do")])


class TrialUnderWay(Frozen):
    """A trial under way."""

    trial: str
    task: str
    seed: int
    attempt: int
    phase: Phase
    step: int
    """The step that the agent is at, from 1; 0 before the first."""
    line: str
    """The last line of its terminal when that step began."""
    age_sec: float
    phase_sec: float
    """Seconds since the phase began."""
    paused: bool
    """Whether somebody wants this one to be held."""
    held: bool
    """Whether it is held now, before a model call."""
    touched: bool
    """Whether somebody told its model something, so that it does not count."""
    waits: bool = False
    """Whether a reply of its model waits for somebody's decision."""


class RunUnderWay(Frozen):
    """A run under way."""

    version: int = CONTROL_VERSION
    run: str
    planned: int
    ended: int
    concurrency: int
    paused: Paused
    trials: tuple[TrialUnderWay, ...]
    """Those that have left the queue, the oldest first."""


class Screen(Frozen):
    """A trial's screen as tmux has drawn it."""

    columns: int
    rows: int
    cursor: tuple[int, int]
    """Column and row, from 0."""
    cursor_visible: bool
    application_keys: bool
    """Whether the program wants arrow keys in their other form (DECCKM)."""
    lines: tuple[str, ...]
    """One per row, at most `rows`; the only escape sequences are those of colours, which each line ends."""


class Answer(Frozen):
    """What came of a request."""

    ok: bool
    words: str = ""
    """What was done, or why nothing was, in one line."""
    state: RunUnderWay | None = None
    """For `list`."""
    screen: Screen | None = None
    """For `screen` and `attach`."""
    debug: Debugged | None = None
    """For `debug`."""
    yours: bool = False
    """For `attach` with `take`: whether it is held and what is sent is typed; what is sent before is not."""


class Onlooker(Protocol):
    """Somebody who looks on at a terminal."""

    async def next(self) -> bytes:
        """What they are sent next, as soon as there is something; empty where the terminal was closed."""

    async def type(self, data: bytes) -> None:
        """Type what they have sent, where they may."""


class Controls(Protocol):
    """What a run can be asked to do. Each gives what was done in one line, and raises UsageError where it cannot be."""

    def state(self) -> RunUnderWay: ...

    def pause(self, trial: str | None, *, now: bool) -> str: ...

    def go_on(self, trial: str | None) -> str: ...

    def abort(self, trial: str) -> str: ...

    def say(self, trial: str, text: str) -> str: ...

    def resize(self, number: int) -> str: ...

    async def screen(self, trial: str) -> Screen: ...

    async def type(self, trial: str, keys: str) -> str: ...

    async def debug(self, trial: str, *, after: int, version: int | None) -> Debugged: ...

    async def decide(self, request: AboutReplies) -> str: ...

    def attach(self, trial: str, *, take: bool, drawn: bool) -> AbstractAsyncContextManager[Onlooker]: ...


def read_request(line: bytes) -> Request:
    """The request in a line. Raises pydantic's ValidationError."""
    return _REQUEST.validate_json(line)


def as_line(message: Request | Answer) -> bytes:
    """A message as one line."""
    return message.model_dump_json().encode("utf-8", "replace") + b"\n"
