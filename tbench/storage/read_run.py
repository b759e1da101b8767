"""Reads a stored run: run.json, results.jsonl and a trial's steps, or bare lines with task, seed, reward.

Nothing is written. An incomplete last line is ignored, with a note if it is in results.jsonl; anything else unreadable
is an error that names the file, the line and the remedy.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from harness.checkpoint import CheckpointLine, Saved
from harness.trajectory import Frozen, Step, Trajectory
from tbench.config.document import RUN_SCHEMA_VERSION, ForeignRunDocument, PlannedShard, RunDocument, read_document
from tbench.config.limits_in_force import lacking_limits
from tbench.config.rules import broken_rules, describe_overrides
from tbench.errors import UsageError
from tbench.files import refuse_other_version
from tbench.origin import DatasetOrigin
from tbench.results import (
    NOTHING_SEEN,
    RESULT_SCHEMA_VERSION,
    UNKNOWN_AGENT,
    UNKNOWN_TIME,
    ImageOrigin,
    Integrity,
    TrialResult,
)
from tbench.storage.imported_plan import ImportedPlan, imported_plan
from tbench.storage.record_directory import first_problem, read_lines
from tbench.storage.run_files import (
    BEGUN_NAME,
    CHECKPOINTS_NAME,
    CONFIG_NAME,
    NOTES_NAME,
    RESULTS_NAME,
    STEPS_NAME,
    TRAJECTORY_NAME,
    TRIAL_RESULT_NAME,
    TRIALS_NAME,
    attempts,
    is_abandoned,
    is_run,
)
from tbench.storage.trial_notes import TrialNote, of_same_trials, read_notes, tags_by_trial
from tbench.text import counted, one_line

_IMPORT_KEYS = frozenset({"task", "seed", "reward"})
_SHARED_TEXTS = ("run", "task", "agent", "model", "image_id")
_OWN_LINE = f'{{"schema_version":{RESULT_SCHEMA_VERSION},'.encode()
_OWN_KEYS = frozenset(TrialResult.model_fields) - {"schema_version"}


class RunUnreadable(UsageError, ValueError):
    """A path is not a run, or a file in it is invalid. The message is one line: location, reason and remedy."""


class StoredRun(Frozen):
    """The content of a run directory."""

    path: Path
    """The run directory, or the folder of a file of results."""
    name: str
    planned_tasks: list[str]
    planned_seeds: list[int]
    results: list[TrialResult]
    document: RunDocument | None = None
    """The content of a run.json of tbench; None for imported results."""
    model: str | None = None
    """Id of the model, if it is the same for the whole run."""
    plan: ImportedPlan | None = None
    """The content of a run.json of `tbench import`."""
    imported: bool = False
    """Whether the results come from another program, with or without a plan of `tbench import`."""
    notes: tuple[str, ...] = ()
    """Problems that were tolerated while reading, one sentence each."""
    trial_notes: tuple[TrialNote, ...] = ()
    """Notes that people wrote about trials and tasks, oldest first."""
    bare_file: Path | None = None
    """The file of results that was read in place of a run directory."""

    @property
    def argument(self) -> Path:
        """Path that names the run on a command line."""
        return self.bare_file or self.path

    @property
    def is_sampled(self) -> bool:
        """Whether replies are sampled, so that equal replies are suspicious; True if unknown."""
        return self.document is None or self.document.config.model.temperature > 0

    @property
    def names_of_model(self) -> tuple[str, ...]:
        """Requested name of the model and its aliases; empty if not recorded."""
        served = self.document.locked.served if self.document is not None else None
        return served.all_names if served is not None else ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """Descriptions of overridden task settings; empty if unknown."""
        if self.plan is not None:
            return self.plan.overrides
        return () if self.document is None else describe_overrides(self.document.config)

    @property
    def lacking_limits(self) -> tuple[str, ...]:
        """Descriptions of limits that were not enforced on the run's machines; empty if unknown."""
        return lacking_limits(self.document.engine) if self.document is not None else ()

    @property
    def lacking_limits_and_disks(self) -> tuple[str, ...]:
        """Like `lacking_limits`, with limits of disks. Many engines lack them, and they hardly affect verdicts."""
        return lacking_limits(self.document.engine, disk=True) if self.document is not None else ()

    @property
    def dataset(self) -> DatasetOrigin | None:
        """Dataset of the tasks, if run.json names one."""
        about = self.document or self.plan
        return about.dataset if about is not None else None

    @property
    def is_bounded(self) -> bool:
        """Whether all rewards are from 0 to 1; True if unknown."""
        return self.document is None or not any(task.reward_range for task in self.document.tasks)

    @property
    def tags(self) -> dict[tuple[str, int], set[str]]:
        """Tags that people gave trials, by task and seed."""
        return tags_by_trial(self.trial_notes, self.planned_tasks, self.planned_seeds)

    @property
    def shard(self) -> PlannedShard | None:
        """Shard of the run; None for a whole run."""
        return self.document.shard if self.document is not None else None

    @property
    def planned_trials(self) -> Sequence[tuple[str, int]]:
        """Task and seed of each planned trial."""
        if self.shard is not None:
            return self.shard.trials
        return [(task, seed) for task in self.planned_tasks for seed in self.planned_seeds]

    @property
    def planned(self) -> int:
        """Number of planned trials."""
        return len(self.planned_trials)

    @property
    def status(self) -> str | None:
        """Status in run.json; None if unknown."""
        about = self.document or self.plan
        return about.status if about is not None else None

    @property
    def is_cut_off(self) -> bool:
        """Whether the run was interrupted without recording its end."""
        return self.document is not None and self.document.status == "running" and is_abandoned(self.path)

    @property
    def task_hashes(self) -> dict[str, str]:
        """Content hash by planned task, if known."""
        about = self.document or self.plan
        return {task.name: task.hash for task in about.tasks if task.hash} if about is not None else {}

    @property
    def unhealthy(self) -> dict[str, str]:
        """Reason by task for tasks whose verdicts cannot be trusted on the run's machine; empty if unknown."""
        return (self.document.unhealthy if self.document is not None else None) or {}

    @property
    def broken_rules(self) -> tuple[str, ...]:
        """Descriptions of leaderboard rules that the run breaks."""
        return broken_rules(self.document) if self.document is not None else ()


