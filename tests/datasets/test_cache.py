"""The cache's lock: one process builds a directory, others wait for it, and not for ever."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tb1_tasks import write_tb1_task

from tbench.datasets.cache import Conversions, DatasetCache
from tbench.datasets.known_dataset import Access
from tbench.datasets.read_tasks import read_selected
from tbench.errors import TaskInvalid, UsageError
from tbench.tasks.sources import ALL_TASKS, TaskChoice


def test_who_holds_a_dataset_for_too_long_is_given_up_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    with DatasetCache(tmp_path).lock("made-up@1.0-0123", said.append):
        with pytest.raises(UsageError) as caught, DatasetCache(tmp_path, 0.2).lock("made-up@1.0-0123", said.append):
            pytest.fail("two have the lock")
        with DatasetCache(tmp_path, 0.2).lock("other@1.0-0123", said.append):
            pass
    assert said == ["made-up@1.0-0123: waiting for another process that is pulling it"]
    words = "made-up@1.0-0123: another process is still pulling it after 0.2 s (it holds "
    assert str(caught.value).startswith(words + str(tmp_path)) and "\n" not in str(caught.value)


def test_who_waits_goes_on_when_the_other_is_done(tmp_path: Path) -> None:
    said, waits, done = list[str](), threading.Event(), threading.Event()

    def take() -> None:
        with DatasetCache(tmp_path, 30).lock("made-up", lambda line: (said.append(line), waits.set())[0]):
            done.set()

    with DatasetCache(tmp_path).lock("made-up", said.append):
        other = threading.Thread(target=take)
        other.start()
        assert waits.wait(20) and not done.is_set()
    other.join(20)
    assert done.is_set() and len(said) == 1


# Tasks of Terminal-Bench 1 run from a cache in the current form, which notices edits.


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def test_a_directory_of_both_forms_is_read_and_what_was_converted_is_said_once(
    tmp_path: Path, cache: Path, make_task: object
) -> None:
    assert callable(make_task)
    make_task("current")
    write_tb1_task(tmp_path / "tasks" / "old-a")
    write_tb1_task(tmp_path / "tasks" / "old-b", {"data.txt": "2\n"})
    write_tb1_task(tmp_path / "tasks" / "old-bad", {"task.yaml": "instruction: [\n"})
    said: list[str] = []
    found = read_selected(str(tmp_path / "tasks"), ALL_TASKS, Access(say=said.append))
    assert [task.name for task in found.tasks] == ["current", "old-a", "old-b"]
    assert found.invalid.keys() == {"old-bad"}
    assert "old-bad/task.yaml: line 2: is not valid YAML" in found.invalid["old-bad"]
    assert said == [f"2 Terminal-Bench 1 tasks converted to the current format in {cache}"]
    assert sorted(path.name for path in found.tasks[1].path.parents[1].iterdir()) == sorted(
        each.path.parent.name for each in found.tasks[1:]
    )


def test_what_was_converted_is_taken_again_and_a_changed_task_is_another(tmp_path: Path) -> None:
    path = write_tb1_task(tmp_path / "old")
    first = Conversions().read(path)
    made = (first.path / "task.toml").stat().st_mtime_ns
    again = Conversions().read(path)
    assert (again.path, again.hash) == (first.path, first.hash)
    assert (again.path / "task.toml").stat().st_mtime_ns == made
    (path / "tests" / "test_outputs.py").write_text("def test_2(): ...\n")
    other = Conversions().read(path)
    assert other.path != first.path
    assert other.hash != first.hash


def test_an_edit_in_the_cache_is_noticed(tmp_path: Path) -> None:
    path = write_tb1_task(tmp_path / "old")
    task = Conversions().read(path)
    (task.path / "tests" / "test_outputs.py").write_text("easier\n")
    with pytest.raises(TaskInvalid, match=r"changed after conversion from .*/old; remove it"):
        Conversions().read(path)


def test_a_conversion_of_which_a_part_is_gone_is_made_again(tmp_path: Path, cache: Path) -> None:
    path = write_tb1_task(tmp_path / "old")
    whole = Conversions().read(path)
    (whole.path.parent / ".tbench.json").unlink()
    (whole.path / "task.toml").unlink()
    assert Conversions().read(path).hash == whole.hash
    assert [each.name for each in cache.iterdir()] == [whole.path.parent.name]


def test_a_source_of_nothing_but_bad_ones_says_why(tmp_path: Path) -> None:
    path = write_tb1_task(tmp_path / "old", {"task.yaml": "instruction: x\nparser_name: other\n"})
    with pytest.raises(UsageError, match=r"old/task\.yaml: parser_name: .*'other'"):
        read_selected(str(path), TaskChoice())
