"""Explanations of whole runs: simulated histories with planted causes, points that add up, and bad input."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
from compared_runs import MISSING, store_run
from explained_histories import GOOD_NIGHTS, SCENARIOS, draw, mixtures, tally_of
from run_trees import a_result, write_run

from tbench.errors import UsageError
from tbench.explaining.explain import explain
from tbench.explaining.explanation import Explanation
from tbench.results import WentOn

FEW, MANY = 2, 200


@pytest.mark.parametrize(
    "planted", [(), *((cause,) for cause in SCENARIOS)], ids=lambda names: "+".join(names) or "nothing"
)
def test_a_planted_cause_is_named_first_and_nothing_without_one(planted: tuple[str, ...]) -> None:
    found = tally_of(planted, FEW)
    assert (found.right, found.all_named, found.worst_sum <= 1e-12) == (FEW, FEW, True)


@pytest.mark.slow
@pytest.mark.parametrize("planted", list(mixtures()), ids=lambda names: "+".join(names) or "nothing")
def test_planted_causes_are_named_in_many_histories(planted: tuple[str, ...]) -> None:
    found = tally_of(planted, MANY)
    assert found.right >= (0.95 if planted else 0.99) * MANY, found
    assert found.covered >= 0.93 * found.parts, found
    assert found.worst_sum <= 1e-12


def recomputed(run: Path, against: Sequence[Path]) -> dict[str, Fraction]:
    """Lost points by outcome or error, from the lines of results alone and over every pair of trials."""

    def rows(paths: Sequence[Path]) -> dict[str, list[tuple[Fraction, str]]]:
        found: defaultdict[str, list[tuple[Fraction, str]]] = defaultdict(list)
        for path in paths:
            for line in map(json.loads, (path / "results.jsonl").read_text().splitlines()):
                found[line["task"]].append((Fraction(line["reward"] or 0), _cause(line)))
        return found

    def _cause(line: dict) -> str:  # type: ignore[type-arg]
        if line["error"]:
            return "request_timeout" if line["error"]["type"] == "reply_timeout" else "?"
        pressed = line["host"]["load_max"] > 2
        timed_out = "machine" if pressed else "agent_timeout"
        names = {"context_limit": "context_full", "format_limit": "format_errors", "agent_timeout": timed_out}
        return names.get(line["outcome"], "model")

    first, second = rows(against), rows([run])
    parts: defaultdict[str, Fraction] = defaultdict(Fraction)
    for task, news in second.items():
        for new, cause in news:
            for old, its in first[task]:
                parts[cause if new < old else its] += (new - old) / (len(news) * len(first[task]) * len(second))
    return {key: value for key, value in parts.items() if value}


@pytest.mark.parametrize("planted", [("context", "model"), ("request-timeout", "load")])
def test_parts_are_those_of_an_independent_count_in_fractions(tmp_path: Path, planted: tuple[str, ...]) -> None:
    found, _ = draw(tmp_path, planted, 1)
    nights = sorted(tmp_path.iterdir())
    expected = recomputed(nights[GOOD_NIGHTS], nights[:GOOD_NIGHTS])
    assert found.difference is not None
    got = {part.cause: part.difference for part in found.difference.parts if part.difference}
    assert got == {key: float(value) for key, value in expected.items()}
    assert abs(sum(got.values()) - found.difference.difference) <= 1e-12


def test_a_single_run_shows_where_its_points_are_lost(tmp_path: Path) -> None:
    draw(tmp_path, ("context",), 3)
    found = explain(tmp_path / f"night-{GOOD_NIGHTS:02}")
    assert found.difference is None and found.against is None
    assert sum(each.lost for each in found.lost) == pytest.approx(1 - found.run.score, abs=1e-12)
    assert "context_full" in {each.cause for each in found.lost[:2]}
    context = next(each for each in found.lost if each.cause == "context_full")
    assert "limits.on_overflow=drop-oldest-outputs" in context.command
    assert found.command and found.sentence.endswith(found.command)
    assert sum(each.trials for each in found.lost) == found.run.failed == len(found.trials)
    assert Explanation.model_validate_json(found.model_dump_json()) == found


def test_equal_seeds_are_paired_and_list_what_newly_fails(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", {"a": (1.0, 1.0), "b": (0.0, 1.0)})
    new = store_run(tmp_path / "new", {"a": (1.0, 0.0), "b": (0.0, 1.0)})
    found = explain(new, old)
    assert found.difference is not None and found.difference.paired
    assert [(each.task, each.seed, each.change) for each in found.trials] == [("a", 1, "newly failing")]
    assert found.difference.difference == -0.25


def test_trials_without_evidence_of_their_own_have_the_cause_that_moved_with_its_proof(tmp_path: Path) -> None:
    found, _ = draw(tmp_path, ("thinking",), 1)
    causes = {each.cause for each in found.trials}
    assert "server.thinking" in causes and "model" not in causes
    trial = next(each for each in found.trials if each.cause == "server.thinking")
    assert (trial.step, "the prompt grew by 350 tokens after a reply of 400" in trial.words) == (2, True)


# Bad input: one line each, and the rest is shown.


def test_the_overlap_of_different_tasks_is_explained_and_the_rest_named(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", {"a": (1.0,), "gone": (1.0,), "other": (1.0,)})
    new = store_run(tmp_path / "new", {"a": (0.0,), "new": (1.0,), "other": (0.0,)}, hashes={"other": "x"})
    found = explain(new, old)
    assert found.difference is not None and found.difference.tasks == 1
    assert [line.partition(":")[2].strip() for line in found.left_out] == ["gone", "new", "other"]
    assert any("single seed" in note for note in found.notes)


def test_runs_without_a_common_task_are_refused(tmp_path: Path) -> None:
    old, new = store_run(tmp_path / "old", {"a": (1.0,)}), store_run(tmp_path / "new", {"b": (1.0,)})
    with pytest.raises(UsageError, match=r"no task in common.*tbench explain"):
        explain(new, old)
    with pytest.raises(UsageError, match="nothing to explain"):
        explain(store_run(tmp_path / "empty", {"a": (MISSING,)}))


def test_imported_results_without_steps_are_explained_by_their_outcomes(tmp_path: Path) -> None:
    for name, reward in (("old", 1), ("new", 0)):
        lines = [{"task": f"t{at}", "seed": 0, "reward": reward, "outcome": "step_limit"} for at in range(9)]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = explain(tmp_path / "new.jsonl", tmp_path / "old.jsonl")
    assert [part.cause for part in found.named] == ["step_limit"]
    assert any("no steps" in note for note in found.notes)
    assert "no steps" in " ".join(explain(tmp_path / "new.jsonl").notes)


def test_missing_results_and_trials_that_went_on_are_said(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", {"a": (1.0, 1.0), "b": (1.0, 1.0)})
    new = store_run(tmp_path / "new", {"a": (1.0, MISSING), "b": (1.0, 1.0)}, status="interrupted")
    found = explain(new, old)
    assert any("1 trial without a result" in note and "tbench resume" in note for note in found.notes)
    assert found.difference is not None and [part.cause for part in found.difference.parts] == ["no_result"]
    cut = WentOn(at_step=3, how="replayed", differs="step 2", counts=False)
    run = write_run(tmp_path / "went", [a_result("a", 0, 1.0, went_on=(cut,))], {"a": "hash of a"}, [0])
    assert [each.cause for each in explain(run).lost] == ["not_counted"]
    assert any("went on after a cut" in note for note in explain(run, old).notes)


def test_too_many_failed_trials_are_explained_without_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path, (), 1)
    monkeypatch.setattr("tbench.explaining.explain.MAX_READ", 3)
    assert any("their steps are not read" in note for note in explain(tmp_path / "night-08").notes)


def test_what_moved_without_evidence_in_trials_is_not_told_apart_from_the_model(tmp_path: Path) -> None:
    rows = {f"t{at}": (1.0,) * 4 for at in range(10)}
    old = store_run(tmp_path / "old", rows, temperature=0.7)
    new = store_run(tmp_path / "new", dict.fromkeys(rows, (0.0,) * 4), temperature=1.5)
    (part,) = explain(new, old).named
    assert (part.cause, part.party) == ("unclear", "unclear")
    assert part.because == ("model.temperature: 0.7 → 1.5",) and part.together_with
    assert "-c model.temperature=0.7" in part.command
