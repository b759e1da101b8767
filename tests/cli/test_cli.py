"""The command end to end: real processes, a real terminal, real containers, a real endpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import in_process
import pexpect
import pytest

from harness.protocols import PROTOCOLS
from tbench.demo.server import DemoEndpoint
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.read_run import read_run_document
from tbench.tasks.sources import BUNDLED, read_tasks

TBENCH = str(Path(sys.executable).with_name("tbench"))
SCORE = re.compile(r"^score (\d+\.\d) ± (\d+\.\d) % \(sample std over 3 seeds; coverage (\d+)/(\d+)\)$", re.MULTILINE)
SECRET = "sk-planted-secret-4711"
SHARED = ("--verify", "shared")
"""One container for each trial, where the verdict is not what is tested."""


def tbench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", **variables}
    environment.pop("OPENAI_BASE_URL", None)
    return subprocess.run(
        [TBENCH, *arguments], capture_output=True, text=True, timeout=300, check=False, env=environment
    )


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoEndpoint]:
    instructions = {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
    with DemoEndpoint(instructions) as endpoint:
        yield endpoint


@pytest.fixture
def run_dir(engine: Engine, tmp_path: Path) -> Iterator[Path]:
    """Directory of a run; asserts at the end that none of its containers are left."""
    directory = tmp_path / f"cli-{uuid.uuid4().hex[:8]}"
    yield directory
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}={directory.name}"}) == []


def only_line(text: str) -> str:
    # Tests beside this one may keep containers on the same engine.
    lines = [line for line in text.strip().splitlines() if not line.startswith("trials of other runs")]
    assert len(lines) == 1, text
    return lines[0]


def test_help_lists_every_command() -> None:
    text = tbench("--help").stdout
    for command in ("run", "summary", "report", "demo", "demo-endpoint", "setup", "task", "shell", "clean"):
        assert re.search(rf"^  [A-Z ]\w* +{command} |^  +{command} ", text, re.MULTILINE), command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "/nowhere", "--agent", "nop"], "/nowhere: no such directory"),
        (["run", "--task", "no-such-*", "--agent", "nop"], "--task no-such-*: matches no task"),
        (["run", "--agent", "clippy"], "--agent clippy: unknown; known: model, oracle, nop, "),
        (["run"], "no endpoint: give --base-url"),
        (["run", "--base-url", "http://localhost:1", "--protocol", "morse"], "unknown protocol 'morse'"),
        (["run", "--base-url", "http://localhost:1", "--extra-body", "{"], "--extra-body: not valid JSON"),
        (["run", "--base-url", "http://localhost:1", "--extra-body", "[]"], "--extra-body: must be a JSON object"),
        (["run", "--base-url", "http://localhost:1", "--top-p", "7"], "--top-p: Input should be less than"),
        (["run", "--base-url", "http://localhost:1", "--preset", "vim"], "--preset: vim: unknown; known: "),
        (["run", "--base-url", "http://localhost:1", "--on-overflow", "pray"], "--on-overflow: Input should be 'stop'"),
        (["run", "--base-url", "http://localhost:1", "--shell-state", "zsh"], "--shell-state: Input should be"),
        (["run", "--base-url", "http://localhost:1", "--shell-state", "fresh"], "for the bash protocols: bash-block"),
        (["run", "--base-url", "http://localhost:1", "--render", "x"], "--render: Input should be 'server'"),
        (["run", "--base-url", "http://localhost:1", "--chat-template-kwargs", "1"], "must be a JSON object such as"),
        (["run", "--agent", "nop", "--log-level", "loud"], "--log-level: Input should be 'debug', 'info'"),
        (["run", "--agent", "no_such_module:Agent"], "there is no module 'no_such_module'"),
        (["run", "--base-url", "http://localhost:1", "--prompt", "/nowhere"], "/nowhere"),
        (["run", "--base-url", "http://localhost:1", "--retry-budget", "0"], "localhost:1/v1/models: cannot connect"),
        (["summary", "/nowhere"], "/nowhere: no such run directory"),
        (["report", "/nowhere"], "/nowhere: no such run directory"),
        (["task", "check", "/nowhere"], "/nowhere: no such directory"),
    ],
)  # fmt: skip
def test_a_user_s_mistake_is_one_clear_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = in_process.tbench(*arguments)
    assert done.returncode == 2, done
    assert said in only_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["summary", "report"])
def test_results_that_no_score_can_be_made_of_are_one_clear_line(tmp_path: Path, command: str) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text("".join(f'{{"task": "a", "seed": {seed}, "reward": 1e308}}\n' for seed in (0, 1)))
    done = in_process.tbench(command, str(results))
    assert (done.returncode, done.stdout) == (2, "")
    assert only_line(done.stderr).startswith(f"tbench: {results}:1: reward: ")


def test_no_engine_is_one_clear_line_and_exit_code_2() -> None:
    done = tbench("run", "--agent", "nop", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 2
    assert "no container engine answers at unix:///nowhere/docker.sock" in only_line(done.stderr)


def test_a_malformed_task_given_alone_is_named_with_file_and_key(make_task: Any) -> None:
    directory = make_task(toml='[environment]\ncpus = "two"\n')
    done = in_process.tbench("run", str(directory), "--agent", "nop")
    assert done.returncode == 2
    line = only_line(done.stderr)
    assert str(directory / "task.toml") in line
    assert "environment.cpus" in line


def test_a_model_that_the_server_does_not_have_is_refused_before_anything_starts(demo: DemoEndpoint) -> None:
    done = in_process.tbench("run", "--base-url", demo.base_url, "--model", "gpt-17")
    assert done.returncode == 2
    assert "does not serve 'gpt-17'; it lists scripted-demo" in only_line(done.stderr)


@pytest.mark.engine
def test_a_malformed_task_among_others_costs_only_itself(make_task: Any, run_dir: Path, tools_volume: str) -> None:
    make_task("good")
    broken = make_task("broken", toml="[agent")
    done = tbench("run", str(broken.parent), "--agent", "oracle", "-o", str(run_dir), "--min-coverage", "0.9", *SHARED)
    assert done.returncode == 3, done
    assert "coverage 1/2" in done.stdout
    assert "1 x task_invalid" in done.stdout
    again = in_process.tbench("run", str(broken.parent), "--agent", "oracle", "-o", str(run_dir))
    assert again.returncode == 2
    assert "not empty" in again.stderr


QUICK = {"keystrokes-json"}
"""One protocol per family; tests/harness/test_protocols_live.py tests all of them in a container."""


@pytest.mark.engine
@pytest.mark.parametrize(
    "protocol", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(PROTOCOLS)]
)
def test_a_run_against_an_endpoint_is_scored_stored_and_reported(
    demo: DemoEndpoint, run_dir: Path, tools_volume: str, protocol: str
) -> None:
    done = tbench(
        "run", "bundled", "-t", "tidy-notes", "-t", "lab-permissions", "-k", "2", "-n", "2",
        "--base-url", demo.base_url, "--protocol", protocol, "-o", str(run_dir), "-v",
        OPENAI_API_KEY=SECRET,
    )  # fmt: skip
    assert done.returncode == 0, done
    score = re.search(
        r"^score \d+\.\d ± \d+\.\d % \(sample std over 2 seeds; coverage 4/4\)$", done.stdout, re.MULTILINE
    )
    assert score, done.stdout
    assert "lab-permissions" in done.stdout
    assert "seed 1: reward" in done.stderr
    assert re.search(r"tidy-notes seed 0: step 2 .*\w", done.stderr)

    from_disk = in_process.tbench("summary", str(run_dir))
    assert from_disk.stdout == done.stdout
    summary = json.loads(in_process.tbench("summary", str(run_dir), "--json").stdout)
    assert (
        summary["score"]["line"] == score[0]
        if "line" in summary.get("score", {})
        else score[0] in json.dumps(summary, ensure_ascii=False)
    )

    report = in_process.tbench("report", str(run_dir))
    assert report.stdout.strip() == f"report: {run_dir / 'report.html'}"
    assert (run_dir / "report.html").stat().st_size > 5_000

    trial = run_dir / "trials" / "tidy-notes" / "seed-0"
    for name in ("result.json", "trajectory.json", "session.cast", "verifier/stdout.txt", "verifier/reward.txt"):
        assert (trial / name).is_file(), name
    results = [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]
    assert {result["outcome"] for result in results} == {"submitted"}
    assert {result["reward"] for result in results if result["task"] == "tidy-notes"} == {1.0}
    assert json.loads((trial / "trajectory.json").read_text())["warnings"] == {}
    leaked = [path for path in run_dir.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert leaked == []
    document = read_run_document(run_dir / "run.json")
    assert document.status == "finished"
    assert document.locked.model == "scripted-demo"
    assert all(str(task.image_id).startswith("sha256:") for task in document.tasks)


@pytest.mark.engine
def test_a_user_s_own_agent_is_run_recorded_and_may_crash(make_task: Any, run_dir: Path, tools_volume: str) -> None:
    tasks = make_task().parent
    (tasks.parent / "cli_agents_of_mine.py").write_text(
        "class Toucher:\n"
        "    async def run(self, assignment):\n"
        "        if assignment.seed == 1:\n"
        "            raise KeyError('seed')\n"
        "        await assignment.terminal.run('touch done', 10)\n"
    )
    name = "cli_agents_of_mine:Toucher"
    done = subprocess.run(
        [TBENCH, "run", str(tasks), "--agent", name, "-k", "2", "-o", str(run_dir), *SHARED],
        capture_output=True, text=True, timeout=300, check=False, cwd=tasks.parent,
    )  # fmt: skip
    assert done.returncode == 0, done
    good, bad = sorted(map(json.loads, (run_dir / "results.jsonl").read_text().splitlines()), key=lambda r: r["seed"])
    assert (good["agent"], good["reward"], good["outcome"]) == (name, 1.0, "finished")
    assert (bad["reward"], bad["error"]["type"], bad["error"]["blame"]) == (None, "agent_crashed", "user")
    assert "KeyError: 'seed'" in bad["error"]["message"]
    trials = run_dir / "trials" / "small-task"
    assert "touch done" in (trials / "seed-0" / "session.cast").read_text()
    assert "cli_agents_of_mine.py" in (trials / "seed-1" / "traceback.txt").read_text()
    locked = read_run_document(run_dir / "run.json").locked
    assert (locked.agent, len(locked.agent_sha256 or ""), locked.prompt_hash) == (name, 64, None)


@pytest.mark.engine
@pytest.mark.slow
def test_a_preset_is_resolved_in_run_json(demo: DemoEndpoint, run_dir: Path, tools_volume: str) -> None:
    done = tbench(
        "run", "-t", "tidy-notes", "--base-url", demo.base_url, "--preset", "terminus-2", "--temperature", "0.1",
        "--adaptive", "--neutralise-special-tokens", "--strip-thinking", "on", "-o", str(run_dir),
    )  # fmt: skip
    assert done.returncode == 0, done
    config = read_run_document(run_dir / "run.json").config
    agent, model = config.agent, config.model
    assert (agent.preset, agent.protocol, agent.settling) == ("terminus-2", "keystrokes-json", "adaptive")
    assert (model.temperature, model.top_p, model.strip_thinking) == (0.1, 1.0, "on")
    assert (config.limits.on_overflow, config.limits.steps) == ("summarize", 1_000_000)
    assert agent.neutralise_special_tokens


@pytest.mark.engine
@pytest.mark.slow
def test_a_run_goes_on_with_its_shell_state_whatever_its_preset_says(
    demo: DemoEndpoint, run_dir: Path, tools_volume: str
) -> None:
    command = ("run", "-t", "tidy-notes", "--base-url", demo.base_url, "--preset", "mini-swe-agent", "-o", str(run_dir))
    assert tbench(*command, "--shell-state", "persistent").returncode == 0
    for again in (("resume", str(run_dir)), (*command, "--resume")):
        done = tbench(*again)
        assert (done.returncode, "1 of 1 trials are kept, 0 to run" in done.stderr) == (0, True), done
        assert read_run_document(run_dir / "run.json").locked.shell_state == "persistent"
    done = tbench(*command, "--resume", "--shell-state", "fresh")
    assert done.returncode == 2
    assert 'shell_state: "persistent" → "fresh"' in only_line(done.stderr)


@pytest.mark.engine
def test_on_a_terminal_the_run_is_shown_live_and_ctrl_c_ends_it_in_order(run_dir: Path, tools_volume: str) -> None:
    child = pexpect.spawn(
        TBENCH,
        ["run", "bundled", "-t", "stalled-batch-queue", "-t", "tidy-notes", "-k", "2", "-n", "2", "--agent", "oracle",
         "-o", str(run_dir), *SHARED],
        dimensions=(30, 120),
        timeout=120,
        encoding="utf-8",
        # Pytest's workers set COLUMNS to 80, regardless of the terminal's size.
        env={key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {"TERM": "xterm"},
    )  # fmt: skip
    try:
        child.expect("last line of the terminal")
        child.expect(r"tidy-notes seed 0: reward 1")
        child.expect(r"1/4 done, 1 passed, 0 errors, score so far 100.0 %, ETA")
        child.sendintr()
        child.expect("stopping; finished trials are kept; Ctrl-C again exits at once")
        child.expect("interrupted; resume with: tbench resume")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 130
    kept = [json.loads(line) for line in (run_dir / "results.jsonl").read_text().splitlines()]
    assert ("tidy-notes", 1.0) in {(result["task"], result["reward"]) for result in kept}
    assert json.loads((run_dir / "run.json").read_text())["status"] == "interrupted"


def test_the_demo_takes_the_address_that_is_advised_where_no_engine_answers(tmp_path: Path) -> None:
    gone = f"unix://{tmp_path}/no.sock"
    done = tbench("demo", "--engine", gone, "-o", str(tmp_path / "run"))
    assert done.returncode == 2
    assert f"no container engine answers at {gone}" in done.stderr and "--engine oci:" in done.stderr


@pytest.mark.engine
@pytest.mark.slow
def test_the_demo_scores_six_tasks_or_more_and_writes_its_report(run_dir: Path, tools_volume: str) -> None:
    done = tbench("demo", "-o", str(run_dir), "-k", "2")
    assert done.returncode == 0, done.stderr
    match = re.search(
        r"^score (\d+\.\d) ± (\d+\.\d) % \(sample std over 2 seeds; coverage (\d+)/(\d+)\)$", done.stdout, re.M
    )
    assert match, done.stdout
    assert 0 < float(match[1]) < 100
    assert float(match[2]) > 0
    assert match[3] == match[4]
    assert int(match[4]) >= 12
    assert done.stdout.splitlines()[-1] == f"report: {run_dir / 'report.html'}"
    assert "scripted-demo" in (run_dir / "report.html").read_text()


@pytest.mark.engine
def test_what_was_kept_of_a_trial_is_said_and_can_be_entered(run_dir: Path, tools_volume: str, make_task: Any) -> None:
    done = tbench("run", str(make_task()), "--agent", "nop", "--keep", "failed", "-o", str(run_dir), *SHARED)
    trial = f"{run_dir}/small-task/0"
    words = f"kept: 1 container; enter one with: tbench shell {trial}; remove all with: tbench clean --kept"
    assert words in done.stderr.splitlines()
    try:
        child = pexpect.spawn(TBENCH, ["shell", trial], dimensions=(30, 120), timeout=120, encoding="utf-8")
        try:
            child.expect("small-task seed 0: the kept container")
            child.expect(r"[#$] ")
            child.sendline("ls /logs && touch /app/done")
            child.expect("verifier")
            child.sendline("exit")
            child.expect(f"verify it again with: tbench regrade {run_dir} --task small-task --seed 0")
            child.expect(pexpect.EOF)
        finally:
            child.close()
        assert "small-task seed 0: 0 -> 1\n" in tbench("regrade", str(run_dir)).stdout
        assert "nothing was kept of this trial" in in_process.tbench("shell", f"{run_dir}/small-task/1").stderr
    finally:
        kept = json.loads((run_dir / "trials/small-task/seed-0/kept.json").read_text())["container"]
        subprocess.run(["docker", "rm", "-f", kept], check=True, capture_output=True)
    assert "sandbox_lost: finding the kept container" in only_line(in_process.tbench("shell", trial).stderr)


@pytest.mark.engine
def test_a_person_can_work_on_a_task_by_hand_and_see_the_verdict(tools_volume: str, make_task: Any) -> None:
    directory = make_task()
    child = pexpect.spawn(TBENCH, ["shell", str(directory)], dimensions=(30, 120), timeout=120, encoding="utf-8")
    try:
        child.expect("Create the file /app/done")
        child.expect(r"/app# ")
        child.sendline("stty size; touch done")
        child.expect("30 120")
        child.expect(r"/app# ")
        child.setwinsize(40, 100)
        child.sendline("until [ \"$(stty size)\" = '40 100' ]; do :; done; echo resized")
        child.expect("\rresized")
        child.expect(r"/app# ")
        child.sendline("sleep 100")
        child.sendcontrol("c")
        child.expect(r"/app# ")
        child.sendline("exit")
        child.expect("reward 1")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0


@pytest.mark.engine
def test_what_was_typed_ahead_reaches_the_shell(tools_volume: str, make_task: Any) -> None:
    child = pexpect.spawn(TBENCH, ["shell", str(make_task())], timeout=120, encoding="utf-8")
    try:
        child.send("touch done; exit\r")
        child.expect("reward 1")
        child.expect(pexpect.EOF)
    finally:
        child.close()


@pytest.mark.engine
def test_a_closed_terminal_takes_the_shell_s_container_along(engine: Engine, tools_volume: str, make_task: Any) -> None:
    child = pexpect.spawn(TBENCH, ["shell", str(make_task())], timeout=120, encoding="utf-8")
    child.expect(r"/app# ")
    child.close(force=False)
    labelled = {"label": f"{LABEL_RUN}=shell-{child.pid}"}
    ends_at = time.monotonic() + 30
    while (left := engine.api.containers(all=True, filters=labelled)) and time.monotonic() < ends_at:
        time.sleep(0.1)
    assert left == []


@pytest.mark.slow
def test_an_installed_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    checkout = Path(__file__).parents[2]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(tmp_path), str(checkout)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, capture_output=True)
    program = "import tbench.cli, sys; sys.argv[0] = 'tbench'; print(tbench.cli.__file__); tbench.cli.main()"
    environment = {**os.environ, "PYTHONPATH": str(target)}

    def installed(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=tmp_path, env=environment, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    listed = installed("task", "list")
    assert listed.startswith(str(target))
    assert listed.count("MB") >= 11
    for needed in ("images/engine.sh", "images/tools/Dockerfile", "images/tools/share/bashrc"):
        assert (target / "tbench" / "bundled" / needed).is_file()
    assert (target / "reports" / "templates").is_dir()
    assert list((target / "harness" / "protocols").glob("*.jinja"))
