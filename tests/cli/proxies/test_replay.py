"""`tbench replay score`, `tbench replay merge` and `tbench leaderboard` as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from replay_runs import answer, good_answers, upstream_result, write_dataset, write_lines, write_run

from tbench.cli import app
from tbench.errors import UsageError


def tbench(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(map(str, words)), prog_name="tbench")
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def refused(*words: object) -> str:
    """Return the usage error of a command."""
    done = CliRunner().invoke(app, list(map(str, words)), prog_name="tbench")
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    assert "\n" not in str(done.exception)
    return str(done.exception)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", write_dataset(tmp_path), good_answers()[:7])


def test_a_run_is_scored_and_its_result_is_beside_the_replies(run: Path) -> None:
    printed = tbench("replay", "score", run).splitlines()
    assert printed[0].startswith("some-model: metric v2, dataset ")
    assert printed[1] == "score 59.17; coverage 7/8"
    assert printed[2] == "score over answered steps only 67.62; without a reply: missing 1"
    assert printed[3] == "without a reply: task-001/3"
    rows = {line[:26].strip(): line[26:].split() for line in printed[5:]}
    assert rows["score (100 x F1)"] == ["59.17", "59.17"]
    assert rows["valid JSON"] == rows["first command exact"] == ["87.5%", "87.5%"]
    assert rows["completion recall"] == ["0.0%", "0.0%"]
    assert rows["F1 early (4 steps)"] == ["0.8334", "0.8334"]
    assert printed[-1] == f"written: {run / 'result.json'}"
    assert json.loads((run / "result.json").read_bytes())["score"] == 59.17


def test_scored_again_with_another_revision_the_result_says_so(run: Path) -> None:
    tbench("replay", "score", run)
    document = json.loads(tbench("replay", "score", run / "responses.jsonl", "--metric-revision", "v0", "--json"))
    assert document["metric_revision"] == json.loads((run / "result.json").read_bytes())["metric_revision"] == "v0"
    assert "per_step" not in document


def test_a_bare_file_of_replies_needs_its_dataset(tmp_path: Path) -> None:
    replies = write_lines(tmp_path / "sweep" / "model-7.jsonl", good_answers())
    assert "give its dataset with --dataset" in refused("replay", "score", replies)
    out = tmp_path / "out.json"
    printed = tbench("replay", "score", replies, "--dataset", write_dataset(tmp_path), "--output", out)
    assert printed.startswith("model-7: metric v2") and out.exists()


def test_a_stored_result_is_recomputed_and_compared_field_by_field(run: Path) -> None:
    tbench("replay", "score", run)
    printed = tbench("replay", "score", run / "result.json")
    assert "16 of 16 aggregate fields identical" in printed and "DIFFERS" not in printed
    document = json.loads((run / "result.json").read_bytes())
    document["aggregate"]["avg_command_f1"] = 0.9
    (run / "changed.json").write_text(json.dumps(document))
    printed = tbench("replay", "score", run / "changed.json", code=3)
    assert [line.split() for line in printed.splitlines() if "DIFFERS" in line] == [
        ["avg_command_f1", "0.9", "0.5917", "DIFFERS"]
    ]


def test_the_published_sample_is_identical(tmp_path: Path) -> None:
    sample = Path(__file__).parents[4] / "shared" / "data" / "replay" / "result_GLM-5.1-API-test.json"
    if not sample.is_file():
        pytest.skip(f"no sample at {sample}")
    printed = tbench("replay", "score", sample)
    assert printed.startswith("the file does not contain its metric revision; identical with: v0, v1, v2")
    assert "16 of 16 aggregate fields identical" in printed
    found = json.loads(tbench("replay", "score", sample, "--json", "--metric-revision", "v1"))
    assert [(each["metric_revision"], each["identical"]) for each in found["revisions"]] == [("v1", True)]


def test_anothers_result_is_not_overwritten(run: Path) -> None:
    (run / "result.json").write_text(json.dumps(upstream_result()))
    assert "was not written by tbench replay; give another file" in refused("replay", "score", run)
    tbench("replay", "score", run, "--output", run / "ours.json")


def test_references_and_replies_that_are_odd_are_reported(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path)
    with dataset.open("a") as file:
        file.write('{"task_id": "task-009", "step_idx": 0, "prompt": "p", "ref_raw": "nothing"}\nnot JSON\n')
    printed = tbench("replay", "score", write_run(tmp_path / "run", dataset, [answer(0, 0, "[1]")]))
    assert "replies that are JSON but not an object (counted as invalid; upstream crashes): 1" in printed
    assert "references without a command: 1 (task-009/0)" in printed
    assert f"lines skipped: 1; first: {dataset}:10: not JSON" in printed


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("replay.json", "{", "not JSON"),
        ("replay.json", "{}", "model: Field required"),
        ("responses.jsonl", "nonsense\n", "contains no reply of a replay run; first problem: "),
    ],
)
def test_a_broken_run_directory_is_refused_in_one_line(run: Path, name: str, content: str, message: str) -> None:
    (run / name).write_text(content)
    assert message in refused("replay", "score", run)


def test_what_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "is not a replay run" in refused("replay", "score", tmp_path)
    assert "does not exist" in refused("replay", "score", tmp_path / "x.jsonl", "--dataset", write_dataset(tmp_path))


def test_shards_are_merged_and_ranked(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path)
    parts = [
        write_run(tmp_path / f"s{index}", dataset, good_answers(index, 2), shard_index=index, shard_count=2)
        for index in (0, 1)
    ]
    printed = tbench("replay", "merge", *parts, "--output", tmp_path / "whole")
    assert "coverage 8/8" in printed
    table = tbench("leaderboard", tmp_path / "whole")
    assert (
        "| 1 | org/some-model | 64.17 | 1.0000 | 0.5208 | 100.0% | 100.0% | 64.17 | server | 8 | 100.0% | v2 |" in table
    )
    assert json.loads(tbench("leaderboard", tmp_path / "whole", "--format", "json"))["rows"][0]["score"] == 64.17
    assert tbench("leaderboard", tmp_path / "whole", "--format", "csv").startswith("rank,model,score,command_f1,")
