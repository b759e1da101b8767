"""Imports Harbor jobs: reads their trials, numbers them as seeds, writes them as runs, and compares the means."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.exchange.importing.common import (
    ImportChoice,
    Imported,
    NewRun,
    directories,
    mean_lines,
    now,
    select_by_model,
    size_line,
    write_runs,
)
from tbench.exchange.importing.foreign_files import UnusableFile, object_or_none, read_object
from tbench.exchange.importing.harbor.plan import (
    Job,
    dataset,
    planned_task,
    planned_trials,
    trials_by_task,
)
from tbench.exchange.importing.harbor.records import (
    CONFIG,
    LOCK,
    RESULT,
    HarborTrial,
    JobPlace,
    find_jobs,
    unknown_keys,
)
from tbench.exchange.importing.harbor.trial import FoundTrial, TrialWriter, read_trial
from tbench.exchange.importing.harbor.verdict import name_that_counts
from tbench.results import TrialResult
from tbench.storage.imported_plan import ImportedPlan, ImportOrigin, Scalar
from tbench.storage.read_run import text_or_none
from tbench.text import counted, names_text, visible_line

# Harbor's mean of a job, computed by its rule and compared with the mean in the job's result.json
#
# The rule is from harbor/metrics/base.py: the mean over all finished trials, with 0 for those without a reward. From
# version 0.26 on, trials whose reward is not valid are left out (harbor/job.py), as their records say. If no trial has
# several rewards, the only one counts whatever its name; otherwise each name has a mean, with 0 if missing.

_NO_DATASET = "adhoc"


def metric_that_counts(records: Iterable[HarborTrial], metric: str | None, where: str) -> str | None:
    """Return the name of the reward that counts; None if there is at most one. Raises UsageError."""
    names = sorted({name for record in records for name in record.rewards or ()})
    if metric is not None and metric not in names:
        raise UsageError(
            f"{where}: no trial has a reward {metric!r}; known: {visible_line(names_text(names)) or 'none'}"
        )
    if len(names) <= 1:
        return metric
    if (name := name_that_counts(names, metric)) is None:
        raise UsageError(f"{where}: has rewards {visible_line(names_text(names))}; choose one with --metric NAME")
    return name


def mean_by_rule(records: Sequence[HarborTrial], metric: str | None) -> float:
    """Return the mean reward of trials by the rule of their version; 0 if none counts.

    `metric` is the reward that counts; None if trials have only one.
    """
    values = [value_by_rule(record.rewards, metric) for record in records if counts(record)]
    return sum(values) / max(1, len(values))


def counts(record: HarborTrial) -> bool:
    """Whether Harbor's mean includes this trial."""
    return record.reward_valid is not False


def value_by_rule(rewards: Mapping[str, Any] | None, metric: str | None) -> float:
    """Return a trial's contribution to Harbor's mean."""
    value = (rewards or {}).get(metric) if metric is not None else next(iter((rewards or {}).values()), 0)
    return float(value) if isinstance(value, int | float) else 0.0


def stated_mean(job: Mapping[str, Any], records: Sequence[HarborTrial], metric: str | None) -> float | None:
    """Return the mean of these trials in a job's result.json; None if it has none.

    The file has one mean per agent, model and dataset; those of several datasets are combined over all trials.
    """
    stats = job.get("stats")
    evals = stats.get("evals") if isinstance(stats, Mapping) else None
    by_key = Counter(map(_key, filter(counts, records)))
    total = 0.0
    for key, count in by_key.items():
        stated = _mean_in_group(evals.get(key) if isinstance(evals, Mapping) else None, metric)
        if stated is None:
            return None
        total += stated * count
    return total / sum(by_key.values()) if by_key else None


def _key(record: HarborTrial) -> str:
    """Return the key of a trial's group in a job's `stats.evals` (harbor/models/job/result.py)."""
    dataset = record.source or _NO_DATASET
    parts = (record.agent_info.name, record.model, dataset) if record.model else (record.agent_info.name, dataset)
    return "__".join(map(str, parts))


def _mean_in_group(group: object, metric: str | None) -> float | None:
    metrics = group.get("metrics") if isinstance(group, Mapping) else None
    for means in metrics if isinstance(metrics, list) else ():
        value = means.get("mean", means.get(metric)) if isinstance(means, Mapping) else None
        if isinstance(value, int | float):
            return float(value)
    return None


# Settings of a Harbor job that may affect its score and contain no secrets

_WANTED = (
    *("timeout_multiplier", "agent_timeout_multiplier", "verifier_timeout_multiplier"),
    *("agent_setup_timeout_multiplier", "environment_build_timeout_multiplier", "extra_instructions"),
    *("agent.import_path", "agent.override_timeout_sec", "agent.max_timeout_sec", "agent.kwargs"),
    *("agent.resume_trajectory", "agent.load_trajectory"),
    *("user_agent.name", "user_agent.import_path", "user_agent.model_name", "user_agent.bridge.kind"),
    *("environment.type", "environment.import_path", "environment.override_cpus"),
    *("environment.override_memory_mb", "environment.override_storage_mb", "environment.override_gpus"),
    *("verifier.override_timeout_sec", "verifier.max_timeout_sec"),
)
_SECRET = re.compile(r"(?i)(?:^|[_.-])(?:api_?key|key|secret|password|passwd|token|credentials?|auth\w*|headers?|env)$")
_PLACES = re.compile(r"(?i)(?:^|_)(?:url|uri|base|host|endpoint|session_id|dir|path)$")
"""Names of settings with locations: they do not affect the score, and addresses may contain passwords."""
_LONGEST_VALUE = 200


