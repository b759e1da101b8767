"""Merging shards of one run; errors name the shards that do not belong together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replay_runs import answer, good_answers, write_dataset, write_run

from tbench.errors import UsageError
from tbench.proxies.replay.directory import read_manifest
from tbench.proxies.replay.scoring.result import write_result
from tbench.proxies.replay.scoring.score_run import merge, score_directory


def shards(tmp_path: Path, count: int = 2, **manifest: Any) -> list[Path]:
    dataset = write_dataset(tmp_path)
    return [
        write_run(
            tmp_path / f"shard-{index}",
            dataset,
            good_answers(index, count),
            shard_index=index,
            shard_count=count,
            base_urls=[f"http://127.0.0.1:{index}/v1"],
            created_at=f"2026-06-20T10:00:0{index}+00:00",
            **manifest,
        )
        for index in range(count)
    ]


def test_merged_shards_score_as_one_run(tmp_path: Path) -> None:
    parts = shards(tmp_path, 3)
    merged = merge(list(reversed(parts)), tmp_path / "whole")
    single = score_directory(write_run(tmp_path / "single", tmp_path / "records.jsonl", good_answers()))
    assert merged["aggregate"] == single["aggregate"]
    assert merged["per_step"] == single["per_step"]
    assert merged["complete"] and merged["coverage"]["answered"] == 8
    assert json.loads((tmp_path / "whole" / "result.json").read_bytes())["merged_shards"] == list(map(str, parts))
    manifest = read_manifest(tmp_path / "whole")
    assert (manifest.shard_index, manifest.shard_count, manifest.created_at[-8:]) == (0, 1, "02+00:00")
    assert len(manifest.base_urls) == 3


def test_times_are_those_of_the_slowest_shard_over_all_steps(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    for part, seconds in zip(parts, (10.0, 16.0), strict=True):
        write_result(part / "result.json", score_directory(part, gen_time_sec=seconds))
    merged = merge(parts, tmp_path / "whole")
    assert (merged["gen_time_sec"], merged["avg_sec_per_step"], merged["load_time_sec"]) == (16.0, 2.0, None)


def test_without_the_time_of_every_shard_the_merged_time_is_unknown(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    write_result(parts[0] / "result.json", score_directory(parts[0], gen_time_sec=10.0))
    assert merge(parts, tmp_path / "whole")["gen_time_sec"] is None


def test_steps_that_a_shard_has_no_reply_for_are_named(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with (parts[1] / "responses.jsonl").open("r+") as file:
        file.truncate(len(file.readline()))
    merged = merge(parts, tmp_path / "whole")
    assert [error["step"] for error in merged["errors"]] == ["task-000/3", "task-001/1", "task-001/3"]


def test_a_torn_last_line_of_a_shard_stays_one_bad_line(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with (parts[0] / "responses.jsonl").open("a") as file:
        file.write('{"task_id": "ta')
    merged = merge(parts, tmp_path / "whole")
    assert merged["complete"] and len(merged["problems"]) == 1


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "other"}, "model (org/some-model there, other here)"),
        ({"sampling": {"temperature": 1.0}}, "sampling ("),
        ({"shard_count": 3}, "shard_count (2 there, 3 here)"),
        ({"dataset_sha256": "f" * 64}, "dataset_sha256 ("),
        ({"served": {"id": "x", "created": 5}}, "served.id (None there, x here)"),
    ],
)
def test_shards_of_different_runs_are_refused_with_what_differs(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    parts = shards(tmp_path)
    document = json.loads((parts[1] / "replay.json").read_bytes())
    (parts[1] / "replay.json").write_text(json.dumps({**document, **change}))
    with pytest.raises(UsageError) as refused:
        merge(parts, tmp_path / "whole")
    assert named in str(refused.value) and "shard-1: is not of the same run" in str(refused.value)
    assert not (tmp_path / "whole").exists()


def test_servers_may_differ_in_what_is_no_property_of_the_model(tmp_path: Path) -> None:
    parts = shards(tmp_path, served={"id": "x", "root": "/m", "created": 5})
    document = json.loads((parts[1] / "replay.json").read_bytes())
    (parts[1] / "replay.json").write_text(json.dumps({**document, "served": {**document["served"], "created": 6}}))
    assert merge(parts, tmp_path / "whole")["complete"]


def test_a_missing_shard_and_one_given_twice_are_refused(tmp_path: Path) -> None:
    parts = shards(tmp_path, 3)
    with pytest.raises(UsageError, match="shard 1 of 3 is missing"):
        merge([parts[0], parts[2]], tmp_path / "whole")
    with pytest.raises(UsageError, match="is given twice"):
        merge([parts[0], parts[0] / ".", parts[1]], tmp_path / "whole")
    copy = write_run(
        tmp_path / "copy",
        tmp_path / "records.jsonl",
        [],
        shard_count=3,
    )
    with pytest.raises(UsageError, match=r"shard 0/3 is given twice, also as .*shard-0"):
        merge([*parts, copy], tmp_path / "whole")


def test_a_reply_to_a_step_of_another_shard_is_refused(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with (parts[0] / "responses.jsonl").open("a") as file:
        file.write(json.dumps(answer(0, 1, "x")) + "\n")
    with pytest.raises(UsageError, match=r"shard-0: contains replies to steps of another shard: task-000/1$"):
        merge(parts, tmp_path / "whole")


def test_a_directory_in_use_is_not_written_into(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    with pytest.raises(UsageError, match="is not empty; give a new directory with --output"):
        merge(parts, parts[0])
