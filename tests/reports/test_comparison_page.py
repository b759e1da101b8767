"""The page of two runs (difference, meaning, both runs' trials task by task), and the choice of two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from run_trees import FIRST_NIGHT, a_result, write_run
from site_pages_of_runs import ReadPage, gathered, script_value

from reports import comparison
from reports.site.content import Site, SiteRun

HOSTILE = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"
Rewards = Mapping[str, Sequence[float | None]]


def night(folder: Path, number: int, rewards: Rewards, *, first_seed: int = 0, **more: Any) -> None:
    """Write night `number` with these rewards by task and seed; `hashes` replaces hashes of tasks."""
    begun = FIRST_NIGHT + timedelta(days=number)
    (count,) = {len(row) for row in rewards.values()}
    seeds = range(first_seed, first_seed + count)
    hashes = {task: f"hash of {task}" for task in rewards} | more.pop("hashes", {})
    results = [
        a_result(task, seed, reward, begun)
        for task, row in rewards.items()
        for seed, reward in zip(seeds, row, strict=True)
    ]
    name = more.pop("name", f"night-{number}")
    write_run(folder / name, results, hashes, seeds, begun=begun, **more)


def two(site: Site) -> tuple[SiteRun, SiteRun]:
    """Return the older run and the newer one."""
    new, old = site.runs
    return old, new


def read(folder: Path) -> ReadPage:
    with gathered(folder) as site:
        return ReadPage(comparison.render(site, *two(site)))


OLD: Rewards = {"lost": (1.0, 1.0), "half": (1.0, 1.0), "won": (0.0, 0.0), "same": (1.0, 0.0), "partly": (0.25, 0.5)}
NEW: Rewards = {"lost": (0.0, 0.0), "half": (1.0, 0.0), "won": (0.0, 1.0), "same": (1.0, 0.0), "partly": (0.5, 0.5)}


def test_tasks_stand_in_the_group_in_which_they_moved(tmp_path: Path) -> None:
    night(tmp_path, 1, OLD)
    night(tmp_path, 2, NEW)
    page = read(tmp_path)
    headings = ("Newly failing 1", "Newly passing 1", "Changed 2", "Unchanged 1 task")
    places = [page.words.index(heading) for heading in headings]
    assert places == sorted(places)
    assert page.row("lost") == "lost ✓✓ 100.0 % ✗✗ 0.0 % −100.0"
    assert page.row("won") == "won ✗✗ 0.0 % ✗✓ 50.0 % +50.0"
    assert "same 50.0 %" in page.words
    assert page.words.index("half ✓✓") < page.words.index("partly .25.50")


def test_the_difference_is_shown_with_its_error_and_its_meaning(tmp_path: Path) -> None:
    night(tmp_path, 1, OLD)
    night(tmp_path, 2, NEW)
    words = read(tmp_path).words
    assert "−17.5 points" in words
    assert "standard error" in words
    assert "may well be chance p = 0.75" in words
    assert "chance alone would make a difference at least as large in 75 of 100 cases" in words
    assert "✗ 2 worse · 1 the same · ✓ 2 better, of 5 common tasks × 2 seeds" in words
    assert "B - A: -17.50 points" in words


def test_a_large_difference_is_beyond_chance(tmp_path: Path) -> None:
    night(tmp_path, 1, {f"t{number}": (1.0,) for number in range(12)})
    night(tmp_path, 2, {f"t{number}": (0.0,) for number in range(12)})
    words = read(tmp_path).words
    assert "↓ worse beyond chance p = 0.00049" in words
    assert "in fewer than 1 of 1,000 cases" in words


def test_both_runs_trials_lead_to_their_pages(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0,)})
    night(tmp_path, 2, {"t": (0.0,)})
    links = read(tmp_path).links
    assert "../runs/night-1/trial.html?t--0" in links
    assert "../runs/night-2/trial.html?t--0" in links
    assert "../tasks/t.html" in links


def test_a_quiet_night_is_one_line(tmp_path: Path) -> None:
    night(tmp_path, 1, OLD)
    night(tmp_path, 2, OLD)
    words = read(tmp_path).words
    assert "No change: the mean reward of every common task is the same in both runs." in words
    assert "at least as large in every case" in words


def test_trials_without_a_verdict_are_apart_from_failures(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0, 1.0), "u": (1.0, 1.0)})
    night(tmp_path, 2, {"t": (None, None), "u": (0.0, 0.0)})
    words = read(tmp_path).words
    places = [words.index(each) for each in ("Newly failing 1", "u ✓✓", "Without a verdict 1", "t ✓✓")]
    assert places == sorted(places)
    assert "Coverage is 100.0 % and 50.0 %" in words


def test_what_only_one_run_has_is_left_out_and_named(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0,), "gone": (1.0,), "edited": (1.0,)})
    night(tmp_path, 2, {"t": (1.0,), "new": (1.0,), "edited": (0.0,)}, hashes={"edited": "another"})
    words = read(tmp_path).words
    assert "Only in night-1 1 Left out of the comparison. gone" in words
    assert "Only in night-2 1 Left out of the comparison. new" in words
    assert "Content differs between the runs 1 Left out of the comparison. edited" in words


def test_runs_without_a_common_task_have_a_page_that_says_so(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0,)})
    night(tmp_path, 2, {"u": (1.0,)})
    words = read(tmp_path).words
    assert "Nothing to compare. night-1 and night-2 have no task in common" in words
    assert "points" not in words


def test_differing_settings_and_missing_trials_come_first(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0,), "u": (1.0,)}, prompt_hash="one")
    night(tmp_path, 2, {"t": (1.0,), "u": (1.0,)}, prompt_hash="another")
    results = tmp_path / "night-2" / "results.jsonl"
    results.write_text(results.read_text().splitlines(keepends=True)[0])
    words = read(tmp_path).words
    assert (
        '1 setting differs, so the difference is not due to the model alone: agent.prompt: "one" → "another"' in words
    )
    assert "night-2 is incomplete: 1 of 2 trials have no result and count as 0." in words


def test_seeds_that_are_not_common_are_paired_in_their_order(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0, 0.0)})
    night(tmp_path, 2, {"t": (0.0, 0.0)}, first_seed=10)
    page = read(tmp_path)
    assert "the runs share no seed, so trials are paired in order" in page.words
    assert "../runs/night-2/trial.html?t--11" in page.links


def test_many_seeds_are_not_shown_one_by_one(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": [1.0] * 60})
    night(tmp_path, 2, {"t": [0.0] * 60})
    page = read(tmp_path)
    assert len(page.of_class("cell")) == 48
    assert page.words.count("+36 more") == 2


def test_the_choice_lists_prepared_pairs_and_offers_every_run(tmp_path: Path) -> None:
    for number in range(3):
        night(tmp_path, number, {"t": (1.0,)})
    with gathered(tmp_path) as site:
        page = ReadPage(comparison.render_choice(site))
    assert {"night-0--night-1.html", "night-1--night-2.html"} <= set(page.links)
    options = [attrs for tag, attrs in page.tags if tag == "option"]
    assert [option["value"] for option in options] == ["night-2", "night-1", "night-0"] * 2
    assert [option["data-before"] for option in options[3:]] == ["night-1", "night-0", ""]
    assert all("hidden" in attrs for _, attrs in page.tags if "data-needs-script" in attrs)


def test_a_single_run_leaves_no_choice(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0,)})
    with gathered(tmp_path) as site:
        assert "There is one run so far; a comparison needs two." in ReadPage(comparison.render_choice(site)).words


def test_the_data_of_a_run_has_its_rewards_by_task_and_seed(tmp_path: Path) -> None:
    night(tmp_path, 1, {"t": (1.0, None), "a/b": (0.5, 0.0)}, name="a run")
    with gathered(tmp_path) as site:
        (run,) = site.runs
        found = script_value(comparison.data(site, run), f"rewards {run.slug}")
    assert (found["name"], found["model"], found["seeds"], found["path"]) == ("a run", "m", [0, 1], "'a run'")
    first, second = found["tasks"]
    assert first == ["t", "t", "hash of t", {"0": [1.0, "pass", "✓"], "1": [None, "error", "!"]}]
    assert second[0] == "a/b"
    assert "/" not in second[1]
    assert second[3] == {"0": [0.5, "partial", ".50"], "1": [0.0, "fail", "✗"]}


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    night(tmp_path, 1, {HOSTILE: (1.0,)}, model=HOSTILE)
    night(tmp_path, 2, {HOSTILE: (0.0,)}, model=HOSTILE)
    with gathered(tmp_path) as site:
        texts = [comparison.render(site, *two(site)), comparison.render_choice(site)]
        assert script_value(comparison.data(site, site.runs[0]), "rewards night-2")["model"] == HOSTILE
    for text in texts:
        page = ReadPage(text)
        assert not [attrs for tag, attrs in page.tags if tag == "img" or "onerror" in attrs]
        assert all(attrs.get("src", "").startswith("../assets/") for tag, attrs in page.tags if tag == "script")