FrozenT = TypeVar("FrozenT", bound=Frozen)
LineT = TypeVar("LineT")
TakeResult = Callable[[TrialResult], None]


class JsonLine(NamedTuple):
    """A line of a file: its location `FILE:LINE`, and its object."""

    where: str
    data: dict[str, Any]


def read_run(run_dir: Path, each: TakeResult | None = None) -> StoredRun:
    """Read a run directory, or a single .jsonl file of results. Raises RunUnreadable.

    With `each`, the results are passed to it one by one and not kept.
    """
    held: list[TrialResult] = []
    keep = each or (lambda result: held.append(_slim(result)))
    written, problems = trial_notes(run_dir)
    noted, ids = {note.target for note in written}, dict[tuple[str, int], str]()

    def take(result: TrialResult) -> None:
        if (trial := (result.task, result.seed)) in noted:
            ids[trial] = result.trial
        keep(result)

    stored = _read(run_dir, take)
    notes = of_same_trials(written, ids, problems)
    return stored.model_copy(update={"results": held, "trial_notes": notes, "notes": (*stored.notes, *problems)})


def trial_notes(run_dir: Path) -> tuple[tuple[TrialNote, ...], list[str]]:
    """Return the notes of a run, and a sentence on each that cannot be read. Raises RunUnreadable."""
    problems: list[str] = []
    try:
        return read_notes(run_dir, problems), problems
    except OSError as error:
        raise _unreadable(run_dir / NOTES_NAME, error) from None


