"""What a calibration says of a task: whether its verdicts can be trusted here, and if not, why, in a few words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from tbench.calibration.measuring import CalibratedTask
from tbench.reward import canonical, reward_text
from tbench.tasks.task import Task
from tbench.text import names_shown, plain
from tbench.verify.calibration import Calibration, MeasuredTrial

Condition = Literal[
    "cannot be run",
    "cannot be built",
    "no verdict",
    "oracle fails",
    "nop passes",
    "flaky verifier",
    "limits too tight here",
    "isolation impossible",
    "needs network",
    "no oracle",
    "healthy",
]
"""What may be said of a task, the worst first."""
HARMLESS: frozenset[Condition] = frozenset({"isolation impossible", "needs network", "no oracle", "healthy"})
"""What leaves a task's verdicts as good as they are."""
TIGHT = 0.8
"""The share of a limit from which on it may decide a trial."""


def conditions(each: CalibratedTask) -> Mapping[Condition, str]:
    """What is to be said of a task, each with its reason, the worst first; never empty."""
    if each.task.unsupported:
        return {"cannot be run": f"needs {each.task.unsupported[0]}, which tbench does not have"}
    if each.calibration is None:
        words = f"{each.error.type}: {each.error.message}" if each.error else ""
        return {"cannot be built": words}
    found = dict(_conditions(each.calibration))
    if not each.task.has_oracle:
        found["no oracle"] = "it has no solution/solve.sh"
    if words := _network(each.task, each.calibration):
        found["needs network"] = words
    return found or {"healthy": ""}


def is_healthy(found: Mapping[Condition, str]) -> bool:
    """Whether nothing of it makes a task's verdicts doubtful."""
    return found.keys() <= HARMLESS


def _conditions(calibration: Calibration) -> Iterator[tuple[Condition, str]]:
    oracle, nop = calibration.of("oracle"), calibration.of("nop")
    for each in (*oracle, *nop):
        # The task's own errors are failures of its oracle, but doing nothing is no reason for one.
        if each.error is not None and (each.agent == "nop" or not each.counts):
            yield "no verdict", f"{each.agent}: {plain(each.error_words, 250)}"
            break
    passes = [each for each in oracle if each.is_pass]
    judged = [each for each in oracle if each.counts]
    if judged and not passes:
        yield "oracle fails", _failure(judged[0])
    if any(each.is_pass for each in nop):
        yield "nop passes", "doing nothing scores 1"
    for trials in (judged, [each for each in nop if each.error is None]):
        if len(endings := dict.fromkeys(map(_ending, trials))) > 1:
            yield "flaky verifier", f"{trials[0].agent}: {', '.join(endings)}"
            break
    else:
        if calibration.passes_fresh and not all(each.passes_fresh for each in passes if each.passes_fresh is not None):
            yield "flaky verifier", "oracle: not each pass is one in a fresh container"
    if words := _tight(oracle, nop):
        yield "limits too tight here", words
    if calibration.passes_fresh is False:
        yield "isolation impossible", "the oracle's work passes only in the container that it was made in"


def _network(task: Task, calibration: Calibration) -> str:
    """Why a task needs a network, where that is known: it names hosts, or its oracle fails without; else empty."""
    networks = task.file.networks
    phases = (networks.start, networks.agent, networks.verifier)
    if hosts := dict.fromkeys(host for phase in phases for host in phase.hosts):
        return f"task.toml names {names_shown(hosts)}"
    tried = calibration.offline
    return f"without one, {_failure(tried)}" if tried is not None and tried.counts and not tried.is_pass else ""


def _ending(trial: MeasuredTrial) -> str:
    if trial.reward is None:
        return trial.error.type if trial.error is not None else "no verdict"
    return reward_text(canonical(trial.rewards.get("shared", trial.reward)))


def _failure(trial: MeasuredTrial) -> str:
    if trial.error is not None:
        return plain(trial.error_words, 250)
    last = f"; the verifier's last words: {plain(trial.last_words, 200)!r}" if trial.last_words else ""
    return f"scores {_ending(trial)}{last}"


def _tight(oracle: list[MeasuredTrial], nop: list[MeasuredTrial]) -> str:
    """Which limit of time is nearly used up, or of memory was; else empty. A peak of memory counts caches of files."""
    if any(each.out_of_memory for each in oracle):
        return "the oracle ran out of memory"
    shares = [(share, f"{kind} of {each.agent}") for each in oracle for kind, share in each.shares.items()]
    shares += [(each.shares["tests"], "tests of nop") for each in nop if "tests" in each.shares]
    share, what = max((each for each in shares if not each[1].startswith("memory")), default=(0.0, ""))
    return f"{what}: {share:.0%} of the time limit" if share >= TIGHT else ""
