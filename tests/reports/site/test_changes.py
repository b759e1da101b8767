"""What changed from one run to another: the score as a comparison has it, and the tasks that moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_series import Rewards, a_site, write_night

from reports.site.changes import RunChange, run_change, score_change
from reports.site.content import Site
from tbench.scores.comparing.compare import compare
from tbench.scores.comparing.side import Side

BEFORE: Rewards = {"a": (1.0, 1.0), "b": (1.0, 0.0), "c": (0.0, 0.0), "d": (0.5, 0.5), "e": (None, 1.0)}
NOW: Rewards = {"a": (0.0, 0.0), "b": (0.0, 1.0), "c": (1.0, 0.0), "d": (0.25, 0.5), "e": (None, None)}


def changed(site: Site) -> RunChange:
    new, old = site.runs
    found = run_change(site, old, new)
    assert found is not None
    return found


def test_the_difference_and_its_error_are_those_of_a_comparison(tmp_path: Path) -> None:
    write_night(tmp_path, 0, BEFORE)
    write_night(tmp_path, 1, NOW)
    with a_site(tmp_path) as site:
        new, old = site.runs
        first, second = (Side(run.slug, site.rewards(run).table, site.rewards(run).hashes) for run in (old, new))
        found, known = score_change(site, old, new), compare(first, second)
    assert found is not None
    assert found.points == pytest.approx(known.difference)
    assert found.se == pytest.approx(known.se)


def test_tasks_move_by_the_trials_with_a_verdict_in_both(tmp_path: Path) -> None:
    write_night(tmp_path, 0, BEFORE)
    write_night(tmp_path, 1, NOW)
    with a_site(tmp_path) as site:
        found = changed(site)
    assert [(each.task, each.before, each.now, each.is_new) for each in found.lower] == [
        ("a", 1.0, 0.0, True),
        ("d", 0.5, 0.375, False),
    ]
    assert [(each.task, each.is_new) for each in found.higher] == [("c", True)]
    assert found.silent == ("e",)


def test_a_change_within_chance_has_no_direction(tmp_path: Path) -> None:
    tasks = [f"t{number}" for number in range(20)]
    write_night(tmp_path, 0, dict.fromkeys(tasks, (1.0,)))
    write_night(tmp_path, 1, {**dict.fromkeys(tasks, (1.0,)), "t0": (0.0,)})
    write_night(tmp_path, 2, dict.fromkeys(tasks, (0.0,)))
    with a_site(tmp_path) as site:
        last, middle, first = site.runs
        small, large = score_change(site, first, middle), score_change(site, first, last)
        back = score_change(site, last, first)
    assert small is not None and large is not None and back is not None
    assert (small.direction, large.direction, back.direction) == ("", "down", "up")


def test_a_single_task_has_no_error_and_no_direction(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"a": (1.0,)})
    write_night(tmp_path, 1, {"a": (0.0,)})
    with a_site(tmp_path) as site:
        found = changed(site).score
    assert (found.points, found.se, found.direction) == (-1.0, None, "")


def test_runs_without_a_common_task_have_no_change(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"a": (1.0,)})
    write_night(tmp_path, 1, {"a": (1.0,)}, hashes={"a": "another"})
    with a_site(tmp_path) as site:
        new, old = site.runs
        assert run_change(site, old, new) is None
        assert score_change(site, old, new) is None
