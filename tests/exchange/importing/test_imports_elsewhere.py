"""Imported runs in comparisons, the history and exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from harbor_jobs import atif, did, finish, result, said, trial, write

from tbench.cli import app
from tbench.exchange.importing.common import ImportChoice
from tbench.exchange.importing.harbor.job import import_harbor
from tbench.history.index import RunHistory
from tbench.storage.comparable import differing_keys, score_keys
from tbench.storage.read_run import StoredRun, read_run


def imported(path: Path, temperature: float = 0.6, digest: str = "a" * 64) -> StoredRun:
    job = path.parent / "jobs" / path.name
    log = atif(said("go"), did("", "ls\n", shown="x"), did("", done=True, shown=""))
    content = result("a__1", "org/a", {"reward": 1.0}, kwargs={"temperature": temperature})
    where = trial(job, content, agent__trajectory_dot_json=log)
    write(where / "lock.json", {"task": {"name": "org/a", "digest": f"sha256:{digest}"}})
    trial(job, result("b__1", "org/b", {"reward": 0.0}, kwargs={"temperature": temperature}))
    finish(job, mean=0.5, config={"datasets": [{"name": "small", "version": "1.2"}]})
    (made,) = import_harbor([job], path, ImportChoice())
    return read_run(made.directory)


def test_what_an_import_tells_of_its_settings_is_compared(tmp_path: Path) -> None:
    run = imported(tmp_path / "one")
    assert score_keys(run) == {
        "agent.name": "terminus-2",
        "agent.version": "2.0.0",
        "dataset": "small@1.2",
        "harbor.timeout_multiplier": 1.0,
        "harbor.agent.kwargs.temperature": 0.6,
        "tasks.a": "a" * 64,
    }
    assert differing_keys(run, imported(tmp_path / "two")) == ()
    other = differing_keys(run, imported(tmp_path / "three", temperature=1.0, digest="b" * 64))
    assert any("harbor.agent.kwargs.temperature" in words for words in other)
    assert any("content of 1 of 1 common task" in words for words in other)


def test_the_history_has_imported_runs_with_their_own_times(tmp_path: Path) -> None:
    imported(tmp_path / "runs" / "one")
    with RunHistory.open(tmp_path / "index.sqlite") as history:
        history.update(tmp_path / "runs")
        (row,) = history.runs()
    assert (row.name, row.model, row.dataset, row.imported) == ("one", "small-model", "small", True)
    assert (row.status, row.begun_at, row.planned) == ("finished", "2026-03-01T12:00:00.000Z", 2)


@pytest.mark.parametrize("command", ["atif", "harbor"])
def test_an_imported_run_can_be_exported(tmp_path: Path, command: str) -> None:
    run = imported(tmp_path / "one")
    done = CliRunner().invoke(app, ["export", command, str(run.path), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    if command == "harbor":
        (again,) = import_harbor([tmp_path / "out"], tmp_path / "again", ImportChoice())
        back = read_run(again.directory)
        told = [each.model_dump(exclude={"run", "trial"}) for each in back.results]
        assert told == [each.model_dump(exclude={"run", "trial"}) for each in run.results]
