"""A stored trial: finds it by name, and builds the commands that repeat or inspect it."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shlex
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from harness.trajectory import Step, Trajectory
from tbench.config.document import RunDocument
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.results import TrialResult
from tbench.storage.read_run import RunUnreadable, read_run_document, read_steps, read_trajectory, trial_notes
from tbench.storage.record_directory import first_problem
from tbench.storage.run_files import CONFIG_NAME, TRIAL_RESULT_NAME, attempts, is_run, step_directory
from tbench.storage.trial_notes import TrialNote, of_same_trials
from tbench.text import counted, plain

NAMED = re.compile(
    r"(?P<run>.+?)/(?:trials/)?(?P<task>[^/]+)(?:/(?:seed-)?(?P<seed>\d+)(?:/attempt-(?P<attempt>\d+))?)?/?"
)
"""Name of a trial or, without a seed, of a task of a run."""


@dataclass(frozen=True)
class StoredTrial:
    """An attempt at a trial in a run directory, or one task step of it."""

    run: Path
    task: str
    seed: int
    attempt: int
    attempt_directory: Path
    task_step: str = ""
    """Name of the task step whose steps, trajectory and recording these are; empty for the whole attempt."""

    @property
    def name(self) -> str:
        """Name for the command line: RUN/TASK/SEED, the attempt if it is not the first, and the task step if any."""
        more = f"/attempt-{self.attempt}" if self.attempt > 1 else ""
        step = f"/{self.task_step}" if self.task_step else ""
        return f"{self.run}/{self.task}/{self.seed}{more}{step}"

    @property
    def directory(self) -> Path:
        """Directory of the attempt's or task step's files."""
        return step_directory(self.attempt_directory, self.task_step) if self.task_step else self.attempt_directory

    @cached_property
    def result(self) -> TrialResult | None:
        """Result of the attempt; None if it was interrupted. Raises RunUnreadable."""
        file = self.attempt_directory / TRIAL_RESULT_NAME
        try:
            return TrialResult.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise RunUnreadable(f"{file}: {first_problem(error, 'file')}; restore it or delete it") from None
        except OSError as error:
            raise RunUnreadable(f"{file}: cannot be read: {error.strerror or error}") from None

    @cached_property
    def trajectory(self) -> Trajectory | None:
        """Trajectory; None if the attempt was interrupted, or if its agent has none. Raises RunUnreadable."""
        return read_trajectory(self.directory)

    @cached_property
    def steps(self) -> list[Step]:
        """Steps, also of an interrupted attempt. Raises RunUnreadable."""
        return read_steps(self.directory)

    @cached_property
    def notes(self) -> tuple[TrialNote, ...]:
        """Notes that people wrote about the trial or its task. Raises RunUnreadable."""
        about = (note for note in trial_notes(self.run)[0] if note.is_about(self.task, self.seed))
        ids = {} if self.result is None else {(self.task, self.seed): self.result.trial}
        return of_same_trials(tuple(about), ids, [])

    @cached_property
    def document(self) -> RunDocument:
        """Content of the run's run.json. Raises RunUnreadable."""
        return read_run_document(self.run / CONFIG_NAME)


def find_trial(name: str) -> StoredTrial:
    """Find a trial by RUN/TASK/SEED or by its directory; by default its last attempt. /STEP after it names a task step.

    Raises RunUnreadable if there is none; the message suggests similar names.
    """
    found, task_step = _named(name)
    if found is None or found["seed"] is None:
        raise RunUnreadable(f"{plain(name)}: is not a trial; write RUN/TASK/SEED")
    run, task, seed = Path(found["run"]), found["task"], int(found["seed"])
    if not is_run(run):
        beside: list[str] = []
        with contextlib.suppress(OSError):
            beside += (str(place.parent) for place in run.parent.glob(f"*/{CONFIG_NAME}"))
        raise RunUnreadable(f"{run}: is not a run directory{_suggestion(str(run), beside)}")
    directories = attempts(run, task, seed)
    if not directories:
        known = [f"{run}/{place.parent.name}/{place.name[5:]}" for place in run.glob("trials/*/seed-*")]
        raise RunUnreadable(f"{run}: has no trial {task}/{seed}{_suggestion(f'{run}/{task}/{seed}', known)}")
    attempt = int(found["attempt"]) if found["attempt"] else max(directories)
    if attempt not in directories:
        raise RunUnreadable(
            f"{run}/{task}/{seed}: has {counted(len(directories), 'attempt')}, but no attempt {attempt}"
        )
    if task_step and not step_directory(directories[attempt], task_step).is_dir():
        known = [path.name for path in (directories[attempt] / "steps").glob("*")]
        raise RunUnreadable(f"{name}: has no task step {task_step}{_suggestion(task_step, known)}")
    return StoredTrial(run, task, seed, attempt, directories[attempt], task_step)


