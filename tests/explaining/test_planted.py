"""Pairs of runs with planted changes that no scenario has: what cannot be told apart is never blamed on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from run_trees import a_result, write_run

from harness.model import ServedModel
from harness.trajectory import Outcome
from tbench.explaining.explain import explain
from tbench.explaining.explanation import DifferencePart, Explanation
from tbench.results import Blame, ErrorInfo, HostSample, ImageOrigin, Stage

TASKS = tuple(f"task-{number}" for number in range(10))
SEEDS = range(4)
OWN = {"agent": "tbench:keystrokes-json", "prompt_hash": "p"}
BUSY = HostSample(load_max=4.0)


def a_run(folder: Path, hit: Mapping[str, Any] | None = None, share: int = 2, **settings: Any) -> Path:
    """Write a run in which all trials pass, or every `share`-th one fails with these values."""
    results = [
        a_result(
            task,
            seed,
            **{"reward": 1.0, "outcome": Outcome.SUBMITTED} | (dict(hit) if hit and not (at + seed) % share else {}),
        )
        for at, task in enumerate(TASKS)
        for seed in SEEDS
    ]
    return write_run(folder, results, dict.fromkeys(TASKS, "h"), SEEDS, **{**OWN, **settings})


def ended(outcome: Outcome, **more: Any) -> dict[str, Any]:
    return {"reward": 0.0, "outcome": outcome, **more}


def an_error(kind: str, stage: Stage, blame: Blame) -> dict[str, Any]:
    error = ErrorInfo(stage=stage, type=kind, blame=blame, retryable=False, message="it took longer")
    return {"reward": None, "outcome": None, "error": error}


def only(found: Explanation) -> DifferencePart:
    (part,) = found.named
    return part


@pytest.mark.parametrize("outcome", [Outcome.FORMAT_LIMIT, Outcome.STEP_LIMIT, Outcome.TOKEN_LIMIT])
@pytest.mark.parametrize("settings", [{"agent": "tbench:bash-block"}, {"temperature": 1.7}, {"prompt_hash": "q"}])
def test_the_model_alone_is_not_blamed_for_limits_under_another_protocol_or_prompt(
    tmp_path: Path, outcome: Outcome, settings: dict[str, Any]
) -> None:
    part = only(explain(a_run(tmp_path / "b", ended(outcome), **settings), a_run(tmp_path / "a")))
    assert (part.cause, part.party) == (str(outcome), "unclear") or part.cause == "format_errors"
    assert part.party == "unclear" and len(part.because) == 1
    assert part.together_with == ("a change of the model",)
    # Where nothing has moved, it is the model's.
    assert only(explain(a_run(tmp_path / "c", ended(outcome)), tmp_path / "a")).party == "model"


def test_limits_at_tasks_with_another_image_are_not_the_models_alone(tmp_path: Path) -> None:
    other = {"image_id": "sha256:9", "image_origin": ImageOrigin(how="present", reference="t", digest="sha256:9")}
    same = {"image_origin": ImageOrigin(how="present", reference="t", digest="sha256:1")}
    results = [a_result(task, seed, 1.0, **same) for task in TASKS for seed in SEEDS]
    old = write_run(tmp_path / "a", results, dict.fromkeys(TASKS, "h"), SEEDS, **OWN)
    results = [a_result(task, seed, **{**other, **ended(Outcome.STEP_LIMIT)}) for task in TASKS for seed in SEEDS]
    new = write_run(tmp_path / "b", results, dict.fromkeys(TASKS, "h"), SEEDS, **OWN)
    part = only(explain(new, old))
    assert (part.cause, part.party, part.together_with) == ("step_limit", "unclear", ("a change of the model",))


def test_a_shorter_verifier_timeout_is_the_settings_and_not_the_tasks(tmp_path: Path) -> None:
    hit = an_error("verifier_timeout", Stage.VERIFIER, Blame.TASK)
    old = a_run(tmp_path / "a")
    part = only(explain(a_run(tmp_path / "b", hit, verifier_timeout_multiplier=0.1), old))
    assert (part.cause, part.party) == ("task", "harness")
    assert "overrides.verifier_timeout_multiplier" in part.because[0]
    assert only(explain(a_run(tmp_path / "c", hit), old)).party == "task"


def test_a_machine_that_was_always_busy_is_not_blamed_for_a_shorter_time_limit(tmp_path: Path) -> None:
    hit = ended(Outcome.AGENT_TIMEOUT, host=BUSY)
    busy = {"host": BUSY}
    old = write_run(
        tmp_path / "a",
        [a_result(t, s, 1.0, **busy) for t in TASKS for s in SEEDS],
        dict.fromkeys(TASKS, "h"),
        SEEDS,
        **OWN,
    )

    def later(name: str, **settings: Any) -> Path:
        results = [
            a_result(task, seed, **({"reward": 1.0, **busy} if (at + seed) % 2 else hit))
            for at, task in enumerate(TASKS)
            for seed in SEEDS
        ]
        return write_run(tmp_path / name, results, dict.fromkeys(TASKS, "h"), SEEDS, **{**OWN, **settings})

    part = only(explain(later("b", agent_timeout_multiplier=0.5), old))
    assert (part.cause, part.party) == ("machine", "harness")
    assert only(explain(later("c"), old)).party == "unclear"


def test_two_causes_of_the_same_failures_are_both_named(tmp_path: Path) -> None:
    served = ServedModel(id="m", context_tokens=32768)
    old = a_run(tmp_path / "a", served=served, max_tokens=2048)
    half = ServedModel(id="m", context_tokens=16384)
    part = only(explain(a_run(tmp_path / "b", ended(Outcome.CONTEXT_LIMIT), served=half, max_tokens=8192), old))
    assert (part.cause, part.party, len(part.because)) == ("context_full", "unclear", 2)


def test_another_protocol_beside_a_shorter_context_is_said(tmp_path: Path) -> None:
    old = a_run(tmp_path / "a", served=ServedModel(id="m", context_tokens=32768))
    less = ServedModel(id="m", context_tokens=30000)
    part = only(
        explain(a_run(tmp_path / "b", ended(Outcome.CONTEXT_LIMIT), served=less, agent="tbench:bash-block"), old)
    )
    assert (part.cause, part.party) == ("context_full", "server")
    assert part.together_with == ('agent.name "tbench:keystrokes-json" → "tbench:bash-block"',)


def test_a_price_and_other_seeds_move_nothing(tmp_path: Path) -> None:
    old = a_run(tmp_path / "a")
    results = [a_result(task, seed, 1.0) for task in TASKS for seed in range(20, 24)]
    new = write_run(
        tmp_path / "b", results, dict.fromkeys(TASKS, "h"), range(20, 24), prompt_price=9.0, completion_price=9.0, **OWN
    )
    found = explain(new, old)
    assert not found.named and [each.key for each in found.moved if each.explains] == []


def test_unfinished_runs_are_blamed_on_nobody_and_errors_of_the_network_on_its_setting(tmp_path: Path) -> None:
    old = a_run(tmp_path / "a")
    results = [a_result(task, seed, 1.0) for task in TASKS[:5] for seed in SEEDS]
    half = write_run(tmp_path / "b", results, dict.fromkeys(TASKS, "h"), SEEDS, status="interrupted", **OWN)
    part = only(explain(half, old))
    assert (part.cause, part.party) == ("no_result", "unclear") and "tbench resume" in part.command
    hit = an_error("image_unavailable", Stage.SANDBOX, Blame.INFRA)
    part = only(explain(a_run(tmp_path / "c", hit, network="none"), old))
    assert (part.cause, part.party) == ("infrastructure", "harness")
    assert only(explain(a_run(tmp_path / "d", hit), old)).party == "machine"
