"""Export of runs as Harbor jobs, in the layout and with the records of version 0.26."""

from __future__ import annotations

import hashlib
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from harness.trajectory import Outcome, Usage
from tbench.errors import UsageError
from tbench.exchange.atif import agent_and_version, atif_document
from tbench.exchange.selection import ExportedTrial, LeftOutTrials, TrialChoice, select_trials
from tbench.files import safe_relative, write_json
from tbench.results import TaskStepResult, TrialResult, WentOn
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import RECORDING_NAME, TRAJECTORY_NAME
from tbench.text import replace_unseen

# Harbor's names for the ways in which a trial ends early
#
# Names and groups are from harbor/models/trial/error_policy.py (0.26). Other errors keep their names.

_OUTCOMES = {
    Outcome.AGENT_TIMEOUT: ("AgentTimeoutError", "the agent's time was over"),
    Outcome.CONTEXT_LIMIT: ("ContextLengthExceededError", "the context was full"),
    Outcome.TOKEN_LIMIT: ("OutputTokenExceededError", "all tokens of the trial were used up"),
}
"""Outcomes of an agent that are exceptions in Harbor; a reward counts in spite of them."""
_ERRORS = {
    "image_build_failed": "SandboxBuildFailedError",
    "healthcheck_failed": "HealthcheckError",
    "endpoint_unavailable": "ApiConnectionError",
    "endpoint_refused": "BadRequestError",
    "request_too_large": "BadRequestError",
    "never_answered": "BadRequestError",
    "agent_crashed": "NonZeroAgentExitCodeError",
    "verifier_timeout": "VerifierTimeoutError",
    "verifier_no_reward": "RewardFileNotFoundError",
    "verifier_bad_reward": "VerifierOutputParseError",
}


def exception_info(
    ended: TrialResult | TaskStepResult, occurred_at: datetime, directory: Path
) -> dict[str, Any] | None:
    """Return the record of the exception that ended a trial or task step early; None without one."""
    if (error := ended.error) is not None:
        type_, message = _ERRORS.get(error.type, error.type), f"{error.type}: {error.message}"
    elif ended.outcome in _OUTCOMES:
        type_, message = _OUTCOMES[ended.outcome]
    else:
        return None
    try:
        traceback = (directory / "traceback.txt").read_text(encoding="utf-8", errors="replace")
    except OSError:
        traceback = ""
    return {
        "exception_type": type_,
        "exception_message": message,
        "exception_traceback": traceback,
        "occurred_at": occurred_at.isoformat(),
    }


# Harbor's records of trials and jobs (harbor/models/trial/result.py and harbor/models/job/, 0.26)

_LONGEST_TASK = 32
_WITHOUT_DATASET = "adhoc"
"""Harbor's name for tasks without a dataset."""

Record = dict[str, Any]


def trial_name(result: TrialResult) -> str:
    """Return the name of the trial's directory: the task's name, truncated like Harbor's, and a stable 7-char hash."""
    digest = hashlib.sha256(f"{result.run}/{result.trial}/{result.attempt}".encode()).hexdigest()
    task = replace_unseen(result.task[:_LONGEST_TASK].rstrip("_-"), "?").replace("/", "-")
    return f"{task}__{digest[:7]}"


def trial_record(trial: ExportedTrial, job: Path, job_id: uuid.UUID) -> Record:
    """Return the content of a trial's result.json in the job directory `job`."""
    result, run = trial.result, trial.run
    phases = _Phases(result.started_at)
    model = None if result.model is None else {"name": result.model, "provider": None}
    begun = [step for step in result.task_steps if step.begun]
    setup = phases.next(result.timings.sandbox_sec - sum(step.timings.sandbox_sec for step in begun))
    steps = [_step_record(trial, step, phases) for step in begun]
    return {
        "id": str(uuid.uuid5(job_id, f"{result.trial}/{result.attempt}")),
        "task_name": result.task,
        "trial_name": trial_name(result),
        "trial_uri": (job / trial_name(result)).as_uri(),
        "task_id": _task_id(run, result.task),
        "source": _source(run),
        "task_checksum": run.task_hashes.get(result.task, ""),
        "config": trial_config(trial, job, job_id),
        "agent_info": {**agent_and_version(result.agent, run), "model_info": model},
        # As in Harbor, the counts of a task with several steps are only in its steps.
        "agent_result": None if steps else _context(result.usage, result.steps, result.outcome, result.went_on),
        "verifier_result": _rewards(result),
        "exception_info": None if steps else exception_info(result, result.finished_at, trial.directory),
        "started_at": result.started_at.isoformat(),
        "finished_at": result.finished_at.isoformat(),
        "environment_setup": setup,
        "agent_setup": None,
        "agent_execution": None if steps else phases.next(result.timings.agent_sec),
        "verifier": None if steps else phases.next(result.timings.verifier_sec),
        "step_results": steps or None,
        # A reward is never stored beside an error, and the outcomes that are exceptions leave it valid.
        "reward_valid": result.reward is not None,
    }


