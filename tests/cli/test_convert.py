"""`tbench task convert`, and the other commands with tasks of Terminal-Bench 1."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from tb1_tasks import write_tb1_task

from tbench.api.runner import Runner
from tbench.cli import app
from tbench.config.settings import RunConfig
from tbench.datasets.read_tasks import read_tasks


def tbench(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, list(arguments), prog_name="tbench")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output.splitlines()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "converted"


def test_a_directory_is_converted_and_what_cannot_be_is_named(tmp_path: Path) -> None:
    write_tb1_task(tmp_path / "old" / "good")
    write_tb1_task(tmp_path / "old" / "shell", {"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"})
    bad = write_tb1_task(tmp_path / "old" / "bad", {"docker-compose.yaml": "services:\n  a: 1\n"})
    target = tmp_path / "old-converted"
    assert tbench("task", "convert", str(tmp_path / "old")) == (
        2,
        [
            f"not converted: {bad}/docker-compose.yaml: services.a: must be a table of keys and values",
            "shell: run_tests_in_same_shell: the tests run in a separate shell as the agent's user",
            f"2 tasks written to {target}, 1 problem",
        ],
    )
    assert sorted(path.name for path in target.iterdir()) == ["good", "shell"]
    assert tbench("task", "check", "--static", str(target))[0] == 0


def test_one_task_is_converted_to_where_it_is_wanted(tmp_path: Path) -> None:
    path, target = write_tb1_task(tmp_path / "old"), tmp_path / "new"
    assert tbench("task", "convert", str(path), "-o", str(target)) == (0, [f"1 task written to {target}, 0 problems"])
    assert (target / "old" / "task.toml").is_file()


@pytest.mark.parametrize("name", ["gone", "empty"])
def test_where_nothing_can_be_converted_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(app, ["task", "convert", str(tmp_path / name)], prog_name="tbench")
    assert "of Terminal-Bench 1" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_directory_that_holds_something_is_not_written_to(tmp_path: Path) -> None:
    path = write_tb1_task(tmp_path / "old")
    done = CliRunner().invoke(app, ["task", "convert", str(path), "-o", str(tmp_path)], prog_name="tbench")
    assert "not empty; name a new directory with --output" in str(done.exception)


def test_list_and_check_read_them_as_they_are(tmp_path: Path, cache: Path) -> None:
    path = write_tb1_task(tmp_path / "old-task")
    code, lines = tbench("task", "list", str(path))
    assert code == 0
    assert lines[0] == f"1 Terminal-Bench 1 task converted to the current format in {cache}"
    assert lines[1].split()[:2] == ["old-task", "easy"]


@pytest.mark.engine
def test_the_oracle_of_one_scores_one_and_doing_nothing_zero(tmp_path: Path) -> None:
    # Its run-tests.sh always exits with 0, even if tests fail.
    (task,) = read_tasks(str(write_tb1_task(tmp_path / "old-task"))).tasks

    async def rewards() -> list[float]:
        found = []
        for agent in ("oracle", "nop"):
            async with asyncio.timeout(240), Runner(RunConfig().with_values(agent={"name": agent})) as runner:
                record = await runner.trial(task)
                found.append(record.reward)
                assert record.result.integrity.tamper == ()
                assert (record.directory / "verifier" / "run-tests.txt").is_file()
        return found

    assert asyncio.run(rewards()) == [1.0, 0.0]
