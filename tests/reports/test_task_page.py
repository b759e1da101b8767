"""The page of a task, the list of tasks and the script with a task's trials."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run
from site_pages_of_runs import ReadPage, gathered, script_value

from harness.trajectory import Outcome
from reports import task
from reports.page_paths import trial_name
from reports.site.content import Site, gather
from tbench.history.index import RunHistory
from tbench.results import Blame, ErrorInfo, Stage

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)> \u202e\u2028&amp;"
ERROR = ErrorInfo(stage=Stage.VERIFIER, type="TestsNeverRan", blame=Blame.INFRA, retryable=True, message="no network")


def night(folder: Path, number: int, rewards: Sequence[float | None], digest: str = "a", **more: Any) -> None:
    """Write night `number` with these rewards of task `t` at seeds 0, 1 and so on; None is an error."""
    begun = FIRST_NIGHT + timedelta(days=number)
    name = more.pop("task", "t")
    results = [
        a_result(name, seed, reward, begun, outcome=Outcome.SUBMITTED, error=ERROR if reward is None else None)
        for seed, reward in enumerate(rewards)
    ]
    write_run(folder / f"night-{number}", results, {name: digest}, range(len(rewards)), begun=begun, **more)


def render(site: Site, record: task.TaskRecord) -> str:
    return task.render(record, site.history.trials_by_run(record.task))


def read(folder: Path, name: str = "t") -> ReadPage:
    with gathered(folder) as site:
        return ReadPage(render(site, task.task_record(site, name)))


@pytest.mark.parametrize(
    ("rewards", "how"),
    [((1.0, 1.0), "✓ always"), ((1.0, 0.0), "◐ sometimes"), ((0.0, 0.5), "✗ never"), ((1.0, None), "· too few")],
)
def test_the_page_says_whether_a_task_is_solved_and_how_sure_that_is(
    tmp_path: Path, rewards: tuple[float | None, ...], how: str
) -> None:
    night(tmp_path, 1, rewards)
    page = read(tmp_path)
    assert how in page.words
    solved, scored = sum(reward == 1.0 for reward in rewards), sum(reward is not None for reward in rewards)
    assert f"solved in {solved} of {scored} trial" in page.words
    assert "95 % Wilson interval" in page.words


def test_only_the_newest_runs_with_the_same_content_are_asked(tmp_path: Path) -> None:
    night(tmp_path, 0, (0.0, 0.0), digest="earlier")
    for number in range(1, 13):
        night(tmp_path, number, (1.0, 1.0))
    page = read(tmp_path)
    assert "solved in 20 of 20 trials" in page.words
    assert "the newest 10 runs of m" in page.words
    assert "changed, 2 versions" in page.words
    assert page.row("v2 a") == "v2 a night-1 (2026-01-02) night-12 (2026-01-13) 12 24/24 100.0 %"
    assert page.row("v1 earlier").endswith("1 0/2 0.0 %")
    assert len(page.of_class("change")) == 1


def test_each_trial_is_a_cell_with_its_sign_and_leads_to_its_page(tmp_path: Path) -> None:
    night(tmp_path, 1, (1.0, 0.25, 0.0, None))
    page = read(tmp_path)
    cells = page.of_class("cell")
    assert [cell["class"] for cell in cells] == ["cell pass", "cell partial", "cell fail", "cell error"]
    assert cells[0] == {
        "class": "cell pass",
        "href": "../runs/night-1/trial.html?t--0",
        "title": "seed 0: pass, submitted, 7 steps, 36.0\u00a0s",
    }
    assert cells[3]["title"].startswith("seed 3: error, no verdict: TestsNeverRan")
    assert page.row("night-1") == "night-1 2026-01-02 ✓.25✗! 1/4 31.2 % 7.0 36.0 s"


def test_a_trial_that_has_not_ended_has_no_link(tmp_path: Path) -> None:
    write_run(tmp_path / "r", [a_result("t", 0, 1.0)], {"t": "a"}, [0, 1], status="running")
    cells = read(tmp_path).of_class("cell")
    assert [(cell["class"], "href" in cell) for cell in cells] == [("cell pass", True), ("cell missing", False)]


def test_the_history_with_one_trial_a_night_is_a_cell_for_each_month_by_month(tmp_path: Path) -> None:
    for number in (*range(30), 40):
        night(tmp_path, number, (float(number % 2),))
    page = read(tmp_path)
    assert page.of_class("history") == []
    assert len(page.of_class("month")) == 2
    assert "2026-01 ✗✓" in page.words and " 15/30 2026-02 ✗ 0/1" in page.words


def test_many_seeds_are_not_shown_one_by_one(tmp_path: Path) -> None:
    night(tmp_path, 1, [1.0] * 200)
    page = read(tmp_path)
    assert len(page.of_class("cell")) == 24
    assert "+176 more" in page.words


def test_many_runs_are_folded(tmp_path: Path) -> None:
    for number in range(63):
        night(tmp_path, number, (1.0,))
    page = read(tmp_path)
    assert "3 earlier runs" in page.words
    assert len(page.of_class("cell")) == 63 * 2, "one in the history, one in the list of runs"


def test_ends_and_durations_of_trials_are_shown(tmp_path: Path) -> None:
    night(tmp_path, 1, (1.0, 0.0, None))
    page = read(tmp_path)
    assert page.row("submitted") == "submitted 2 1"
    assert page.row("! verifier") == "! verifier: TestsNeverRan 1 –"
    assert len(page.of_class("durations")) == 1
    assert len(page.of_class("grain")) == 3


def test_each_series_has_a_chart_and_single_runs_share_one(tmp_path: Path) -> None:
    for number in range(4):
        night(tmp_path / "a", number, (1.0, 0.0))
        night(tmp_path / "b", number, (0.0, 0.0), model="other")
    assert len(read(tmp_path).of_class("history")) == 2
    page = read(tmp_path)
    assert "other · 2026-01-01" in page.words
    night(tmp_path / "c", 1, (0.5,), task="u")
    night(tmp_path / "c", 2, (0.5,), task="u", model="other")
    assert "all runs" in read(tmp_path, "u").words


def test_only_tasks_of_the_sites_own_runs_have_pages(tmp_path: Path) -> None:
    night(tmp_path / "shown", 1, (1.0,))
    night(tmp_path / "other", 1, (1.0,), task="u")
    with RunHistory.open(tmp_path / "index") as history:
        history.update(tmp_path)
        of_all, of_shown = (task.task_records(gather(history, [folder])) for folder in (tmp_path, tmp_path / "shown"))
    assert [each.task for each in of_all] == ["t", "u"]
    assert [each.task for each in of_shown] == ["t"]


def test_a_task_that_no_run_of_the_site_planned_has_a_message(tmp_path: Path) -> None:
    night(tmp_path, 1, (1.0,))
    assert "No run on this site includes this task." in read(tmp_path, "unknown").words


def test_the_list_has_a_line_for_each_task(tmp_path: Path) -> None:
    for number in range(3):
        night(tmp_path, number, (1.0, 0.0))
        night(tmp_path / "u", number, (1.0, 1.0), task="u", model="other")
    with gathered(tmp_path) as site:
        page = ReadPage(task.render_list(task.task_records(site)))
    assert page.row("t ") == "t ◐ sometimes 50.0 %3/6 18.8 to 81.2 % t: mean reward in the last 3 runs 7.0 36.0 s –"
    assert page.row("u ").startswith("u ✓ always 100.0 %6/6")
    assert len(page.of_class("spark")) == 2
    assert [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs["href"] in ("t.html", "u.html")]
    hidden = [attrs for _, attrs in page.tags if "data-needs-script" in attrs]
    assert hidden
    assert all("hidden" in attrs for attrs in hidden)


def test_without_runs_the_list_is_empty_and_says_so() -> None:
    assert "No run has planned a task yet." in ReadPage(task.render_list(())).words


def test_the_data_names_every_trial_newest_first(tmp_path: Path) -> None:
    night(tmp_path, 1, (1.0, None))
    night(tmp_path, 2, (0.0,))
    with gathered(tmp_path) as site:
        trials = script_value(task.data(task.task_record(site, "t"), site.history.trials_by_run("t")), "trials")
    assert [(each["run"], each["seed"], each["status"]) for each in trials] == [
        ("night-2", 0, "fail"),
        ("night-1", 0, "pass"),
        ("night-1", 1, "error"),
    ]
    assert trials[0] == {
        "run": "night-2",
        "name": "night-2",
        "trial": "t--0",
        "seed": 0,
        "attempt": 1,
        "status": "fail",
    }


def test_hostile_names_stay_text_on_all_pages(tmp_path: Path) -> None:
    for number in range(3):
        night(tmp_path, number, (1.0, 0.0), digest=HOSTILE, task=HOSTILE, model=HOSTILE)
    with gathered(tmp_path) as site:
        record = task.task_record(site, HOSTILE)
        pages = [render(site, record), task.render_list([record])]
        data = task.data(record, site.history.trials_by_run(record.task))
        assert script_value(data, "trials")[0]["trial"] == trial_name(HOSTILE, 0)
    for text in pages:
        page = ReadPage(text)
        assert not [attrs for tag, attrs in page.tags if tag == "img" or "onerror" in attrs]
        assert all(attrs.get("src", "").startswith("../assets/") for tag, attrs in page.tags if tag == "script")
        assert "\u202e" not in text
        assert all(unquote(link).count("..") <= 1 for link in page.links)


def test_a_blank_name_is_replaced(tmp_path: Path) -> None:
    night(tmp_path, 1, (1.0,), task=" ")
    with gathered(tmp_path) as site:
        record = task.task_record(site, " ")
        assert "(no name)" in ReadPage(task.render_list([record])).words
        assert "(no name)" in ReadPage(render(site, record)).words
