"""`tbench import results`: JSON lines and CSV as runs, several models, repeats without seeds, and what is no good."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harbor_jobs import write

from tbench.api.stored_runs import summarise
from tbench.errors import UsageError
from tbench.exchange.importing.bare_results import import_results
from tbench.exchange.importing.common import ImportChoice
from tbench.results import Blame, Stage, TrialResult
from tbench.storage.read_run import StoredRun, read_run

STATISTICS = Path(__file__).parents[3] / "../shared/data/statistics"
ANY = ImportChoice()


def imported(file: Path, *, number_seeds: bool = False) -> StoredRun:
    (made,) = import_results(file, file.with_suffix(""), ANY, number_seeds=number_seeds)
    return read_run(made.directory)


def complaint(file: Path, *, number_seeds: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        import_results(file, file.parent / "run", ANY, number_seeds=number_seeds)
    assert not (file.parent / "run").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def lines(tmp_path: Path, *rows: dict[str, object], name: str = "mine.jsonl") -> Path:
    return write(tmp_path / name, "".join(json.dumps(row) + "\n" for row in rows))


def test_lines_become_a_run_that_knows_its_plan_and_where_it_is_from(tmp_path: Path) -> None:
    file = lines(
        tmp_path,
        {"task": "a", "seed": 0, "reward": 1, "model": "m", "started_at": "2026-01-01T00:00:00Z"},
        {"task": "b", "seed": 1, "reward": None, "model": "m", "prompt_tokens": 5, "wall_sec": 2, "steps": 3},
    )
    (made,) = import_results(file, tmp_path / "run", ANY)
    assert made.lines == (
        "2 trials, 1 without a verdict: 2 tasks, 2 seeds with m",
        "score 0.250000; 2 planned trials have no line and count as 0",
    )
    run = read_run(tmp_path / "run")
    assert (run.name, run.model, run.planned_tasks, run.planned_seeds) == ("run", "m", ["a", "b"], [0, 1])
    assert run.plan is not None and run.plan.imported.model_dump(exclude={"at"}) == {
        "format": "results",
        "version": None,
        "source": "mine.jsonl",
    }
    second = run.results[1]
    assert (second.usage.prompt_tokens, second.timings.wall_sec, second.steps) == (5, 2, 3)


def test_a_csv_file_says_the_same(tmp_path: Path) -> None:
    text = "task,seed,reward,model,error,note\n007,0,0.5,m,,x\n\nb,0,,m,sandbox_lost,\n"
    run = imported(write(tmp_path / "mine.csv", text))
    first, second = run.results
    assert (first.task, first.reward, first.error) == ("007", 0.5, None)
    assert second.reward is None and second.error is not None
    assert (second.error.type, second.error.stage, second.error.blame) == ("sandbox_lost", Stage.AGENT, Blame.INFRA)


def test_an_error_of_which_a_word_is_known_is_an_error(tmp_path: Path) -> None:
    run = imported(lines(tmp_path, {"task": "a", "seed": 0, "reward": None, "error": "OutOfCheese: none left"}))
    (error,) = [each.error for each in run.results]
    assert error is not None and (error.type, error.message) == ("OutOfCheese", "OutOfCheese: none left")


def test_repeats_are_numbered_only_where_that_is_asked_for(tmp_path: Path) -> None:
    file = lines(tmp_path, *({"task": task, "reward": reward} for task, reward in (("a", 1), ("b", 0), ("a", 0))))
    assert "mine.jsonl:1: no seed; number the lines of each task with --number-seeds" in complaint(file)
    run = imported(file, number_seeds=True)
    assert [(each.task, each.seed, each.reward) for each in run.results] == [("a", 0, 1), ("b", 0, 0), ("a", 1, 0)]
    assert "a seed is given; leave out --number-seeds" in complaint(
        lines(tmp_path, {"task": "a", "seed": 0, "reward": 1}, name="other.jsonl"), number_seeds=True
    )


def test_several_models_are_refused_or_split(tmp_path: Path) -> None:
    row = {"task": "a", "seed": 0, "reward": 1}
    file = lines(tmp_path, *({**row, "model": model} for model in ("x", "org/y")))
    assert "mine.jsonl: results of 2 models: x, org/y; choose one with --model NAME, or" in complaint(file)
    made = import_results(file, tmp_path / "runs", ImportChoice(split="model"))
    assert [each.directory for each in made] == [tmp_path / "runs" / "mine-x", tmp_path / "runs" / "mine-org-y"]
    (only,) = import_results(file, tmp_path / "one", ImportChoice(model="org/y"))
    assert read_run(only.directory).model == "org/y"


def test_a_runs_own_results_can_be_imported_again(tmp_path: Path) -> None:
    run = imported(lines(tmp_path, {"task": "a", "seed": 0, "reward": 1, "agent": "mine", "error": None}))
    again = write(tmp_path / "again.jsonl", (run.path / "results.jsonl").read_text())
    (result,) = imported(again).results
    assert result == run.results[0].model_copy(update={"run": "again"})
    assert isinstance(result, TrialResult)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.jsonl", "", "no results"),
        ("x.jsonl", "not json\nnot json\n", "x.jsonl:1: not JSON"),
        ("x.jsonl", "[" * 100_000 + "\n{}\n", "x.jsonl:1: not JSON"),
        ("x.jsonl", '{"task": "a", "seed": 0}\n', "x.jsonl:1: lacks reward"),
        ("x.jsonl", '{"task": "a", "seed": "one", "reward": 1}\n', "x.jsonl:1: seed"),
        ("x.jsonl", '{"task": "a", "seed": 0, "reward": 1}\n' * 2, "x.jsonl:2: task 'a' seed 0 is already in"),
        ("x.csv", "", "no column `task`"),
        ("x.csv", "name,score\na,1\n", "x.csv:1: no column `task`; the first row names the columns"),
        ("x.csv", "task,seed,reward\na,0\n", "x.csv:2: 2 cells under 3 columns"),
        ("x.csv", "task,seed,reward\na,0,nan\n", "x.csv:2: reward"),
        ("x.csv", "task,seed,reward\na,0,\n", ""),
    ],
)
def test_what_is_no_good_is_reported_by_file_and_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    file = write(tmp_path / name, text)
    if says:
        assert says in complaint(file)
    else:
        assert imported(file).results[0].reward is None


def test_what_is_no_file_and_what_is_no_text(tmp_path: Path) -> None:
    assert "no such file" in complaint(tmp_path)
    (tmp_path / "x.csv").write_bytes(b"task,seed,reward\n\xff\xfe,0,1\n")
    assert "not CSV in UTF-8" in complaint(tmp_path / "x.csv")


@pytest.mark.skipif(not STATISTICS.is_dir(), reason="no published results here")
def test_published_results_keep_their_figures(tmp_path: Path) -> None:
    made = import_results(STATISTICS / "trials.jsonl", tmp_path / "runs", ImportChoice(split="model"))
    expected = json.loads((STATISTICS / "expected.json").read_text())["models"]
    for each in made:
        summary = summarise(each.directory)
        figures = expected[summary.model]
        assert summary.score is not None
        assert summary.score.mean == pytest.approx(figures["mean"], abs=1e-8)
        assert (summary.counts.errors, summary.counts.solved) == (
            figures["trials_without_verdict"],
            figures["solved_trials"],
        )
        assert f"score {figures['mean']:.6f}" in each.lines[1]
    assert len(made) == len(expected)
