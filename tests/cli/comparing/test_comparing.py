"""`tbench compare`, `flaky` and `power` on stored runs: their output, and their usage errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compared_runs import MISSING, PUBLISHED, store_run

from tbench.cli import app
from tbench.errors import UsageError

PAGE = Path(__file__).parents[3] / "docs" / "comparing.md"
OLD = {"easy": (1.0, 1.0), "hard": (0.0, 0.0), "won": (0.0, 0.0), "lost": (1.0, 0.0)}
NEW = {"easy": (1.0, 1.0), "hard": (0.0, 0.0), "won": (1.0, 1.0), "lost": (0.0, 0.0)}


def tbench(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)), prog_name="tbench")
    if isinstance(done.exception, UsageError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object) -> str:
    """Return the usage error of a command."""
    with pytest.raises(UsageError) as caught:
        tbench(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return store_run(tmp_path / "old", OLD), store_run(tmp_path / "new", NEW, model="m2")


def test_two_runs_are_distinguished_with_their_tasks(pair: tuple[Path, Path]) -> None:
    text = tbench("compare", *pair)
    assert "B - A: +12.50 points, standard error 31.46" in text
    assert "may well be noise: p = 1" in text
    assert "permutation test over tasks p = 1 (exact; it decides); sign test p = 1; on these tasks alone p = 1" in text
    assert "tasks: 1 better, 1 worse, 2 equal; 1 newly solved, 1 newly failed" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["won", "0.0", "100.0", "+100.00", "0", "0", "1", "1", "newly", "solved"] in lines
    assert ["lost", "50.0", "0.0", "-50.00", "1", "0", "0", "0", "newly", "failed"] in lines
    assert "easy" not in text and "easy" in tbench("compare", *pair, "--all-tasks")


def test_the_other_way_round_the_difference_is_the_other_way_round(pair: tuple[Path, Path]) -> None:
    assert "B - A: -12.50 points" in tbench("compare", *reversed(pair))


def test_a_clear_difference_says_which_run_is_better(tmp_path: Path) -> None:
    tasks = [f"t{number}" for number in range(12)]
    old = store_run(tmp_path / "old", dict.fromkeys(tasks, (0.0,)))
    new = store_run(tmp_path / "new", dict.fromkeys(tasks, (1.0,)))
    text = tbench("compare", old, new)
    assert "B is better than A: p = 0.000488281" in text and "McNemar's test p = 0.000488281" in text
    assert "one seed: noise within tasks and differences between tasks cannot be separated" in text
    assert "A is better than B" in tbench("compare", new, old)


def test_json_holds_every_figure_and_csv_one_row_for_each_pair(pair: tuple[Path, Path], tmp_path: Path) -> None:
    third = store_run(tmp_path / "third", NEW, model="m3")
    document = json.loads(tbench("compare", *pair, third, "--json"))
    assert [run["model"] for run in document["runs"]] == ["m", "m2", "m3"]
    assert len({run["fingerprint"] for run in document["runs"]}) == 1
    assert [(each["first"], each["second"]) for each in document["comparisons"]] == [
        ("old", "new"),
        ("old", "third"),
        ("new", "third"),
    ]
    first = document["comparisons"][0]
    assert (first["difference"], first["better"], first["newly_solved"][0]["task"]) == (0.125, 1, "won")
    rows = list(csv.DictReader(io.StringIO(tbench("compare", *pair, third, "--format", "csv"))))
    assert [row["pair"] for row in rows] == ["new - old", "third - old", "third - new"]
    assert float(rows[0]["difference"]) == 0.125
    tasks = list(csv.DictReader(io.StringIO(tbench("compare", *pair, "--format", "csv", "--all-tasks"))))
    assert [(row["task"], row["second_rate"]) for row in tasks] == [
        ("won", "1.0"),
        ("lost", "0.0"),
        ("easy", "1.0"),
        ("hard", "0.0"),
    ]


def test_markdown_has_tables_and_lists(pair: tuple[Path, Path], tmp_path: Path) -> None:
    text = tbench("compare", *pair, store_run(tmp_path / "a|b", OLD), "--format", "markdown")
    assert "| C | a\\|b | m |" in text and "\n- B - A: +12.50 points" in text and "\n  - tasks: 1 better" in text
    assert text.count("adjusted for 3 comparisons") == 3


def test_published_files_are_compared_as_they_are(tmp_path: Path) -> None:
    if not (PUBLISHED / "trials.jsonl").exists():
        pytest.skip(f"published trials are not at {PUBLISHED}")
    lines = (PUBLISHED / "trials.jsonl").read_text().splitlines()
    for model in ("Qwen3.5-9B", "tmax-9b"):
        (tmp_path / f"{model}.jsonl").write_text("\n".join(line for line in lines if f'"{model}"' in line))
    text = tbench("compare", tmp_path / "Qwen3.5-9B.jsonl", tmp_path / "tmax-9b.jsonl")
    assert "B - A: +6.07 points, standard error 2.68" in text
    assert "p = 0.0308833 (exact; it decides); sign test p = 0.00700037; on these tasks alone p = 0.00155032" in text
    shown = PAGE.read_text().partition("```text\n")[2].partition("```")[0].splitlines()
    assert [line for line in shown if line != "..." and line not in text.splitlines()] == []
    assert "trials.jsonl: results of 3 models" in refused(
        "compare", PUBLISHED / "trials.jsonl", tmp_path / "tmax-9b.jsonl"
    )


# -- what keeps runs from being compared ---------------------------------------------------------


def test_other_settings_are_refused_with_their_keys_and_compared_on_demand(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", OLD)
    new = store_run(tmp_path / "new", NEW, protocol="bash-block", temperature=0.0)
    line = refused("compare", old, new)
    assert 'agent.protocol: "keystrokes-json" → "bash-block"; model.temperature: 0.7 → 0.0' in line
    assert line.endswith("--anyway compares them anyway")
    assert "B - A: +12.50 points" in tbench("compare", old, new, "--anyway")
    assert "agent.protocol" in json.loads(tbench("compare", old, new, "--anyway", "--json"))["notes"][0]


def test_the_endpoint_the_concurrency_and_the_seeds_number_are_no_other_settings(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", OLD, base_url="http://a/v1", concurrency=1)
    more = {task: (*row, 0.0) for task, row in NEW.items()}
    text = tbench("compare", old, store_run(tmp_path / "new", more, base_url="http://b/v1", concurrency=8))
    assert "B - A: +12.50 points" in text and "left out, only in B: 1 seed (2)" in text
    assert "over the 4 common tasks and 2 seeds: A 37.5 %, B 50.0 %" in text


def test_an_unfinished_run_is_refused_with_what_finishes_it(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", OLD)
    going = store_run(tmp_path / "going", {**NEW, "won": (1.0, MISSING)}, status="running")
    line = refused("compare", old, going)
    assert "still running, or killed: 1 of 8 trials have no result" in line and f"tbench resume {going}" in line
    cut = store_run(tmp_path / "cut", {**NEW, "won": (1.0, MISSING)}, status="interrupted")
    assert "interrupted: 1 of 8 trials have no result" in refused("compare", old, cut)
    assert "coverage 100.0 % and 87.5 %" in tbench("compare", old, going, "--anyway")


def test_a_run_is_not_compared_with_itself_nor_with_none(pair: tuple[Path, Path]) -> None:
    assert "the same run as" in refused("compare", pair[0], pair[0].parent / "new" / ".." / "old")
    assert "the same run as" in refused("compare", pair[0], pair[0] / "results.jsonl")
    assert "only one run; give two or more" in refused("compare", pair[0])
    folder = pair[0].parent
    assert f"contains runs; name them, the base first: {folder}/*" in refused("compare", folder)


def test_a_run_without_a_verdict_is_reported_in_one_line(pair: tuple[Path, Path], tmp_path: Path) -> None:
    none = store_run(tmp_path / "none", dict.fromkeys(OLD, (None, None)))
    assert "no trial has a verdict" in refused("compare", pair[0], none)


def test_other_tasks_are_reported_in_one_line(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert "old and other have no task in common" in refused(
        "compare", pair[0], store_run(tmp_path / "other", {"x": (1.0, 0.0)})
    )
    changed = store_run(tmp_path / "changed", OLD, hashes=dict.fromkeys(OLD, "new"))
    assert "the content of 4 tasks has changed" in refused("compare", pair[0], changed)


def test_a_changed_or_renamed_task_is_left_out_and_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    rewards = {"easy": (1.0, 1.0), "hard": (1.0, 1.0), "won anew": (0.0, 0.0)}
    new = store_run(tmp_path / "x", rewards, hashes={"hard": "changed", "won anew": "hash of won"})
    text = tbench("compare", pair[0], new)
    assert "left out, only in A: 2 tasks (won, lost)" in text
    assert "of these the same under another name: won = won anew" in text
    assert "left out, their content has changed: 1 task (hard)" in text
    assert "no standard error of a single task" in text


def test_runs_without_a_common_seed_are_paired_in_order_on_demand(pair: tuple[Path, Path], tmp_path: Path) -> None:
    later = store_run(tmp_path / "later", NEW, first_seed=2)
    assert "have no seed in common, so no trials are paired by seed" in refused("compare", pair[0], later)
    text = tbench("compare", pair[0], later, "--anyway")
    assert (
        "B - A: +12.50 points" in text
        and "no seed in common: the first 2 of either run are paired in their order" in text
    )


def test_other_kinds_of_directories_are_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for name, words in (("replay.json", "tbench leaderboard"), ("extraction.json", "an extraction")):
        other = tmp_path / name.removesuffix(".json")
        other.mkdir()
        (other / name).write_text("{}")
        assert words in refused("compare", pair[0], other)
    assert "no such run directory" in refused("compare", pair[0], tmp_path / "nowhere")


def test_imported_results_are_compared_and_what_is_not_known_is_said(pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "import.jsonl"
    lines = [{"task": task, "seed": seed, "reward": r} for task, row in NEW.items() for seed, r in enumerate(row)]
    file.write_text("\n".join(map(json.dumps, lines)))
    found = json.loads(tbench("compare", pair[0], file, "--json"))
    assert found["comparisons"][0]["difference"] == 0.125
    assert [(run["path"], run["fingerprint"] is None) for run in found["runs"]] == [
        (str(pair[0]), False),
        (str(file), True),
    ]
    assert found["notes"] == [
        f"{file}: no run.json: the plan is derived from the results, so trials that never ran are missing",
        f"{file}: no run.json, so its settings and the content of its tasks are not compared",
    ]


def test_an_outage_on_one_side_is_no_defeat_in_silence(tmp_path: Path) -> None:
    old = store_run(tmp_path / "old", {f"t{number}": (1.0, 1.0) for number in range(10)})
    new = store_run(tmp_path / "new", {f"t{number}": (1.0, None) if number else (None, None) for number in range(10)})
    text = tbench("compare", old, new)
    assert "coverage 100.0 % and 45.0 %" in text and "within -55.00 to +0.00" in text
    assert "only trials scored by both (9 tasks): +0.00 points" in text
    assert "tasks that only A could score: 1 (t0)" in text


# -- flaky and power -----------------------------------------------------------------------------


def test_flaky_tasks_have_wilson_intervals_and_runs_of_one_configuration_are_one(tmp_path: Path) -> None:
    one = store_run(tmp_path / "one", {"a": (1.0,), "b": (1.0,)}, first_seed=0)
    two = store_run(tmp_path / "two", {"a": (0.0,), "b": (1.0,)}, first_seed=0)
    text = tbench("flaky", one, two)
    assert "one + two: 2 tasks, 4 trials with a verdict; solved: 1 always, 1 sometimes" in text
    assert ["a", "1", "2", "0", "50.0", "9.5", "90.5"] in [line.split() for line in text.splitlines()]
    assert "has only one trial per task" in refused("flaky", one)
    other = store_run(tmp_path / "other", {"a": (0.0,), "b": (1.0,)}, model="m2")
    assert "has only one trial per task" in refused("flaky", one, other)
    found = json.loads(tbench("flaky", one, two, other, "--json"))["groups"]
    assert [(group["runs"], group["model"]) for group in found] == [(["one", "two"], "m"), (["other"], "m2")]
    assert found[0]["tasks"][0]["flaky"] and found[0]["tasks"][0]["rate"] == 0.5
    assert tbench("flaky", one, two, "--format", "csv").splitlines()[1].startswith("one + two,a,1,2,0,0.5,")


def some_noise(shift: int) -> dict[str, Any]:
    return {
        f"t{number}": tuple(float((number * 7 + seed * 3) % 10 < shift) for seed in range(4)) for number in range(20)
    }


def test_power_says_how_many_seeds_see_a_difference(tmp_path: Path) -> None:
    old, new = (store_run(tmp_path / name, some_noise(5), model=name) for name in ("old", "new"))
    third = store_run(tmp_path / "third", some_noise(7), model="third")
    text = tbench("power", old, third, "--points", "10", "--power", "0.9")
    assert "to detect 10 points with a chance of 90 % (two-sided p <= 0.05):" in text
    assert "on these tasks: " in text and "on other tasks of the same kind: " in text
    document = json.loads(tbench("power", old, third, "--points", "10", "--json"))
    (plan,) = document["plans"]
    assert plan["these_tasks"]["seeds_for"] >= 1 and plan["is_pair"] and plan["other_tasks"]["tasks_for"] > 1
    assert len(json.loads(tbench("power", old, new, third, "--json"))["plans"]) == 3
    assert tbench("power", old, third, "--format", "csv").startswith("runs,seeds,se_these,")


def test_power_of_one_configuration_is_about_its_own_tasks(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", some_noise(5))
    text = tbench("power", run)
    assert "variance of a difference of two such runs" in text and "unknown from one configuration" in text
    single = store_run(tmp_path / "single", {"a": (1.0,), "b": (0.0,)})
    assert "an upper bound from one seed" in tbench("power", single)
    other = store_run(tmp_path / "other", {"a": (1.0,), "b": (0.0,)}, model="m2")
    assert "two seeds and two tasks in common" in refused("power", single, other)


def test_a_remark_on_several_runs_is_one_line(tmp_path: Path) -> None:
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        file.write_text('{"task": "t", "seed": 0, "reward": 1}\n{"task": "u", "seed": 0, "reward": 0}\n')
    said = CliRunner().invoke(app, ["compare", *map(str, files)]).stderr.splitlines()
    assert [line.partition(": no run.json")[0] for line in said if "the plan is derived" in line] == [
        f"note: {files[0]}, {files[1]}"
    ]
