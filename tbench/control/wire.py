"""Messages of a run's control socket: JSON lines; each request gets an answer of one line."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Annotated, Literal, Protocol

from pydantic import Field, TypeAdapter

from harness.trajectory import Frozen
from tbench.checked_tests import FailedTest
from tbench.events import Phase

# Debugging a trial: each of its model's replies may wait until a person has decided about it.

MAX_SAMPLES = 16
"""Maximum number of candidate replies that are asked for at once."""
WaitsFor = Literal["model", "decision", "person"]


class TrialRequest(Frozen):
    """A request about one trial."""

    trial: str


class Debug(TrialRequest):
    """Ask for a trial's steps and waiting reply. With the `version` of an earlier answer, the answer is sent after a
    change, or after five seconds.
    """

    do: Literal["debug"] = "debug"
    after: int = 0
    """Number of the last step that the client already has."""
    version: int | None = None


class Stepping(TrialRequest):
    """Turn stepping mode on or off: whether each reply of a trial waits for a decision."""

    do: Literal["stepping"] = "stepping"
    on: bool = True


class StepOn(TrialRequest):
    """Execute the waiting reply, and the next ones up to `count` in total."""

    do: Literal["step"] = "step"
    count: int = Field(default=1, ge=1, le=10_000)


class RunOn(TrialRequest):
    """Execute replies until the reply of step `to_step` waits, or a breakpoint is reached; else to the trial's end."""

    do: Literal["run"] = "run"
    to_step: int | None = Field(default=None, ge=1)
    until_text: str | None = Field(default=None, min_length=1, max_length=1_000)
    """Stop when this text is on the screen."""
    until_changed: str | None = Field(default=None, pattern=r"\A/", max_length=4_000)
    """Stop when a step has changed this path, or something below it."""
    until_test: str | None = Field(default=None, max_length=1_000)
    """Stop when a test with this text in its name passes or fails unlike before; if empty, any test or the reward.

    The verifier runs after each step, in a copy of the container."""
    until_exit: bool = False
    """Stop when a command's exit code is not 0."""


class Edit(TrialRequest):
    """Replace the text of the waiting reply."""

    do: Literal["edit"] = "edit"
    text: str = Field(max_length=50_000)


class Drop(TrialRequest):
    """Discard the waiting reply; the model gets `why` instead of an observation."""

    do: Literal["drop"] = "drop"
    why: str = Field(min_length=1, max_length=20_000)


class Sample(TrialRequest):
    """Ask the model for more candidate replies to the same conversation."""

    do: Literal["sample"] = "sample"
    number: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of the first candidate; the others count up from it. None: drawn at random."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """Sampling temperature; None uses the run's."""


class Choose(TrialRequest):
    """Choose another candidate as the waiting reply."""

    do: Literal["choose"] = "choose"
    sample: int = Field(ge=1)
    """Number of the candidate, from 1."""


class VerifyNow(TrialRequest):
    """Run the verifier in a copy of the trial's container; the trial continues."""

    do: Literal["verify"] = "verify"


class SnapshotNow(TrialRequest):
    """Save the files of a trial's container as an image."""

    do: Literal["snapshot"] = "snapshot"


class Rewind(TrialRequest):
    """Replay a trial up to a step, in a fresh container; then that step's reply waits."""

    do: Literal["rewind"] = "rewind"
    step: int = Field(ge=1)


class SaveCassette(TrialRequest):
    """Save the queries and replies of a trial's model as a cassette."""

    do: Literal["cassette"] = "cassette"


class Quit(TrialRequest):
    """End a trial without a verdict; with `keep` its container is kept."""

    do: Literal["quit"] = "quit"
    keep: bool = False


DebugCommand = (
    Stepping | StepOn | RunOn | Edit | Drop | Sample | Choose | VerifyNow | SnapshotNow | Rewind | SaveCassette | Quit
)
"""Requests that act on a debugged trial."""


ChangeKind = Literal["added", "changed", "removed"]


