"""Runs of real containers, exported, and read by Harbor's own code where it is to be had."""

from __future__ import annotations

from pathlib import Path

import pytest
from atif_rules import AtifDocument
from click.testing import CliRunner
from exported_jobs import needs_harbor, read_by_harbor

from harness.protocols import PROTOCOLS
from tbench.cli import app
from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.sources import BUNDLED, read_tasks

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def tbench(*arguments: object) -> None:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output + str(done.exception)


@needs_harbor
def test_harbor_reads_a_real_run_of_every_protocol(engine: Engine, tmp_path: Path) -> None:
    instructions = {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
    with DemoEndpoint(instructions) as endpoint:
        for protocol in PROTOCOLS:
            run = tmp_path / protocol
            tbench("run", "-t", "tidy-notes", "--base-url", endpoint.base_url, "--protocol", protocol, "-o", run)
            tbench("export", "atif", run, "-o", tmp_path / "atif" / protocol)
            tbench("export", "harbor", run, "-o", tmp_path / "jobs" / protocol)
    documents = sorted((tmp_path / "atif").rglob("trajectory.json"))
    for file in documents:
        AtifDocument.model_validate_json(file.read_text())
    found = read_by_harbor(tmp_path / "jobs", *documents)
    assert (found["read"], found["documents"]) == (len(PROTOCOLS), [])
    for job in found["jobs"].values():
        assert (job["problems"], job["stats_that_harbor_counts_otherwise"], job["trajectories"]) == ([], [], 1)
