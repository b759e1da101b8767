"""What moved between two runs: every setting that is said, and no port of a server that came and went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from site_series import a_site, write_night

from reports.site.moves import moves


def moved(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """What moved between two nights that were done with these settings."""
    write_night(folder, 0, {"a": (1.0,)}, **old)
    write_night(folder, 1, {"a": (1.0,)}, **new)
    return read(folder)


def read(folder: Path) -> dict[str, str]:
    with a_site(folder) as site:
        new, old = site.runs
        return {each.name: each.words for each in moves(site, old, new)}


def rewrite(run: Path, **values: Any) -> None:
    """Set values of run.json, at the top level."""
    file = run / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_equal_runs_have_not_moved(tmp_path: Path) -> None:
    assert moved(tmp_path, {}, {}) == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
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
def test_a_setting_that_moved_is_told(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], said: dict[str, str]
) -> None:
    assert moved(tmp_path, old, new) == said


def test_versions_and_images_that_moved_are_told(tmp_path: Path) -> None:
    moved(tmp_path, {}, {})
    for number, version in enumerate(("1.0.0", "1.0.1")):
        task = {"name": "a", "hash": "h", "image_id": f"sha256:{number}"}
        rewrite(tmp_path / f"night-0{number}", tbench_version=version, tasks=[task], engine={"version": version})
    assert read(tmp_path) == {
        "tbench": '"1.0.0" → "1.0.1"',
        "engine.version": '"1.0.0" → "1.0.1"',
        "images": "1 task ran on another image: a",
    }


def test_the_content_of_a_task_is_a_move(tmp_path: Path) -> None:
    assert moved(tmp_path, {}, {"hashes": {"a": "new"}}) == {"tasks": "other content of a"}


def test_a_run_that_is_gone_since_it_was_read_says_nothing(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"a": (1.0,)})
    run = write_night(tmp_path, 1, {"a": (1.0,)})
    with a_site(tmp_path) as site:
        (run / "run.json").unlink()
        new, old = site.runs
        assert moves(site, old, new) == ()


def test_results_of_others_say_what_they_know(tmp_path: Path) -> None:
    for number, agent in enumerate(("one", "two")):
        run = tmp_path / f"import-{number}"
        run.mkdir()
        line = {"task": "a", "seed": 0, "reward": 1.0, "agent": agent, "started_at": f"2026-01-0{number + 1}T00:00:00Z"}
        (run / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert read(tmp_path) == {"agent.name": '"one" → "two"'}
