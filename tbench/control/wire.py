"""Messages on the control socket of a run: JSON lines, each request with an answer of one line."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Literal, Protocol

from pydantic import Field, TypeAdapter

from harness.trajectory import Frozen
from tbench.events import Phase

# What is said on the control socket about the replies of one trial: each may wait until a person has decided.

MOST_SAMPLES = 16
"""Replies that are asked for at once."""
WaitsFor = Literal["model", "decision", "person"]


class Debug(Frozen):
    """Ask for the steps of a trial and the reply that waits.

    With the `version` of an earlier answer this one comes when something has changed since, after five seconds at last.
    """

    do: Literal["debug"] = "debug"
    trial: str
    after: int = 0
    """The steps wanted are those after this one."""
    version: int | None = None


class Stepping(Frozen):
    """Have each reply of a trial wait for a decision from now on, or no longer."""

    do: Literal["stepping"] = "stepping"
    trial: str
    on: bool = True


class StepOn(Frozen):
    """Do what the reply asks for that waits, and so with those after it until so many were done."""

    do: Literal["step"] = "step"
    trial: str
    count: int = Field(default=1, ge=1, le=10_000)


class RunOn(Frozen):
    """The same until the reply of a step waits, or that after which a text is on the screen; else to the end."""

    do: Literal["run"] = "run"
    trial: str
    to_step: int | None = Field(default=None, ge=1)
    until_text: str | None = Field(default=None, min_length=1, max_length=1_000)


class Edit(Frozen):
    """Put another text in the place of the reply that waits."""

    do: Literal["edit"] = "edit"
    trial: str
    text: str = Field(max_length=50_000)


class Drop(Frozen):
    """Do nothing of the reply that waits; the model gets `why` in the place of an observation."""

    do: Literal["drop"] = "drop"
    trial: str
    why: str = Field(min_length=1, max_length=20_000)


class Sample(Frozen):
    """Ask the model for other replies to the same conversation, which are added to those that wait."""

    do: Literal["sample"] = "sample"
    trial: str
    number: int = Field(default=1, ge=1, le=MOST_SAMPLES)
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """That of the first of them; the others count on from it. None draws them."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """None is that of the run."""


class Choose(Frozen):
    """Let another one of the replies be the one that waits."""

    do: Literal["choose"] = "choose"
    trial: str
    sample: int = Field(ge=1)
    """Its number, from 1."""


class VerifyNow(Frozen):
    """Judge what a trial has done so far in a copy of its container, and let it go on."""

    do: Literal["verify"] = "verify"
    trial: str


class SnapshotNow(Frozen):
    """Keep the files of a trial's container as an image."""

    do: Literal["snapshot"] = "snapshot"
    trial: str


class Rewind(Frozen):
    """Do a trial again up to a step, in a fresh container and with the same replies; that of the step waits then."""

    do: Literal["rewind"] = "rewind"
    trial: str
    step: int = Field(ge=1)


class SaveCassette(Frozen):
    """Save what a trial's model was asked and has answered, so that it can be served again."""

    do: Literal["cassette"] = "cassette"
    trial: str


class Quit(Frozen):
    """End a trial without a verdict; with `keep` its container stays."""

    do: Literal["quit"] = "quit"
    trial: str
    keep: bool = False


AboutReplies = (
    Stepping | StepOn | RunOn | Edit | Drop | Sample | Choose | VerifyNow | SnapshotNow | Rewind | SaveCassette | Quit
)
"""Requests that change something."""


class StepSeen(Frozen):
    """A step that was done, as a debugger shows it."""

    index: int
    reasoning: str | None = None
    content: str = ""
    actions: tuple[str, ...] = ()
    observation: str = ""
    """Its last 2,000 characters."""
    warnings: tuple[str, ...] = ()
    format_error: str | None = None
    exit_code: int | None = None
    model_sec: float = 0.0
    command_sec: float = 0.0


class DraftSeen(Frozen):
    """A reply of which nothing has been done yet."""

    step: int
    reasoning: str | None = None
    content: str = ""
    """What `edit` replaces: the text, or the command of a tool call."""
    actions: tuple[str, ...] = ()
    error: str | None = None
    """What is wrong with its form; None where it can be followed."""
    seed: int | None = None
    """That of a further reply; None is that of the run, as with `temperature`."""
    temperature: float | None = None
    edited: bool = False
    chosen: bool = False
    needs_word: bool = False
    """Whether it is followed only if a person says so."""


class VerdictSeen(Frozen):
    """What came of a verifier that ran in a copy."""

    step: int
    state: Literal["running", "done", "failed"]
    reward: float | None = None
    words: str = ""
    output: str = ""
    """The end of what it printed."""


class DebugEnd(Frozen):
    """How a trial has ended."""

    outcome: str | None = None
    reward: float | None = None
    error: str | None = None
    """The error's type."""


class Debugged(Frozen):
    """A trial as a debugger shows it."""

    version: int
    """Grows with whatever changes."""
    attempt: int = 1
    """Grows with each time that the trial begins anew; its steps count from 1 then."""
    phase: str = ""
    waits_for: WaitsFor | None = None
    """Its model's reply; a decision about one that came; a person, who has held it before the next; or nothing."""
    step: int = 0
    stepping: bool = False
    touched: bool = False
    steps: tuple[StepSeen, ...] = ()
    draft: DraftSeen | None = None
    """The reply that is followed with the next step; None where none waits."""
    samples: tuple[DraftSeen, ...] = ()
    """All replies that wait, in the order in which they came."""
    asking: int = 0
    """Further replies that the model was asked for."""
    trouble: str = ""
    """Why one of them did not come."""
    verdicts: tuple[VerdictSeen, ...] = ()
    snapshots: tuple[str, ...] = ()
    """Names of images."""
    rewinding: int | None = None
    """The step up to which the trial is done again; None where it is not."""
    differs: str = ""
    """Where the terminal showed something else than when this was done before."""
    ended: DebugEnd | None = None


CONTROL_VERSION = 1

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
