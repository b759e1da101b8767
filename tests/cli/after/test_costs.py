"""Prices given to stored runs: in summary, comparison, history and pages; and a run whose tokens an endpoint counts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from in_process import tbench
from run_trees import a_result, write_run
from site_pages import PageText
from site_pages_of_runs import trial_html
from written_trials import WrittenTrial, write_files_of

from harness.trajectory import Usage
from reports.site.writer import write_site
from tbench.demo.server import DemoEndpoint
from tbench.results import TrialResult
from tbench.storage.read_run import read_run
from tbench.tasks.sources import BUNDLED, read_tasks

PRICES = ("-c", "cost.prompt_price=0.25", "-c", "cost.completion_price=2")
STORED = {"prompt_price": 0.25, "completion_price": 2.0}


def tokens_cost(results: Sequence[TrialResult]) -> Fraction:
    found = (each.usage.prompt_tokens * Fraction(1, 4) + each.usage.completion_tokens * 2 for each in results)
    return sum(found, Fraction()) / 10**6


def a_run(folder: Path, name: str, rewards: Sequence[float], scale: int = 1, **settings: Any) -> Path:
    usage = Usage(prompt_tokens=7000 * scale, completion_tokens=500 * scale)
    results = [a_result("t", seed, reward, usage=usage) for seed, reward in enumerate(rewards)]
    run = write_run(folder / name, results, {"t": "sha256:t"}, range(len(rewards)), **settings)
    for result in results:
        write_files_of(run, result, WrittenTrial())
    return run


def test_a_stored_run_gets_prices_when_it_is_summarised(tmp_path: Path) -> None:
    run = a_run(tmp_path, "run", (1.0, 0.0))
    assert json.loads(tbench("summary", str(run), "--json").stdout)["cost"] is None
    found = json.loads(tbench("summary", str(run), "--json", *PRICES).stdout)["cost"]
    assert found["amount"] == found["per_solved"] == float(tokens_cost(read_run(run).results))
    (tmp_path / "prices.toml").write_text('[cost]\ngpus = 2\ncurrency = "EUR"\n[model]\nname = "other"\n')
    lines = tbench("summary", str(run), "-c", str(tmp_path / "prices.toml"), *PRICES).stdout.splitlines()
    (line,) = (line for line in lines if line.startswith("cost: "))
    assert "EUR" in line and "60 GPU-seconds" in line
    assert "cost" not in tbench("summary", str(run)).stdout


@pytest.mark.parametrize("given", ["prompt_price=1", "cached_price=1", "hour_price=-1", "gpus=0", "currency=two words"])
def test_prices_that_make_no_sense_are_refused_in_one_line(tmp_path: Path, given: str) -> None:
    done = tbench("summary", str(a_run(tmp_path, "run", (1.0,))), "-c", f"cost.{given}")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1) and "cost" in done.stderr


@pytest.mark.parametrize(("command", "names"), [("summary", ["one"]), ("compare", ["one", "other"])])
def test_a_setting_that_is_no_price_is_refused_for_a_stored_run(tmp_path: Path, command: str, names: list[str]) -> None:
    done = tbench(command, *(str(a_run(tmp_path, name, (1.0,))) for name in names), "-c", "model.name=other")
    assert done.returncode == 2 and done.stderr.startswith("tbench: -c model.name: ")


def test_a_comparison_has_the_cost_of_both_and_their_ratio(tmp_path: Path) -> None:
    one, other = a_run(tmp_path, "one", (1.0, 1.0)), a_run(tmp_path, "other", (1.0, 0.0), scale=3)
    found = json.loads(tbench("compare", str(one), str(other), "--json", *PRICES).stdout)
    costs = [float(tokens_cost(read_run(run).results)) for run in (one, other)]
    assert [run["cost"]["amount"] for run in found["runs"]] == costs
    assert found["comparisons"][0]["cost_ratio"] == pytest.approx(6.0)
    lines = tbench("compare", str(one), str(other), *PRICES).stdout.splitlines()
    assert [line[:7] for line in lines if "cost: " in line] == ["A cost:", "B cost:"]
    assert "B costs 6 times as much as A per solved trial" in lines
    plain = tbench("compare", str(one), str(other))
    assert plain.returncode == 0 and "cost" not in plain.stdout


def test_pages_and_history_have_the_stored_prices(tmp_path: Path) -> None:
    a_run(tmp_path / "runs", "one", (1.0,))
    assert "cost" not in tbench("history", str(tmp_path / "runs")).stdout
    a_run(tmp_path / "runs", "two", (1.0, 0.0), **STORED)
    assert "per solved trial" in tbench("history", str(tmp_path / "runs")).stdout
    rows = json.loads(tbench("history", str(tmp_path / "runs"), "--json").stdout)["runs"]
    assert {row["name"]: row["cost"] and row["cost"]["solved"] for row in rows} == {"one": None, "two": 1}
    site = write_site([tmp_path / "runs"], tmp_path / "site").overview.parent

    def words(place: str) -> str:
        return " ".join(PageText((site / place).read_text()).text.split())

    assert "0.0055 USD per solved trial" in words("runs/two/index.html")
    assert "per solved" not in words("runs/one/index.html")
    assert "0.00275 USD" in trial_html(site / "runs" / "two", "t--1")
    (series,) = (page for page in (site / "series").glob("*.html") if page.name != "index.html")
    assert "0.0055 USD per solved trial" in words(f"series/{series.name}")


@pytest.mark.slow
def test_a_real_run_costs_what_the_endpoint_counted(tmp_path: Path) -> None:
    instructions = {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
    with DemoEndpoint(instructions) as demo:
        words = ("-t", "tidy-*", "-k", "2", "--base-url", demo.base_url, "-c", "schedule.calibrate=off")
        done = tbench("run", *words, *PRICES, "-c", "cost.gpus=4", "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    stored = read_run(tmp_path / "run")
    found = json.loads(tbench("summary", str(tmp_path / "run"), "--json").stdout)["cost"]
    assert found["amount"] == float(tokens_cost(stored.results)) > 0 and found["unknown"] == []
    longest = max(each.timings.agent_sec for each in stored.results)
    assert 4 * longest <= found["gpu_sec"] <= 4.001 * sum(each.timings.agent_sec for each in stored.results)
