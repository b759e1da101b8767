"""Imports a job of Harbor: reads its trials, numbers them as seeds, and writes them as a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.exchange.importing.choosing import ImportChoice, chosen
from tbench.exchange.importing.foreign_files import UnusableFile, object_or_none, read_object
from tbench.exchange.importing.harbor.mean import mean_by_rule, metric_that_counts, stated_mean, value_by_rule
from tbench.exchange.importing.harbor.places import CONFIG, LOCK, RESULT, JobPlace, links_note
from tbench.exchange.importing.harbor.plan import (
    Job,
    dataset,
    planned_task,
    planned_trials,
    text_or_empty,
    trials_by_task,
)
from tbench.exchange.importing.harbor.records import unknown_keys
from tbench.exchange.importing.harbor.settings import common, settings_of
from tbench.exchange.importing.harbor.trial import (
    FoundTrial,
    TrialWriter,
    read_trial,
)
from tbench.exchange.importing.writing import NewRun, now
from tbench.results import TrialResult
from tbench.storage.imported_plan import ImportedPlan, ImportOrigin
from tbench.text import counted, names_shown, visible_line

_MOST_ATTEMPTS = 10_000
"""Attempts per task that a configuration may plan; more is taken for a mistake."""


@dataclass(slots=True)
class JobImport:
    """One run that a job becomes. What `write` finds is added to it."""

    plan: ImportedPlan
    trials: dict[tuple[str, int], FoundTrial]
    metric: str | None
    notes: list[str]
    mean: float
    """Harbor's mean reward of these trials, by its rule."""
    results: list[TrialResult] = field(default_factory=list)

    def write(self, directory: Path) -> Iterator[TrialResult]:
        """Write the files of all trials, and yield their results."""
        writer = TrialWriter(self.plan.run, directory, self.metric)
        for (task, seed), found in self.trials.items():
            result = writer.write(found, task, seed)
            self.results.append(result)
            yield result
        self.notes += writer.notes()

    @property
    def zeros(self) -> list[TrialResult]:
        """Results without a verdict here, of trials that have a 0 in Harbor."""
        found = [self.trials[result.task, result.seed].record.rewards for result in self.results]
        return [
            result
            for result, rewards in zip(self.results, found, strict=True)
            if result.reward is None and rewards and value_by_rule(rewards, self.metric) == 0
        ]

    def as_new(self, directory: Path) -> NewRun:
        """What is to be written; the run is called by its directory's name."""
        self.plan = self.plan.model_copy(update={"run": directory.resolve().name})
        return NewRun(directory, self.plan, self.write)


def read_job(place: JobPlace, choice: ImportChoice, metric: str | None) -> list[JobImport]:
    """The runs that a job becomes: one, or one per model. Raises UsageError."""
    notes: list[str] = []
    job = _read_beside(place, notes)
    found, cut = _read_trials(job, notes)
    _refuse_twins(found)
    runs = chosen(found, choice, lambda each: each.record.model, lambda each: each.record.agent_info.name, job.where)
    several = len(runs) > 1
    made = []
    for model, trials in runs.items():
        name = f"{place.name}-{model.replace('/', '-')}" if several else place.name
        is_whole = not several and len(trials) == len(found)
        made.append(_imported(job, name, trials, cut if is_whole else [], metric, list(notes), is_whole=is_whole))
    return made


def _read_beside(place: JobPlace, notes: list[str]) -> Job:
    directory = place.directory
    if directory is None:
        return Job(place, {}, {}, {})
    config = _read_beside_or_note(directory / CONFIG, "the plan is taken from the trials", notes)
    result = _read_beside_or_note(directory / RESULT, "the job's own mean cannot be compared", notes)
    if (note := links_note(place)) is not None:
        notes.append(note)
    return Job(place, config, result, object_or_none(directory / LOCK) or {})


def _read_beside_or_note(file: Path, lost: str, notes: list[str]) -> Mapping[str, Any]:
    try:
        return read_object(file)
    except UnusableFile as problem:
        notes.append(f"{file.name} of the job {problem}: {lost}")
        return {}