class StepSeen(Frozen):
    """A finished step, as clients see it."""

    index: int
    reasoning: str | None = None
    thoughts: tuple[str, ...] = ()
    """Texts of the reply apart from its actions: reasoning, and parts such as `plan: …`."""
    content: str = ""
    actions: tuple[str, ...] = ()
    observation: str = ""
    """The observation's last 2,000 characters."""
    warnings: tuple[str, ...] = ()
    format_error: str | None = None
    exit_code: int | None = None
    model_sec: float = 0.0
    command_sec: float = 0.0
    files: dict[str, ChangeKind] = Field(default={})
    """The first files that changed during the step, if the trial was being stepped through."""
    more_files: int = 0
    """Number of further files."""


class DraftSeen(Frozen):
    """A candidate for the reply that waits."""

    step: int
    reasoning: str | None = None
    thoughts: tuple[str, ...] = ()
    """Texts of the reply, as in `StepSeen`."""
    content: str = ""
    """Text that `edit` replaces: the reply's content, or the command of its tool call."""
    actions: tuple[str, ...] = ()
    error: str | None = None
    """Format error; None if the reply can be executed."""
    seed: int | None = None
    """Sampling seed of an extra reply; None uses the run's, as for `temperature`."""
    temperature: float | None = None
    edited: bool = False
    chosen: bool = False
    needs_approval: bool = False
    """Whether it needs a person's approval."""


class VerdictSeen(Frozen):
    """Result of a verifier that ran in a copy of the container."""

    step: int
    state: Literal["running", "done", "failed"]
    reward: float | None = None
    words: str = ""
    output: str = ""
    """The last part of the verifier's output."""
    tests: int = 0
    """Number of tests that its logs name."""
    failures: int = 0
    """Number of failed tests."""
    failed: tuple[FailedTest, ...] = ()
    """The first failed tests, with their errors."""


class DebugEnd(Frozen):
    """The outcome of a trial."""

    outcome: str | None = None
    reward: float | None = None
    error: str | None = None
    """Type of the error."""


class DebugState(Frozen):
    """The state of a trial, as clients see it."""

    version: int
    """Number that grows with every change."""
    attempt: int = 1
    """Number of the attempt; another attempt counts its steps from 1."""
    phase: str = ""
    waits_for: WaitsFor | None = None
    """Whom it waits for: its model, a decision about a reply, or the person who paused it; None if it works."""
    step: int = 0
    stepping: bool = False
    touched: bool = False
    steps: tuple[StepSeen, ...] = ()
    draft: DraftSeen | None = None
    """The reply that the next `step` executes; None if none waits."""
    samples: tuple[DraftSeen, ...] = ()
    """All candidate replies, in the order in which they came."""
    asking: int = 0
    """Number of further replies that the model has been asked for."""
    trouble: str = ""
    """Error that kept a further reply from coming."""
    stopped: str = ""
    """The breakpoint that has stopped the trial, or why none could be set; empty otherwise."""
    verdicts: tuple[VerdictSeen, ...] = ()
    snapshots: tuple[str, ...] = ()
    """Names of the snapshot images."""
    rewinding: int | None = None
    """Number of the step up to which the trial is being replayed; None if it is not."""
    differs: str = ""
    """First difference between the replayed terminal output and the original; empty for none."""
    ended: DebugEnd | None = None


CONTROL_VERSION = 1

Paused = Literal["no", "starting nothing", "holding all"]


class ListTrials(Frozen):
    """Ask for the running trials."""

    do: Literal["list"] = "list"


class Pause(Frozen):
    """Pause a trial at its next model call. Without a trial, start no more; with `now`, pause the running ones, too."""

    do: Literal["pause"] = "pause"
    trial: str | None = None
    now: bool = False


class Continue(Frozen):
    """Resume a trial, or everything."""

    do: Literal["continue"] = "continue"
    trial: str | None = None


class Abort(TrialRequest):
    """End a trial without a verdict."""

    do: Literal["abort"] = "abort"


class Stop(Frozen):
    """Stop the run, or one of its trials; `tbench resume` continues it."""

    do: Literal["stop"] = "stop"
    trial: str | None = None


class Say(TrialRequest):
    """Send a message to the model with its next query."""

    do: Literal["say"] = "say"
    text: str = Field(min_length=1, max_length=20_000)


class SetConcurrency(Frozen):
    """Change the number of concurrent trials; running ones continue."""

    do: Literal["concurrency"] = "concurrency"
    number: int = Field(ge=1, le=100_000)


