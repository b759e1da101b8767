"""Shards of a run: divides its trials among machines by expected duration, and merges the results."""

from __future__ import annotations

import hashlib
import heapq
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tbench.config.document import Locked, PlannedShard, PlannedTask, RunDocument, replies_fields
from tbench.config.values import Shard
from tbench.errors import UsageError
from tbench.files import write_json
from tbench.results import TrialResult
from tbench.storage import run_files
from tbench.storage.comparable import differences, score_keys
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.record_directory import LineFile, new_directory
from tbench.storage.trial_notes import note_lines
from tbench.text import counted, names_text

# Division of a run's trials, computed alike on every machine without communication.


class WeighedTrial(NamedTuple):
    """A trial and its expected duration in seconds."""

    task: str
    seed: int
    seconds: float


def divide(trials: Iterable[WeighedTrial], count: int) -> list[list[WeighedTrial]]:
    """Divide trials into `count` parts of about equal expected duration.

    The longest goes first, to the part with the least so far (Graham's LPT rule), so the durations of two parts differ
    by at most that of one trial. Among trials of equal length a hash decides, so that neither the seeds of a task nor
    its neighbours stay together. The order of the given trials does not matter.
    """
    parts: list[list[WeighedTrial]] = [[] for _ in range(count)]
    loads = [(0.0, 0, index) for index in range(count)]
    for trial in sorted(
        trials, key=lambda each: (-each.seconds, _digest([each.task, each.seed]), each.task, each.seed)
    ):
        seconds, number, index = loads[0]
        parts[index].append(trial)
        heapq.heapreplace(loads, (seconds + trial.seconds, number + 1, index))
    return parts