def trial_config(trial: ExportedTrial, job: Path, job_id: uuid.UUID) -> Record:
    """Return the content of a trial's config.json. Harbor has no seeds, so they are in the agent's arguments."""
    result = trial.result
    agent = _agent(trial.run, result.agent, result.model)
    return {
        "task": {**_task_id(trial.run, result.task), "source": _source(trial.run)},
        "trial_name": trial_name(result),
        "trials_dir": str(job),
        "agent": {**agent, "kwargs": {**agent["kwargs"], "seed": result.seed, "attempt": result.attempt}},
        "job_id": str(job_id),
    }


def job_config(run: StoredRun, job: Path) -> Record:
    """Return the content of a job's config.json."""
    agent = next((result.agent for result in run.results), "unknown")
    document = run.document
    concurrency = document.config.schedule.at_once if document is not None else 1
    return {
        "job_name": job.name,
        "jobs_dir": str(job.parent),
        "n_attempts": max(1, len(run.planned_seeds)),
        "n_concurrent_trials": concurrency,
        "agents": [_agent(run, agent if document is None else document.locked.agent, run.model)],
        "tasks": [{**_task_id(run, task), "source": _source(run)} for task in run.planned_tasks],
    }


def job_record(run: StoredRun, job_id: uuid.UUID, trials: Sequence[TrialResult]) -> Record:
    """Return the content of a job's result.json for the exported trials."""
    started_at = min((result.started_at for result in trials), key=datetime.timestamp).isoformat()
    finished_at = max((result.finished_at for result in trials), key=datetime.timestamp).isoformat()
    planned = max(len(trials), len(run.planned_tasks) * len(run.planned_seeds))
    failed = [result for result in trials if _exception_types(result)]
    return {
        "id": str(job_id),
        "started_at": started_at,
        "updated_at": finished_at,
        "finished_at": finished_at if len(trials) == planned else None,
        "n_total_trials": planned,
        "stats": {
            "n_completed_trials": len(trials),
            "n_errored_trials": len(failed),
            "n_running_trials": 0,
            "n_pending_trials": planned - len(trials),
            "n_cancelled_trials": 0,
            "n_retries": sum(not result.final for result in run.results),
            "evals": _evaluations(run, trials),
            **_counts(sum((result.usage for result in trials), Usage())),
        },
    }


class _Phases:
    """Start and end times of a trial's consecutive phases, computed from the stored durations."""

    def __init__(self, started_at: datetime) -> None:
        self._at = started_at

    def next(self, seconds: float) -> Record:
        """Return the start and end of the next phase."""
        began, self._at = self._at, self._at + timedelta(seconds=min(max(0.0, seconds), 1e7))
        return {"started_at": began.isoformat(), "finished_at": self._at.isoformat()}


def _step_record(trial: ExportedTrial, step: TaskStepResult, phases: _Phases) -> Record:
    phases.next(step.timings.sandbox_sec)
    execution, verifier = phases.next(step.timings.agent_sec), phases.next(step.timings.verifier_sec)
    ended_at = datetime.fromisoformat(verifier["finished_at"])
    return {
        "step_name": step.name,
        "agent_result": _context(step.usage, step.steps, step.outcome),
        "verifier_result": _rewards(step),
        "exception_info": exception_info(step, ended_at, trial.directory / "steps" / step.name),
        "agent_execution": execution,
        "verifier": verifier,
    }


def _context(usage: Usage, replies: int, outcome: Outcome | None, cuts: Sequence[WentOn] = ()) -> Record:
    went_on = {"went_on": [each.model_dump(mode="json") for each in cuts]} if cuts else {}
    return {**_counts(usage), "metadata": {"n_episodes": replies, "outcome": outcome, **went_on}}


def _counts(usage: Usage) -> Record:
    is_reported = not usage.uncounted and (usage.prompt_tokens or usage.completion_tokens)
    return {
        "n_input_tokens": usage.prompt_tokens if is_reported else None,
        "n_cache_tokens": usage.cached_tokens,
        "n_output_tokens": usage.completion_tokens if is_reported else None,
        "cost_usd": None,
    }


def _rewards(result: TrialResult | TaskStepResult) -> Record | None:
    return None if result.reward is None else {"rewards": {**result.metrics, "reward": result.reward}}


def _agent(run: StoredRun, name: str, model: str | None) -> Record:
    document = run.document
    arguments: Record = {}
    if document is not None and model is not None:
        of_model = document.config.model
        arguments = {"temperature": of_model.temperature, "top_p": of_model.top_p, "max_tokens": of_model.max_tokens}
        arguments |= {"protocol": document.config.agent.protocol}
    base_url = document.locked.base_url if document is not None else None
    return {"name": name, "model_name": model, "base_url": base_url, "kwargs": arguments}


def _task_id(run: StoredRun, task: str) -> Record:
    """Return the location of a task: in the repository of the run's dataset, or a directory of its name."""
    origin = run.dataset
    if origin is None or origin.url is None:
        return {"path": task}
    path = f"{origin.path}/{task}" if origin.path else task
    return {"git_url": origin.url, "git_commit_id": origin.commit, "path": path}


