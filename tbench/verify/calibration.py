"""Calibrations: trials of a task's oracle and of an agent that does nothing, against which other passes are compared.

Each is valid for one content of a task, one image and one architecture, and is a file in the cache of all runs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.trajectory import Frozen
from tbench.errors import UsageError
from tbench.files import cache_home, write_atomically
from tbench.results import CONTROL, INTACT, Blame, ErrorInfo, ImageOrigin
from tbench.reward import is_solved
from tbench.sandbox.archive import sums_by_path
from tbench.tasks.task import Task
from tbench.text import names_text, plain
from tbench.verifier_logs import Logs
from tbench.verify.tests_shown import NOT_FAILED, TEST_SUMS, Status, claimed_passes

CalibratingAgent = Literal["oracle", "nop"]
_NOT_RUN: frozenset[Status] = frozenset({"skipped", "xfailed", "deselected"})
"""Statuses of tests that were not run, or whose outcome decides nothing."""
_MAX_BYTES = 64 << 20


class MeasuredTrial(Frozen):
    """A trial of the oracle or of nop, an agent that does nothing, reduced to facts about its task."""

    agent: CalibratingAgent
    repetition: int
    reward: float | None
    error: ErrorInfo | None = None
    rewards: dict[str, float] = Field(default={})
    """Rewards as in `Integrity.rewards`; with task steps, the keys begin with the step's name: `STEP/shared`."""
    signs: tuple[str, ...] = ()
    """Strong signs of tampering."""
    replaced: dict[str, str] = Field(default={})
    """System paths that differed from the image, or hid a part of it, during a pass; with the start of their sha256."""
    cleared: tuple[str, ...] = ()
    """Strong signs from the trial's own container that a pass in a fresh container cleared."""
    unconfirmed: str = ""
    """Sign with the reason why no fresh container confirmed a pass."""
    tests: dict[str, dict[str, Status]] = Field(default={})
    """Statuses of the tests in its logs, by step and identity; the step is empty for a task without steps. Those of
    control tests are keyed by `control-KIND` or `STEP/control-KIND`, as in `rewards`."""
    test_files: dict[str, dict[str, str]] = Field(default={})
    """sha256 of the test files outside /tests that the output names, by step and path."""
    reward_writes: int | None = None
    """Number of reward writes in bash's trace of test.sh: 0 if another program wrote it, None without a trace."""
    solution_sec: float = 0.0
    tests_sec: float = 0.0
    memory_peak_mb: float | None = None
    out_of_memory: bool = False
    shares: dict[str, float] = Field(default={})
    """Used share of the task's limits, by `solution`, `tests` and `memory`; the largest one of several steps."""
    last_words: str = ""
    """The last line that the verifier printed."""

    @property
    def counts(self) -> bool:
        """Whether the trial says something about the task: it has a verdict, or an error that the task caused."""
        return self.error is None or self.error.blame in (Blame.TASK, Blame.AGENT)

    @property
    def error_words(self) -> str:
        """Type and message of the error; empty without one."""
        return f"{self.error.type}: {self.error.message}" if self.error is not None else ""

    @property
    def is_pass(self) -> bool:
        """Whether the trial passed in its own container or, if that was not used, in a fresh one."""
        return self.reward is not None and is_solved(self.rewards.get("shared", self.reward))

    @property
    def passes_fresh(self) -> bool | None:
        """Whether a pass was confirmed in a fresh container; None without a pass, or if that was not tried."""
        fresh = [reward for where, reward in self.rewards.items() if where.rpartition("/")[2] == "isolated"]
        if not self.is_pass or not (fresh or self.unconfirmed):
            return None
        return not self.unconfirmed and all(map(is_solved, fresh))


