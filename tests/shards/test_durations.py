"""How long trials take, as earlier runs tell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compared_runs import store_run

from tbench.errors import UsageError
from tbench.shards.durations import mean_durations


def a_run(path: Path, seconds: dict[str, list[float]], **more: object) -> Path:
    store_run(path, {task: [1.0] * len(each) for task, each in seconds.items()})
    lines = [json.loads(line) for line in (path / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["timings"]["wall_sec"] = seconds[line["task"]][line["seed"]]
        line.update(more)
    (path / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_the_mean_is_over_all_trials_of_all_runs(tmp_path: Path) -> None:
    one = a_run(tmp_path / "one", {"a": [10.0, 20.0], "b": [1.0, 1.0]})
    other = a_run(tmp_path / "other", {"a": [60.0], "elsewhere": [5.0]})
    assert mean_durations([one, other], ["a", "b", "never run"]) == {"a": 30.0, "b": 1.0}
    assert mean_durations([], ["a"]) == {}


@pytest.mark.parametrize("more", [{"human_touched": True}, {"reward": None}, {"task": "of another dataset"}])
def test_a_run_that_tells_nothing_of_the_tasks_is_refused(tmp_path: Path, more: dict[str, object]) -> None:
    run = a_run(tmp_path / "one", {"a": [10.0]}, **more)
    with pytest.raises(UsageError, match=r"^--durations .*one: tells nothing of the 1 tasks"):
        mean_durations([run], ["a"])


def test_a_path_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such run directory"):
        mean_durations([tmp_path / "none"], ["a"])
