"""Converts a Harbor trial to a tbench result, and writes its files."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from harness.trajectory import Outcome, Trajectory, Usage
from tbench.exchange.importing.foreign_files import (
    LARGEST_BYTES,
    UnusableFile,
    files_below,
    is_directory,
    is_file,
    object_or_none,
    read_bytes,
    read_object,
)
from tbench.exchange.importing.harbor.records import CONFIG, LOCK, RESULT, Context, HarborTrial, Span, StepRecord
from tbench.exchange.importing.harbor.trajectory import is_submission, objects_in, read_trajectory
from tbench.exchange.importing.harbor.verdict import HarborVerdict, judge, numbers
from tbench.files import safe_relative
from tbench.results import UNKNOWN_TIME, Integrity, TaskStepResult, Timings, TrialResult
from tbench.storage.record_directory import first_problem
from tbench.storage.run_files import RECORDING_NAME, trial_directory
from tbench.storage.run_store import StepLog, write_files, write_trial
from tbench.text import counted
from tbench.verifier_logs import Logs

# Counts and durations of a Harbor trial

_REPLIES, _REQUEST_TIMES = "n_episodes", "api_request_times_msec"
"""Metadata of Terminus-2's context that is used here."""


def reply_count(contexts: Sequence[Context], trajectory: Trajectory | None) -> int:
    """Return the number of replies of the model."""
    if trajectory is not None:
        return len(trajectory.steps)
    counts = [(context.metadata or {}).get(_REPLIES) for context in contexts]
    return sum(count for count in counts if type(count) is int and count > 0)


def total_usage(contexts: Sequence[Context], trajectory: Trajectory | None) -> Usage:
    """Return the token counts that the agent reported, which include its summaries, or else the sum over the steps."""
    reported = [context for context in contexts if context.n_input_tokens or context.n_output_tokens]
    if not reported:
        return trajectory.usage if trajectory is not None else Usage()
    counts = (
        Usage(
            prompt_tokens=context.n_input_tokens or 0,
            completion_tokens=context.n_output_tokens or 0,
            cached_tokens=context.n_cache_tokens,
        )
        for context in reported
    )
    return sum(counts, Usage())


def make_timings(record: HarborTrial, steps: Sequence[TaskStepResult], trajectory: Trajectory | None) -> Timings:
    """Return the seconds by phase. The agent's installation counts as part of the sandbox's time."""
    whole = Span(started_at=record.started_at, finished_at=record.finished_at).seconds
    of_steps = [step.timings for step in steps]
    sandbox = span_seconds(record.environment_setup) + span_seconds(record.agent_setup)
    agent = sum(each.agent_sec for each in of_steps) if of_steps else span_seconds(record.agent_execution)
    verifier = sum(each.verifier_sec for each in of_steps) if of_steps else span_seconds(record.verifier)
    return Timings(
        sandbox_sec=sandbox,
        agent_sec=agent,
        model_sec=min(agent, model_sec(record.contexts) or (trajectory.model_sec if trajectory is not None else 0.0)),
        command_sec=min(agent, trajectory.command_sec if trajectory is not None else 0.0),
        verifier_sec=verifier,
        wall_sec=whole or sandbox + agent + verifier,
    )


def model_sec(contexts: Sequence[Context]) -> float:
    """Return the seconds of requests, which Terminus-2 records."""
    lists = [(context.metadata or {}).get(_REQUEST_TIMES) for context in contexts]
    times = [time for times in lists if isinstance(times, list) for time in times]
    return sum(time for time in times if isinstance(time, int | float) and 0 <= time < 1e9) / 1000


def span_seconds(span: Span | None) -> float:
    """Return the seconds of a phase; 0 if not recorded."""
    return span.seconds if span is not None else 0.0


def start_and_end(record: HarborTrial) -> tuple[datetime, datetime]:
    """Return start and end of the trial; 1970 if not recorded."""
    spans = (record.environment_setup, record.agent_setup, record.agent_execution, record.verifier)
    ends = [span.finished_at for span in spans if span is not None and span.finished_at is not None]
    begun = record.started_at or UNKNOWN_TIME
    return begun, record.finished_at or max(ends, default=begun)


_RENAMED = {"test-stdout.txt": "stdout.txt", "test-stderr.txt": "stderr.txt"}
_OUTPUT = "test-stdout.txt"
_KEPT = ("exception.txt", "trial.log")
_THEIR_RECORDING = "recording.cast"
_STEP_LIMITS = ("max_turns", "max_episodes", "max_steps", "step_limit")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_STEPS = "steps"


