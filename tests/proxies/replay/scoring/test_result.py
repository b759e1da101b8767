"""Stored results, recomputed from their own units: the published sample digit for digit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbench.errors import UsageError
from tbench.proxies.replay.scoring.parser import REVISIONS
from tbench.proxies.replay.scoring.result import read_result, recompute

SAMPLE = Path(__file__).parents[5] / "shared" / "data" / "replay" / "result_GLM-5.1-API-test.json"


@pytest.fixture
def sample() -> dict[str, Any]:
    if not SAMPLE.is_file():
        pytest.skip(f"no sample at {SAMPLE}")
    return read_result(SAMPLE)


def test_the_published_sample_is_identical_in_all_sixteen_fields(sample: dict[str, Any]) -> None:
    """Under every revision: none of its steps wants nothing, and its replies are parsed already."""
    found = recompute(SAMPLE, sample)
    assert [each.revision for each in found] == list(REVISIONS)
    for each in found:
        assert each.identical
        assert json.dumps(each.aggregate) == json.dumps(sample["aggregate"])  # digit for digit, and in order
        assert len(each.aggregate) == 16


def test_a_changed_field_and_a_changed_step_are_named(sample: dict[str, Any]) -> None:
    sample["aggregate"]["avg_command_f1"] = 0.4860
    del sample["aggregate"]["next_action_score"]
    sample["per_step"][2]["command_recall"] = 0.9999
    found = recompute(SAMPLE, sample, "v1")
    assert [each.revision for each in found] == ["v1"]
    assert found[0].differing == {"avg_command_f1": (0.4860, 0.4859)}
    assert found[0].absent == ("next_action_score",)
    assert found[0].differing_steps == ("task-005/2",)
    assert not found[0].identical


def test_steps_of_older_files_may_lack_fields_that_can_be_derived(sample: dict[str, Any]) -> None:
    for step in sample["per_step"]:
        del step["bucket"], step["sample_idx"], step["pred_preview"]
    assert all(each.identical for each in recompute(SAMPLE, sample))


def step(**changes: Any) -> dict[str, Any]:
    scores = dict.fromkeys(("first_cmd_exact", "command_precision", "command_recall", "command_f1"), 1.0)
    units = {"ref_command_units": [], "pred_command_units": []}
    return {"task_id": "task-000", "step_idx": 0, "valid_json": True, **units, **scores, **changes}


def test_v0_differs_if_reference_and_reply_are_both_empty(tmp_path: Path) -> None:
    document = {"aggregate": {"avg_command_f1": 1.0}, "per_step": [step()]}
    found = recompute(tmp_path / "r.json", document)
    assert [each.differing for each in found] == [{}] + [{"avg_command_f1": (1.0, 0.0)}] * 2
    assert [each.differing_steps for each in found] == [(), ("task-000/0",), ("task-000/0",)]


def test_the_units_of_a_result_that_names_its_revision_are_not_those_of_another(tmp_path: Path) -> None:
    document = {"metric_revision": "v1", "aggregate": {}, "per_step": [step()]}
    assert [each.revision for each in recompute(tmp_path / "r.json", document)] == ["v1"]
    with pytest.raises(UsageError, match=r"parsed with v1, .* score the run's responses.jsonl to get v2"):
        recompute(tmp_path / "r.json", document, "v2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "per_step: is missing"),
        (b'{"per_step": []}', "aggregate: is missing"),
    ],
)
def test_what_is_no_result_is_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_result(tmp_path / "r.json")


@pytest.mark.parametrize("entry", [5, {}, step(pred_command_units="ls"), step(command_f1="x")])
def test_a_step_that_cannot_be_read_is_named(tmp_path: Path, entry: object) -> None:
    with pytest.raises(UsageError, match=r"r\.json: per_step\.1.*cannot be recomputed"):
        recompute(tmp_path / "r.json", {"aggregate": {}, "per_step": [step(), entry]})
