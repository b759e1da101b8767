"""Explains a run by itself, or the difference between runs: reads them, finds causes, and splits the points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from tbench.errors import UsageError
from tbench.explaining.causes import (
    BY_KEY,
    MODEL,
    FoundCause,
    KnownLimits,
    Party,
    cause_key,
    evidence_of,
    find_cause,
)
from tbench.explaining.confirmations import read_confirmations
from tbench.explaining.explanation import (
    Confirmation,
    Difference,
    DifferencePart,
    ExplainedSide,
    ExplainedTrial,
    Explanation,
    LostPoints,
    TaskPoints,
)
from tbench.explaining.good_runs import LAST_GOOD, good_runs_before
from tbench.explaining.model_tests import equal_first_replies, model_tests
from tbench.explaining.points import Part, Scored, is_paired, split
from tbench.explaining.remedies import remedy, remedy_of_moved
from tbench.explaining.sameness import IMAGE, THINKING, Moved, moved_facts, other_image, see_thinking
from tbench.explaining.sentence import difference_sentence, single_sentence
from tbench.explaining.trials import Side, Trial, read_side
from tbench.reward import as_fraction, exact_mean, exact_sum
from tbench.text import counted, names_text

MAX_READ = 5000
"""Number of failed trials of a side up to which rules may read their steps."""
TRIALS_LISTED, _TASKS_LISTED = 200, 10
"""Maximum number of listed failed trials, and of listed tasks of a cause."""
UNCLEAR = "unclear"
"""Key of losses that the model or another change may explain."""
REST_TITLES: Mapping[str, tuple[str, Party]] = {
    IMAGE: ("image changed", "task"),
    THINKING: ("thinking dropped", "server"),
    UNCLEAR: ("not separable", "unclear"),
}
"""Title and party of losses without evidence, if a change may be the reason."""


def explain(
    run: Path | str | Sequence[Path],
    against: Path | str | Sequence[Path] | None = None,
    *,
    listed: int = TRIALS_LISTED,
) -> Explanation:
    """Explain where a run lost its points or, with `against`, why its score differs from another run's.

    Several runs on one side count together, such as the good nights before a drop. `last-good` finds the good runs of
    the same model in the same folder, and counts the runs since the drop together. Raises RunUnreadable, a ValueError,
    and UsageError for runs without any common task.
    """
    if against is None:
        return explain_side(read_side(_paths(run)), listed=listed)
    if against == LAST_GOOD:
        if not isinstance(run, (Path, str)):
            raise UsageError(f"against {LAST_GOOD}: give one run")
        run, against = good_runs_before(Path(run))
    return explain_change(read_side(_paths(against)), read_side(_paths(run)), listed)


def _paths(given: Path | str | Sequence[Path]) -> list[Path]:
    return [Path(given)] if isinstance(given, (Path, str)) else list(given)


@dataclass(frozen=True)
class _Explained:
    """A side with the causes of its failed trials."""

    side: Side
    tasks: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    @cached_property
    def failed(self) -> tuple[Trial, ...]:
        return tuple(each for task in self.tasks for each in self.side.trials[task] if not each.passed)

    @cached_property
    def limits(self) -> tuple[KnownLimits, ...]:
        return tuple(map(KnownLimits.of, self.side.runs))

    @cached_property
    def may_read(self) -> bool:
        return len(self.failed) <= MAX_READ

    @cached_property
    def causes(self) -> dict[int, str]:
        """The cause of each failed trial, by the trial's identity."""
        known, may_read = self.side.causes, self.may_read
        for each in self.failed:
            if (id(each), may_read) not in known:
                evidence = evidence_of(self.side, each, self.limits[each.run], may_read=may_read)
                known[id(each), may_read] = cause_key(evidence)
        return {id(each): known[id(each), may_read] for each in self.failed}

    @cached_property
    def confirmed(self) -> Mapping[str, Confirmation]:
        return read_confirmations(self.side.last.path)

    def proven(self, trial: Trial) -> FoundCause:
        """Return the cause of a failed trial with its proof; may read the trial's steps."""
        evidence = evidence_of(self.side, trial, self.limits[trial.run])
        return find_cause(evidence, self.causes[id(trial)])

    def about(self) -> ExplainedSide:
        side, rows = self.side, [self.side.trials[task] for task in self.tasks]
        return ExplainedSide(
            name=side.name,
            runs=tuple(str(run.argument) for run in side.runs),
            model=side.last.model,
            score=float(exact_sum(map(_mean, rows)) / len(rows)),
            tasks=len(rows),
            trials=sum(map(len, rows)),
            failed=len(self.failed),
        )

    def reading_notes(self) -> Iterator[str]:
        if not self.may_read:
            rules = "cut replies, commands at their limit and missing submissions"
            yield (
                f"{self.side.name}: {len(self.failed):,} failed trials, more than {MAX_READ:,}: their steps are not "
                f"read, so {rules} are found by the results alone"
            )


