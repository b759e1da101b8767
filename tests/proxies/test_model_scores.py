"""tbench correlate: sources of scores, output and errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from run_plans import a_plan

from tbench.cli.proxies.replay import correlate
from tbench.config.document import PlannedTask, RunDocument
from tbench.errors import UsageError
from tbench.proxies.model_scores import by_model, executed_scores, proxy_scores, read_names
from tbench.results import TrialResult
from tbench.storage.run_store import RunStore

SHARED = Path(__file__).parents[3] / "shared" / "data"
TIME = datetime(2026, 1, 1, tzinfo=UTC)


def proxy(directory: Path, short: str, f1: float, **more: Any) -> Path:
    directory.mkdir(parents=True)
    data = {"model": f"org/{short}", "model_short": short, "aggregate": {"avg_command_f1": f1, "other": 3}, **more}
    (directory / "result.json").write_text(json.dumps(data))
    return directory


def run(directory: Path, model: str, solved: int, missing: int = 0) -> Path:
    """Four tasks, one seed."""
    tasks = [f"t{n}" for n in range(4)]
    planned = tuple(PlannedTask(name=task) for task in tasks)
    store = RunStore.create(directory, RunDocument(**dict(a_plan(directory.name, model=model)), tasks=planned))
    for at, task in enumerate(tasks[: len(tasks) - missing]):
        known = {"run": directory.name, "trial": task, "agent": "a", "started_at": TIME, "finished_at": TIME}
        store.append_result(TrialResult(task=task, seed=0, reward=float(at < solved), model=model, **known))
    store.close()
    return directory


def extraction(directory: Path, model: str, share: float, tasks: str = "abc") -> Path:
    directory.mkdir(parents=True)
    levels = {"strict": {"mean": 0.0}, "extractable": {"mean": share}}
    data = {"model": model, "protocol": "thinking-bash", "tasks_sha256": tasks, "levels": levels}
    (directory / "result.json").write_text(json.dumps(data))
    return directory


def table(path: Path, *rows: tuple[str, Any]) -> Path:
    path.write_text("model,score\n" + "".join(f"{model},{score}\n" for model, score in rows))
    return path


def command(*arguments: object) -> Any:
    done = CliRunner().invoke(correlate, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def models(tmp_path: Path) -> tuple[list[Path], list[Path]]:
    """A directory of proxies and one of runs; the proxy orders b and c the other way round."""
    proxies = [
        proxy(tmp_path / "proxies" / name, name, f1)
        for name, f1 in zip("abcde", (0.1, 0.3, 0.2, 0.4, 0.5), strict=True)
    ]
    runs = [run(tmp_path / "runs" / name, f"org/{name}", n) for n, name in enumerate("abcde")]
    return proxies, runs


def test_the_command_prints_the_pairs_and_both_coefficients(tmp_path: Path) -> None:
    models(tmp_path)
    run(tmp_path / "runs" / "z", "org/z", 1)
    proxy(tmp_path / "proxies" / "y", "y", 0.6)
    lines = command(tmp_path / "proxies", "--executed", tmp_path / "runs").stdout.splitlines()
    assert lines[0].split() == ["model", "proxy", "executed"]
    assert lines[1].split() == ["org/e", "50.00", "100.00"]
    assert lines[6] == "5 models on both sides"
    assert lines[7] == "Spearman rho   +0.900; no interval"
    assert lines[8] == "Kendall tau-b  +0.800; no interval"
    assert lines[9:11] == ["only among the proxies: org/y", "only among the executed scores: org/z"]


def test_the_json_has_the_same(tmp_path: Path) -> None:
    proxies, runs = models(tmp_path)
    executed = [word for path in runs for word in ("--executed", path)]
    found = json.loads(command(*proxies, *executed, "--json").stdout)
    assert (found["n"], found["spearman"]["value"], found["kendall_tau_b"]["value"]) == (5, 0.9, 0.8)
    assert found["spearman"]["fisher_95"] is None and found["spearman"]["bootstrap_95"] is None
    assert found["models"][0] == {"model": "org/e", "proxy": 50.0, "executed": 100.0}
    assert (found["only_proxy"], found["only_executed"]) == ([], [])


def test_three_models_get_no_interval_and_equal_scores_no_coefficient(tmp_path: Path) -> None:
    left = table(tmp_path / "p.csv", ("a", 1), ("b", 2), ("c", 3))
    few = command(left, "--executed", table(tmp_path / "e.csv", ("a", 1), ("b", 3), ("c", 2))).stdout
    assert "Spearman rho   +0.500; no interval" in few and "note: no interval: 3 models are too few" in few
    equal = command(left, "--executed", table(tmp_path / "f.csv", ("a", 1), ("b", 1), ("c", 1))).stdout
    assert "Kendall tau-b  undefined" in equal and "note: undefined: all 3 executed scores are equal" in equal


def test_models_without_a_partner_are_named_and_nothing_is_computed(tmp_path: Path) -> None:
    left, right = table(tmp_path / "p.csv", ("a", 1)), table(tmp_path / "e.csv", ("b", 1))
    said = command(left, "--executed", right).stdout
    assert "0 models on both sides" in said
    assert "only among the proxies: a" in said and "only among the executed scores: b" in said


def test_names_are_mapped_on_both_sides(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("a,A\nalpha,A\n")
    assert read_names(tmp_path / "names.csv") == {"a": "A", "alpha": "A"}
    (tmp_path / "names.json").write_text('{"a": "A", "alpha": "A"}')
    left, right = table(tmp_path / "p.csv", ("a", 1), ("b", 2)), table(tmp_path / "e.csv", ("alpha", 1), ("b", 2))
    for names in ("names.csv", "names.json"):
        assert "2 models on both sides" in command(left, "--executed", right, "--names", tmp_path / names).stdout


def test_checkpoints_of_one_model_are_distinguished_by_name(tmp_path: Path) -> None:
    proxies = [proxy(tmp_path / "p" / name, name, n / 10, model="served") for n, name in enumerate("abcd")]
    runs = [run(tmp_path / "r" / name, "served", n) for n, name in enumerate("abcd")]
    executed = [word for path in runs for word in ("--executed", path)]
    assert "Spearman rho   +1.000" in command(*proxies, *executed, "--by", "name").stdout
    with pytest.raises(UsageError, match="a second proxy score of 'served'"):
        command(*proxies, *executed)


def test_another_field_of_the_results_can_be_the_proxy(tmp_path: Path) -> None:
    (score,) = proxy_scores([proxy(tmp_path / "a", "a", 0.5)], field="aggregate.other")
    assert score.score == 3
    with pytest.raises(UsageError, match=r"aggregate\.absent is not a number"):
        proxy_scores([tmp_path / "a"], field="aggregate.absent")


def test_proxies_of_different_revisions_are_ranked_together_only_on_request(tmp_path: Path) -> None:
    proxy(tmp_path / "p" / "a", "a", 0.5, metric_revision="v1")
    proxy(tmp_path / "p" / "b", "b", 0.6, metric_revision="v2")
    right = table(tmp_path / "e.csv", ("org/a", 1), ("org/b", 2))
    with pytest.raises(UsageError, match="metric_revision v1 and v2: not on the same scale"):
        command(tmp_path / "p", "--executed", right)
    told = command(tmp_path / "p", "--executed", right, "--mixed").stdout
    assert "note: proxies differ in metric_revision v1 and v2" in told


def test_doubts_about_a_score_are_notes(tmp_path: Path) -> None:
    proxy(tmp_path / "p", "a", 0.5, complete=False, prompt_template={"rank_eligible": False})
    said = command(tmp_path / "p", "--executed", run(tmp_path / "r", "org/a", 2, missing=1)).stdout
    assert "note: org/a: proxy not complete" in said
    assert "note: org/a: proxy not eligible for ranking" in said
    assert "note: org/a: executed coverage 3/4; unscored = 0" in said


def test_a_run_without_any_verdict_has_no_score(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no trial of 'm' has a verdict"):
        executed_scores([run(tmp_path / "r", "m", 0, missing=4)])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.csv", "model,score\na,high\n", r"p\.csv:2: `score` is not a number"),
        ("p.csv", "model,score\na,nan\n", r"p\.csv:2: `score` is not a number"),
        ("p.csv", "name,score\na,1\n", r"p\.csv:2: no `model`"),
        ("p.csv", "model,score\n", r"p\.csv: contains no scores"),
        ("p.jsonl", '{"model": "a", "score": 1}\n{"model"', r"p\.jsonl:2: not JSON"),
        ("p.jsonl", "[1]\n", r"p\.jsonl:1: not a JSON object"),
        ("p.jsonl", '{"model": "a", "score": true}\n', r"p\.jsonl:1: `score` is not a number"),
        ("result.json", "{}", r"aggregate\.avg_command_f1 is not a number; name another"),
        ("result.json", "[]", "not a JSON object"),
        ("result.json", '{"aggregate": {"avg_command_f1": 0.5}}', "has no `model`"),
        ("result.json", "\udcff", "not UTF-8"),
    ],
)
def test_bad_files_are_one_line_that_names_the_place(tmp_path: Path, name: str, content: str, said: str) -> None:
    (tmp_path / name).write_text(content, errors="surrogateescape")
    with pytest.raises(UsageError, match=said):
        proxy_scores([tmp_path / name])
    with pytest.raises(UsageError, match=r"absent: No such file"):
        proxy_scores([tmp_path / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no result\.json of a proxy"):
        proxy_scores([tmp_path / "empty"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the sample results are not here")
def test_published_tables_and_results_are_read(tmp_path: Path) -> None:
    published = SHARED / "replay" / "published_leaderboard.csv"
    with pytest.raises(UsageError, match=r"leaderboard\.csv:7: `score` is not a number"):  # 48.19*: put right by hand
        proxy_scores([published])
    lines = published.read_text().splitlines(keepends=True)
    (tmp_path / "plain.csv").write_text("".join(line for line in lines if "*" not in line))
    assert proxy_scores([tmp_path / "plain.csv"])[0].score == 54.05
    (sample,) = proxy_scores([SHARED / "replay" / "result_GLM-5.1-API-test.json"])
    assert (sample.model, sample.score) == ("glm-5.1", pytest.approx(48.59))
    runs = by_model(executed_scores([SHARED / "statistics" / "trials.jsonl"]), {}, "executed")
    assert sorted(runs) == ["Qwen3.5-2B", "Qwen3.5-9B", "tmax-9b"]
    assert runs["tmax-9b"].score - runs["Qwen3.5-9B"].score == pytest.approx(6.07, abs=0.005)


def test_an_extraction_s_score_is_its_headline_and_its_name_its_directory_s(tmp_path: Path) -> None:
    for name, share in (("a", 0.5), ("b", 1.0)):
        extraction(tmp_path / "extractions" / name, f"org/{name}", share)
    assert [(each.model, each.score) for each in proxy_scores([tmp_path / "extractions"])] == [
        ("org/a", 50.0),
        ("org/b", 100.0),
    ]
    assert [each.model for each in proxy_scores([tmp_path / "extractions"], by="name")] == ["a", "b"]
    (strict,) = proxy_scores([tmp_path / "extractions" / "a"], field="levels.strict.mean")
    assert strict.score == 0.0


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda path: extraction(path, "org/b", 1.0, "xyz"), "tasks_sha256 abc and xyz"),
        (lambda path: proxy(path, "b", 0.5), "score aggregate.avg_command_f1 and levels.extractable.mean"),
    ],
)
def test_two_kinds_of_proxies_and_other_tasks_are_not_on_one_scale(tmp_path: Path, other: Any, words: str) -> None:
    extraction(tmp_path / "proxies" / "a", "org/a", 0.5)
    other(tmp_path / "proxies" / "b")
    for n, name in enumerate("ab"):
        run(tmp_path / "runs" / name, f"org/{name}", n)
    with pytest.raises(UsageError, match=words):
        command(tmp_path / "proxies", "--executed", tmp_path / "runs")
    assert "2 models" in command(tmp_path / "proxies", "--executed", tmp_path / "runs", "--mixed").stdout