def plan_shard(trials: Sequence[WeighedTrial], shard: Shard) -> PlannedShard:
    """Return one shard's trials, with a digest of the whole division that all its shards share."""
    own = divide(trials, shard.count)[shard.index]
    whole = sorted((each.task, each.seed, round(each.seconds, 3)) for each in trials)
    return PlannedShard(
        index=shard.index,
        count=shard.count,
        digest=_digest([shard.count, whole]),
        trials=tuple(sorted((each.task, each.seed) for each in own)),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# Durations of trials in earlier runs.


def mean_durations(runs: Iterable[Path], tasks: Collection[str]) -> dict[str, float]:
    """Return the mean wall time of these tasks' trials with a verdict, in seconds, over runs of any model.

    Trials touched by a person are left out. Raises UsageError for a run that cannot be read, or has none of the tasks.
    """
    seconds: dict[str, list[float]] = {}
    for run in runs:
        usable = [
            result
            for result in read_run(run).results
            if result.task in tasks and result.reward is not None and not result.human_touched
            and result.timings.wall_sec > 0
        ]  # fmt: skip
        if not usable:
            raise UsageError(
                f"--durations {run}: has no durations for the {len(tasks)} tasks of this run; name a run of these tasks"
            )
        for result in usable:
            seconds.setdefault(result.task, []).append(result.timings.wall_sec)
    return {task: sum(each) / len(each) for task, each in seconds.items()}


# Merging of shards into one run directory. The shards are only read.

_SERVED_FIELDS = ("root", "context_tokens")
"""Fields of the served model that must be equal for all shards."""
_ONCE_PER_RUN = ("run_started", "run_ended")
"""Kinds of journal lines that occur once per run."""


@dataclass(frozen=True)
class FinishedShard:
    """A shard and the content of its directory."""

    directory: Path
    document: RunDocument
    plan: PlannedShard
    results: tuple[TrialResult, ...]
    stored: StoredRun

    @classmethod
    def read(cls, directory: Path) -> FinishedShard:
        """Read a shard. Raises UsageError if the directory has none, or if it is still running."""
        stored = read_run(directory)
        if stored.document is None or stored.document.shard is None:
            raise UsageError(
                f"{directory}: is not a shard of a run; give a directory written by tbench run --shard I/N"
            )
        if run_files.RUN.is_locked(directory):
            raise UsageError(f"{directory}: this shard is still running; wait for its end, or stop it")
        return cls(directory, stored.document, stored.document.shard, tuple(stored.results), stored)

    @property
    def without_result(self) -> list[tuple[str, int]]:
        """Trials of the shard without a final result."""
        ended = {(result.task, result.seed) for result in self.results if result.final}
        return [trial for trial in self.plan.trials if trial not in ended]


def merge(directories: Sequence[Path], output: Path, *, incomplete: bool = False) -> None:
    """Merge the shards into `output`, completely or not at all. Raises UsageError.

    Refuses shards of different runs, missing and duplicate shards, and trials that belong to no shard, to two shards,
    or have no result. With `incomplete`, missing shards and results are accepted: `tbench resume` runs the rest.
    """
    shards = [FinishedShard.read(directory) for directory in directories]
    _check_same_run(shards)
    ordered = _by_index(shards, incomplete)
    _check_trials(ordered, incomplete)
    name = output.resolve().name
    with new_directory(output) as directory:
        for shard in ordered:
            _copy_files(shard, directory, name)
        _write_lines(directory / run_files.RESULTS_NAME, _result_lines(ordered, name))
        _write_lines(directory / run_files.JOURNAL_NAME, _journal_lines(ordered, name))
        write_json(directory / run_files.CONFIG_NAME, _document(ordered, name).model_dump(mode="json"))


# -- checks --------------------------------------------------------------------------------------


def _check_same_run(shards: Sequence[FinishedShard]) -> None:
    first = shards[0]
    for shard in shards[1:]:
        if changes := differences(_identity(first), _identity(shard)):
            raise UsageError(f"{shard.directory}: is not a shard of the same run as {first.directory}: {changes}")
        if shard.plan.digest != first.plan.digest:
            raise UsageError(
                f"{shard.directory}: its trials were divided differently from those of {first.directory}: start all "
                "shards with the same tasks, seeds and --durations"
            )


def _identity(shard: FinishedShard) -> dict[str, Any]:
    """Return the values that all shards of a run have in common, by name."""
    document = shard.document
    served = document.locked.served.model_dump(mode="json") if document.locked.served is not None else {}
    keys = score_keys(shard.stored)
    if document.dataset is None:
        # A folder's name may differ between machines; its content is compared task by task.
        keys.pop("dataset", None)
    return {
        **keys,
        "tbench": document.tbench_version,
        "model": document.locked.model,
        "seeds": list(document.seeds),
        "shards": shard.plan.count,
        "task names": [task.name for task in document.tasks],
        "served": {key: served.get(key) for key in _SERVED_FIELDS},
    }


def _by_index(shards: Sequence[FinishedShard], incomplete: bool) -> list[FinishedShard]:
    """Return the shards in order. Raises UsageError unless each is given once."""
    found: dict[int, FinishedShard] = {}
    for shard in shards:
        if (other := found.get(shard.plan.index)) is not None:
            raise UsageError(f"{shard.directory}: shard {shard.plan.name} is given twice, also as {other.directory}")
        found[shard.plan.index] = shard
    count = shards[0].plan.count
    missing = [f"{index}/{count}" for index in range(count) if index not in found]
    if missing and not incomplete:
        what = "is missing" if len(missing) == 1 else "are missing"
        raise UsageError(
            f"shard {names_text(missing)} {what}; give the directories of all shards, or --incomplete to run the rest "
            "with tbench resume"
        )
    return [found[index] for index in sorted(found)]


def _check_trials(shards: Sequence[FinishedShard], incomplete: bool) -> None:
    """Check that each trial belongs to one shard, and has a result there. Raises UsageError."""
    owners: dict[tuple[str, int], FinishedShard] = {}
    for shard in shards:
        for trial in shard.plan.trials:
            if (other := owners.setdefault(trial, shard)) is not shard:
                raise UsageError(f"{shard.directory}: shares a trial with {other.directory}: {_shown([trial])}")
    for shard in shards:
        own = set(shard.plan.trials)
        if foreign := sorted({(result.task, result.seed) for result in shard.results} - own):
            raise UsageError(f"{shard.directory}: holds results of trials that are not its own: {_shown(foreign)}")
        if (lacking := shard.without_result) and not incomplete:
            raise UsageError(
                f"{shard.directory}: {counted(len(lacking), 'trial')} of shard {shard.plan.name} without a result: "
                f"{_shown(lacking)}; continue with: tbench resume {shard.directory}"
            )
    if len(shards) == shards[0].plan.count:
        document = shards[0].document
        whole = [(task.name, seed) for seed in document.seeds for task in document.tasks]
        if missing := [trial for trial in whole if trial not in owners]:
            raise UsageError(f"trials that belong to no shard: {_shown(missing)}; run the shards again")


def _shown(trials: Sequence[tuple[str, int]]) -> str:
    return names_text([f"{task} seed {seed}" for task, seed in trials])


# -- output --------------------------------------------------------------------------------------


def _copy_files(shard: FinishedShard, directory: Path, name: str) -> None:
    for part in ("trials", "images"):
        if (source := shard.directory / part).is_dir():
            shutil.copytree(source, directory / part, symlinks=True, dirs_exist_ok=True)
    for task, seed in shard.plan.trials:
        if run_files.trial_directory(directory, task, seed).is_dir():
            for attempt in run_files.attempts(directory, task, seed).values():
                _rename_run(attempt / run_files.TRIAL_RESULT_NAME, name)
    if lines := list(note_lines(shard.directory)):
        _write_lines(directory / run_files.NOTES_NAME, iter(lines))
    if (log := shard.directory / run_files.LOG_NAME).is_file():
        with (directory / run_files.LOG_NAME).open("ab") as whole, log.open("rb") as own:
            shutil.copyfileobj(own, whole)


def _rename_run(file: Path, name: str) -> None:
    if file.is_file():
        write_json(file, {**json.loads(file.read_bytes()), "run": name})


def _write_lines(file: Path, lines: Iterator[str]) -> None:
    whole = LineFile(file)
    try:
        for line in lines:
            whole.append(line)
    finally:
        whole.close()


def _result_lines(shards: Sequence[FinishedShard], name: str) -> Iterator[str]:
    for shard in shards:
        for result in shard.results:
            yield result.model_copy(update={"run": name}).model_dump_json()


def _journal_lines(shards: Sequence[FinishedShard], name: str) -> Iterator[str]:
    yield json.dumps({"kind": "run_started", "run": name, "trials": sum(len(shard.plan.trials) for shard in shards)})
    for shard in shards:
        for line in (shard.directory / run_files.JOURNAL_NAME).read_text("utf-8", "replace").splitlines():
            if line.endswith("}") and not any(f'"kind":"{kind}"' in line[:40] for kind in _ONCE_PER_RUN):
                yield line
    yield json.dumps({"kind": "run_ended", "interrupted": not _is_finished(shards)})


def _is_finished(shards: Sequence[FinishedShard]) -> bool:
    return len(shards) == shards[0].plan.count and not any(shard.without_result for shard in shards)


def _document(shards: Sequence[FinishedShard], name: str) -> RunDocument:
    documents = [shard.document for shard in shards]
    first = documents[0]
    return first.model_copy(
        update={
            **replies_fields(first, [result for shard in shards for result in shard.results]),
            "run": name,
            "config": first.config.with_values(schedule={"shard": None, "durations": ()}),
            "locked": _merge_locked([document.locked for document in documents]),
            "shard": None,
            "status": "finished" if _is_finished(shards) else "interrupted",
            "stopped": None,
            "unhealthy": _unhealthy(documents),
            "created_at": min(document.created_at for document in documents),
            "resumed_at": tuple(sorted(time for document in documents for time in document.resumed_at)),
            "ended_at": max((document.ended_at for document in documents if document.ended_at), default=None),
            "engine": _engine([document.engine for document in documents]),
            "tasks": tuple(
                _task([document.tasks[index] for document in documents]) for index in range(len(first.tasks))
            ),
        }
    )


def _merge_locked(shards: Sequence[Locked]) -> Locked:
    """Return the shards' resolved names, with the servers of all of them."""
    urls = dict.fromkeys(url for each in shards for url in (each.endpoints or (each.base_url,)) if url is not None)
    return shards[0].model_copy(update={"endpoints": tuple(urls) if len(urls) > 1 else ()})


def _unhealthy(documents: Sequence[RunDocument]) -> dict[str, str] | None:
    """Return the unhealthy tasks of all shards; None if there are none and not all tasks were calibrated."""
    found = {name: why for document in documents for name, why in (document.unhealthy or {}).items()}
    return found if found or all(document.unhealthy is not None for document in documents) else None


def _engine(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the engine that all shards share, or else a list of their engines."""
    return dict(engines[0]) if all(each == engines[0] for each in engines) else {"shards": list(map(dict, engines))}


def _task(shards: Sequence[PlannedTask]) -> PlannedTask:
    """Return the task with the first image that a shard used; each result has its own."""
    return next((task for task in shards if task.image_id is not None), shards[0])
