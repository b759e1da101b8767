"""`tbench nightly` as a command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from browsing import executable
from click.testing import CliRunner, Result
from nightly_bench import ENDPOINT, NightlyBench
from page_pictures import PICTURES, photograph_pages

from tbench.cli import app
from tbench.demo.server import DemoEndpoint
from tbench.nightly.configuration import NightlyConfig
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

BOUND_SEC = 1200
TBENCH = [sys.executable, "-m", "tbench"]


@pytest.fixture
def bench(tmp_path: Path) -> NightlyBench:
    return NightlyBench(tmp_path)


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, ["nightly", *map(str, words)], prog_name="tbench")


def test_a_first_file_has_every_setting_and_says_nothing_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "bench.toml"
    assert invoke("--init", file).output.startswith(f"written: {file}; no endpoint was found")
    text = file.read_text()
    assert tomllib.loads(text) == {"nightly": {}, "serve": {}, "gate": {}, "notify": {}}
    for section, field in NightlyConfig.model_fields.items():
        part = field.annotation
        assert part is not None
        for name in part.model_fields:  # type: ignore[attr-defined]
            assert f"\n# {name} = " in text.partition(f"[{section}]")[2].partition("\n[")[0], name
    assert "already exists" in str(invoke("--init", file).exception)
    examples = re.findall(r"^# ((?:\[|\w+ = ).*)$", text.partition("\n# The run")[2], re.MULTILINE)
    file.write_text("\n".join(['[nightly]\ncheckpoints = ["m"]', *examples]))
    assert "proxy     replay (replay)\n" in invoke(file, "--check").output


def test_a_first_file_runs_the_model_of_the_endpoint_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "bench.toml"
    with DemoEndpoint({}) as demo:
        monkeypatch.setenv("OPENAI_BASE_URL", demo.base_url)
        invoke("--init", file)
        monkeypatch.delenv("OPENAI_BASE_URL")
        assert tomllib.loads(file.read_text())["run"] == {"model": {"base_url": demo.base_url, "name": "scripted-demo"}}
    checked = invoke(file, "--check")
    assert checked.exit_code == 0 and "series    scripted-demo: every night" in checked.output


def test_a_check_says_what_would_be_done_and_starts_nothing(
    bench: NightlyBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NIGHTLY_HOOK", raising=False)
    for step in (1000, 900):
        (bench.folder / f"step-{step}").mkdir()
    command = '[serve]\ncommand = ["no-such-server", "{checkpoint}", "--port", "{port}"]\n'
    more = '[[proxy]]\nkind = "extract"\n[notify]\nwebhook_env = "NIGHTLY_HOOK"\n'
    file = bench.write(command + more, checkpoints=[f"{bench.folder}/step-*"], keep=7)
    done = invoke(file, "--check", "--night", "n1")
    assert done.exit_code == 0 and not bench.directory.exists()
    assert done.output == (
        "night     n1, new; 0 earlier nights\n"
        f"series    {bench.folder}/step-*: {bench.folder}/step-900, {bench.folder}/step-1000, each once\n"
        "tasks     bundled\n"
        "seeds     0 to 1\n"
        f"server    no-such-server {bench.folder}/step-900 --port 8000\n"
        "note      no-such-server: command not found; serve.command would fail\n"
        "ready     within 1800 s at http://127.0.0.1:{port}/health\n"
        "proxy     extract (extract)\n"
        "gate      4 nights of baseline, k 0.5, h 5\n"
        "keep      recordings and trajectories of 7 nights\n"
        f"site      {bench.directory}/site\n"
        "webhook   from NIGHTLY_HOOK, which is not set\n"
        f"directory {bench.directory}\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--check", "--init"], "--check, --init and --demo: give only one of them"),
        (["--nights", "3"], "--nights: only works with --demo"),
        (
            ["--engine", "oci:"],
            "--engine: only works with --demo; otherwise set engines under [run.sandbox] in the file",
        ),
        (["--init", "--night", "x"], "--night: has no effect with --init or --demo"),
        (["--night", "a/b", "--check"], "--night a/b: not a valid name; use letters, digits, dots and dashes"),
        (["--night", "a/b"], "--night a/b: not a valid name; use letters, digits, dots and dashes"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(bench: NightlyBench, words: list[str], message: str) -> None:
    assert message in str(invoke(bench.write(), *words).exception)


def test_a_directory_that_holds_something_else_is_no_demo(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    assert "is not empty and not a demo; give a new directory" in str(invoke("--demo", tmp_path).exception)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nope = 1", "nope: has no script; known tasks: broken-makefile"),
        ("tidy-notes = 2", "tidy-notes: must be a number from 0 to 1 (got 2)"),
        ("tidy-notes = true", "tidy-notes: must be a number from 0 to 1"),
        ("x", "is not valid TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_pass_rates_that_are_none_are_one_line(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "rates.toml"
    if content is not None:
        file.write_text(content)
    done = CliRunner().invoke(app, ["demo-endpoint", "--pass-rates", str(file)])
    assert f"--pass-rates {file}: {words}" in str(done.exception)


def test_ctrl_c_ends_the_server_and_the_night_can_go_on(bench: NightlyBench) -> None:
    file = bench.write(bench.serve("never", ready_timeout_sec=60))
    children = bench.folder / "children"
    with subprocess.Popen([*TBENCH, "nightly", str(file), "--night", "n1"], stderr=subprocess.PIPE, text=True) as night:
        wait_for(lambda: children.exists() and children.read_text().endswith("\n"), 30)
        night.send_signal(signal.SIGINT)
        _, said = night.communicate(timeout=30)
    assert night.returncode == 130 and "the same command continues the night" in said
    wait_for(lambda: not is_alive(int(children.read_text())), 30)
    assert json.loads((bench.directory / "nights" / "n1" / "night.json").read_text())["status"] == "running"


def test_a_mistake_is_one_line_and_exit_code_2(bench: NightlyBench) -> None:
    file = bench.write(f"{ENDPOINT}[serv]\n")
    done = subprocess.run([*TBENCH, "nightly", str(file)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tbench: {file}: serv: no such section; did you mean serve?\n"


def test_a_reader_that_has_gone_away_hides_no_alarm(bench: NightlyBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_TBENCH", str(bench.folder))
    file = bench.write()
    bench.night("n1")
    record = bench.directory / "nights" / "n1" / "night.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "exit_code": 5}))
    with subprocess.Popen([*TBENCH, "nightly", str(file), "--night", "n1"], stdout=subprocess.PIPE) as night:
        assert night.stdout is not None
        night.stdout.close()
        assert night.wait(60) == 5


@pytest.mark.engine
@pytest.mark.slow
def test_ten_demo_nights_with_a_kill_in_the_sixth_are_gated_rightly(engine: Engine, tmp_path: Path) -> None:
    command = [*TBENCH, "nightly", "--demo", str(tmp_path / "demo")]
    nights = tmp_path / "demo" / "nightly" / "nights"
    sixth = tmp_path / "demo" / "nightly" / "runs" / "night-06_latest" / "results.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as killed:
        wait_for(lambda: sixth.exists() and sixth.read_bytes().count(b"\n") >= 3, BOUND_SEC)
        killed.kill()
    first = {trial(line) for line in sixth.read_text().splitlines()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND_SEC)
    assert done.returncode == 5, done.stdout + done.stderr
    records = [json.loads((nights / f"night-{number:02}" / "night.json").read_text()) for number in range(1, 11)]
    states = [next(iter(record["gates"].values()))["state"] for record in records]
    assert set(states[:6]) == {"learning", "quiet"} and states[-1] == "alarm"
    drop = next(iter(records[-1]["gates"].values()))["drop"]
    assert drop["since"] == "night-07" and drop["tasks"][0]["task"] in WORSE
    assert [record["first_seed"] for record in records] == list(range(0, 20, 2))
    finals = [trial(line) for line in sixth.read_text().splitlines() if json.loads(line)["final"]]
    assert len(finals) == len(set(finals)) == 12 and first <= set(finals), "what had a verdict is not measured again"
    assert "greenhouse-panel: solved" in done.stdout, "an alarm has its evidence"
    left = engine.api.containers(all=True, filters={"label": LABEL_RUN})
    assert [each for each in left if each["Labels"][LABEL_RUN].startswith("night-")] == []
    if executable() is not None:
        photograph_pages(tmp_path / "demo" / "nightly" / "site", tmp_path)
        assert {f"{picture.name}.png" for picture in PICTURES} <= {file.name for file in tmp_path.iterdir()}


WORSE = {"git-lost-commits", "greenhouse-panel", "tidy-notes"}


def trial(line: str) -> tuple[str, int, Any]:
    result = json.loads(line)
    return result["task"], result["seed"], result["reward"]


def wait_for(condition: Any, within_sec: float) -> None:
    ends_at = time.monotonic() + within_sec
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
