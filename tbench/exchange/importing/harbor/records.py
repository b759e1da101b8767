"""Files of Harbor jobs: how to find them below a directory, and the schema of result.json in versions 0.6 to 0.26.

Additional keys are accepted, so that later versions can be read, too. The schema follows harbor/models/trial/result.py,
agent/context.py and verifier/result.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tbench.errors import UsageError
from tbench.exchange.importing.foreign_files import is_directory, is_file, object_or_none

Time = Annotated[datetime, AfterValidator(lambda time: time if time.tzinfo is not None else time.replace(tzinfo=UTC))]
"""A time; the few times of Harbor without a time zone are assumed to be in UTC."""


class HarborRecord(BaseModel):
    """An object of Harbor, with additional keys kept separately."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


class Span(HarborRecord):
    """Start and end of a phase."""

    started_at: Time | None = None
    finished_at: Time | None = None

    @property
    def seconds(self) -> float:
        if self.started_at is None or self.finished_at is None:
            return 0.0
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


class Policy(HarborRecord):
    """Consequences of an exception in its job, from 0.26 on; None if not recorded."""

    should_retry: bool | None = None
    has_valid_reward: bool | None = None


class Raised(HarborRecord):
    """An exception that ended a trial or task step."""

    exception_type: str
    exception_message: str = ""
    exception_traceback: Any = None
    policy: Policy | None = None
    policy_override: Any = None
    occurred_at: Any = None


class Context(HarborRecord):
    """Counts of the agent; input tokens include cached ones."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None
    model_usage: Any = None
    rollout_details: Any = None
    metadata: dict[str, Any] | None = None


class Verified(HarborRecord):
    """The verifier's rewards by name."""

    rewards: dict[str, Any] | None = None


class ModelName(HarborRecord):
    """A model, given as PROVIDER/NAME."""

    name: str
    provider: str | None = None


class AgentName(HarborRecord):
    """The agent of a trial."""

    name: str
    version: str = ""
    model_info: ModelName | None = None


class StepRecord(HarborRecord):
    """Result of a task step."""

    step_name: str
    agent_result: Context | None = None
    verifier_result: Verified | None = None
    exception_info: Raised | None = None
    agent_execution: Span | None = None
    verifier: Span | None = None


class HarborTrial(HarborRecord):
    """The content of a trial's result.json."""

    id: str = ""
    task_name: str
    trial_name: str
    trial_uri: Any = None
    task_id: dict[str, Any] = Field(default={})
    source: str | None = None
    task_checksum: str | None = None
    config: dict[str, Any] = Field(default={})
    agent_info: AgentName
    agent_result: Context | None = None
    verifier_result: Verified | None = None
    verifier_environment_mode: Any = None
    exception_info: Raised | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    environment_setup: Span | None = None
    agent_setup: Span | None = None
    agent_execution: Span | None = None
    verifier: Span | None = None
    step_results: tuple[StepRecord, ...] | None = None
    reward_valid: bool | None = None
    """Whether its reward counts; None before version 0.26, in which the reward of every trial counts."""

    @property
    def model(self) -> str | None:
        """Name of the model, without provider."""
        return self.agent_info.model_info.name if self.agent_info.model_info is not None else None

    @property
    def contexts(self) -> tuple[Context, ...]:
        """Counts of the trial, or of each task step."""
        if self.agent_result is not None:
            return (self.agent_result,)
        return tuple(step.agent_result for step in self.step_results or () if step.agent_result is not None)

    @property
    def rewards(self) -> dict[str, Any] | None:
        return self.verifier_result.rewards if self.verifier_result is not None else None


def unknown_keys(record: HarborRecord, at: str = "") -> Iterator[str]:
    """Yield the dotted names of keys that are not in the schema."""
    yield from (f"{at}{key}" for key in record.model_extra or ())
    for name in type(record).model_fields:
        value = getattr(record, name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, HarborRecord):
                yield from unknown_keys(part, f"{at}{name}.")


# Jobs and trials of Harbor below a directory

CONFIG, RESULT, LOCK = "config.json", "result.json", "lock.json"
_FOLDERS_OF_A_TRIAL = ("agent", "verifier", "artifacts")
_FILES_OF_A_TRIAL = ("trial.log", "exception.txt")
_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class JobPlace:
    """A job's directory, or trials that were given individually."""

    name: str
    directory: Path | None
    trials: tuple[Path, ...]
    links: tuple[str, ...] = ()
    """Names of links, which are not followed."""


def find_jobs(paths: Sequence[Path]) -> list[JobPlace]:
    """Find the jobs in or at these directories; individually given trials become one job. Raises UsageError."""
    jobs: list[JobPlace] = []
    trials: list[Path] = []
    for path in (path.resolve() for path in paths):
        if not path.is_dir():
            raise UsageError(f"{path}: no such directory; give a job of Harbor, a directory of jobs, or trials")
        if _is_trial(path):
            trials.append(path)
        else:
            jobs += _jobs_in(path)
    if trials:
        parents = {trial.parent for trial in trials}
        name = trials[0].name if len(trials) == 1 else parents.pop().name if len(parents) == 1 else "trials"
        jobs.append(JobPlace(name, None, tuple(dict.fromkeys(trials))))
    return jobs


def _jobs_in(path: Path) -> list[JobPlace]:
    if (job := _job(path)) is not None:
        return [job]
    found = [job for folder in _folders(path) if (job := _job(folder)) is not None]
    if found:
        return found
    if is_file(path / CONFIG):
        raise UsageError(f"{path}: is a job without trials, so there is nothing to import")
    raise UsageError(
        f"{path}: is neither a job nor a trial of Harbor; give a directory with a {RESULT} per trial, "
        "or a directory of jobs (usually jobs/)"
    )


def _job(path: Path) -> JobPlace | None:
    trials = tuple(folder for folder in _folders(path) if _is_trial(folder))
    links = tuple(sorted(entry.name for entry in path.iterdir() if entry.is_symlink()))
    return JobPlace(path.name, path, trials, links) if trials else None


def _folders(path: Path) -> Iterator[Path]:
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; check its permissions") from None
    return (entry for entry in entries if is_directory(entry) and not entry.name.startswith("."))


def _is_trial(path: Path) -> bool:
    if any(is_file(path / name) for name in _FILES_OF_A_TRIAL):
        return True
    if any(_is_part_of_trial(path / name) for name in _FOLDERS_OF_A_TRIAL):
        return True
    config = object_or_none(path / CONFIG)
    if config is not None and isinstance(config.get("task"), dict):
        return True
    return is_file(path / RESULT) and b'"task_name"' in _head(path / RESULT)


def _is_part_of_trial(folder: Path) -> bool:
    """Whether `folder` is part of a trial, not a trial or job of the same name."""
    return is_directory(folder) and not is_file(folder / CONFIG) and not is_file(folder / RESULT)


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_HEAD_BYTES)
    except OSError:
        return b""