def _read_trials(job: Job, notes: list[str]) -> tuple[list[FoundTrial], list[Path]]:
    """The trials with a result, and the directories of those without one."""
    found: list[FoundTrial] = []
    cut: dict[Path, str] = {}
    for directory in job.place.trials:
        try:
            found.append(read_trial(directory))
        except UnusableFile as problem:
            cut[directory] = f"{directory.name}/{RESULT} {problem}"
    why = next(iter(cut.values()), "")
    if not found:
        raise UsageError(f"{job.where}: no trial has a result: {why}")
    if cut:
        other = f", and {len(cut) - 1} more" if len(cut) > 1 else ""
        notes.append(f"{counted(len(cut), 'trial')} without a result: {why}{other}")
    unknown = sorted({key for each in found for key in unknown_keys(each.record)})
    if unknown:
        notes.append(f"keys of {RESULT} that are not known were left out: {visible_line(names_shown(unknown))}")
    return found, list(cut)


def _refuse_twins(found: Sequence[FoundTrial]) -> None:
    seen: dict[str, Path] = {}
    for each in found:
        for name in {each.record.trial_name, each.record.id or each.record.trial_name}:
            if name in seen:
                raise UsageError(
                    f"{each.directory}: trial {each.record.trial_name!r} is also in {seen[name]}; give each trial once"
                )
            seen[name] = each.directory


def _imported(
    job: Job,
    name: str,
    found: Sequence[FoundTrial],
    cut: Sequence[Path],
    metric: str | None,
    notes: list[str],
    *,
    is_whole: bool,
) -> JobImport:
    records = [each.record for each in found]
    counts = metric_that_counts(records, metric, job.where)
    tasks = trials_by_task(found, job.where)
    trials = {(task, seed): each for task, of_task in tasks.items() for seed, each in enumerate(of_task)}
    planned = planned_trials(job, tasks, cut, notes) if is_whole else Counter(dict.fromkeys(tasks, 1))
    seeds = max([_attempts(job), *map(len, tasks.values()), *planned.values()])
    if any(len(of_task) > 1 for of_task in tasks.values()):
        notes.append("attempts at a task are seeds from 0 on, in the order of their start: Harbor numbers none")
    _note_retries(job, notes)
    settings, differing = common(settings_of(record.config) for record in records)
    if differing:
        notes.append(f"settings that differ between trials were left out: {visible_line(names_shown(differing))}")
    stated = stated_mean(job.result, records, counts)
    _note_lost_trials(job, found, cut, notes, is_whole=is_whole)
    first = min(found, key=lambda each: each.order)
    plan = ImportedPlan(
        run=name,
        imported=ImportOrigin(format="harbor", version=_version(job), source=job.place.name, at=now()),
        model=records[0].model,
        agent=records[0].agent_info.name,
        agent_version=records[0].agent_info.version or None,
        dataset=dataset(job, found, len(planned)),
        seeds=tuple(range(seeds)),
        tasks=tuple(planned_task(task, tasks.get(task, ())) for task in sorted(planned)),
        status="interrupted" if cut or _is_unfinished(job) else "finished",
        created_at=_time(first.record.started_at),  # a job's own times have no zone
        ended_at=_time(_last_end(found)) or None,
        settings=settings if counts is None else {**settings, "metric": counts},
        reported_mean=stated,
    )
    return JobImport(plan, trials, counts, notes, mean_by_rule(records, counts))


def _attempts(job: Job) -> int:
    attempts = job.config.get("n_attempts")
    return attempts if type(attempts) is int and attempts <= _MOST_ATTEMPTS else 1


# -- what is told --------------------------------------------------------------------------------


def _version(job: Job) -> str | None:
    harbor = job.lock.get("harbor")
    return text_or_empty(harbor.get("version")) or None if isinstance(harbor, dict) else None


def _is_unfinished(job: Job) -> bool:
    return bool(job.result) and job.result.get("finished_at") is None


def _note_retries(job: Job, notes: list[str]) -> None:
    stats = job.result.get("stats")
    retries = stats.get("n_retries") if isinstance(stats, dict) else None
    if type(retries) is int and retries > 0:
        notes.append(f"Harbor tried again {counted(retries, 'time')}, and kept the last attempt only")


def _note_lost_trials(
    job: Job, found: Sequence[FoundTrial], cut: Sequence[Path], notes: list[str], *, is_whole: bool
) -> None:
    total = job.result.get("n_total_trials")
    if is_whole and type(total) is int and total > len(found) + len(cut):
        notes.append(f"{counted(total - len(found) - len(cut), 'trial')} of the job's {total:,} left no directory")
    if _is_unfinished(job):
        notes.append("the job has not ended, or was cut short")


def _last_end(found: Sequence[FoundTrial]) -> Any:
    return max((each.record.finished_at for each in found if each.record.finished_at is not None), default=None)


def _time(time: Any) -> str:
    return time.isoformat() if time is not None else ""