def _read(run_dir: Path, each: TakeResult) -> StoredRun:
    if run_dir.is_file():
        found = _read_import(run_dir, run_dir.parent, run_dir.stem, each)
        return found.model_copy(update={"bare_file": run_dir})
    if not run_dir.is_dir():
        raise RunUnreadable(f"{run_dir}: no such run directory; check the path")
    results_file = run_dir / RESULTS_NAME
    if is_run(run_dir):
        return _read_own(run_dir, results_file, each)
    if results_file.is_file():
        return _read_import(results_file, run_dir, run_dir.resolve().name, each)
    if any(run_dir.glob(f"*/{CONFIG_NAME}")):
        raise RunUnreadable(f"{run_dir}: contains runs; give one of them, as listed by 'tbench history {run_dir}'")
    raise RunUnreadable(f"{run_dir}: has neither {CONFIG_NAME} nor {RESULTS_NAME}; give the directory of one run")


def read_results(file: Path) -> list[TrialResult]:
    """Read the results in a results.jsonl of tbench. Raises RunUnreadable."""
    return [_slim(_own_result(line)) for line in json_lines(file, [])]


def read_steps(trial_dir: Path) -> list[Step]:
    """Read the steps in a trial's directory, also while the trial runs or after its process was killed.

    An incomplete last line is ignored. Raises RunUnreadable.
    """
    file = trial_dir / STEPS_NAME
    if not file.exists():
        return []
    whole = _read_bytes(file).rpartition(b"\n")[0]
    problems: list[str] = []
    steps = [step for _, step in read_lines(file, whole, Step, problems)]
    if problems:
        raise RunUnreadable(f"{problems[0]}; remove or repair this line")
    return steps


def read_checkpoints(trial_dir: Path) -> list[Saved]:
    """Read the checkpoints of a trial whose process was killed; an incomplete last line is ignored.

    Raises OSError, and ValueError for lines of another version.
    """
    raw, problems = (trial_dir / CHECKPOINTS_NAME).read_bytes().rpartition(b"\n")[0], list[str]()
    found = [each.root for _, each in read_lines(trial_dir / CHECKPOINTS_NAME, raw, CheckpointLine, problems)]
    if problems:
        raise ValueError(f"its checkpoints cannot be read, perhaps from another version: {problems[0]}")
    return found


def read_trajectory(trial_dir: Path) -> Trajectory | None:
    """Read the trajectory in a trial's directory; None if missing, as while the trial runs. Raises RunUnreadable."""
    file = trial_dir / TRAJECTORY_NAME
    try:
        return Trajectory.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise RunUnreadable(f"{file}: {first_problem(error, 'file')}; restore it or delete it") from None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: an invalid file name
        return None
    except OSError as error:
        raise _unreadable(file, error) from None


def read_plan(run_dir: Path, notes: list[str] | None = None) -> StoredRun:
    """Read a run's run.json, without its results. Raises RunUnreadable."""
    config_file = run_dir / CONFIG_NAME
    plan = _read_plan(config_file, notes)
    document, imported = _document(config_file, plan), _imported_plan(config_file, plan)
    return StoredRun(
        path=run_dir,
        name=str(plan.get("run") or run_dir.resolve().name),
        planned_tasks=[task["name"] for task in plan["tasks"]],
        planned_seeds=plan["seeds"],
        results=[],
        document=document,
        model=document.locked.model if document is not None else text_or_none(plan.get("model")),
        plan=imported,
        imported=imported is not None,
    )


def _read_own(run_dir: Path, results_file: Path, each: TakeResult) -> StoredRun:
    notes: list[str] = []
    run = read_plan(run_dir, notes)
    missing: dict[tuple[str, int], tuple[int, ...]] = dict.fromkeys(run.planned_trials, ())
    lines = _whole_lines(results_file, notes, _result_line) if results_file.exists() else ()
    for result in _each_result(lines, run.name, notes):
        if result.final:
            missing.pop((result.task, result.seed), None)
        elif (trial := (result.task, result.seed)) in missing:
            missing[trial] += (result.attempt,)
        each(result)
    for result in _results_without_a_line(run_dir, missing, notes) if run.document is not None else ():
        each(result)
    return run.model_copy(update={"notes": tuple(notes)})