@dataclass(frozen=True, slots=True)
class FoundTrial:
    """A trial's directory and result.json."""

    directory: Path
    record: HarborTrial

    @property
    def order(self) -> tuple[float, str]:
        """Sort key by start; trials without a time come last."""
        begun = self.record.started_at
        return (begun.timestamp() if begun is not None else float("inf"), self.record.trial_name)

    @property
    def task_digest(self) -> str | None:
        """Hash of the task's content from the job's lock file (Harbor 0.25 and later), made as tbench makes it."""
        lock = (object_or_none(self.directory / LOCK) or {}).get("task")
        found = _DIGEST.fullmatch(str(lock.get("digest"))) if isinstance(lock, dict) else None
        return found[1] if found else None


def read_trial(directory: Path) -> FoundTrial:
    """Read a trial's result.json. Raises UnusableFile."""
    content = read_object(directory / RESULT)
    for holder in (content, *objects_in(content.get("step_results"))):
        _drop_large_values(holder)
    try:
        return FoundTrial(directory, HarborTrial.model_validate(content))
    except ValidationError as error:
        raise UnusableFile(f"is not the result of a trial: {first_problem(error, 'file')}") from None


def _drop_large_values(holder: dict[str, Any]) -> None:
    """Remove large values that are not used, because all trials of a job are kept in memory."""
    if isinstance(raised := holder.get("exception_info"), dict):
        raised.pop("exception_traceback", None)
    if isinstance(context := holder.get("agent_result"), dict):
        context.pop("rollout_details", None)
        metadata = context.get("metadata")
        known = metadata if isinstance(metadata, dict) else {}
        context["metadata"] = {name: known[name] for name in (_REPLIES, _REQUEST_TIMES) if name in known}


def task_without_result(directory: Path) -> str | None:
    """Return the task of a trial without result.json, from its config.json; None if unknown."""
    task = (object_or_none(directory / CONFIG) or {}).get("task")
    if not isinstance(task, dict):
        return None
    name = task.get("path") or task.get("name")
    return last_part(name) if isinstance(name, str) else None


def short_name(record: HarborTrial) -> str | None:
    """Return the name of the task's directory, which is the task's name in tbench; None if invalid."""
    path = record.task_id.get("path")
    return (last_part(path) if isinstance(path, str) else None) or last_part(record.task_name)


def last_part(name: str) -> str | None:
    """Return the last part of a path or of `ORG/NAME`; None if it is not valid for a directory."""
    last = PurePosixPath(name.replace("\\", "/")).name
    return last if last and last not in (".", "..") and last.isprintable() and len(last.encode()) <= 200 else None