def reward_of(trial: Trial) -> Fraction:
    """Return a trial's reward as it counts: 0 without a verdict."""
    return Fraction() if trial.reward is None else as_fraction(trial.reward)


def _mean(row: Sequence[Trial]) -> Fraction:
    return exact_mean([0.0 if each.reward is None else each.reward for each in row])


# One run by itself


def explain_side(side: Side, *, listed: int = TRIALS_LISTED) -> Explanation:
    """Explain where the points of runs are lost, with up to `listed` failed trials one by one."""
    explained = _Explained(side, tuple(side.trials))
    lost = tuple(_lost_points(explained))
    about = explained.about()
    sentence, command = single_sentence(about, lost)
    notes = [*side.notes, *explained.reading_notes()]
    if any(run.imported for run in side.runs):
        notes.append("imported results have no steps, so causes come from outcomes and errors alone")
    trials, more = _listed(explained, explained.failed, "failed", listed)
    return Explanation(sentence=sentence, command=command, run=about, lost=lost, trials=trials, notes=(*notes, *more))


def _lost_points(explained: _Explained) -> Iterator[LostPoints]:
    """Yield the points lost for each cause, most first; they add up to the distance from a full score."""
    by_cause: defaultdict[str, list[Trial]] = defaultdict(list)
    for each in explained.failed:
        by_cause[explained.causes[id(each)]].append(each)
    found = []
    for key, trials in by_cause.items():
        by_task: defaultdict[str, Fraction] = defaultdict(Fraction)
        for each in trials:
            by_task[each.task] += (1 - reward_of(each)) / (len(explained.side.trials[each.task]) * len(explained.tasks))
        found.append((exact_sum(by_task.values()), key, trials, by_task))
    for total, key, trials, by_task in sorted(found, key=lambda each: (-each[0], each[1])):
        worst = max(trials, key=lambda each: by_task[each.task])
        advice = remedy(key, explained.side, [worst, *trials])
        yield LostPoints(
            cause=key,
            title=BY_KEY[key].title,
            party=BY_KEY[key].party,
            lost=float(total),
            trials=len(trials),
            tasks=_tasks({task: -points for task, points in by_task.items()}),
            remedy=advice.words,
            command=advice.command,
            changes=advice.changes,
            confirmed=explained.confirmed.get(key),
            example=_trial(explained, worst, "failed"),
        )


def _tasks(points: Mapping[str, Fraction]) -> tuple[TaskPoints, ...]:
    order = sorted(points.items(), key=lambda each: (-abs(each[1]), each[0]))
    return tuple(TaskPoints(task=task, difference=float(value)) for task, value in order[:_TASKS_LISTED])


def _trial(explained: _Explained, trial: Trial, change: str, rest: str = MODEL) -> ExplainedTrial:
    """Return a failed trial with its proof; `rest` is the cause of the task's losses without evidence."""
    found, words = explained.proven(trial), ""
    if found.key == MODEL and rest == THINKING:
        seen = see_thinking(explained.side.steps_of(trial))
        found, words = FoundCause(rest, found.words, seen.dropped_at or found.step), seen.words
    elif found.key == MODEL:
        found = FoundCause(rest, found.words, found.step)
    return ExplainedTrial(
        trial=explained.side.path_of(trial),
        task=trial.task,
        seed=trial.seed,
        cause=found.key,
        change=change,
        step=found.step,
        words="; ".join(filter(None, (words, found.words))),
    )


def _listed(
    explained: _Explained, trials: Sequence[Trial], change: str, listed: int, rests: Mapping[str, str] | None = None
) -> tuple[tuple[ExplainedTrial, ...], tuple[str, ...]]:
    """Return the first trials with their proof, and a note if there are more; `rests` is `rest` by task."""
    more = len(trials) - listed
    notes = (f"{counted(more, 'more failed trial')} not listed one by one",) if more > 0 and listed else ()
    of = rests or {}
    return tuple(_trial(explained, each, change, of.get(each.task, MODEL)) for each in trials[:listed]), notes