def _results_without_a_line(
    run_dir: Path, missing: Mapping[tuple[str, int], Collection[int]], notes: list[str]
) -> Iterator[TrialResult]:
    """Yield results from result.json of trials whose line in results.jsonl was lost in a crash.

    `missing` has the trials without a final line, with their attempts that have a line. A note reports the number.
    """
    if not (run_dir / TRIALS_NAME).is_dir():
        return
    found = 0
    for (task, seed), tried in missing.items():
        for attempt, directory in sorted(attempts(run_dir, task, seed).items()):
            file = directory / TRIAL_RESULT_NAME
            if attempt in tried or not file.exists():
                continue
            try:
                result = TrialResult.model_validate_json(_read_bytes(file))
            except ValidationError as error:
                notes.append(f"{file}: {first_problem(error, 'file')}; its trial has no result")
                continue
            if (result.task, result.seed, result.attempt) == (task, seed, attempt):
                found += 1
                yield result
    if found:
        notes.append(f"{counted(found, 'result')} had no line in {RESULTS_NAME} and came from {TRIAL_RESULT_NAME}")


def _read_import(results_file: Path, run_dir: Path, name: str, each: TakeResult) -> StoredRun:
    notes: list[str] = []
    tasks, seeds, models = set[str](), set[int](), set[str | None]()
    for result in _each_result(_whole_lines(results_file, notes, _result_line), name, notes):
        tasks.add(result.task)
        seeds.add(result.seed)
        models.add(result.model)
        each(result)
    if not tasks:
        raise RunUnreadable(f"{results_file}: has no results; each line needs task, seed and reward")
    notes.append(f"no {CONFIG_NAME}: the plan is derived from the results, so trials that never ran are missing")
    return StoredRun(
        path=run_dir,
        name=name,
        planned_tasks=sorted(tasks),
        planned_seeds=sorted(seeds),
        results=[],
        model=models.pop() if len(models) == 1 else None,
        imported=True,
        notes=tuple(notes),
    )


def read_run_document(file: Path) -> RunDocument:
    """Read a run.json of tbench. Raises RunUnreadable."""
    plan = _read_plan(file)
    if (imported := _imported_plan(file, plan)) is not None:
        what = imported.imported.source or imported.imported.format
        raise RunUnreadable(f"{file}: was imported from {what!r}, so it cannot be continued; start a new run")
    document = _document(file, plan)
    if document is None:
        raise RunUnreadable(f"{file}: has no configuration, so the run cannot be continued; start a new run")
    return document


def _document(file: Path, plan: dict[str, Any]) -> RunDocument | None:
    """Validate a run.json of tbench; None for a plan of another program."""
    try:
        return read_document(plan)
    except ForeignRunDocument:
        return None
    except ValueError as error:
        raise RunUnreadable(f"{file}: {one_line(str(error))}; restore it or delete the run") from None


def _imported_plan(file: Path, plan: dict[str, Any]) -> ImportedPlan | None:
    """Validate a run.json of an import; None for all others."""
    try:
        return imported_plan(plan)
    except ValueError as error:
        raise RunUnreadable(f"{file}: {error}; import it again") from None


def text_or_none(value: object) -> str | None:
    """Return a text unchanged; None for an empty one and for any other type."""
    return value if isinstance(value, str) and value else None


