"""Reads the values of trials that explanations need, and the steps of single trials on demand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path

from harness.trajectory import Outcome, Step
from tbench.checked_tests import failed_tests, read_tests
from tbench.errors import UsageError
from tbench.results import ErrorInfo, HostSample, ImageOrigin, TrialResult, is_weak
from tbench.scores.final_results import exclude_uncounted, is_under_pressure, shared_counts
from tbench.storage.read_run import RunUnreadable, StoredRun, read_run, read_steps
from tbench.storage.run_files import STEPS_NAME, TRIALS_NAME, trial_directory
from tbench.text import counted, names_text

_LARGEST_BYTES = 1 << 20
"""Bytes of a verifier's file that are read, from its end."""
SAMPLED_TRIALS = 60
"""Number of trials of each side whose steps are read, to compare thinking and replies."""


@dataclass(frozen=True, slots=True)
class Image:
    """Known facts about the image of a task in a run."""

    id: str | None
    digest: str | None
    built_from: str | None

    def differs_from(self, other: Image) -> bool:
        """Whether the content differs, by the best evidence known for both: digest, build files, or the image's id."""
        for mine, its in ((self.digest, other.digest), (self.built_from, other.built_from)):
            if mine is not None and its is not None and mine != its:
                return True
        if self.digest is not None and self.digest == other.digest:
            return False
        return self.id is not None and other.id is not None and self.id != other.id


@dataclass(frozen=True, slots=True)
class Trial:
    """The values of a trial's final result that explanations need; `attempt` is 0 for a planned trial without any."""

    run: int
    """Position of the run in its side."""
    task: str
    seed: int
    attempt: int = 0
    reward: float | None = None
    passed: bool = False
    outcome: Outcome | None = None
    error: ErrorInfo | None = None
    steps: int = 0
    completion_tokens: int = 0
    model_sec: float = 0.0
    command_sec: float = 0.0
    replies: int = 0
    signs: Mapping[str, int] = field(default_factory=dict)
    """Number of replies by sign (harness.reply_stats)."""
    first: str | None = None
    """Digest of the first reply."""
    host: HostSample | None = None
    """None for a solved trial on a machine that was not under pressure."""
    out_of_memory: bool = False
    tamper: tuple[str, ...] = ()
    """Strong signs of tampering."""
    remarks: tuple[str, ...] = ()
    image: Image | None = None

    @property
    def name(self) -> str:
        return f"{self.task}/{self.seed}"

    @property
    def is_pressed(self) -> bool:
        """Whether the machine was under pressure during the trial."""
        return self.host is not None and is_under_pressure(self.host)


@lru_cache(maxsize=1 << 16)
def _image(image_id: str | None, origin: ImageOrigin | None) -> Image:
    known = origin or ImageOrigin(how="present", reference="")
    return Image(image_id, known.digest, known.built_from)


def _trial(run: int, result: TrialResult) -> Trial:
    counted_result = exclude_uncounted(result)
    host = result.host if result.host is not None and (not result.passed or is_under_pressure(result.host)) else None
    return Trial(
        run=run,
        task=result.task,
        seed=result.seed,
        attempt=result.attempt,
        reward=counted_result.reward,
        passed=counted_result.passed,
        outcome=result.outcome,
        error=counted_result.error,
        steps=result.steps,
        completion_tokens=result.usage.completion_tokens,
        model_sec=result.timings.model_sec,
        command_sec=result.timings.command_sec,
        replies=result.replies.total,
        signs=shared_counts(tuple(result.replies.signs.items())),
        first=result.replies.first,
        host=host,
        out_of_memory=result.out_of_memory,
        tamper=tuple(sign for sign in result.integrity.tamper if not is_weak(sign)),
        remarks=result.integrity.remarks,
        image=_image(result.image_id, result.image_origin),
    )