class ReadScreen(TrialRequest):
    """Ask for a trial's screen."""

    do: Literal["screen"] = "screen"


class TypeKeys(TrialRequest):
    """Type into the terminal of a paused trial."""

    do: Literal["type"] = "type"
    keys: str = Field(min_length=1, max_length=10_000)
    """Text, which may have control characters; a newline is the Enter key."""


class Attach(TrialRequest):
    """Attach to a trial's terminal until the connection ends; with `take`, type into it.

    After the answer come the bytes that the pane prints, beginning with a drawing of the screen; or with `drawn`, an
    answer with the screen after every change.
    """

    do: Literal["attach"] = "attach"
    take: bool = False
    drawn: bool = False


Request = (
    ListTrials
    | Pause
    | Continue
    | Abort
    | Stop
    | Say
    | SetConcurrency
    | ReadScreen
    | TypeKeys
    | Attach
    | Debug
    | DebugCommand
)
_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="do")])


class TrialUnderWay(Frozen):
    """A running trial."""

    trial: str
    task: str
    seed: int
    attempt: int
    phase: Phase
    step: int
    """Number of the agent's step, from 1; 0 before the first."""
    line: str
    """Last line of the terminal when the step began."""
    age_sec: float
    phase_sec: float
    """Seconds since the phase began."""
    paused: bool
    """Whether a user has paused this trial."""
    held: bool
    """Whether it is waiting now, before a model call."""
    touched: bool
    """Whether a person intervened, so that it does not count."""
    waits: bool = False
    """Whether a reply of its model waits for a decision."""


class RunUnderWay(Frozen):
    """A running run."""

    version: int = CONTROL_VERSION
    run: str
    planned: int
    ended: int
    concurrency: int
    paused: Paused
    trials: tuple[TrialUnderWay, ...]
    """Trials that have left the queue, the oldest first."""


class Screen(Frozen):
    """A trial's screen as drawn by tmux."""

    columns: int
    rows: int
    cursor: tuple[int, int]
    """Column and row, from 0."""
    cursor_visible: bool
    application_keys: bool
    """Whether the program expects arrow keys in application mode (DECCKM)."""
    lines: tuple[str, ...]
    """One per row, at most `rows`; the only escape sequences are colours, which end with each line."""


class Answer(Frozen):
    """Answer to a request."""

    ok: bool
    words: str = ""
    """One line about the result, or the reason of a refusal."""
    state: RunUnderWay | None = None
    """For `list`."""
    screen: Screen | None = None
    """For `screen` and `attach`."""
    debug: DebugState | None = None
    """For `debug`."""
    yours: bool = False
    """For `attach` with `take`: whether keys are typed now; keys sent while this is false are discarded."""


class TerminalViewer(Protocol):
    """A client attached to a terminal."""

    async def next(self) -> bytes:
        """Wait for the next bytes to send to the client; empty if the terminal was closed."""

    async def type(self, data: bytes) -> None:
        """Type what the client has sent, if it may type now."""


class ControlHandler(Protocol):
    """Carries out requests on a run. A text that is returned is one line about the result. Raises UsageError."""

    def state(self) -> RunUnderWay: ...

    def pause(self, trial: str | None, *, now: bool) -> str: ...

    def go_on(self, trial: str | None) -> str: ...

    def abort(self, trial: str) -> str: ...

    def stop(self, trial: str | None) -> str: ...

    def say(self, trial: str, text: str) -> str: ...

    def resize(self, number: int) -> str: ...

    async def screen(self, trial: str) -> Screen: ...

    async def type(self, trial: str, keys: str) -> str: ...

    async def debug(self, trial: str, *, after: int, version: int | None) -> DebugState: ...

    async def decide(self, request: DebugCommand) -> str: ...

    def attach(self, trial: str, *, take: bool, drawn: bool) -> AbstractAsyncContextManager[TerminalViewer]: ...


def read_request(line: bytes) -> Request:
    """Parse a request. Raises pydantic's ValidationError."""
    return _REQUEST.validate_json(line)


def as_line(message: Request | Answer) -> bytes:
    """Return a message as one line."""
    return message.model_dump_json().encode("utf-8", "replace") + b"\n"