def _read_plan(file: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Read run.json and check its plan. Raises RunUnreadable.

    If it is missing or damaged, its copy from the start of the run is read instead, with a note.
    """
    try:
        config = _json_object(file)
    except RunUnreadable as damage:
        try:
            config = _json_object(file.with_name(BEGUN_NAME))
        except RunUnreadable:
            raise damage from None
        if notes is not None:
            notes.append(f"{str(damage).partition(';')[0]}; using {BEGUN_NAME} from the start of the run instead")
    try:
        if "schema_version" in config:
            refuse_other_version(config, RUN_SCHEMA_VERSION)
    except ValueError as error:
        raise RunUnreadable(f"{file}: {error}") from None
    tasks, seeds = config.get("tasks"), config.get("seeds")
    if not isinstance(tasks, list) or not all(_names_a_task(task) for task in tasks):
        raise RunUnreadable(f"{file}: `tasks` is not a list of objects with a name; restore it or delete the run")
    if not isinstance(seeds, list) or not all(type(seed) is int for seed in seeds):
        raise RunUnreadable(f"{file}: `seeds` is not a list of whole numbers; restore it or delete the run")
    if len({task["name"] for task in tasks}) < len(tasks) or len(set(seeds)) < len(seeds):
        raise RunUnreadable(f"{file}: a task or a seed is listed twice; remove the duplicate")
    return config


def _json_object(file: Path) -> dict[str, Any]:
    data = _read_bytes(file)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError alike
        what = f"not JSON ({one_line(str(error))})" if data.strip(b"\0 \t\r\n") else "empty, perhaps after a power cut"
        raise RunUnreadable(f"{file}: {what}; restore it, or move it away to see only the results") from None
    if not isinstance(content, dict):
        raise RunUnreadable(f"{file}: not a JSON object; restore it or delete the run")
    return content


def _names_a_task(task: object) -> bool:
    return isinstance(task, dict) and isinstance(task.get("name"), str)


def json_lines(file: Path, notes: list[str]) -> Iterator[JsonLine]:
    """Yield the JSON objects of a .jsonl file. A last line that is not JSON is incomplete: it is ignored with a note.

    Raises RunUnreadable.
    """
    return _whole_lines(file, notes, _json_line)


def _json_line(where: str, raw: bytes) -> JsonLine:
    """Read a line. Raises ValueError or RecursionError if it is not JSON, and RunUnreadable if it is no object."""
    data = json.loads(raw)
    if not isinstance(data, dict):
        raise RunUnreadable(f"{where}: not a JSON object; remove or repair this line")
    return JsonLine(where, data)


def _result_line(where: str, raw: bytes) -> JsonLine | TrialResult:
    """Read a line like `_json_line`; one that tbench wrote is validated while it is parsed, in half of the time."""
    if raw.startswith(_OWN_LINE):
        with contextlib.suppress(ValidationError):  # the line is read once more below, to say what is wrong
            return TrialResult.model_validate_json(raw)
    return _json_line(where, raw)


def _whole_lines(file: Path, notes: list[str], read: Callable[[str, bytes], LineT]) -> Iterator[LineT]:
    torn: tuple[str, Exception] | None = None
    for number, raw in _raw_lines(file):
        if torn is not None:
            where, problem = torn
            raise RunUnreadable(f"{where}: not JSON ({one_line(str(problem))}); remove or repair this line") from None
        where = f"{file}:{number}"
        try:
            line = read(where, raw)
        except RunUnreadable:
            raise
        except (ValueError, RecursionError) as error:
            torn = where, error
            continue
        yield line
    if torn is not None:
        notes.append(f"{torn[0]}: the last line is incomplete and was ignored")


def _raw_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-blank lines with their numbers, without loading the file, which may be large."""
    try:
        with file.open("rb") as lines:
            yield from ((number, raw) for number, raw in enumerate(lines, start=1) if raw.strip())
    except OSError as error:
        raise _unreadable(file, error) from None


def read_result_lines(lines: Iterable[JsonLine], run: str, notes: list[str]) -> list[TrialResult]:
    """Return the results in lines of tbench or of other programs; ignored values of the latter are reported in `notes`.

    Raises RunUnreadable.
    """
    return [_slim(result) for result in _each_result(lines, run, notes)]


def _each_result(lines: Iterable[JsonLine | TrialResult], run: str, notes: list[str]) -> Iterator[TrialResult]:
    left_out: Counter[str] = Counter()
    seen: dict[tuple[object, ...], str] = {}
    for line in lines:
        if isinstance(line, TrialResult):
            yield line
            continue
        if "schema_version" in line.data:
            yield _own_result(line)
            continue
        result = _imported_result(line, run, left_out)
        _refuse_repeat(result, line.where, seen)
        yield result
    notes.extend(f"{what} ignored in {count} imported lines" for what, count in sorted(left_out.items()))


def _own_result(line: JsonLine) -> TrialResult:
    try:
        refuse_other_version(line.data, RESULT_SCHEMA_VERSION)
    except ValueError as error:
        raise RunUnreadable(f"{line.where}: {error}") from None
    return _validate(line.data, line.where)


def _imported_result(line: JsonLine, run: str, left_out: Counter[str]) -> TrialResult:
    """Convert a line of another program: values that fit tbench's fields are kept, others counted in `left_out`."""
    missing = sorted(_IMPORT_KEYS - line.data.keys())
    if missing:
        raise RunUnreadable(f"{line.where}: lacks {', '.join(missing)}; a result needs task, seed and reward")
    known = {key: value for key, value in line.data.items() if key in _OWN_KEYS}
    left_out.update(f"key {key!r}" for key in line.data.keys() - known.keys())
    defaults: dict[str, Any] = {
        "run": run,
        "trial": f"{known['task']}/seed-{known['seed']}",
        "agent": UNKNOWN_AGENT,
        "started_at": UNKNOWN_TIME,
        "finished_at": UNKNOWN_TIME,
    }
    unfit = _unfit_keys({**defaults, **known}) - _IMPORT_KEYS
    left_out.update(f"foreign value of {key!r}" for key in unfit)
    fit = {key: value for key, value in known.items() if key not in unfit}
    if {"started_at", "finished_at"} <= fit.keys():
        defaults["timings"] = {"wall_sec": _seconds_between(fit["started_at"], fit["finished_at"])}
    return _validate({**defaults, **fit}, line.where)


def _unfit_keys(data: dict[str, Any]) -> set[str]:
    try:
        TrialResult.model_validate(data)
    except ValidationError as error:
        return {str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}
    return set()


def _seconds_between(start: object, end: object) -> float:
    try:
        return max(0.0, (datetime.fromisoformat(str(end)) - datetime.fromisoformat(str(start))).total_seconds())
    except (ValueError, TypeError):  # TypeError: one with and one without a time zone
        return 0.0


def _refuse_repeat(result: TrialResult, where: str, seen: dict[tuple[object, ...], str]) -> None:
    """Reject a second imported line for the same trial, which would mix runs or models in one score."""
    key = (result.model, result.task, result.seed, result.attempt)
    if key in seen:
        raise RunUnreadable(
            f"{where}: task {result.task!r} seed {result.seed} is already in {seen[key]}; "
            "give repeats different seeds and keep one run per file"
        )
    seen[key] = where


def _validate(data: dict[str, Any], where: str) -> TrialResult:
    try:
        return TrialResult.model_validate(data)
    except ValidationError as error:
        raise RunUnreadable(f"{where}: {first_problem(error)}; remove or repair this line") from None


@cache
def _all_fields(kind: type[Frozen]) -> set[str]:
    return set(kind.model_fields)


@lru_cache(maxsize=1 << 17)  # more entries than tasks, because results are ordered by seed
def _share_origin(origin: ImageOrigin) -> ImageOrigin:
    """Return the first origin that is equal to this one, so that equal origins are stored once."""
    return origin


@cache
def _is_frozen(kind: Hashable) -> bool:
    """Whether a class is a model. Cached for each class, because `isinstance` is slow for models."""
    return isinstance(kind, type) and issubclass(kind, Frozen)


def _slim(result: TrialResult) -> TrialResult:
    """Reduce the memory of a result to a third by sharing values that many results have in common.

    The record of explicitly set fields is dropped, because it is not used.
    """
    held = result.__dict__
    for name in _SHARED_TEXTS:
        if isinstance(value := held[name], str):
            held[name] = sys.intern(value)
    for name, value in held.items():
        if _is_frozen(value.__class__):
            # Compared only with its like: a comparison of models takes as long as a copy.
            is_usual = value.__class__ is Integrity and value == NOTHING_SEEN
            held[name] = NOTHING_SEEN if is_usual else _compact(value)
    if result.image_origin is not None:
        held["image_origin"] = _share_origin(result.image_origin)
    return _compact(result)


def _compact(model: FrozenT) -> FrozenT:
    """Return a copy whose attributes are set one by one, so that all objects of the class share their key table."""
    small, setting = object.__new__(type(model)), object.__setattr__
    for name, value in model.__dict__.items():
        setting(small, name, value)
    setting(small, "__pydantic_fields_set__", _all_fields(type(model)))
    setting(small, "__pydantic_extra__", None)
    setting(small, "__pydantic_private__", None)
    return small


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> RunUnreadable:
    return RunUnreadable(f"{file}: {error.strerror or error}; check the path and its permissions")
