"""Changes from one run to another: the score, tasks, settings and versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from site_series import Rewards, a_site, write_night

from reports.site.changes import RunChange, known_differences, run_change, score_change
from reports.site.content import Site
from tbench.scores.comparing.compare import compare
from tbench.scores.comparing.compared_run import ComparedRun

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
        first, second = (ComparedRun(run.slug, site.rewards(run).table, site.rewards(run).hashes) for run in (old, new))
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
    assert found.lost_verdicts == ("e",)


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


# Differences between two runs: every known setting, but no port of a local server.


def changes(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """Return the differences between two nights with these settings."""
    write_night(folder, 0, {"a": (1.0,)}, **old)
    write_night(folder, 1, {"a": (1.0,)}, **new)
    return read(folder)


def read(folder: Path) -> dict[str, str]:
    with a_site(folder) as site:
        new, old = site.runs
        return dict(known_differences(site, old, new))


def rewrite(run: Path, **values: Any) -> None:
    """Set values of run.json, at the top level."""
    file = run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_equal_runs_have_not_changes(tmp_path: Path) -> None:
    assert changes(tmp_path, {}, {}) == {}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"temperature": 0.3}, {"temperature": 0.9}, {"model.temperature": "0.3 → 0.9"}),
        ({"model": "a"}, {"model": "b"}, {"model.id": '"a" → "b"'}),
        ({"concurrency": 4}, {"concurrency": 8}, {"schedule.concurrency": "4 → 8"}),
        ({"prompt_hash": "a"}, {"prompt_hash": "b"}, {"agent.prompt": '"a" → "b"'}),
        (
            {"base_url": "http://one/v1"},
            {"base_url": "http://two/v1"},
            {"endpoint": '"http://one/v1" → "http://two/v1"'},
        ),
        ({"base_url": "http://127.0.0.1:1/v1"}, {"base_url": "http://127.0.0.1:2/v1"}, {}),
        (
            {"base_url": "http://h:1/v1"},
            {"base_url": "http://h:2/v1"},
            {"endpoint": '"http://h:1/v1" → "http://h:2/v1"'},
        ),
        ({"base_url": "http://u:secret@h/v1"}, {"base_url": "http://u:other@h/v1"}, {}),
    ],
)
def test_a_setting_that_changed_is_named(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], expected: dict[str, str]
) -> None:
    assert changes(tmp_path, old, new) == expected


def test_versions_and_images_that_changed_are_named(tmp_path: Path) -> None:
    changes(tmp_path, {}, {})
    for number, version in enumerate(("1.0.0", "1.0.1")):
        task = {"name": "a", "hash": "h", "image_id": f"sha256:{number}"}
        rewrite(tmp_path / f"night-0{number}", tbench_version=version, tasks=[task], engine={"version": version})
    assert read(tmp_path) == {
        "tbench": '"1.0.0" → "1.0.1"',
        "engine.version": '"1.0.0" → "1.0.1"',
        "images": "1 task ran on another image: a",
    }


def test_the_content_of_a_task_is_a_difference(tmp_path: Path) -> None:
    assert changes(tmp_path, {}, {"hashes": {"a": "new"}}) == {"tasks": "changed content of a"}


def test_a_run_that_has_disappeared_has_no_known_differences(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"a": (1.0,)})
    run = write_night(tmp_path, 1, {"a": (1.0,)})
    with a_site(tmp_path) as site:
        (run / "run.json").unlink()
        new, old = site.runs
        assert known_differences(site, old, new) == []


def test_imported_results_name_known_differences(tmp_path: Path) -> None:
    for number, agent in enumerate(("one", "two")):
        run = tmp_path / f"import-{number}"
        run.mkdir()
        line = {"task": "a", "seed": 0, "reward": 1.0, "agent": agent, "started_at": f"2026-01-0{number + 1}T00:00:00Z"}
        (run / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert read(tmp_path) == {"agent.name": '"one" → "two"'}
