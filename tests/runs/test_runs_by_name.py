"""Runs of a dataset: run.json, summary and page, and resuming with the same dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from git_mirrors import Mirror, registry, row
from run_plans import a_plan

from reports.report import write_report
from tbench.agents.trial_agent import NopAgent
from tbench.api.stored_runs import summarise
from tbench.cli.common import read_selected_tasks
from tbench.config.document import RunDocument
from tbench.config.settings import RunConfig
from tbench.datasets.cache import cache_directory
from tbench.errors import UsageError
from tbench.events import Event, Events, Note
from tbench.runs.plan import check_same_run, stored_config
from tbench.runs.resume import EarlierRun
from tbench.runs.run import execute_run
from tbench.sandbox.fake import FakeBackend
from tbench.tasks.sources import TaskSet


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    made = Mirror(tmp_path / "mirrors")
    for name in ("alpha", "beta", "gamma"):
        made.task(name)
    made.publish()
    made.commit()
    registry(tmp_path / "registry.json", row("terminal-bench", "2.1", made, None, ["alpha", "beta", "gamma"]))
    yield made


def config_of(tmp_path: Path, **tasks: object) -> RunConfig:
    given = {"source": "terminal-bench@2.1", "registry": str(tmp_path / "registry.json"), **tasks}
    return RunConfig.model_validate({"tasks": given, "agent": {"name": "nop"}, "schedule": {"retries": 0}})


async def run(config: RunConfig, tasks: TaskSet, directory: Path, earlier: EarlierRun | None = None) -> list[str]:
    """Execute a run over fakes, and return its notes."""
    seen: list[Event] = []
    plan = a_plan(agent="nop", seeds=config.tasks.planned_seeds).model_copy(update={"config": stored_config(config)})
    if earlier is not None:
        check_same_run(earlier, plan, tasks)
    await execute_run(plan, tasks, directory, NopAgent, Events(seen.append), backend=FakeBackend(), earlier=earlier)
    return [event.text for event in seen if isinstance(event, Note)]


async def test_a_run_of_a_named_dataset_records_it_and_the_rules_it_breaks(
    mirror: Mirror, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, include=["alpha", "beta"])
    notes = await run(config, read_selected_tasks(config.tasks), tmp_path / "run")
    said = f"terminal-bench@2.1 (commit {mirror.head[:12]}): 2 of 2 tasks match the published digests"
    assert said in notes
    stored = json.loads((tmp_path / "run/run.json").read_text())
    assert {
        name: stored["dataset"][name] for name in ("name", "version", "url", "commit", "path", "tasks", "verified")
    } == {
        "name": "terminal-bench",
        "version": "2.1",
        "url": mirror.url,
        "commit": mirror.head,
        "path": "tasks",
        "tasks": 3,
        "verified": True,
    }
    summary = summarise(tmp_path / "run")
    rules = "1 trial per task instead of 5; 2 of 3 tasks; tasks not from the listed commit 7131e4375048"
    assert summary.dataset_lines == (f"dataset {said}", f"not by the rules of its leaderboard: {rules}")
    assert summary.as_json()["dataset"]["commit"] == mirror.head
    page = write_report(tmp_path / "run").read_text()
    assert said in page and f"leaderboard: {rules}" in page
    notes = capsys.readouterr().err
    assert "using HEAD from " in notes and "tbench's own list has commit 7131e4375048" in notes


async def test_a_run_goes_on_with_its_own_commit_and_is_refused_where_tasks_changed(
    mirror: Mirror, tmp_path: Path
) -> None:
    config = config_of(tmp_path, limit=1)
    await run(config, read_selected_tasks(config.tasks), tmp_path / "run")
    first = mirror.head
    (mirror.work / "tasks/alpha/instruction.md").write_text("Something else.\n")
    mirror.commit()
    earlier = EarlierRun.read(tmp_path / "run")
    more = config_of(tmp_path, limit=2)
    tasks = read_selected_tasks(more.tasks, earlier.document)
    await run(more, tasks, tmp_path / "run", earlier)
    document = EarlierRun.read(tmp_path / "run").document
    assert isinstance(document, RunDocument) and document.dataset is not None
    assert (document.dataset.commit, [task.name for task in document.tasks]) == (first, ["alpha", "beta"])
    with pytest.raises(UsageError, match="these tasks have changed since: alpha; restore them, or start a new run"):
        await run(more, read_selected_tasks(more.tasks), tmp_path / "run", earlier)
    entry = cache_directory() / document.dataset.entry
    (entry / "beta/tests/test.sh").write_text("true\n")
    with pytest.raises(UsageError, match="changed after the pull: beta"):
        read_selected_tasks(more.tasks, document)