# The difference between two sides


def explain_change(first: Side, second: Side, listed: int | None = None) -> Explanation:
    """Explain why the second side's score differs from the first side's.

    Without `listed`, as briefly as pages need it: tests of the model, lost points, single trials and notes are left
    out. Raises UsageError without a common task.
    """
    tasks, left_out = _common_tasks(first, second)
    old, new = _Explained(first, tasks), _Explained(second, tasks)
    images = [task for task in tasks if other_image(first, second, task)]
    moved = moved_facts(first, second, tasks, images)
    if any(each.key == THINKING for each in moved):
        rest = THINKING
    else:
        rest = MODEL if all(each.is_separable for each in moved) else UNCLEAR
    keys = {task: IMAGE if task in set(images) else rest for task in tasks}
    rows = [_rows(each, keys) for each in (old, new)]
    paired = is_paired(*rows)
    found = split(rows[0], rows[1], keys.__getitem__, paired=paired)
    levers = [each for each in moved if each.explains]
    parts = tuple(_part(part, levers, old, new, keys) for part in found.parts if part.difference or part.is_named)
    abouts = old.about(), new.about()
    difference = Difference(
        tasks=abouts[1].tasks,
        paired=paired,
        before=abouts[0].score,
        after=abouts[1].score,
        difference=float(found.difference),
        low=found.interval.low,
        high=found.interval.high,
        p=found.test.p,
        parts=parts,
    )
    sentence, command = difference_sentence(abouts[1], abouts[0], difference, moved)
    explanation = Explanation(
        sentence=sentence,
        command=command,
        run=abouts[1],
        against=abouts[0],
        moved=moved,
        difference=difference,
        left_out=left_out,
    )
    if listed is None:
        return explanation
    failing, what = new.failed, "failed"
    if paired:  # with equal seeds, only those whose reward is lower than before
        before = {(task, each.seed): each.reward for task, row in rows[0].items() for each in row}
        failing = tuple(each for each in failing if reward_of(each) < before[each.task, each.seed])
        what = "newly failing"
    trials, more = _listed(new, failing, what, listed, keys)
    equal = equal_first_replies(first, second, tasks)
    reading = (*old.reading_notes(), *new.reading_notes())
    return explanation.model_copy(
        update={
            "model_tests": model_tests(first, second, tasks),
            "equal_first_replies": equal if equal[1] else None,
            "lost": tuple(_lost_points(new)),
            "trials": trials,
            "notes": (*first.notes, *second.notes, *reading, *_doubts(old, new), *more),
        }
    )


