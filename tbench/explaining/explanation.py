"""The explanation of a run, or of the difference between two runs: data only, also its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.trajectory import Frozen
from tbench.explaining.causes import Party
from tbench.explaining.model_tests import ModelTest
from tbench.explaining.sameness import Moved

EXPLANATION_VERSION = 1


class TaskPoints(Frozen):
    """The share of one task in lost points or in a part of a difference."""

    task: str
    difference: float
    """Fraction of the whole score, below 0 for a loss."""


class ExplainedTrial(Frozen):
    """A trial that did not pass, with its cause."""

    trial: str
    """Name on the command line."""
    task: str
    seed: int
    cause: str
    """Key of the cause (docs/explaining.md)."""
    change: str
    """`failed`, or in a comparison of equal seeds `newly failing`."""
    step: int | None = None
    words: str = ""
    """The words that prove the cause."""


class Confirmation(Frozen):
    """Result of forks that start at the step of a cause, with the cause removed."""

    cause: str
    when: str
    """The change that removes the cause, such as `model.max_tokens is 8192`."""
    of: int
    """Number of trials that failed for this cause."""
    trials: int
    """Number of forked trials."""
    forks: int
    """Number of forks with a verdict, or ended by the same cause again."""
    passed: int
    low: float
    high: float
    """95 % interval of the share that passes."""
    unchanged_forks: int = 0
    """Number of forks from the same steps without the change."""
    unchanged_passed: int = 0
    failed: tuple[str, ...] = ()
    """Why further forks could not run, or have no verdict."""
    directory: str
    """Folder of the forks' runs."""

    @property
    def words(self) -> str:
        """The result, such as `of 11 such trials 7 pass (4 to 9) when model.max_tokens is 8192`."""
        if not self.forks:
            return f"no fork of {self.trials} such trials could be judged when {self.when}"
        each = self.trials / self.forks
        low, high = self.low * self.trials, self.high * self.trials
        words = f"of {self.trials} such trials {self.passed * each:.3g} pass ({low:.0f} to {high:.0f}) when {self.when}"
        if not self.unchanged_forks:
            return words
        return f"{words}, and {self.unchanged_passed * self.trials / self.unchanged_forks:.3g} without this change"


class LostPoints(Frozen):
    """Points of a single run that were lost for one cause."""

    cause: str
    title: str
    party: Party
    lost: float
    """Fraction of the score: the maximum gain without this cause."""
    trials: int
    tasks: tuple[TaskPoints, ...]
    """The tasks that lost most."""
    remedy: str
    command: str
    changes: Mapping[str, Any] = {}
    """New values of settings in the command, by key."""
    example: ExplainedTrial
    confirmed: Confirmation | None = None


class DifferencePart(Frozen):
    """A part of the difference between two sides. All parts add up to the difference exactly."""

    cause: str
    title: str
    party: Party
    difference: float
    """Fraction of the score."""
    low: float
    high: float
    """95 % interval on these tasks."""
    p: float
    """p adjusted for all tests of the split."""
    named: bool
    """Whether the part is beyond chance (p at most 0.01)."""
    because: tuple[str, ...] = ()
    """Changes that explain this cause, each as `key: before → after`."""
    together_with: tuple[str, ...] = ()
    """Other causes that would look the same."""
    tasks: tuple[TaskPoints, ...] = ()
    sure_tasks: tuple[str, ...] = ()
    """Tasks whose own change is beyond chance."""
    sure_difference: float = 0.0
    """The part of these tasks; other tasks may offset it."""
    remedy: str = ""
    command: str = ""
    changes: Mapping[str, Any] = {}
    """New values of settings in the command, by key."""
    confirmed: Confirmation | None = None


class Difference(Frozen):
    """The difference between the explained and the earlier runs, over their common tasks."""

    tasks: int
    paired: bool
    """Whether trials of equal seeds were paired; otherwise all trials of a task are compared with each other."""
    before: float
    after: float
    difference: float
    low: float
    high: float
    p: float
    """p of the whole difference on these tasks."""
    parts: tuple[DifferencePart, ...]


class ExplainedSide(Frozen):
    """The runs on one side."""

    name: str
    runs: tuple[str, ...]
    """Paths."""
    model: str | None
    score: float
    """Mean over tasks of the mean reward; a trial without a verdict counts as 0."""
    tasks: int
    trials: int
    failed: int


class Explanation(Frozen):
    """Why a run has its score, or why it differs from the score of others (`against`). Scores and points are
    fractions."""

    schema_version: int = EXPLANATION_VERSION
    sentence: str
    """The change, its points, its certainty, and the next step."""
    command: str
    """The command for the next step."""
    run: ExplainedSide
    against: ExplainedSide | None = None
    moved: tuple[Moved, ...] = ()
    model_tests: tuple[ModelTest, ...] = ()
    equal_first_replies: tuple[int, int] | None = None
    """Numbers of pairs of trials of equal task and seed: those with equal first replies, and all; None without any."""
    difference: Difference | None = None
    lost: tuple[LostPoints, ...] = ()
    """Where the points of the run are lost, most first."""
    trials: tuple[ExplainedTrial, ...] = ()
    """Failed trials with their causes; in a comparison of equal seeds only those whose reward is lower than before."""
    left_out: tuple[str, ...] = ()
    """Tasks that are not compared, and why."""
    notes: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[DifferencePart, ...]:
        """Parts of the difference that are beyond chance, the most important first."""
        return tuple(part for part in self.difference.parts if part.named) if self.difference is not None else ()
