"""The ranking rule, on synthetic results and on the published table."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from replay_runs import good_answers, upstream_result, write_dataset, write_run

from tbench.errors import UsageError
from tbench.proxies.replay.scoring.leaderboard import as_csv, as_json, as_markdown, leaderboard
from tbench.proxies.replay.scoring.result import write_result
from tbench.proxies.replay.scoring.score_run import score_directory

PUBLISHED = Path(__file__).parents[5] / "shared" / "data" / "replay" / "published_leaderboard.csv"


def put(directory: Path, name: str, **fields: Any) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"{name}.json"
    path.write_text(json.dumps(upstream_result(**{"model_path": f"org/{name}", "model_short": name, **fields})))
    return path


def f1(value: float) -> dict[str, Any]:
    return {"aggregate": {"avg_command_f1": value}}


def ranks(board: Any) -> list[tuple[int | None, str, float]]:
    return [(row.rank, row.model, row.score) for row in board.rows]


def test_the_published_table_comes_out_in_its_order_with_its_scores(tmp_path: Path) -> None:
    """112 of its rows have plain figures; the others are marked as partial or corrected by hand."""
    if not PUBLISHED.is_file():
        pytest.skip(f"no table at {PUBLISHED}")
    rows = [
        row
        for row in csv.DictReader(io.StringIO(PUBLISHED.read_text()))
        if row["score"][-1].isdigit() and row["score"][0] != "~"
    ]
    assert len(rows) == 112
    for number, row in enumerate(rows):
        figures = {
            "avg_command_f1": float(row["command_f1"]),
            "first_cmd_exact_pct": float(row["first_cmd_exact_pct"]),
        }
        put(tmp_path / "r", f"{number:03}", model_path=row["model"], aggregate=figures)
    found = list(csv.DictReader(io.StringIO(as_csv(leaderboard([tmp_path / "r"])))))
    assert [(row["model"], row["score"], row["command_f1"], row["first_cmd_exact_pct"]) for row in found] == [
        (row["model"], row["score"], row["command_f1"], row["first_cmd_exact_pct"]) for row in rows
    ]
    assert [int(row["rank"]) for row in found] == list(range(1, 113))


def test_rows_are_ranked_by_score_and_equal_ones_stay_in_order(tmp_path: Path) -> None:
    for name, value in (("a", 0.2), ("b", 0.3), ("c", 0.2)):
        put(tmp_path / "r", name, **f1(value))
    assert ranks(leaderboard([tmp_path / "r"])) == [(1, "org/b", 30.0), (2, "org/a", 20.0), (3, "org/c", 20.0)]


def test_a_result_with_a_raw_prompt_is_shown_without_a_rank(tmp_path: Path) -> None:
    put(tmp_path / "r", "a", **f1(0.9), prompt_template={"template_status": "mixed_or_raw", "rank_eligible": False})
    put(tmp_path / "r", "b", **f1(0.1), prompt_template={})
    board = leaderboard([tmp_path / "r"])
    assert ranks(board) == [(1, "org/b", 10.0), (None, "org/a", 90.0)]
    assert "| excluded | org/a | 90.00 |" in as_markdown(board)
    assert "excluded,org/a,90.00" in as_csv(board)
    assert [row["rank"] for row in json.loads(as_json(board))["rows"]] == [1, None]


def test_the_newest_result_of_a_name_counts_and_of_equally_old_ones_the_later(tmp_path: Path) -> None:
    new = {"model_path": "org/x", "timestamp": "2026-06-01T00:00:00"}
    put(tmp_path / "r", "1", **f1(0.5), **new)
    put(tmp_path / "r", "2", **f1(0.6), **{**new, "timestamp": "2026-05-01T00:00:00"})
    assert ranks(leaderboard([tmp_path / "r"])) == [(1, "org/x", 50.0)]
    put(tmp_path / "r", "3", **f1(0.4), **new)
    assert ranks(leaderboard([tmp_path / "r"])) == [(1, "org/x", 40.0)]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"model_path": "org/name"}, "org/name"),
        ({"model_path": "/data/models/name"}, "name"),
        ({"model_path": "/data/run-7/checkpoint-20"}, "run-7 (checkpoint-20)"),
        ({"model_path": ""}, "short"),
        ({"model_path": "org/base", "lora_path": "/adapters/1"}, "short"),
        ({"model_path": "org/short", "metric_revision": "v2"}, "org/short"),
        ({"model_path": "org/base", "metric_revision": "v2"}, "short"),
    ],
)
def test_a_row_is_called(tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    put(tmp_path / "r", "short", **fields)
    assert leaderboard([tmp_path / "r"]).rows[0].model == name


def test_revisions_are_ranked_together_only_on_request(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path)
    for revision in ("v1", "v2"):
        run = write_run(tmp_path / "runs" / revision, dataset, good_answers(), model_short=revision)
        write_result(run / "result.json", score_directory(run, None, revision))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"different metric revisions: v1 \(.*v1/result\.json\), v2 \(.*--mixed"):
        leaderboard([tmp_path / "runs"])
    board = leaderboard([tmp_path / "runs"], mixed=True)
    assert [(row.model, row.metric_revision, row.tolerant_score) for row in board.rows] == [
        ("v1", "v1", 64.17),
        ("v2", "v2", 64.17),
    ]
    assert board.notes[0].startswith("Mixed: different metric revisions: v1")
    assert [row.model for row in leaderboard([tmp_path / "runs" / "v2"]).rows] == ["v2"]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"dataset_sha256": "ab" * 32}, r"datasets: unknown \(replay_full.jsonl\)"),
        ({"eval_path": "data/replay_dev_20.jsonl"}, "datasets: unknown"),
        ({"aggregate": {"steps": 60}}, "numbers of steps: 303"),
        ({"metric_revision": "v2"}, "metric revisions: unknown"),
    ],
)
def test_other_datasets_are_ranked_together_only_on_request(tmp_path: Path, fields: dict[str, Any], what: str) -> None:
    put(tmp_path / "r", "a")
    put(tmp_path / "r", "b", **fields)
    with pytest.raises(UsageError, match=what):
        leaderboard([tmp_path / "r"])
    assert len(leaderboard([tmp_path / "r"], mixed=True).rows) == 2


def test_a_newer_shard_does_not_stand_for_the_whole_run(tmp_path: Path) -> None:
    put(tmp_path / "r", "whole", model_path="org/x", timestamp="2026-05-01")
    put(tmp_path / "r", "shard", model_path="org/x", timestamp="2026-05-02", aggregate={"steps": 152})
    with pytest.raises(UsageError, match=r"numbers of steps: 152 \(.*shard\.json\), 303 \("):
        leaderboard([tmp_path / "r"])


def test_results_without_revision_and_dataset_are_shown_as_unknown(tmp_path: Path) -> None:
    put(tmp_path / "r", "a")
    board = leaderboard([tmp_path / "r"])
    assert (board.rows[0].metric_revision, board.rows[0].dataset) == ("unknown", "unknown (replay_full.jsonl)")
    assert "- 1 of 1 results do not contain" in as_markdown(board)


def test_files_that_are_no_results_are_named_and_the_rest_is_ranked(tmp_path: Path) -> None:
    put(tmp_path / "r", "a")
    (tmp_path / "r" / "b.json").write_text("{")
    put(tmp_path / "r", "c", aggregate={"avg_command_f1": None})
    put(tmp_path / "r", "d", aggregate={"avg_command_f1": 10**400})
    write_run(tmp_path / "r" / "run", write_dataset(tmp_path), [])
    board = leaderboard([tmp_path / "r"])
    assert len(board.rows) == 1
    assert [Path(problem.partition(": ")[0]).name for problem in board.unreadable] == [
        "b.json",
        "c.json",
        "d.json",
        "result.json",
    ]
    assert "- Not read: " in as_markdown(board)


def test_nothing_to_rank_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no result of a replay; create one with tbench replay score"):
        leaderboard([tmp_path])
    with pytest.raises(UsageError, match="does not exist"):
        leaderboard([tmp_path / "nowhere"])


def test_a_models_name_breaks_neither_table(tmp_path: Path) -> None:
    put(tmp_path / "r", "a", model_path='a|b\n"c",\x1b[31m')
    board = leaderboard([tmp_path / "r"])
    assert as_markdown(board).splitlines()[2].startswith('| 1 | a\\|b "c",\\\\u001b[31m |')
    assert next(csv.DictReader(io.StringIO(as_csv(board))))["model"] == 'a|b\n"c",\x1b[31m'
