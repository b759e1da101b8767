"""The directory of a replay run: resumed runs, other runs, incomplete lines, concurrent runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tbench.errors import UsageError
from tbench.proxies.replay.directory import (
    ReplayDirectory,
    ReplayManifest,
    ReplayResponse,
    generation_seconds,
    read_manifest,
)


def manifest(**changes: Any) -> ReplayManifest:
    known: dict[str, Any] = {
        "model": "m",
        "model_short": "m",
        "base_urls": ("http://a/v1",),
        "dataset": "/d.jsonl",
        "dataset_sha256": "0" * 64,
        "records": 3,
        "sampling": {"temperature": 0.0, "extra_body": {"top_k": 5}},
        "prompt": {"template_status": "server", "prompt_options": {"tokenizer_path": "/here"}},
        "served": {"id": "m", "context_tokens": 100, "root": "/weights"},
        "created_at": "then",
    }
    return ReplayManifest.model_validate(known | changes)


def response(step: int, **changes: Any) -> ReplayResponse:
    return ReplayResponse(task_id="t", step_idx=step, **{"content": f"reply {step} \u2028 é", **changes})


def test_a_run_taken_up_again_knows_its_answers_and_asks_again_for_errors(tmp_path: Path) -> None:
    first = ReplayDirectory.open(tmp_path / "new" / "run", manifest())
    assert first.answered == {}
    for each in (response(0), response(1, error="unavailable: x"), response(2, error="refused: x"), response(2)):
        first.append(each)
    first.close()
    again = ReplayDirectory.open(tmp_path / "new" / "run", manifest())
    assert again.answered == {"t/0": response(0), "t/2": response(2)}
    again.close()


def test_a_torn_last_line_costs_its_step_only(tmp_path: Path) -> None:
    first = ReplayDirectory.open(tmp_path, manifest())
    first.append(response(0))
    first.append(response(1))
    first.close()
    file = tmp_path / "responses.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    again = ReplayDirectory.open(tmp_path, manifest())
    assert set(again.answered) == {"t/0"}
    again.append(response(1))
    again.close()
    assert [json.loads(line)["step_idx"] for line in file.read_bytes().split(b"\n")[:-1]] == [0, 1]


def test_foreign_lines_among_the_responses_are_no_answers(tmp_path: Path) -> None:
    ReplayDirectory.open(tmp_path, manifest()).close()
    with (tmp_path / "responses.jsonl").open("ab") as file:
        file.write(b'nonsense\n[1]\n\xff\xfe\n{"task_id": "t"}\n\n' + response(0).model_dump_json().encode() + b"\n")
    again = ReplayDirectory.open(tmp_path, manifest())
    assert set(again.answered) == {"t/0"}
    again.close()


def test_other_settings_are_refused_by_their_names(tmp_path: Path) -> None:
    ReplayDirectory.open(tmp_path, manifest()).close()
    other = manifest(
        dataset_sha256="1" * 64,
        sampling={"temperature": 0.5, "extra_body": {"top_k": 5, "min_p": 0.1}},
        served={"id": "m", "context_tokens": 200, "root": "/other"},
    )
    with pytest.raises(UsageError) as caught:
        ReplayDirectory.open(tmp_path, other)
    words = str(caught.value)
    assert "sampling.temperature: 0.0 → 0.5" in words
    assert "sampling.extra_body.min_p: nothing → 0.1" in words
    assert 'served.root: "/weights" → "/other"' in words
    assert "dataset_sha256" in words and "context_tokens" not in words
    assert read_manifest(tmp_path) == manifest()


def test_what_changes_nothing_of_what_is_asked_may_differ(tmp_path: Path) -> None:
    ReplayDirectory.open(tmp_path, manifest()).close()
    other = manifest(
        base_urls=("http://b/v1", "http://c/v1"),
        dataset="/moved.jsonl",
        created_at="now",
        tbench_version="9",
        prompt={"template_status": "server", "prompt_options": {"tokenizer_path": "/there"}},
        served={"id": "m", "context_tokens": 200, "root": "/weights"},
    )
    ReplayDirectory.open(tmp_path, other).close()
    assert read_manifest(tmp_path) == manifest()


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is not a replay run"):
        ReplayDirectory.open(tmp_path, manifest())
    (tmp_path / "replay.json").write_text("{")
    with pytest.raises(UsageError, match=r"replay\.json: not JSON"):
        ReplayDirectory.open(tmp_path, manifest())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["replay.json", "thesis.tex"]


def test_a_start_killed_before_its_manifest_does_not_block_another(tmp_path: Path) -> None:
    (tmp_path / "responses.jsonl").touch()
    ReplayDirectory.open(tmp_path, manifest()).close()
    assert read_manifest(tmp_path) == manifest()
    (tmp_path / "replay.json").unlink()
    (tmp_path / "responses.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match="is not a replay run"):
        ReplayDirectory.open(tmp_path, manifest())


def test_two_cannot_write_at_once(tmp_path: Path) -> None:
    first = ReplayDirectory.open(tmp_path, manifest())
    with pytest.raises(UsageError, match="still going on"):
        ReplayDirectory.open(tmp_path, manifest())
    first.close()
    ReplayDirectory.open(tmp_path, manifest()).close()


def test_the_time_of_all_starts_adds_up(tmp_path: Path) -> None:
    directory = ReplayDirectory.open(tmp_path, manifest())
    assert generation_seconds(tmp_path) is None
    directory.add_time(1.5)
    directory.add_time(2.25)
    directory.close()
    assert json.loads((tmp_path / "timing.json").read_text()) == {"gen_time_sec": 3.75, "starts": 2}
    assert generation_seconds(tmp_path) == 3.75