@dataclass(frozen=True)
class Side:
    """One or several runs whose trials count together, such as the good nights before a drop."""

    runs: tuple[StoredRun, ...]
    trials: Mapping[str, tuple[Trial, ...]]
    """All planned trials by task, in the order of runs and seeds."""
    notes: tuple[str, ...] = ()
    causes: dict[tuple[int, bool], str] = field(default_factory=dict, compare=False, repr=False)
    """Causes found so far, by the trial's identity and whether steps may be read: a site explains each run thrice."""

    @property
    def last(self) -> StoredRun:
        """The newest run."""
        return self.runs[-1]

    @property
    def name(self) -> str:
        """Name of the run, or of the first and the last of several."""
        return self.last.name if len(self.runs) == 1 else f"{self.runs[0].name} … {self.last.name}"

    def path_of(self, trial: Trial) -> str:
        """Return the name of a trial on the command line."""
        more = f"/attempt-{trial.attempt}" if trial.attempt > 1 else ""
        return f"{self.runs[trial.run].argument}/{trial.task}/{trial.seed}{more}"

    def directory_of(self, trial: Trial) -> Path:
        return trial_directory(self.runs[trial.run].path, trial.task, trial.seed, trial.attempt)

    @cached_property
    def _kept(self) -> tuple[bool, ...]:
        """Whether each run has kept any files of its trials."""
        return tuple((run.path / TRIALS_NAME).is_dir() for run in self.runs)

    def has_files(self, trial: Trial) -> bool:
        """Whether files of a trial may be there: it has ended, and its run has kept any."""
        return trial.attempt > 0 and self._kept[trial.run]

    def has_steps(self, trial: Trial) -> bool:
        """Whether the steps of a trial are stored, so that it can be compared with another one."""
        return self.has_files(trial) and (self.directory_of(trial) / STEPS_NAME).is_file()

    def steps_of(self, trial: Trial) -> Sequence[Step]:
        """Read the steps of a trial; empty if they were not stored, were pruned or cannot be read."""
        if not self.has_files(trial) or self.runs[trial.run].document is None:
            return ()
        try:
            return read_steps(self.directory_of(trial))
        except RunUnreadable:
            return ()

    def failed_test_of(self, trial: Trial) -> str:
        """Return the first failed test of a trial's verifier with its error; empty if the verifier named none."""
        if not self.has_files(trial):
            return ""
        folder = self.directory_of(trial) / "verifier"
        failed = failed_tests(read_tests(lambda name: _end_of(folder / name))[1])
        return ": ".join((failed[0].name, *failed[0].error[:1])) if failed else ""

    @cached_property
    def sample(self) -> tuple[tuple[Trial, Sequence[Step]], ...]:
        """Some trials with replies, and their steps; newest run first, from as many tasks as possible."""
        rows = [[each for each in reversed(row) if each.steps] for row in self.trials.values()]
        order = (row[place] for place in range(max(map(len, rows), default=0)) for row in rows if place < len(row))
        return tuple((each, self.steps_of(each)) for each in islice(order, SAMPLED_TRIALS))


def _end_of(file: Path) -> str:
    """Return the end of a file that was written in a container; empty if it is missing or not a regular file."""
    try:
        if file.is_symlink() or not file.is_file():
            return ""
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _LARGEST_BYTES))
            return opened.read(_LARGEST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def read_side(paths: Sequence[Path]) -> Side:
    """Read runs as one side, without keeping their results.

    Raises RunUnreadable, and UsageError for results of several models and for runs without any result.
    """
    return _side(_read(path, number) for number, path in enumerate(paths))


def side_of(run: StoredRun) -> Side:
    """Return a run that was read with its results as a side. Raises UsageError like `read_side`."""
    taken = _Finals(0)
    for result in run.results:
        taken.add(result)
    return _side([(run, taken.checked(run.path))])


def _side(read: Iterable[tuple[StoredRun, Mapping[tuple[str, int], Trial]]]) -> Side:
    runs, notes = list[StoredRun](), list[str]()
    trials: dict[str, list[Trial]] = {}
    for number, (run, found) in enumerate(read):
        missing = 0
        for key in run.planned_trials:
            trial = found.get(key)
            missing += trial is None
            trials.setdefault(key[0], []).append(trial or Trial(number, *key))
        runs.append(run)
        notes += (f"{run.argument}: {note}" for note in run.notes)
        if missing:
            remedy = f"tbench resume {run.argument}" if run.document is not None else "complete the file"
            notes.append(f"{run.argument}: {counted(missing, 'trial')} without a result count as 0; {remedy}")
    if not trials:
        raise UsageError(f"{runs[0].argument}: plans no trial, so there is nothing to explain; see its run.json")
    names = {run.model for run in runs}
    if len(names) > 1:
        notes.append(f"runs of several models count together: {names_text(sorted(map(str, names)))}")
    return Side(tuple(runs), {task: tuple(row) for task, row in trials.items()}, tuple(notes))


class _Finals:
    """The final result of each trial: the highest attempt's, or among equal attempts the last."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._found: dict[tuple[str, int], Trial] = {}
        self._models = set[str | None]()

    def add(self, result: TrialResult) -> None:
        self._models.add(result.model)
        if result.final:
            before = self._found.get((result.task, result.seed))
            if before is None or result.attempt >= before.attempt:
                self._found[result.task, result.seed] = _trial(self._number, result)

    def checked(self, path: Path) -> Mapping[tuple[str, int], Trial]:
        """Return the final results. Raises UsageError if there are none, or if they are of several models."""
        if len(self._models) > 1:
            raise UsageError(f"{path}: results of {counted(len(self._models), 'model')}; give one run per model")
        if not self._found:
            raise UsageError(
                f"{path}: no trial has a result, so there is nothing to explain; see tbench summary {path}"
            )
        return self._found


def _read(path: Path, number: int) -> tuple[StoredRun, Mapping[tuple[str, int], Trial]]:
    taken = _Finals(number)
    run = read_run(path, taken.add)
    return run, taken.checked(path)
