"""What is known of a task by its oracle and by doing nothing: the yardstick for the passes of other agents.

A record is about the content of a task, its image and an architecture, and is kept for all runs, in a file of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.trajectory import Frozen
from tbench.errors import UsageError
from tbench.files import cache_home, write_atomically
from tbench.results import Blame, ErrorInfo, ImageOrigin
from tbench.reward import is_solved
from tbench.sandbox.archive import sums_by_path
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verifier_logs import Logs
from tbench.verify.tests_shown import NOT_FAILED, TEST_SUMS, Status, claimed_passes

CalibratingAgent = Literal["oracle", "nop"]
NOT_RUN: frozenset[Status] = frozenset({"skipped", "xfailed", "deselected"})
"""How tests end that were not run, or whose end decides nothing."""
CONTROL = "control"
"""Name, among the rewards of a verdict, of the reward of tests that must fail."""
_MOST_BYTES = 64 << 20


class MeasuredTrial(Frozen):
    """A trial of the oracle, or of nobody, as far as it tells something about its task."""

    agent: CalibratingAgent
    repetition: int
    reward: float | None
    error: ErrorInfo | None = None
    rewards: dict[str, float] = Field(default={})
    """Reward by where the verifier ran, `shared` and `isolated`; of a task of several steps `STEP/shared` and so on."""
    signs: tuple[str, ...] = ()
    """Strong signs of tampering."""
    replaced: dict[str, str] = Field(default={})
    """Paths of the image's system that were other than in the image when it passed, with the begin of their sha256."""
    cleared: tuple[str, ...] = ()
    """Those that its own container has, and a pass in a fresh one has cleared."""
    unconfirmed: str = ""
    """Why there is no verdict from a fresh container beside a pass."""
    tests: dict[str, dict[str, Status]] = Field(default={})
    """The tests that were shown, by step and identity; the step is empty for a task without steps."""
    test_files: dict[str, dict[str, str]] = Field(default={})
    """sha256 of the test files in the work that the tests were read from, by step and path."""
    reward_writes: int | None = None
    """How many writes of a reward bash saw in test.sh; 0 where another program wrote it, None where it was not
    watched."""
    solution_sec: float = 0.0
    tests_sec: float = 0.0
    memory_peak_mb: float | None = None
    out_of_memory: bool = False
    shares: dict[str, float] = Field(default={})
    """What `solution`, `tests` and `memory` took of the task's limits, as a share; of several steps the largest."""
    last_words: str = ""
    """The last line that the verifier printed."""

    @property
    def counts(self) -> bool:
        """Whether it tells something about the task: it has a verdict, or an error that is the task's own."""
        return self.error is None or self.error.blame in (Blame.TASK, Blame.AGENT)

    @property
    def error_words(self) -> str:
        """What kept it from a verdict; empty where nothing did."""
        return f"{self.error.type}: {self.error.message}" if self.error is not None else ""

    @property
    def is_pass(self) -> bool:
        """Whether it passed in its own container."""
        return self.reward is not None and is_solved(self.rewards.get("shared", self.reward))

    @property
    def passes_fresh(self) -> bool | None:
        """Whether a pass is one in a fresh container, too; None where that was not tried."""
        fresh = [reward for where, reward in self.rewards.items() if where.rpartition("/")[2] == "isolated"]
        if not self.is_pass or not (fresh or self.unconfirmed):
            return None
        return not self.unconfirmed and all(map(is_solved, fresh))


class Calibration(Frozen):
    """What was measured of a task, with an image and on an architecture."""

    schema_version: Literal[1] = 1
    task: str
    task_hash: str
    image: str
    """The identity of its image, as `image_identity` gives it."""
    architecture: str
    measured_at: datetime
    trials: tuple[MeasuredTrial, ...] = ()
    offline: MeasuredTrial | None = None
    """A trial of the oracle without a network, where that was tried."""

    def of(self, agent: CalibratingAgent) -> list[MeasuredTrial]:
        """The trials of an agent, in the order of their repetitions."""
        return sorted((each for each in self.trials if each.agent == agent), key=lambda each: each.repetition)

    @property
    def passes_fresh(self) -> bool | None:
        """Whether the oracle's work passes in a fresh container, one time at least; None if it was never tried."""
        tried = [each.passes_fresh for each in self.of("oracle") if each.passes_fresh is not None]
        return any(tried) if tried else None

    def passed_by_oracle(self, step: str = "") -> set[str]:
        """The tests that each pass of the oracle showed as passed. What has another name each time is none of them."""
        passes = [each.tests.get(step, {}) for each in self.of("oracle") if each.is_pass]
        names = ({name for name, status in shown.items() if status == "passed"} for shown in passes)
        return set.intersection(*names) if passes else set()

    def usual_signs(self, step: str = "", *, shared: bool) -> set[str]:
        """The strong signs that each pass of the oracle has in a step; `shared`: with no fresh container beside it."""
        passes = [each for each in self.of("oracle") if each.is_pass]
        found = [{*each.signs, *(each.cleared if shared else ())} for each in passes]
        usual = set.intersection(*found) if found else set()
        of_step = f" (step {step})"
        return {sign.removesuffix(of_step) for sign in usual if sign.endswith(of_step)} if step else usual

    def test_files(self, step: str = "") -> dict[str, str]:
        """The test files in the work, with their sha256, that are the same beside each pass of the oracle."""
        passes = [each.test_files.get(step, {}).items() for each in self.of("oracle") if each.is_pass]
        return dict(set.intersection(*map(set, passes))) if passes else {}

    def fails_control(self, step: str = "") -> bool:
        """Whether each pass of the oracle failed the control tests, so that these check something."""
        where = f"{step}/{CONTROL}" if step else CONTROL
        rewards = [each.rewards.get(where) for each in self.of("oracle") if each.is_pass]
        return bool(rewards) and not any(reward is None or is_solved(reward) for reward in rewards)

    @property
    def replaced(self) -> set[tuple[str, str]]:
        """Paths of the image's system that are other, or hidden, beside a pass of the oracle, with their sums."""
        return {found for each in self.of("oracle") if each.is_pass for found in each.replaced.items()}

    @property
    def wall_sec(self) -> float | None:
        """How long solution and tests take on average; None where the oracle never passed."""
        took = [each.solution_sec + each.tests_sec for each in self.of("oracle") if each.is_pass]
        return sum(took) / len(took) if took else None


