"""Execution of runs by the command line: imports, durations, garbage collection, exit codes."""

from __future__ import annotations

import gc
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import ROOT, MakeTask
from run_trees import a_result, write_run

from tbench.cli import app
from tbench.cli.execute import expected_sec, named_durations, tuned_gc
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, MeasuredTrial, save_calibration


def test_the_collector_is_as_before_when_the_trials_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(gc, "unfreeze", lambda: done.append("unfreeze"))
    before = gc.get_threshold()
    with pytest.raises(KeyError), tuned_gc():
        assert done == ["freeze"]
        assert gc.get_threshold()[2] > before[2]
        raise KeyError
    assert (gc.get_threshold(), done) == (before, ["freeze", "unfreeze"])


LATER = {
    *("jinja2", "openai", "rich", "yaml", "harness.endpoint.chat", "harness.terminal.session", "tbench.api"),
    *("tbench.control.wire", "tbench.datasets.resolve", "tbench.runs.trial", "tbench.scores.summary"),
    "tbench.verify.verifier",
}
"""Modules that an oracle run does not need, or only after it has started."""


def test_what_a_run_needs_later_or_never_is_not_imported_before_its_first_event() -> None:
    code = f"import sys, tbench.cli.run, tbench.cli.execute; print(*({LATER} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split() == []


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("task", "agent", "said"),
    [
        ({"solve": None}, "oracle", "small-task cannot run: oracle_missing: "),
        (
            {"toml": '[verifier.env]\nK = "${SURELY_UNSET}"\n'},
            "model",
            "small-task cannot run: env_missing: verifier.env",
        ),
        (
            {"toml": "[environment]\ntpu = { type = 'v4', topology = '2x2x1' }\n"},
            "nop",
            "small-task cannot run: task_unsupported: needs environment.tpu",
        ),
    ],
)
def test_a_run_of_nothing_that_can_run_ends_before_engine_and_endpoint_are_asked(
    make_task: MakeTask, tmp_path: Path, task: dict[str, str], agent: str, said: str, more: tuple[str, ...]
) -> None:
    nowhere = {"DOCKER_HOST": "tcp://127.0.0.1:9", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    output = tmp_path / "run"
    command = ["run", str(make_task(**task)), "--agent", agent, "--output", str(output), *more]
    done = CliRunner(env=nowhere).invoke(app, command, prog_name="tbench")
    assert isinstance(done.exception, UsageError) and str(done.exception).startswith(said), done
    assert done.output == "" and not output.exists()


def test_the_runs_beside_one_tell_how_long_its_tasks_take(tmp_path: Path) -> None:
    write_run(tmp_path / "earlier", [a_result("a", 0, 1.0)], {"a": None}, (0,))
    tasks, said = TaskSet((), {"a": "unreadable"}), list[str]()
    config = RunConfig()
    assert expected_sec(config, tasks, tmp_path / "now", said.append) == {}
    config = config.with_values(schedule={"order": "longest"})
    assert expected_sec(config, tasks, tmp_path / "now", said.append) == {"a": 36.0}
    assert said == [f"order: durations of 1 task known from the runs in {tmp_path}"]
    assert expected_sec(config, tasks, tmp_path / "nowhere" / "now", said.append) == {}
    named = config.with_values(schedule={"order": "longest", "durations": (str(tmp_path / "earlier"),)})
    assert expected_sec(named, tasks, tmp_path / "nowhere" / "now", said.append) == {"a": 36.0}
    with pytest.raises(UsageError, match="--durations: has no effect without"):
        named_durations(named.with_values(schedule={"order": "seeds"}), tasks)


def test_the_oracle_tells_it_of_tasks_that_no_run_has(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    both, alone = (Task.read(make_task(name, instruction=f"{name}\n")) for name in ("both", "alone"))
    tasks, config = TaskSet((both, alone), {}), RunConfig().with_values(schedule={"order": "longest"})
    for task, sec in ((both, 12.0), (alone, 4.0)):
        trials = [MeasuredTrial(agent="oracle", repetition=0, reward=1.0, solution_sec=sec - 1, tests_sec=1.0)]
        save_calibration(
            Calibration(
                task=task.name,
                task_hash=task.hash,
                image="i",
                architecture="a",
                measured_at=datetime.now(UTC),
                trials=tuple(trials),
            )
        )
    assert expected_sec(config, tasks, tmp_path / "runs" / "now", list[str]().append) == {"both": 12.0, "alone": 4.0}
    write_run(tmp_path / "runs" / "earlier", [a_result("both", 0, 1.0)], {"both": None}, (0,))
    # Scaled by the ratio of model to oracle for the tasks with both.
    assert expected_sec(config, tasks, tmp_path / "runs" / "now", list[str]().append) == {"both": 36.0, "alone": 12.0}