class TrialWriter:
    """Converts the trials of a run one by one, and counts what could not be imported."""

    def __init__(self, run: str, directory: Path, metric: str | None) -> None:
        self._run, self._directory, self._metric = run, directory, metric
        self._left_out: Counter[str] = Counter()
        """Number of trials by description of what was left out."""
        self._examples: dict[str, Path] = {}

    def write(self, found: FoundTrial, task: str, seed: int) -> TrialResult:
        """Write a trial's files and return its result. Raises OSError."""
        record = found.record
        trajectory = self._trajectory(found.directory / "agent", record)
        steps = self._steps(found, task, seed)
        result = self._result(found, task, seed, trajectory, steps)
        target = trial_directory(self._directory, task, seed)
        self._copy(found.directory, target)
        write_trial(target, result, _write_steps(target, trajectory, result), {})
        return result

    def _result(
        self,
        found: FoundTrial,
        task: str,
        seed: int,
        trajectory: Trajectory | None,
        steps: Sequence[tuple[TaskStepResult, Trajectory | None]],
    ) -> TrialResult:
        record = found.record
        raised = record.exception_info or next(
            (step.exception_info for step in record.step_results or () if step.exception_info is not None), None
        )
        verdict = judge(record, raised, self._metric, _logs(found.directory))
        count = sum(step.steps for step, _ in steps) or reply_count(record.contexts, trajectory)
        outcome = steps[-1][0].outcome if steps else _outcome(record, verdict, trajectory, count)
        begun, ended = start_and_end(record)
        return TrialResult(
            run=self._run,
            trial=record.trial_name,
            task=task,
            seed=seed,
            agent=record.agent_info.name,
            model=record.model,
            reward=verdict.reward,
            metrics=verdict.metrics,
            outcome=outcome,
            error=verdict.error,
            steps=count,
            usage=total_usage(record.contexts, trajectory),
            timings=make_timings(record, [step for step, _ in steps], trajectory),
            started_at=begun,
            finished_at=ended,
            integrity=Integrity(
                remarks=verdict.remarks,
                verify="separate" if record.verifier_environment_mode == "separate" else "shared",
            ),
            out_of_memory=verdict.out_of_memory,
            task_steps=tuple(step for step, _ in steps),
        )

    # -- steps of a task ---------------------------------------------------------------------------

    def _steps(self, found: FoundTrial, task: str, seed: int) -> list[tuple[TaskStepResult, Trajectory | None]]:
        """Convert the task steps and write their files."""
        home = trial_directory(self._directory, task, seed) / _STEPS
        made = []
        for record in found.record.step_results or ():
            name = safe_relative(record.step_name.replace("/", "_"))
            source = found.directory / _STEPS / name
            trajectory = self._trajectory(source / "agent", found.record)
            step = self._step(record, found.record, source, str(name), trajectory)
            self._copy(source, home / name)
            write_files(home / name, _write_steps(home / name, trajectory, step), {})
            made.append((step, trajectory))
        return made

    def _step(
        self, record: StepRecord, trial: HarborTrial, source: Path, name: str, trajectory: Trajectory | None
    ) -> TaskStepResult:
        verdict = judge(record, record.exception_info, self._metric, _logs(source))
        contexts = (record.agent_result,) if record.agent_result is not None else ()
        count = reply_count(contexts, trajectory)
        return TaskStepResult(
            name=name,
            reward=verdict.reward,
            metrics=numbers((record.verifier_result and record.verifier_result.rewards) or {}),
            outcome=_outcome(trial, verdict, trajectory, count, began=record.agent_execution is not None),
            error=verdict.error,
            steps=count,
            usage=total_usage(contexts, trajectory),
            timings=Timings(
                agent_sec=span_seconds(record.agent_execution),
                model_sec=model_sec(contexts),
                verifier_sec=span_seconds(record.verifier),
                wall_sec=span_seconds(record.agent_execution) + span_seconds(record.verifier),
            ),
        )

    # -- files -------------------------------------------------------------------------------------

    def _trajectory(self, folder: Path, record: HarborTrial) -> Trajectory | None:
        try:
            return read_trajectory(folder, record.agent_info.name) if is_directory(folder) else None
        except UnusableFile as problem:
            self._leave_out(f"trajectory.json {problem}", folder)
            return None

    def _copy(self, source: Path, target: Path) -> None:
        verifier = source / "verifier"
        for file in files_below(verifier):
            name = file.relative_to(verifier).as_posix()
            self._copy_file(file, target / "verifier" / safe_relative(_RENAMED.get(name, name)))
        for name in _KEPT:
            self._copy_file(source / name, target / name)
        self._copy_file(source / "agent" / _THEIR_RECORDING, target / RECORDING_NAME)

    def _copy_file(self, source: Path, target: Path) -> None:
        if not is_file(source) or not is_directory(source.parent):
            return
        if source.stat().st_size > LARGEST_BYTES:
            self._leave_out(f"{source.name} is too large to be copied", source.parent)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def _leave_out(self, what: str, where: Path) -> None:
        self._left_out[what] += 1
        self._examples.setdefault(what, where)

    def notes(self) -> list[str]:
        """Describe what was left out, one line per kind."""
        return [
            f"{what}: left out of {counted(count, 'trial')}, such as {self._examples[what]}"
            for what, count in self._left_out.items()
        ]


def _write_steps(
    target: Path, trajectory: Trajectory | None, result: TrialResult | TaskStepResult
) -> Trajectory | None:
    """Write the steps to steps.jsonl, and return the trajectory with its outcome for storage."""
    if trajectory is None:
        return None
    log = StepLog(target)
    for step in trajectory.steps:
        log.append(step)
    log.close()
    return trajectory.model_copy(update={"outcome": result.outcome, "usage": result.usage})


# -- parts of a result ---------------------------------------------------------------------------


def _logs(directory: Path) -> Logs:
    """Read the verifier's logs that show whether tests ran."""
    logs = {}
    for name in (_OUTPUT, "ctrf.json"):
        try:
            logs[_RENAMED.get(name, name)] = read_bytes(directory / "verifier" / name)
        except UnusableFile:
            continue
    return logs


def _outcome(
    record: HarborTrial, verdict: HarborVerdict, trajectory: Trajectory | None, count: int, *, began: bool | None = None
) -> Outcome | None:
    """Derive the agent's outcome if possible: Harbor does not record it."""
    if verdict.outcome is not None:
        return verdict.outcome
    if not (record.agent_execution is not None if began is None else began):
        return None
    if verdict.error is not None and verdict.error.stage != "verifier":
        return None
    if trajectory is not None and trajectory.steps and is_submission(trajectory.steps[-1]):
        return Outcome.SUBMITTED
    if verdict.error is not None and verdict.error.type == "verifier_failed":
        return None  # the cause may have ended the agent, too
    limit = _step_limit(record)
    return Outcome.STEP_LIMIT if limit is not None and count >= limit else Outcome.FINISHED


def _step_limit(record: HarborTrial) -> int | None:
    agent = record.config.get("agent")
    kwargs = agent.get("kwargs") if isinstance(agent, dict) else None
    limits = [kwargs.get(name) for name in _STEP_LIMITS] if isinstance(kwargs, dict) else []
    return next((limit for limit in limits if type(limit) is int and limit > 0), None)