def recorded_settings(config: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the settings in a trial's configuration by dotted name, without secrets, addresses and unset values."""
    found: dict[str, Scalar] = {}
    for name in _WANTED:
        value: Any = config
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not False:  # a flag that was not given
            found.update(_scalars(name, value))
    return found


def common(settings: Iterable[Mapping[str, Scalar]]) -> tuple[dict[str, Scalar], tuple[str, ...]]:
    """Return the settings that all trials share, and the names of the others."""
    first: dict[str, Scalar] | None = None
    differing: set[str] = set()
    for each in settings:
        if first is None:
            first = dict(each)
        elif each != first:
            differing.update(name for name in each.keys() | first.keys() if each.get(name) != first.get(name))
    shared = {name: value for name, value in (first or {}).items() if name not in differing}
    return shared, tuple(sorted(differing))


def _scalars(name: str, value: object) -> Iterator[tuple[str, Scalar]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not _SECRET.search(str(key)) and not _PLACES.search(str(key)):
                yield from _scalars(f"{name}.{key}", part)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _scalars(f"{name}.{number}", part)
    elif isinstance(value, str):
        yield name, value[:_LONGEST_VALUE]
    elif isinstance(value, bool | int | float):
        yield name, value


_MAX_ATTEMPTS = 10_000
"""Maximum planned attempts per task; a higher number in a configuration is ignored as a mistake."""


@dataclass(slots=True)
class JobImport:
    """A run made from a job. `write` adds its results and notes."""

    plan: ImportedPlan
    trials: dict[tuple[str, int], FoundTrial]
    metric: str | None
    notes: list[str]
    mean: float
    """Mean reward of these trials by Harbor's rule."""
    results: list[TrialResult] = field(default_factory=list)

    def write(self, directory: Path) -> Iterator[TrialResult]:
        """Write the files of all trials and yield their results."""
        writer = TrialWriter(self.plan.run, directory, self.metric)
        for (task, seed), found in self.trials.items():
            result = writer.write(found, task, seed)
            self.results.append(result)
            yield result
        self.notes += writer.notes()

    @property
    def zeros(self) -> list[TrialResult]:
        """Results without a verdict here whose trials have 0 in Harbor."""
        found = [(result, self.trials[result.task, result.seed].record) for result in self.results]
        return [
            result
            for result, record in found
            if result.reward is None
            and record.rewards
            and value_by_rule(record.rewards, self.metric) == 0
            and counts(record)
        ]

    @property
    def left_out(self) -> int:
        """Number of trials that Harbor's mean leaves out."""
        return sum(not counts(found.record) for found in self.trials.values())

    def as_new_run(self, directory: Path) -> NewRun:
        """Return the run to write, named after its directory."""
        self.plan = self.plan.model_copy(update={"run": directory.resolve().name})
        return NewRun(directory, self.plan, self.write)


class NoResults(UsageError):
    """A job was cut before its first trial had a result."""


def read_job(place: JobPlace, choice: ImportChoice, metric: str | None) -> list[JobImport]:
    """Return the runs made from a job: one, or one per model. Raises UsageError."""
    notes: list[str] = []
    job = _read_job_files(place, notes)
    found, cut = _read_trials(job, notes)
    _refuse_twins(found)
    runs = select_by_model(
        found, choice, lambda each: each.record.model, lambda each: each.record.agent_info.name, job.where
    )
    several = len(runs) > 1
    made = []
    for model, trials in runs.items():
        name = f"{place.name}-{model.replace('/', '-')}" if several else place.name
        is_whole = not several and len(trials) == len(found)
        made.append(_make_import(job, name, trials, cut if is_whole else [], metric, list(notes), is_whole=is_whole))
    return made


def _read_job_files(place: JobPlace, notes: list[str]) -> Job:
    directory = place.directory
    if directory is None:
        return Job(place, {}, {}, {})
    config = _read_or_note(directory / CONFIG, "the plan is derived from the trials", notes)
    result = _read_or_note(directory / RESULT, "the job's mean cannot be compared", notes)
    if place.links:
        notes.append(f"links were not followed: {visible_line(names_text(place.links))}")
    return Job(place, config, result, object_or_none(directory / LOCK) or {})


def _read_or_note(file: Path, lost: str, notes: list[str]) -> Mapping[str, Any]:
    try:
        return read_object(file)
    except UnusableFile as problem:
        notes.append(f"{file.name} of the job {problem}: {lost}")
        return {}


def _read_trials(job: Job, notes: list[str]) -> tuple[list[FoundTrial], list[Path]]:
    """Return the trials with a result, and the directories of those without."""
    found: list[FoundTrial] = []
    cut: dict[Path, str] = {}
    for directory in job.place.trials:
        try:
            found.append(read_trial(directory))
        except UnusableFile as problem:
            cut[directory] = f"{directory.name}/{RESULT} {problem}"
    why = next(iter(cut.values()), "")
    if not found:
        raise NoResults(f"{job.where}: no trial has a result: {why}")
    if cut:
        other = f", and {len(cut) - 1} more" if len(cut) > 1 else ""
        notes.append(f"{counted(len(cut), 'trial')} without a result: {why}{other}")
    unknown = sorted({key for each in found for key in unknown_keys(each.record)})
    if unknown:
        notes.append(f"unknown keys of {RESULT} were ignored: {visible_line(names_text(unknown))}")
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


def _make_import(
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
    named = metric_that_counts(records, metric, job.where)
    tasks = trials_by_task(found, job.where)
    trials = {(task, seed): each for task, of_task in tasks.items() for seed, each in enumerate(of_task)}
    planned = planned_trials(job, tasks, cut, notes) if is_whole else Counter(dict.fromkeys(tasks, 1))
    attempts = job.config.get("n_attempts")
    stated_attempts = attempts if type(attempts) is int and attempts <= _MAX_ATTEMPTS else 1
    seeds = max([stated_attempts, *map(len, tasks.values()), *planned.values()])
    if any(len(of_task) > 1 for of_task in tasks.values()):
        notes.append("attempts at a task are numbered as seeds from 0 in the order of their start; Harbor has no seeds")
    stats = job.result.get("stats")
    retries = stats.get("n_retries") if isinstance(stats, dict) else None
    if type(retries) is int and retries > 0:
        notes.append(f"Harbor retried {counted(retries, 'time')} and kept only the last attempt")
    settings, differing = common(recorded_settings(record.config) for record in records)
    if differing:
        notes.append(f"settings that differ between trials were ignored: {visible_line(names_text(differing))}")
    stated = stated_mean(job.result, records, named)
    _note_lost_trials(job, found, cut, notes, is_whole=is_whole)
    begun = min(found, key=lambda each: each.order).record.started_at  # the job's times have no time zone
    ended = [each.record.finished_at for each in found if each.record.finished_at is not None]
    harbor = job.lock.get("harbor")
    version = text_or_none(harbor.get("version")) if isinstance(harbor, dict) else None
    plan = ImportedPlan(
        run=name,
        imported=ImportOrigin(format="harbor", version=version or None, source=job.place.name, at=now()),
        model=records[0].model,
        agent=records[0].agent_info.name,
        agent_version=records[0].agent_info.version or None,
        dataset=dataset(job, found, len(planned)),
        seeds=tuple(range(seeds)),
        tasks=tuple(planned_task(task, tasks.get(task, ())) for task in sorted(planned)),
        status="interrupted" if cut or _is_unfinished(job) else "finished",
        created_at=begun.isoformat() if begun is not None else "",
        ended_at=max(ended).isoformat() if ended else None,
        settings=settings if named is None else {**settings, "metric": named},
        reported_mean=stated,
    )
    return JobImport(plan, trials, named, notes, mean_by_rule(records, named))


def _is_unfinished(job: Job) -> bool:
    return bool(job.result) and job.result.get("finished_at") is None


def _note_lost_trials(
    job: Job, found: Sequence[FoundTrial], cut: Sequence[Path], notes: list[str], *, is_whole: bool
) -> None:
    total = job.result.get("n_total_trials")
    if is_whole and type(total) is int and total > len(found) + len(cut):
        notes.append(f"{counted(total - len(found) - len(cut), 'trial')} of the job's {total:,} left no directory")
    if _is_unfinished(job):
        notes.append("the job has not ended, or was interrupted")


# Import of Harbor jobs and trials as runs


def import_harbor(
    paths: Sequence[Path], output: Path | None, choice: ImportChoice, metric: str | None = None
) -> list[Imported]:
    """Import jobs, directories of jobs, or trials; each job becomes one run, or one per model.

    `output` is the run directory or, for several runs, their parent; by default `runs/`. `metric` is the reward that
    counts, if there are several. Raises UsageError; then nothing was written.
    """
    runs, cut = list[JobImport](), list[NoResults]()
    for job in find_jobs(paths):
        try:
            runs += read_job(job, choice, metric)
        except NoResults as why:
            cut.append(why)
    if not runs:
        raise cut[0]
    runs[-1].notes += (f"left out: {why}" for why in cut)
    places = directories([each.plan.run for each in runs], output)
    write_runs([each.as_new_run(place) for each, place in zip(runs, places, strict=True)])
    return [_report(each, place) for each, place in zip(runs, places, strict=True)]


def _report(run: JobImport, directory: Path) -> Imported:
    lines = [size_line(run.plan, run.results), *mean_lines(run.plan, run.results, run.mean, run.zeros, run.left_out)]
    return Imported(directory, tuple(lines), tuple(run.notes))
