"""Replays and extractions in a history, as written and scored by their commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from replay_runs import good_answers, write_dataset
from replay_runs import write_run as write_replay

from tbench.history.database import INDEX_NAME
from tbench.history.index import RunHistory
from tbench.history.records import PROXIES, RESULT_NAME
from tbench.proxies.extraction import records as extraction
from tbench.proxies.extraction.records import ExtractionDirectory
from tbench.proxies.extraction.score import Rewards, score_directory
from tbench.proxies.model_scores import DEFAULT_FIELDS, proxy_scores
from tbench.proxies.replay import directory as replay
from tbench.proxies.replay.scoring.result import write_result
from tbench.proxies.replay.scoring.score_run import score_directory as replay_result
from tbench.rewards import make_conciseness, make_execution_relevance

REWARDS = Rewards(make_execution_relevance("distinct"), make_conciseness("linear"))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[RunHistory]:
    with RunHistory.open(tmp_path / INDEX_NAME) as opened:
        yield opened


def write_extraction(path: Path) -> Path:
    manifest = extraction.ExtractionManifest(
        source="s",
        tasks=tuple(extraction.TaskEntry(name=name, hash="h", instruction="Find it.") for name in "ab"),
        seeds=(0,),
        protocol="thinking-bash",
        prompt_hash="p",
        sampling={},
        rendering={},
        model="org/some-model",
        base_url="http://h/v1",
        created_at="2026-06-21T10:00:00+00:00",
    )
    directory = ExtractionDirectory.open(path, manifest)
    content = "<thinking>a</thinking>\n```bash\nfind .\n```"
    directory.append(extraction.ReplyRecord(task="a", seed=0, content=content))
    directory.append(extraction.ReplyRecord(task="b", seed=0, content="no"))
    directory.close()
    return path


def test_the_files_are_those_of_the_proxies() -> None:
    assert set(PROXIES) == {replay.MANIFEST_NAME, extraction.MANIFEST_NAME}
    assert RESULT_NAME == replay.RESULT_NAME == extraction.RESULT_NAME
    assert {kind.measure for kind in PROXIES.values()} == set(DEFAULT_FIELDS)


def test_a_proxy_is_listed_before_and_after_it_is_scored(history: RunHistory, tmp_path: Path) -> None:
    run = write_replay(tmp_path / "replay-1", write_dataset(tmp_path / "data"), good_answers()[:6])
    write_extraction(tmp_path / "extract-1")
    assert history.update(tmp_path).words == "2 added"
    assert [(row.kind, row.score) for row in history.proxies()] == [("extraction", None), ("replay", None)]
    write_result(run / "result.json", replay_result(run))
    score_directory(tmp_path / "extract-1", REWARDS)
    assert history.update(tmp_path).words == "2 changed"
    extracted, replayed = history.proxies(model="org/some-model")
    assert (extracted.score, extracted.planned, extracted.answered, extracted.protocol) == (0.5, 2, 2, "thinking-bash")
    assert (replayed.planned, replayed.answered, replayed.metric_revision) == (8, 6, "v2")
    assert (replayed.begun_at, replayed.name) == ("2026-06-20T10:00:00.000Z", "some-model")
    known = {score.where: score.score for score in proxy_scores([tmp_path / "extract-1", tmp_path / "replay-1"])}
    for row in (extracted, replayed):
        assert row.score is not None and 100 * row.score == known[str(row.path / "result.json")]
    assert history.runs() == ()


def test_a_proxy_that_is_broken_or_gone_is_treated_like_a_run(history: RunHistory, tmp_path: Path) -> None:
    path = write_extraction(tmp_path / "runs" / "extract-1")
    history.update(tmp_path)
    (path / "result.json").write_text("[]")
    (note,) = history.update(tmp_path).notes
    assert "result.json: not a JSON object" in note and "keeps its earlier content" in note
    (path / "result.json").write_text(json.dumps({"levels": {"extractable": {"mean": "much"}}, "planned": True}))
    assert history.update(tmp_path).words == "1 changed"
    assert [(row.score, row.planned) for row in history.proxies()] == [(None, None)]
    path.rename(tmp_path / ".hidden")
    assert history.update(tmp_path).words == "1 forgotten"
    assert history.proxies() == ()