class Calibration(Frozen):
    """The calibrating trials of a task with one image on one architecture."""

    schema_version: Literal[3] = 3
    task: str
    task_hash: str
    image: str
    """Identity of the image, see `image_identity`."""
    architecture: str
    measured_at: datetime
    trials: tuple[MeasuredTrial, ...] = ()
    offline: MeasuredTrial | None = None
    """A trial of the oracle without a network, if that was tried."""

    def of(self, agent: CalibratingAgent) -> list[MeasuredTrial]:
        """Return the trials of an agent, ordered by repetition."""
        return sorted((each for each in self.trials if each.agent == agent), key=lambda each: each.repetition)

    @property
    def oracle_passes(self) -> list[MeasuredTrial]:
        """Trials of the oracle that passed."""
        return [each for each in self.of("oracle") if each.is_pass]

    @property
    def passes_fresh(self) -> bool | None:
        """Whether the oracle's work has ever passed in a fresh container; None if that was never tried."""
        tried = [each.passes_fresh for each in self.of("oracle") if each.passes_fresh is not None]
        return any(tried) if tried else None

    def passed_by_oracle(self, step: str = "") -> set[str]:
        """Return the tests that passed in every pass of the oracle; after a single pass, names may still change."""
        shown = (each.tests.get(step, {}) for each in self.oracle_passes)
        names = [{name for name, status in tests.items() if status == "passed"} for tests in shown]
        return set.intersection(*names) if names else set()

    def usual_signs(self, step: str = "", *, shared: bool) -> set[str]:
        """Return the strong signs that a step has in every pass of the oracle; if `shared`, including cleared ones."""
        found = [{*each.signs, *(each.cleared if shared else ())} for each in self.oracle_passes]
        usual = set.intersection(*found) if found else set()
        of_step = f" (step {step})"
        return {sign.removesuffix(of_step) for sign in usual if sign.endswith(of_step)} if step else usual

    def test_files(self, step: str = "") -> dict[str, str]:
        """Return the test files outside /tests that are equal in every pass of the oracle, with their sha256."""
        files = [set(each.test_files.get(step, {}).items()) for each in self.oracle_passes]
        return dict(set.intersection(*files)) if files else {}

    def failed_control(self, step: str = "", kind: str = "") -> str:
        """Return the first kind of control tests, or `kind`, that failed in every pass of the oracle; else empty.

        Control tests (see `control_tests.py`) must fail with correct work. If they fail, the tests really check it.
        """
        prefix = f"{step}/{CONTROL}-" if step else f"{CONTROL}-"
        rewards = [each.rewards for each in self.oracle_passes]
        tried = [key for key in (rewards[0] if rewards else ()) if key.startswith(f"{prefix}{kind}")]
        failed = (key for key in tried if not any(is_solved(each.get(key, 1.0)) for each in rewards))
        return next(failed, "").removeprefix(prefix)

    def passes_intact(self, step: str = "") -> bool:
        """Return whether every pass of the oracle also passed the tests with hidden but unchanged values."""
        key = f"{step}/{INTACT}" if step else INTACT
        return bool(self.oracle_passes) and all(is_solved(each.rewards.get(key, 0)) for each in self.oracle_passes)

    def of_control(self, step: str = "") -> dict[str, bool]:
        """Return for each test that passed in every pass of the oracle whether it also passed as a control test.

        The control tests are of the kind `failed_control`. Tests whose results as control tests varied are left out.
        """
        key = "/".join(filter(None, (step, f"{CONTROL}-{self.failed_control(step)}")))
        tried = [each.tests.get(key, {}) for each in self.oracle_passes]
        passes = {name: {each.get(name) == "passed" for each in tried} for name in self.passed_by_oracle(step)}
        return {name: found.pop() for name, found in passes.items() if len(found) == 1} if all(tried) else {}

    @property
    def replaced(self) -> set[tuple[str, str]]:
        """System paths that differ or are hidden in any pass of the oracle, with the start of their sha256."""
        return {found for each in self.oracle_passes for found in each.replaced.items()}

    @property
    def mean_oracle_sec(self) -> float | None:
        """Mean duration of solution and tests; None if the oracle never passed."""
        took = [each.solution_sec + each.tests_sec for each in self.oracle_passes]
        return sum(took) / len(took) if took else None


def compare_with_oracle(
    shown: Mapping[str, Status], calibration: Calibration, step: str = ""
) -> tuple[list[str], list[str]]:
    """Return the tests passed by the oracle that a pass does not show, and those that it shows as not run.

    A failed test is in neither list: tasks may tolerate it.
    """
    expected = sorted(calibration.passed_by_oracle(step))
    missing = [name for name in expected if name not in shown]
    return missing, [name for name in expected if shown.get(name) in _NOT_RUN]


