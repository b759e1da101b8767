"""What is said on the control socket about the replies of one trial: each may wait until a person has decided."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.trajectory import Frozen

MOST_SAMPLES = 16
"""Replies that are asked for at once."""
Waits = Literal["model", "decision", "nothing"]


class ReadTrial(Frozen):
    """Ask for the steps of a trial and the reply that waits.

    With the `version` of an earlier answer this one comes when something has changed since, after five seconds at last.
    """

    do: Literal["debug"] = "debug"
    trial: str
    after: int = 0
    """The steps wanted are those after this one."""
    version: int | None = None


class SetStepping(Frozen):
    """Have each reply of a trial wait for a decision from now on, or no longer."""

    do: Literal["stepping"] = "stepping"
    trial: str
    on: bool = True


class TakeSteps(Frozen):
    """Do what the reply asks for that waits, and so with those after it until so many were done."""

    do: Literal["step"] = "step"
    trial: str
    count: int = Field(default=1, ge=1, le=10_000)


class GoUntil(Frozen):
    """The same until the reply of a step waits, or that after which a text is on the screen; else to the end."""

    do: Literal["run"] = "run"
    trial: str
    to_step: int | None = Field(default=None, ge=1)
    until_text: str | None = Field(default=None, min_length=1, max_length=1_000)


class EditDraft(Frozen):
    """Put another text in the place of the reply that waits."""

    do: Literal["edit"] = "edit"
    trial: str
    text: str = Field(max_length=50_000)


class DropDraft(Frozen):
    """Do nothing of the reply that waits; the model gets `why` in the place of an observation."""

    do: Literal["drop"] = "drop"
    trial: str
    why: str = Field(min_length=1, max_length=20_000)


class SampleAgain(Frozen):
    """Ask the model for other replies to the same conversation, which are added to those that wait."""

    do: Literal["sample"] = "sample"
    trial: str
    number: int = Field(default=1, ge=1, le=MOST_SAMPLES)
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """That of the first of them; the others count on from it. None draws them."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """None is that of the run."""


class ChooseSample(Frozen):
    """Let another one of the replies be the one that waits."""

    do: Literal["choose"] = "choose"
    trial: str
    sample: int = Field(ge=1)
    """Its number, from 1."""


class VerifyNow(Frozen):
    """Judge what a trial has done so far in a copy of its container, and let it go on."""

    do: Literal["verify"] = "verify"
    trial: str


class TakeSnapshot(Frozen):
    """Keep the files of a trial's container as an image."""

    do: Literal["snapshot"] = "snapshot"
    trial: str


class Quit(Frozen):
    """End a trial without a verdict; with `keep` its container stays."""

    do: Literal["quit"] = "quit"
    trial: str
    keep: bool = False


AboutReplies = (
    SetStepping
    | TakeSteps
    | GoUntil
    | EditDraft
    | DropDraft
    | SampleAgain
    | ChooseSample
    | VerifyNow
    | TakeSnapshot
    | Quit
)
"""Requests that change something."""


class StepShown(Frozen):
    """A step that was done, as a debugger shows it."""

    index: int
    reasoning: str
    content: str
    actions: tuple[str, ...]
    observation: str
    """Its last 2,000 characters."""
    warnings: tuple[str, ...]
    format_error: str | None
    exit_code: int | None
    model_sec: float
    command_sec: float


class SampleShown(Frozen):
    """A reply of which nothing has been done yet."""

    reasoning: str
    content: str
    """What `edit` replaces: the text, or the command of a tool call."""
    actions: tuple[str, ...]
    error: str
    """What is wrong with its form; empty where it can be followed."""
    seed: int | None
    temperature: float | None
    is_edited: bool


class Judgement(Frozen):
    """What came of a verifier that ran in a copy."""

    step: int
    state: Literal["running", "done", "failed"]
    reward: float | None = None
    words: str = ""


class TrialShown(Frozen):
    """A trial as a debugger shows it."""

    version: int
    """Grows with whatever changes."""
    trial: str
    task: str
    seed: int
    phase: str
    step: int
    stepping: bool
    waits_for: Waits
    """A decision, the model, or nothing: then it acts, or has not begun."""
    touched: bool
    steps: tuple[StepShown, ...]
    samples: tuple[SampleShown, ...]
    """The replies that wait, in the order in which they came; empty where none does."""
    chosen: int
    """The one of them that is followed, from 1; 0 where none waits."""
    asking: int
    """Further replies that the model was asked for."""
    trouble: str
    """Why one of them did not come."""
    judgements: tuple[Judgement, ...]
    snapshots: tuple[str, ...]
    """Names of images."""