def compare_with_oracle(
    shown: Mapping[str, Status], calibration: Calibration, step: str = ""
) -> tuple[list[str], list[str]]:
    """Which tests that the oracle's passes show a pass does not: those that are missing, and those that were not run.

    A test that failed beside a pass is neither: tasks may allow it.
    """
    expected = sorted(calibration.passed_by_oracle(step))
    missing = [name for name in expected if name not in shown]
    return missing, [name for name in expected if shown.get(name) in NOT_RUN]


def unlike_oracle(shown: Mapping[str, Status], calibration: Calibration, step: str = "") -> str:
    """How the tests that a pass shows differ from those of the oracle's passes, in words; empty where they do not."""
    missing, not_run = compare_with_oracle(shown, calibration, step)
    expected = len(calibration.passed_by_oracle(step))
    passed = sum(status == "passed" for status in shown.values())
    if len([each for each in calibration.of("oracle") if each.is_pass]) == 1 and passed >= expected:
        missing = []  # names of tests may be others each time, and one pass does not show that
    found = [("not shown", missing), ("not run", not_run)]
    words = ", ".join(f"{len(names)} {how} ({_listed(names)})" for how, names in found if names)
    return words and f"of {expected} tests that the oracle passes {words}"


def unlike_oracles_files(logs: Logs, shown: Mapping[str, Status], calibration: Calibration, step: str = "") -> str:
    """Say which test files in the work differ from those beside the oracle's passes, and which failed tests the output
    calls passed all the same; empty for none."""
    own, usual = sums_by_path(logs.get(TEST_SUMS, b"").decode("utf-8", "replace")), calibration.test_files(step)
    others = [path for path, digest in own.items() if usual.get(path, digest) != digest]
    failed = [
        name for name in sorted(calibration.passed_by_oracle(step)) if shown.get(name, "passed") not in NOT_FAILED
    ]
    forged = sorted(claimed_passes(logs).intersection(failed)) if failed else []
    found = [(others, "differ from the oracle's"), (forged, "failed, though the output calls them passed")]
    return ", ".join(f"{len(names)} ({_listed(names)}) {how}" for names, how in found if names)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(plain(name, 100) for name in names[:3]) + more


def image_identity(origin: ImageOrigin | None, image_id: str | None) -> str:
    """What an image is known by on any machine: its digest, what it was built of, or else its id; empty without any."""
    if origin is None:
        return image_id or ""
    built = f"built:{origin.built_from}" if origin.built_from else None
    return origin.digest or built or image_id or ""


def architecture_of(described: Mapping[str, Any]) -> str:
    """The architecture that a backend has, or its machines have, which are all alike; empty where it does not tell.

    `described` is what run.json stores about the backend.
    """
    machine = next(iter(described.get("machines", ())), described)
    return str(machine.get("architecture", ""))


def known(
    task: Task, image: str, architecture: str, say: Callable[[str], None] = lambda _: None, root: Path | None = None
) -> Calibration | None:
    """What is known of a task with an image of this identity; None where nothing is. `say` hears of a broken file."""
    found = _read(_path(root or calibration_directory(), task.hash, image, architecture), say)
    is_it = found is not None and (found.task_hash, found.image, found.architecture) == (task.hash, image, architecture)
    return found if is_it else None


def usual_sec(tasks: Iterable[Task], root: Path | None = None) -> dict[str, float]:
    """How long solution and tests take on average, by task, where the oracle has passed with any image."""
    root, found = root or calibration_directory(), dict[str, float]()
    for task in tasks:
        every = (_read(path) for path in sorted(root.glob(f"{_of_task(task.hash)}-*.json")))
        took = [each.wall_sec for each in every if each is not None and each.task_hash == task.hash and each.wall_sec]
        if took:
            found[task.name] = sum(took) / len(took)
    return found


def _read(path: Path, say: Callable[[str], None] = lambda _: None) -> Calibration | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        say(f"{path}: cannot be read, so the task is measured anew: {error.strerror or error}")
        return None
    try:
        if len(content) > _MOST_BYTES:
            raise ValueError("too large")
        return Calibration.model_validate_json(content)
    except (ValidationError, ValueError, RecursionError):
        say(f"{path}: is no calibration of this version, so the task is measured anew")
        return None


def keep(calibration: Calibration, root: Path | None = None) -> Path:
    """Keep a calibration in place of an earlier one of the same task, image and architecture. Raises UsageError."""
    where = calibration.task_hash, calibration.image, calibration.architecture
    path = _path(root or calibration_directory(), *where)
    try:
        write_atomically(path, calibration.model_dump_json().encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; set TBENCH_CACHE") from None
    return path


def calibration_directory(variables: Mapping[str, str] = os.environ) -> Path:
    """Where calibrations are kept, in the cache."""
    return cache_home(variables) / "calibration"


def _path(root: Path, task_hash: str, *image: str) -> Path:
    return root / f"{_of_task(task_hash)}-{hashlib.sha256(repr(image).encode()).hexdigest()[:20]}.json"


def _of_task(task_hash: str) -> str:
    return hashlib.sha256(task_hash.encode()).hexdigest()[:20]