def test_differences(shown: Mapping[str, Status], calibration: Calibration, step: str = "") -> str:
    """Describe how the tests of a pass differ from the tests of the oracle's passes; empty if they are the same."""
    missing, not_run = compare_with_oracle(shown, calibration, step)
    expected = len(calibration.passed_by_oracle(step))
    passed = sum(status == "passed" for status in shown.values())
    if len(calibration.oracle_passes) == 1 and passed >= expected:
        missing = []  # a single pass does not show whether names of tests change each time
    found = [("not shown", missing), ("not run", not_run)]
    words = ", ".join(f"{len(names)} {how} ({name_list(names)})" for how, names in found if names)
    return words and f"of {expected} tests that the oracle passes {words}"


def test_file_differences(logs: Logs, shown: Mapping[str, Status], calibration: Calibration, step: str = "") -> str:
    """Describe which test files outside /tests differ from the oracle's, and which failed tests the output calls
    passed; empty for neither."""
    own, usual = sums_by_path(logs.get(TEST_SUMS, b"").decode("utf-8", "replace")), calibration.test_files(step)
    others = [path for path, digest in own.items() if usual.get(path, digest) != digest]
    failed = [
        name for name in sorted(calibration.passed_by_oracle(step)) if shown.get(name, "passed") not in NOT_FAILED
    ]
    forged = sorted(claimed_passes(logs).intersection(failed)) if failed else []
    found = [(others, "differ from the oracle's"), (forged, "failed, though the output calls them passed")]
    return ", ".join(f"{len(names)} ({name_list(names)}) {how}" for names, how in found if names)


def name_list(names: Iterable[str]) -> str:
    """Return the first three names, and the number of the others, as text."""
    return names_text((plain(name, 100) for name in names), 3)


def image_identity(origin: ImageOrigin | None, image_id: str | None) -> str:
    """Return the identity of an image: its digest, the hash that it was built from, or else its id; may be empty."""
    if origin is None:
        return image_id or ""
    built = f"built:{origin.built_from}" if origin.built_from else None
    return origin.digest or built or image_id or ""


def architecture_of(described: Mapping[str, Any]) -> str:
    """Return the architecture of a backend, or of its machines, which are all alike; empty if it is not recorded.

    `described` is the description of the backend in run.json.
    """
    machine = next(iter(described.get("machines", ())), described)
    return str(machine.get("architecture", ""))


def load_calibration(
    task: Task, image: str, architecture: str, say: Callable[[str], None] = lambda _: None, root: Path | None = None
) -> Calibration | None:
    """Load the calibration of a task with an image; None if there is none. `say` receives problems with its file."""
    key = task.hash, image, architecture
    found = _read(_path(root or calibration_directory(), *key), say)
    return found if found is not None and (found.task_hash, found.image, found.architecture) == key else None


def mean_oracle_sec(tasks: Iterable[Task], root: Path | None = None) -> dict[str, float]:
    """Return the mean duration of solution and tests by task, for tasks whose oracle passed with any image."""
    root, found = root or calibration_directory(), dict[str, float]()
    for task in tasks:
        every = (_read(path) for path in sorted(root.glob(f"{_task_key(task.hash)}-*.json")))
        stored = (each.mean_oracle_sec for each in every if each is not None and each.task_hash == task.hash)
        if took := [sec for sec in stored if sec]:
            found[task.name] = sum(took) / len(took)
    return found


def _read(path: Path, say: Callable[[str], None] = lambda _: None) -> Calibration | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        say(f"{path}: cannot be read, so the task is measured again: {error.strerror or error}")
        return None
    try:
        if len(content) > _MAX_BYTES:
            raise ValueError("too large")
        return Calibration.model_validate_json(content)
    except (ValidationError, ValueError, RecursionError):
        say(f"{path}: is not a calibration of this version, so the task is measured again")
        return None


def save_calibration(calibration: Calibration, root: Path | None = None) -> Path:
    """Store a calibration, replacing an earlier one of the same task, image and architecture. Raises UsageError."""
    key = calibration.task_hash, calibration.image, calibration.architecture
    path = _path(root or calibration_directory(), *key)
    try:
        write_atomically(path, calibration.model_dump_json().encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; set TBENCH_CACHE") from None
    return path


def calibration_directory(variables: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of calibrations, in the cache."""
    return cache_home(variables) / "calibration"


def _path(root: Path, task_hash: str, *image: str) -> Path:
    return root / f"{_task_key(task_hash)}-{hashlib.sha256(repr(image).encode()).hexdigest()[:20]}.json"


def _task_key(task_hash: str) -> str:
    return hashlib.sha256(task_hash.encode()).hexdigest()[:20]
