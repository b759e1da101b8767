"""`tbench run --dry-run`: prints the plan of a run, and starts nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import in_process
import pytest
from conftest import MakeTask
from git_mirrors import Mirror, registry, row

from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.sources import BUNDLED, read_tasks

pytestmark = pytest.mark.engine

TBENCH = str(Path(sys.executable).with_name("tbench"))
TWO = ("-t", "tidy-notes", "-t", "git-lost-commits")
SHARED = ("--verify", "shared")
"""One container for each trial: these runs are there for what a dry run says afterwards."""


def tbench(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TBENCH_", "OPENAI_"))}
    return subprocess.run(
        [TBENCH, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=directory,
        env={**environment, "COLUMNS": "200"},
    )


def dry_run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return in_process.tbench("run", "--dry-run", *arguments, directory=directory, COLUMNS="200")


def plan(directory: Path, *arguments: str) -> dict[str, list[str]]:
    """Return the printed rows by their labels; assert that no file was written."""
    before = sorted(directory.rglob("*"))
    done = dry_run(directory, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert sorted(directory.rglob("*")) == before
    lines = done.stdout.splitlines()
    assert lines.pop() == "nothing was started"
    said: dict[str, list[str]] = {}
    for line in lines:
        label, _, words = line.partition(" ")
        said.setdefault(label, []).append(words.strip())
    return said


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoEndpoint]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as endpoint:
        yield endpoint


def test_tasks_and_seeds_of_the_oracle_are_planned_without_a_model(tmp_path: Path) -> None:
    said = plan(tmp_path, "-a", "oracle", "-x", "tidy-*", "-l", "3", "-k", "2", "-n", "5")
    assert said["tasks"] == ["3: broken-makefile, free-slots-bug, git-lost-commits"]
    assert said["trials"] == ["3 tasks × 2 seeds = 6 trials; at most 5 at once"]
    assert said["agent"] == ["oracle"]
    assert said.keys().isdisjoint({"endpoint", "prompts", "invalid", "refused"})
    assert said["output"][0].startswith(f"a new directory in {tmp_path / 'runs'}; ")
    assert said["output"][0].endswith(" GB free")


def test_a_model_is_looked_up_at_its_endpoint_and_asked_nothing(demo: DemoEndpoint, tmp_path: Path) -> None:
    said = plan(tmp_path, *TWO, "--base-url", demo.base_url, "-o", "new")
    assert said["agent"] == ["tbench:keystrokes-json"]
    assert said["endpoint"] == [f"{demo.base_url} answers: scripted-demo, with a context of 32,768 tokens"]
    (words,) = said["prompts"]
    low, high = (int(word) for word in words.split() if word.isdecimal())
    assert 500 < low < high < 1500
    assert said["output"][0].startswith(f"{tmp_path / 'new'} (new); ")


def test_images_that_are_there_are_counted_and_the_others_named(make_task: MakeTask, tmp_path: Path) -> None:
    make_task("built")
    make_task("new", dockerfile=f"FROM debian:bookworm-slim\nRUN echo {tmp_path}\n")
    make_task("pulled", toml='[environment]\ndocker_image = "registry.invalid/none:1"\n')
    directory = tmp_path / "tasks"
    assert (
        tbench(
            tmp_path, "run", str(directory), "-t", "built", "-a", "nop", "-o", str(tmp_path / "r"), *SHARED
        ).returncode
        == 0
    )
    said = plan(directory, str(directory), "-a", "oracle")
    assert said["images"] == ["1 present", "1 to be pulled: pulled", "1 to be built: new"]
    forced = plan(directory, str(directory), "-a", "oracle", "--build")
    assert forced["images"] == ["3 to be built: built, new, pulled"]


def test_builds_are_reported_where_network_or_block_host_mean_something_else_to_them(
    make_task: MakeTask, tmp_path: Path
) -> None:
    make_task("here", dockerfile=f"FROM debian:bookworm-slim\nRUN echo {tmp_path}\n")
    make_task("heredoc", dockerfile="FROM debian:bookworm-slim\nRUN <<EOF\nls\nEOF\n")
    tasks = str(tmp_path / "tasks")
    assert {"builds", "refused"}.isdisjoint(plan(tmp_path, tasks, "-a", "oracle"))
    said = plan(tmp_path, tasks, "-a", "oracle", "--network", "none", "--block-host")
    assert said["builds"] == ["have network access despite --network none, so that they can fetch packages"]
    (refused,) = said["refused"]
    assert refused.startswith("heredoc: cannot be built with --block-host: it needs BuildKit")


def test_what_cannot_run_is_said_and_its_image_is_not_wanted(make_task: MakeTask, tmp_path: Path) -> None:
    make_task("small")
    make_task("broken", toml="[environment\n")
    make_task("gpu", toml="[environment]\ngpus = 1\n")
    said = plan(tmp_path / "tasks", str(tmp_path / "tasks"), "-a", "oracle")
    assert said["tasks"] == ["3: broken, gpu, small"]
    assert said["invalid"][0].startswith("broken: ") and said["refused"][0].startswith("gpu: needs ")
    assert "gpu" not in "".join(said["images"])


def test_a_run_that_would_go_on_is_distinguished_by_what_is_left(engine: Engine, tmp_path: Path) -> None:
    assert tbench(tmp_path, "run", "-t", "tidy-notes", "-a", "oracle", "-o", "r", *SHARED).returncode == 0
    containers = {each["Id"] for each in engine.api.containers(all=True, filters={"label": "tbench.run=r"})}
    base = ("-a", "oracle", "-o", "r", "--resume", *SHARED)
    done = plan(tmp_path, "-t", "tidy-notes", *base)
    assert done["trials"] == ["1 task × 1 seed = 1 trial: 1 done, 0 to do; at most 4 at once"]
    assert "images" not in done and done["output"][0].startswith(f"{tmp_path / 'r'} (resumed); ")
    more = plan(tmp_path, *TWO, "-k", "2", *base)
    assert more["trials"] == ["2 tasks × 2 seeds = 4 trials: 1 done, 3 to do; at most 4 at once"]
    assert {each["Id"] for each in engine.api.containers(all=True, filters={"label": "tbench.run=r"})} == containers


def test_a_dataset_is_reported_with_its_digests_and_the_rules_that_would_be_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(tmp_path / "mirrors")
    for name in ("alpha", "beta"):
        mirror.task(name)
    mirror.publish()
    mirror.commit()
    place = registry(tmp_path / "registry.json", row("terminal-bench", "2.0", mirror, mirror.head, ["alpha", "beta"]))
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    chosen = ("terminal-bench@2.0", "--registry", str(place))
    done = dry_run(tmp_path, *chosen, "-t", "alpha", "-a", "oracle")
    said = " ".join(done.stdout.split())
    assert f"dataset terminal-bench@2.0 (commit {mirror.head[:12]}): 1 of 1 task matches the published digests" in said
    assert (
        "rules breaks those of the leaderboard: 1 trial per task instead of 5; 1 of 2 tasks; tasks not from the" in said
    )
    assert done.stderr.startswith(f"terminal-bench@2.0: using {mirror.head} from {place}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--base-url", "http://127.0.0.1:9/v1", "--retry-budget", "0"), "/v1/models: cannot connect"),
        ((), "no endpoint: give --base-url"),
        (("-a", "oracle", "-o", "."), "not empty; name a new directory with --output"),
        (("-a", "oracle", "-t", "none"), "--task none: matches no task in "),
        (("-a", "oracle", "-o", "earlier", "--resume", "-t", "tidy-notes"), "cannot be resumed with another configura"),
    ],
)
def test_what_would_keep_the_run_from_starting_keeps_the_dry_run(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    shutil.copytree(Path(__file__).parents[1] / "data" / "killed-run" / "run", tmp_path / "earlier")
    done = dry_run(tmp_path, *arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
    assert said in done.stderr


def test_a_dry_run_writes_nothing_into_the_run_that_it_would_go_on_with(tmp_path: Path) -> None:
    assert tbench(tmp_path, "run", "-t", "tidy-notes", "-a", "nop", "-o", "r", *SHARED).returncode == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    plan(tmp_path, "-t", "tidy-notes", "-a", "nop", "-o", "r", "--resume", "-k", "3", *SHARED)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert json.loads((tmp_path / "r" / "run.json").read_text())["resumed_at"] == []