def _named(name: str) -> tuple[re.Match[str] | None, str]:
    """Return the match of a trial's name, and the name of the task step that follows it, if any."""
    found = NAMED.fullmatch(name)
    if found is None or found["seed"] is None or not is_run(Path(found["run"])):
        trial, _, last = name.rstrip("/").rpartition("/")
        whole = NAMED.fullmatch(trial.removesuffix("/steps"))
        if whole is not None and whole["seed"] is not None and last not in ("..", ".") and is_run(Path(whole["run"])):
            return whole, last
    return found, ""


def _suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(near)}?" if near else "; check the name"


# Commands that repeat or inspect a stored trial

_SETTINGS = [setting for setting in iter_settings(RunConfig) if setting.is_measured]
_SET_BY_FLAGS = {"agent.name"}
_GLOB = re.compile(r"[*?[]")


def rerun_commands(document: RunDocument) -> Callable[[str, int], str]:
    """Return a function that gives the shell command of a task and seed: `tbench run` of this trial alone.

    It has every setting that may affect the score, the run's endpoint without API key, and paths as they were given.
    """
    options = [" ".join(map(shlex.quote, words)) for words in _options(document)]

    def command(task: str, seed: int) -> str:
        only = shlex.quote(_GLOB.sub(r"[\g<0>]", task))
        trial = f"-t {only}", f"--seeds 1 --first-seed {seed}"
        return " \\\n  ".join(("tbench run", *trial, *options))

    return command


def rerun_options(document: RunDocument, changed: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """Return the options of `tbench run` that repeat a run's trials, as shell words, with some settings `changed`.

    `changed` has values by key, such as `model.max_tokens`.
    """
    words = [word for option in _options(document, apart_from=changed) for word in option]
    words += [word for key, value in changed.items() for word in ("-c", f"{key}={_setting_text(value)}")]
    return [shlex.quote(word) for word in words]


def inspection_commands(run: Path, result: TrialResult, *, has_steps: bool) -> list[tuple[str, str]]:
    """Return shell commands that inspect a stored trial, each with a description.

    Commands that need the trial's steps are included only if `has_steps`.
    """
    attempt = f"/attempt-{result.attempt}" if result.attempt > 1 else ""
    name = shlex.quote(f"{run}/{result.task}/{result.seed}{attempt}")
    found = [(f"tbench why {name}", "the outcome and its reasons, on one screen")]
    if result.steps and has_steps:
        last = result.steps
        found += [
            (f"tbench show {name} --step {last}", "a step with its full text, and the screen after it"),
            (f"tbench play {name}", "the recording of its terminal"),
            (f"tbench fork {name} --at-step {last} --k 5", "repeat it up to a step and continue differently"),
        ]
        if result.reward is not None and not result.passed and not result.human_touched:
            found.append((f"tbench blame {name}", "the step at which it failed"))
    return found


def _options(document: RunDocument, apart_from: Container[str] = ()) -> Iterator[tuple[str, ...]]:
    config, locked = document.config, document.locked
    yield "-d", config.tasks.source
    if config.tasks.registry is not None:
        yield "--registry", config.tasks.registry
    if config.agent.name != "model":
        yield "-a", config.agent.name
    for url in locked.endpoints or ((locked.base_url,) if locked.base_url is not None else ()):
        yield "--base-url", url
    if locked.model is not None:
        yield "-m", locked.model
    if config.sandbox.has_no_engine:
        yield "--engine", config.sandbox.engines[0]
    for setting in _SETTINGS:
        is_written = setting.path in _SET_BY_FLAGS or setting.path in apart_from
        if setting.value_in(config) != setting.default and not is_written:
            yield "-c", f"{setting.path}={_setting_text(setting.file_value_in(config))}"


def _setting_text(value: Any) -> str:
    """Format a value for `-c` and the environment."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
