"""`tbench dataset`, and datasets by name in other commands, without an engine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from git_mirrors import Mirror, registry, row

from tbench.cli import app
from tbench.errors import UsageError

TBENCH = [sys.executable, "-m", "tbench"]


def tbench(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), prog_name="tbench")
    return done.exit_code, done.output


def fails(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), prog_name="tbench")
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    return str(done.exception)


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """Start a mirror, set its registry in the environment, and change to a new directory."""
    made = Mirror(tmp_path / "mirrors")
    for name in ("alpha", "beta"):
        made.task(name)
    made.publish()
    made.commit()
    place = registry(tmp_path / "registry.json", row("made-up", "1.0", made, made.head, ["alpha", "beta"]))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("TBENCH_TASKS_REGISTRY", str(place))
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))
    return made


def test_list_shows_names_numbers_and_what_is_cached(tmp_path: Path) -> None:
    code, said = tbench("dataset", "list")
    assert code == 0 and said.splitlines()[0].split()[:2] == ["made-up@1.0", "2"]
    assert any(line.split()[:2] == ["terminal-bench@2.1", "89"] for line in said.splitlines())
    assert tbench("dataset", "pull", "made-up")[0] == 0
    code, everything = tbench("dataset", "list", "--all")
    assert code == 0 and "harbor download cais/swebenchpro" in everything and "cais/swebenchpro" not in said
    code, said = tbench("dataset", "list", "--json")
    first = json.loads(said)[0]
    assert first["cached"].startswith(str(tmp_path / "cache/datasets/made-up@1.0-"))
    assert (first["title"], first["tasks"], first["published_digests"]) == ("made-up@1.0", 2, 2)


def test_show_says_where_a_dataset_is(mirror: Mirror) -> None:
    code, said = tbench("dataset", "show", "made-up@1.0")
    assert code == 0 and f"git+{mirror.url}@{mirror.head}" in said
    code, said = tbench("dataset", "show", "tblite", "--json")
    assert json.loads(said)["repositories"][0]["url"] == "https://github.com/open-thoughts/OpenThoughts-TBLite"
    assert "made-up@2: no such version in" in fails("dataset", "show", "made-up@2")
    assert "/nowhere: is a path" in fails("dataset", "show", "/nowhere")


def test_pull_prints_the_directory_and_copies_it_with_files_that_can_be_written(tmp_path: Path) -> None:
    done = subprocess.run([*TBENCH, "dataset", "pull", "made-up"], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_dir()
    assert done.stderr.splitlines()[-1] == "2 of 2 tasks match the published digests"
    assert tbench("dataset", "pull", "made-up", "--output", "copy")[0] == 0
    assert sorted(path.name for path in Path("copy").iterdir()) == ["alpha", "beta"]
    assert stat.S_IMODE(Path("copy/alpha/task.toml").stat().st_mode) == 0o644
    assert "copy: not empty; name a new directory" in fails("dataset", "pull", "made-up", "--output", "copy")


def test_verify_ends_with_2_where_a_task_differs(mirror: Mirror) -> None:
    code, said = tbench("dataset", "verify", "made-up")
    assert (code, said.splitlines()[-1]) == (0, "2 of 2 tasks match the published digests")
    tbench("dataset", "pull", "made-up", "--output", "copy")
    Path("copy/beta/instruction.md").write_text("Cheat.\n")
    code, said = tbench("dataset", "verify", "copy", "--against", str(mirror.work / "tasks/dataset.toml"))
    assert code == 2 and said.splitlines()[0].startswith("differs: beta: has ")
    assert said.splitlines()[-1] == "1 of 2 tasks match the published digests"


def test_verify_names_what_was_changed_in_the_cache(tmp_path: Path) -> None:
    entry = Path(tbench("dataset", "pull", "made-up")[1].splitlines()[-1])
    (entry / "beta/tests/test.sh").write_text("true\n")
    code, said = tbench("dataset", "verify", "made-up")
    assert code == 2 and said.startswith("differs: beta")
    assert "changed after the pull: beta" in fails("task", "list", "made-up")
    assert tbench("dataset", "pull", "made-up", "--refresh")[0] == tbench("dataset", "verify", "made-up")[0] == 0


def test_task_list_takes_a_name_in_both_ways() -> None:
    assert tbench("task", "list", "-d", "made-up@1.0", "-t", "a*")[1].splitlines()[-1].startswith("alpha ")
    assert tbench("task", "list", "made-up", "--offline")[1].splitlines()[0].startswith("alpha ")
    assert tbench("task", "check", "-d", "made-up")[1].splitlines()[-1] == "2 tasks, 0 problems, 0 hints"


def test_the_tasks_are_named_once_and_a_name_that_is_a_directory_is_refused() -> None:
    assert "TASKS and --dataset mean the same; give only one of them" in fails(
        "task", "list", "made-up", "-d", "made-up"
    )
    Path("made-up").mkdir()
    assert "--dataset made-up is also a directory here; write ./made-up" in fails("task", "list", "-d", "made-up")
    assert "made-up: contains no tasks" in fails("task", "list", "made-up")


def test_offline_and_unknown_names_are_one_line() -> None:
    assert "made-up@1.0: is not in" in fails("task", "list", "made-up", "--offline")
    assert "did you mean made-up@1.0?" in fails("run", "-d", "made-upp", "-a", "oracle")


@pytest.mark.parametrize(
    ("arguments", "shuffle"),
    [
        ((), "none"),
        (("--shuffle",), "0"),
        (("--shuffle", "7"), "7"),
        (("--shuffle=7",), "7"),
        (("--shuffle", "made-up"), "0"),
        (("--shuffle", "-k", "3"), "0"),
    ],
)
def test_shuffle_may_have_a_number_and_leaves_other_words_alone(arguments: tuple[str, ...], shuffle: str) -> None:
    code, said = tbench("config", "show", *arguments)
    values = dict(line.split("#")[0].strip().split(" = ", 1) for line in said.splitlines())
    assert (code, values["tasks.shuffle"].strip('"')) == (0, shuffle)
    assert values["tasks.source"] == ('"made-up"' if "made-up" in arguments else '"bundled"')


def test_settings_of_a_name_are_stored_as_they_are_meant(mirror: Mirror, tmp_path: Path) -> None:
    from tbench.config.settings import RunConfig
    from tbench.runs.plan import stored_config

    given: dict[str, Any] = {"source": "git+https://me:secret@host/x@v1", "registry": "r.json", "refresh": True}
    stored = stored_config(RunConfig.model_validate({"tasks": given})).tasks
    assert stored.source == "git+https://host/x@v1"
    assert (stored.registry, stored.refresh) == (str(tmp_path / "here" / "r.json"), False)


def test_ctrl_c_in_the_middle_of_a_pull_ends_it_and_its_git(mirror: Mirror, tmp_path: Path) -> None:
    programs, started = tmp_path / "bin", tmp_path / "started"
    programs.mkdir()
    hang = f"echo $$ > {started}.new\nmv {started}.new {started}\nexec sleep 60"
    real = shutil.which("git")
    (programs / "git").write_text(f'#!/bin/sh\ncase "$*" in *" fetch "*) {hang}\nesac\nexec {real} "$@"\n')
    (programs / "git").chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        [*TBENCH, "dataset", "pull", "made-up"], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said.splitlines()[-1]) == (130, "tbench: interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert tbench("dataset", "pull", "made-up")[0] == 0
