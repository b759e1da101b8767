"""`tbench gate`: stored runs as nights, the exit code of an alarm, and runs that cannot be nights."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gate_nights import nights
from run_plans import A_MODEL, a_plan

from tbench.cli import app
from tbench.config.document import PlannedTask, RunDocument
from tbench.errors import UsageError
from tbench.scores.gate.nights import Night

BEGUN = datetime(2026, 11, 1, 3, tzinfo=UTC)


def tbench(*arguments: str | Path) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["gate", *map(str, arguments)], prog_name="tbench")
    assert not isinstance(done.exception, UsageError), done.exception
    return done.exit_code, done.output.splitlines()


def fails(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, ["gate", *map(str, arguments)], prog_name="tbench")
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    return str(done.exception)


def store(directory: Path, night: Night, number: int, *, status: str = "finished", **known: Any) -> Path:
    """Write a night as a run directory."""
    run = directory / night.name
    run.mkdir(parents=True)
    begun = (BEGUN + timedelta(days=number)).isoformat()
    document = RunDocument(
        **dict(a_plan(night.name, seeds=night.table.seeds, **{**A_MODEL, **known})),
        status=status,
        created_at=begun,
        tasks=tuple(PlannedTask(name=task, hash="h") for task in night.table.tasks),
    )
    (run / "run.json").write_text(document.model_dump_json())
    (run / "results.jsonl").write_text(results(night, number, agent="tbench:keystrokes-json"))
    return run


def results(night: Night, number: int, **known: Any) -> str:
    time = (BEGUN + timedelta(days=number)).isoformat()
    cells = zip(night.table.tasks, night.table.rows, strict=True)
    lines = [
        {"task": task, "seed": seed, "reward": reward, "model": "m", "started_at": time, "finished_at": time, **known}
        for task, row in cells
        for seed, reward in zip(night.table.seeds, row, strict=True)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


@pytest.fixture
def stored(tmp_path: Path) -> list[Path]:
    """Write eighteen nights, the last four with half of the score."""
    return [store(tmp_path / "runs", night, n) for n, night in enumerate(nights(18, dropped_at=14))]


def test_a_drop_ends_with_5_and_its_evidence(stored: list[Path]) -> None:
    code, lines = tbench(stored[0].parent)
    assert code == 5
    assert lines[0].startswith("gate: alarm: the score dropped by 25.0 ± ")
    assert "C = 6.2 > 5; score 25.0 %" in lines[2]
    assert "task-00: solved 0 of 4, baseline 7 of 14" in lines[3]


def test_runs_are_judged_in_the_order_in_which_they_began(stored: list[Path]) -> None:
    assert tbench(*stored[::-1])[0] == 5
    code, (line,) = tbench(*stored[:14])
    assert (code, line) == (0, "gate: quiet: C = 0.0 of 5; score 50.0 % (baseline 50.0 %, a night ± 12.3); 20 tasks")


def test_runs_of_one_name_are_called_by_their_paths(tmp_path: Path) -> None:
    for number, night in enumerate(nights(18, dropped_at=14)):
        store(tmp_path / str(number), Night("tb", night.begun, night.table, {}), number)
    code, lines = tbench(*tmp_path.glob("*/tb"))
    assert code == 5
    assert f"and {tmp_path}/14/tb (15 Nov 2026)" in lines[1]


def test_json_is_one_object_with_the_evidence(stored: list[Path]) -> None:
    code, lines = tbench(stored[0].parent, "--json")
    data = json.loads("\n".join(lines))
    assert (code, data["state"], data["drop"]["since"], len(data["nights"])) == (5, "alarm", "night-14", 18)


def test_imported_results_are_nights_too(tmp_path: Path) -> None:
    for number, night in enumerate(nights(18, dropped_at=14)):
        (tmp_path / night.name).mkdir()
        (tmp_path / night.name / "results.jsonl").write_text(results(night, number))
    assert tbench(tmp_path)[0] == 5


def test_the_rule_is_reported_by_options(stored: list[Path]) -> None:
    runs = stored[0].parent
    assert tbench(runs, "--h", "20")[0] == 0
    assert tbench(runs, "--min-se", "9")[0] == 0
    assert tbench(runs, "--base-from", "2026-11-15")[1][0] == "gate: learning: 4 of 10 nights; score 25.0 %"
    assert tbench(runs, "--base-from", "night-14", "--base-nights", "3")[1][0].startswith("gate: quiet")


def test_a_run_with_other_settings_is_left_out_with_its_differences(stored: list[Path], tmp_path: Path) -> None:
    odd = nights(1)[0]
    other = store(tmp_path, Night("odd", odd.begun, odd.table, {}), 5, temperature=0.5)
    code, lines = tbench(*stored, other)
    assert code == 5
    assert lines[-2] == "note: 1 night with other settings left out"
    assert lines[-1].startswith("note: odd: model.temperature: 0.5 → ")


def test_nights_of_several_models_are_reported(stored: list[Path], tmp_path: Path) -> None:
    night = nights(19)[-1]
    other = store(tmp_path, night, 18, model="m-2")
    results_file = other / "results.jsonl"
    results_file.write_text(results_file.read_text().replace('"m"', '"m-2"'))
    assert tbench(*stored, other)[1][-1] == "note: nights of 2 models: m, m-2"


def test_a_run_that_goes_on_is_refused_where_it_is_named_and_left_out_of_a_directory(stored: list[Path]) -> None:
    going = store(stored[0].parent, nights(19)[-1], 18, status="running")
    assert "night-18: is still running, or was killed; wait for its end, `tbench resume` it, or leave" in fails(going)
    code, lines = tbench(stored[0].parent)
    assert (code, "night-18: is still running" in lines[-1]) == (5, True)


def test_a_broken_run_is_refused_where_it_is_named_and_left_out_of_a_directory(stored: list[Path]) -> None:
    (stored[3] / "run.json").write_text("{")
    assert "not JSON" in fails(stored[3])
    code, lines = tbench(stored[0].parent)
    assert (code, lines[-1].startswith("note: left out: ")) == (5, True)


def test_results_of_several_models_are_no_night(tmp_path: Path) -> None:
    night = nights(1)[0]
    file = tmp_path / "mixed.jsonl"
    file.write_text(results(night, 0) + results(night, 0, model="m-2"))
    assert fails(file).startswith(f"{tmp_path} (mixed): ")


def test_where_there_is_no_run_is_said_in_one_line(tmp_path: Path) -> None:
    assert fails(tmp_path / "none") == f"{tmp_path / 'none'}: no such run directory; check the path"
    assert fails(tmp_path) == f"{tmp_path}: contains no run; give run directories, or a directory of them"


def test_what_a_run_is_called_cannot_steer_the_terminal(tmp_path: Path) -> None:
    series = [Night(f"n{n}\x1b[2J", night.begun, night.table, {}) for n, night in enumerate(nights(18, dropped_at=14))]
    for number, night in enumerate(series):
        store(tmp_path, night, number)
    code, lines = tbench(tmp_path)
    assert (code, "\x1b" in "".join(lines)) == (5, False)