def _source(run: StoredRun) -> str | None:
    return None if run.dataset is None else run.dataset.name


def _exception_types(result: TrialResult) -> list[str]:
    """Return the types of a trial's exceptions; for a task with several steps, of the steps' exceptions."""
    ended: Sequence[TrialResult | TaskStepResult] = [step for step in result.task_steps if step.begun] or [result]
    found = (exception_info(each, result.finished_at, Path()) for each in ended)
    return sorted({str(each["exception_type"]) for each in found if each is not None})


def _evaluations(run: StoredRun, trials: Iterable[TrialResult]) -> Record:
    """Return statistics by agent, model and dataset: a run has one of each."""
    found: defaultdict[str, list[TrialResult]] = defaultdict(list)
    for result in trials:
        words = [result.agent, result.model, _source(run) or _WITHOUT_DATASET]
        found["__".join(filter(None, words))].append(result)
    return {key: _statistics(of_key) for key, of_key in found.items()}


def _statistics(trials: Sequence[TrialResult]) -> Record:
    rewards: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    exceptions: defaultdict[str, list[str]] = defaultdict(list)
    valid = [found["rewards"] for found in map(_rewards, trials) if found is not None]
    for result in trials:
        for name, number in (_rewards(result) or {"rewards": {}})["rewards"].items():
            rewards[name][str(number)].append(trial_name(result))
        for type_ in _exception_types(result):
            exceptions[type_].append(trial_name(result))
    return {
        "n_trials": sum(result.reward is not None for result in trials),
        "n_errors": len({name for names in exceptions.values() for name in names}),
        "metrics": [_means(valid)] if valid else [],
        "pass_at_k": {},
        "reward_stats": {name: dict(by_number) for name, by_number in rewards.items()},
        "exception_stats": dict(exceptions),
    }


def _means(valid: Sequence[Mapping[str, float]]) -> Record:
    """Return Harbor's means over valid rewards: `mean`, or one for each name of several; a missing reward counts as
    0."""
    names = dict.fromkeys(name for rewards in valid for name in rewards)
    means = {name: sum(rewards.get(name, 0.0) for rewards in valid) / len(valid) for name in names}
    return means if len(means) > 1 else {"mean": next(iter(means.values()))}


# Job directories of Harbor: records, logs of agent and verifier, trajectories as ATIF

_RENAMED = {"stdout.txt": "test-stdout.txt"}
"""Files of the verifier that have other names in Harbor."""
_COPIED = ("agent", "verifier", "artifacts")


def write_harbor_job(run: StoredRun, choice: TrialChoice, directory: Path, job: Path, left_out: LeftOutTrials) -> int:
    """Write the chosen trials as a job into `directory`, whose final path is `job`, and return their number.

    Raises OSError, and UsageError if two trials would have the same name.
    """
    created_at = run.document.created_at if run.document is not None else ""
    job_id = uuid.uuid5(uuid.NAMESPACE_URL, f"tbench:{run.name}/{created_at}")  # the same for every export of the run
    job, written = job.resolve(), list[TrialResult]()
    for trial in select_trials(run, choice, left_out, needs_trajectory=False):
        place = directory / trial_name(trial.result)
        if place.exists():
            raise UsageError(f"{run.path}: has two results of {trial.result.trial}; remove one of them")
        place.mkdir(parents=True)
        _write_trial(trial, place)
        write_json(place / "config.json", trial_config(trial, job, job_id))
        record = trial_record(trial, job, job_id)
        if (exception := record["exception_info"]) is not None:
            text = (
                exception["exception_traceback"] or f"{exception['exception_type']}: {exception['exception_message']}"
            )
            (place / "exception.txt").write_text(f"{text}\n", encoding="utf-8", errors="replace")
        write_json(place / "result.json", record)
        written.append(trial.result)
    if written:
        write_json(directory / "config.json", job_config(run, job))
        write_json(directory / "result.json", job_record(run, job_id, written))
    return len(written)


def _write_trial(trial: ExportedTrial, place: Path) -> None:
    """Write the files of the trial or of each of its task steps."""
    steps = [step.name for step in trial.result.task_steps if step.begun]
    for name in steps:
        _copy_logs(trial.directory / "steps" / name, place / "steps" / safe_relative(name))
    if not steps:
        _copy_logs(trial.directory, place)
    for part in trial.parts:
        target = place if part.task_step is None else place / "steps" / safe_relative(part.task_step.name)
        if (document := atif_document(trial, part)) is not None:
            write_json(target / "agent" / TRAJECTORY_NAME, document)


def _copy_logs(directory: Path, place: Path) -> None:
    """Copy the logs of agent and verifier, the artifacts and the recording, without following links."""
    for name in _COPIED:
        if (directory / name).is_dir() and not (directory / name).is_symlink():
            shutil.copytree(directory / name, place / name, symlinks=True)
    for old, new in _RENAMED.items():
        if (file := place / "verifier" / old).is_file():
            file.replace(place / "verifier" / new)
    if (directory / RECORDING_NAME).is_file():
        (place / "agent").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(directory / RECORDING_NAME, place / "agent" / "recording.cast")