def _common_tasks(first: Side, second: Side) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tasks with equal content on both sides, and lines about the others. Raises UsageError."""
    old, new = first.last.task_hashes, second.last.task_hashes
    both = [task for task in first.trials if task in second.trials]
    changed = [task for task in both if task in old and task in new and old[task] != new[task]]
    tasks = tuple(task for task in both if task not in set(changed))
    if not tasks:
        why = f"; the content of {counted(len(changed), 'task')} has changed" if changed else ""
        raise UsageError(
            f"{second.last.argument} and {first.last.argument} have no task in common{why}; explain each by itself: "
            f"tbench explain {second.last.argument}"
        )
    groups = (
        ("only before", [task for task in first.trials if task not in second.trials]),
        ("only now", [task for task in second.trials if task not in first.trials]),
        ("with other content", changed),
    )
    lines = tuple(f"{counted(len(some), 'task')} {what}, left out: {names_text(some)}" for what, some in groups if some)
    return tasks, lines


def _rows(explained: _Explained, keys: Mapping[str, str]) -> dict[str, list[Scored]]:
    return {
        task: [
            Scored(reward_of(each), None if each.passed else _key(explained, each, keys), each.seed)
            for each in explained.side.trials[task]
        ]
        for task in explained.tasks
    }


def _key(explained: _Explained, trial: Trial, keys: Mapping[str, str]) -> str:
    cause = explained.causes[id(trial)]
    return keys[trial.task] if cause == MODEL else cause


def _part(
    part: Part, levers: Sequence[Moved], old: _Explained, new: _Explained, keys: Mapping[str, str]
) -> DifferencePart:
    rule = BY_KEY.get(part.key)
    mine = [each for each in levers if _is_lever(part.key, each)]
    title, party = REST_TITLES[part.key] if rule is None else (rule.title, rule.party)
    parties = {each.party for each in mine}
    if rule is not None and rule.levers:
        party = next(iter(parties)) if len(parties) == 1 else "unclear" if parties else rule.otherwise or rule.party
    elif part.key == THINKING and len(parties) == 1:
        party = next(iter(parties))
    unproven = []
    if rule is not None and part.key != MODEL:  # changes that may affect everything the model does at these tasks
        inseparable = {THINKING, IMAGE} if any(keys[task] == IMAGE for task in part.by_task) else {THINKING}
        unproven = [each for each in levers if not each.is_separable or each.key in inseparable]
    together_with = _inseparable(part.key, levers)
    if mine:  # a lever is the cause, though other settings may have contributed
        together_with += tuple(f"{each.key} {each.words}" for each in unproven if each.party == "harness")
    elif unproven and party == "model":
        mine, party, together_with = unproven, "unclear", ("a change of the model",)
    lost_by, other = (new, old) if part.difference <= 0 else (old, new)
    sign = 1 if lost_by is new else -1
    order = [task for task, _ in sorted(part.by_task.items(), key=lambda each: (each[1] * sign, each[0]))]
    failed = [each for task in order for each in lost_by.side.trials[task] if not each.passed]
    trials = [each for each in failed if _key(lost_by, each, keys) == part.key]
    passed = [each for each in other.side.trials[trials[0].task] if each.passed] if trials else []
    before = next((each for each in reversed(passed) if other.side.has_steps(each)), None)
    advice = (
        remedy_of_moved(part.key, mine, old.side, new.side, trials, before)
        if lost_by is new
        else remedy_of_moved(part.key, (), new.side, old.side, trials, before)
    )
    return DifferencePart(
        cause=part.key,
        title=title,
        party=party,
        difference=float(part.difference),
        low=part.interval.low,
        high=part.interval.high,
        p=part.p,
        named=part.is_named,
        because=tuple(f"{each.key}: {each.words}" for each in mine),
        together_with=together_with,
        tasks=_tasks({task: value / len(new.tasks) for task, value in part.by_task.items()}),
        sure_tasks=part.tasks,
        sure_difference=float(
            sum((part.by_task.get(task, Fraction()) for task in part.tasks), Fraction()) / len(new.tasks)
        ),
        remedy=advice.words,
        command=advice.command,
        changes=advice.changes,
        confirmed=new.confirmed.get(part.key) if lost_by is new else None,
    )


def _is_lever(key: str, moved: Moved) -> bool:
    """Whether a moved fact is a lever of a cause."""
    if key == UNCLEAR:
        return not moved.is_separable
    if key == MODEL:
        return moved.party == "model"
    if key in REST_TITLES:
        return moved.key == key
    return any(moved.key == each or (each[-1] == "." and moved.key.startswith(each)) for each in BY_KEY[key].levers)


def _inseparable(key: str, levers: Sequence[Moved]) -> tuple[str, ...]:
    """Return the other possible causes of a part."""
    if key == IMAGE:
        return ("a change of the model at these tasks",)
    if key == THINKING:
        return ("a change of the model, as all trials are affected",)
    if key == UNCLEAR:
        return ("a change of the model",)
    if key == MODEL and any(each.key == "machine.load" for each in levers):
        return ("the load of the machine, which may fail tests without a timeout",)
    return ()


def _doubts(old: _Explained, new: _Explained) -> Iterator[str]:
    """Yield the limitations of the explanation, one line each."""
    seeds = [{(each.run, each.seed) for task in side.tasks for each in side.side.trials[task]} for side in (old, new)]
    if min(map(len, seeds)) == 1:
        yield "one side has a single seed: parts of few trials cannot be told from chance; run more seeds (-k)"
    for each in (old, new):
        if any(run.imported for run in each.side.runs):
            yield f"{each.side.name}: imported results have no steps, so causes come from outcomes and errors alone"
        elif each.failed and not any(steps for _, steps in each.side.sample):
            yield f"{each.side.name}: the steps were deleted, so causes come from outcomes and errors alone"
        went_on = sum(each.causes[id(trial)] == "not_counted" for trial in each.failed)
        if went_on:
            yield f"{each.side.name}: {counted(went_on, 'trial')} went on after a cut or had help, and count as 0"
