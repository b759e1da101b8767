"""Tasks by name as a run reads them: their origin, their digests, edits of the cache, and the same again later."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from git_mirrors import Mirror, registry, row

from tbench.datasets.cache import cache_directory
from tbench.datasets.known_dataset import Access
from tbench.datasets.read_tasks import read_again, read_selected, read_tasks
from tbench.errors import UsageError
from tbench.tasks.sources import ALL_TASKS, TaskChoice


def test_bundled_tasks_and_those_of_a_path_have_no_origin(mirror: Mirror) -> None:
    assert read_tasks("bundled", ["tidy-*"]).origin is None
    assert read_tasks(str(mirror.work / "tasks"), limit=2).names == ["alpha", "beta"]
    with pytest.raises(UsageError, match="no such directory; give a task, a directory of tasks, or 'bundled'"):
        read_tasks("no/such/place")


def test_globs_and_limits_choose_among_the_tasks_of_a_name(mirror: Mirror, tmp_path: Path) -> None:
    access = Access(
        str(registry(tmp_path / "r.json", row("set", "1", mirror, mirror.head, ["alpha", "beta", "gamma"])))
    )
    tasks = read_selected("set@1", TaskChoice(["*a"], ["b*"], 1), access)
    assert tasks.names == ["alpha"] and tasks.origin is not None
    assert (tasks.origin.tasks, tasks.origin.compared, tasks.origin.title) == (3, 1, "set@1")
    with pytest.raises(UsageError, match="--task omega: matches no task in set@1"):
        read_selected("set@1", TaskChoice(["omega"]), access)


def test_a_task_that_is_not_what_was_published_is_named_and_runs(mirror: Mirror) -> None:
    mirror.publish(other={"beta": "0" * 64})
    mirror.commit()
    tasks = read_tasks(f"git+{mirror.url}")
    assert len(tasks.tasks) == 3 and tasks.origin is not None
    assert (tasks.origin.verified, tasks.origin.differing) == (False, ("beta",))
    assert tasks.origin.words == (
        f"mirror (commit {mirror.head[:12]}): 2 of 3 tasks match the published digests; changed: beta"
    )
    assert tasks.origin.digest is not None


def test_without_published_digests_that_is_said(mirror: Mirror) -> None:
    tasks = read_tasks(f"git+{mirror.url}#other")
    assert tasks.origin is not None and tasks.origin.verified is None
    assert tasks.origin.words.endswith(": no digests of its tasks are published")


@pytest.mark.parametrize("folder", ["tasks", "other"])
def test_an_edit_of_the_cache_is_noticed_also_where_no_digests_are_published(mirror: Mirror, folder: str) -> None:
    source = f"git+{mirror.url}@{mirror.head}#{folder}"
    entry = cache_directory() / f"{read_tasks(source).origin.entry}"  # type: ignore[union-attr]
    (entry / "alpha/tests/test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n\n")
    with pytest.raises(UsageError) as raised:
        read_tasks(source)
    assert str(raised.value).startswith(f"{entry}: changed after the pull: alpha; pull it again with: tbench data")
    (entry / "alpha/tests/test.sh").unlink()
    with pytest.raises(UsageError, match=r"alpha"):
        read_tasks(source)
    read_selected(source, ALL_TASKS, Access(refresh=True))
    assert "alpha" in read_tasks(source).names


def test_a_run_that_goes_on_has_the_commit_that_it_began_with(mirror: Mirror, tmp_path: Path) -> None:
    place = str(registry(tmp_path / "r.json", row("set", "1", mirror, None, ["alpha"])))
    first = read_selected("set@1", ALL_TASKS, Access(place))
    (mirror.work / "tasks/alpha/instruction.md").write_text("Something else.\n")
    mirror.commit()
    assert read_again("set@1", first.origin, place).tasks[0].hash == first.tasks[0].hash
    (tmp_path / "r.json").unlink()
    assert read_again("set@1", first.origin, place).tasks[0].hash == first.tasks[0].hash
    registry(tmp_path / "r.json", row("set", "1", mirror, None, ["alpha"]))
    shutil.rmtree(cache_directory())
    again = read_again("set@1", first.origin, place)
    assert again.tasks[0].hash == first.tasks[0].hash
    assert again.origin is not None and first.origin is not None and again.origin.commit == first.origin.commit
    assert read_selected("set@1", ALL_TASKS, Access(place)).tasks[0].hash != first.tasks[0].hash


def test_directories_of_a_registry_are_read_where_they_are(mirror: Mirror, tmp_path: Path) -> None:
    tasks = [{"name": name, "path": str(mirror.work / "tasks" / name)} for name in ("beta", "alpha")]
    place = registry(tmp_path / "r.json", {"name": "here", "version": "1", "tasks": tasks})
    found = read_selected("here", ALL_TASKS, Access(str(place)))
    assert found.names == ["alpha", "beta"] and found.origin is not None
    assert (found.origin.source, found.origin.url, found.origin.entry) == (str(place), None, "")
    assert not cache_directory().exists()


def test_reading_by_name_costs_little_more_than_reading_the_directory(tmp_path: Path) -> None:
    mirror = Mirror(tmp_path, "hundred")
    for number in range(100):
        mirror.task(f"task-{number:03}")
    mirror.publish()
    mirror.commit()
    source = f"git+{mirror.url}@{mirror.head}"
    began = time.perf_counter()
    assert len(read_tasks(source).tasks) == 100
    assert time.perf_counter() - began < 10  # 3 s on a quiet machine: `make bench` measures it
    began = time.process_time()
    assert read_tasks(source).origin is not None
    by_name = time.process_time() - began
    began = time.process_time()
    assert len({task.hash for task in read_tasks(str(mirror.work / "tasks")).tasks}) > 0
    assert by_name - (time.process_time() - began) < 0.3
