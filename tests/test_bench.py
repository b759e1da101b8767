"""The benches: what runs itself in a fresh process, and what `make bench-harbor` does apart from running Harbor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from beside_harbor.endpoint import COMMANDS, REPLIES, Exchange, TimedEndpoint, step_sec
from beside_harbor.measuring import problem
from beside_harbor.process import Cost, run
from beside_harbor.runners import NO_COMPOSE, Case, Harbor, Tbench, Trial
from beside_harbor.table import Sample, figures, phases

TESTS = Path(__file__).parent
HARBOR = Harbor(TESTS.parent / ".venv-harbor/bin/harbor")
STEPS, EIGHT = Case("steps", "ten steps", 5, duration_sec=0.1), Case("eight", "eight oracles", 3, trials=8)


@pytest.mark.engine
@pytest.mark.slow
def test_the_memory_of_a_trial_is_measured_in_a_process_of_its_own(tools_volume: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(TESTS / "bench"), "memory"]
    bench = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert bench.returncode == 0, bench.stdout + bench.stderr
    figures = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert 0 < figures["memory_per_trial_mb"]["value"] < 20


GROUPS = (
    *(
        "step",
        "steps16",
        "command",
        "attach",
        "fork",
        "going_on",
        "trial",
        "calls",
        "separate",
        "lives",
        "services",
        "start",
    ),
    *("start", "simulated", "simulated1000", "machines", "help", "datasets", "history", "site", "order", "summary"),
    *("replay", "replay_client", "gateway"),
)
"""All but `memory`, which is measured whole, and those that need a Ray cluster."""


@pytest.mark.engine
@pytest.mark.slow
def test_every_group_of_the_bench_still_runs(tools_volume: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(TESTS / "bench"), "--least", *GROUPS]
    bench = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert bench.returncode == 0, bench.stdout + bench.stderr
    assert {"agent_step_cpu_ms", "simulated_500_sec"} <= json.loads((tmp_path / "bench.json").read_text())[
        "figures"
    ].keys()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.skipif(HARBOR.missing() is not None, reason=str(HARBOR.missing()))
def test_both_runners_are_measured_and_leave_nothing_running(tools_volume: str, tmp_path: Path) -> None:
    argv = [sys.executable, str(TESTS / "beside_harbor"), "--repetitions", "1", "oracle", "steps"]
    bench = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert bench.returncode == 0, bench.stdout + bench.stderr
    rows = [line.split("|")[1].strip() for line in bench.stdout.splitlines() if line.startswith("| ")]
    assert rows[:2] == ["figure", "one oracle trial: wall time"]
    assert "ten steps of 0.1 s: per step" in rows
    assert rows[-1] == "the run without its teardown"
    listing = ["docker", "ps", "--all", "--quiet", "--filter", "name=beside-harbor"]
    assert subprocess.check_output(listing, text=True) == ""


def sample(wall_sec: float, step_sec: float | None = None, **phases: float) -> Sample:
    return Sample(wall_sec, wall_sec / 2, 100.0, step_sec, phases)


def test_a_figure_is_a_row_with_both_medians_and_their_ratio() -> None:
    ours = [sample(2.0, 0.11), sample(9.0, 0.13), sample(4.0, 0.12)]
    theirs = [sample(20.0, 0.5), sample(10.0, 0.6), sample(90.0, 0.4)]
    oracles = {"tbench": [sample(3.0)], "Harbor": [sample(12.0)]}
    assert figures({STEPS: {"tbench": ours, "Harbor": theirs}, EIGHT: oracles}).splitlines() == [
        "| figure                   |  tbench |  Harbor | Harbor / tbench |",
        "|--------------------------|--------:|--------:|----------------:|",
        "| ten steps: wall time     |  4.00 s | 20.00 s |             5.0 |",
        "| ten steps: per step      | 0.120 s | 0.500 s |             4.2 |",
        "| ten steps: CPU time      |  2.00 s | 10.00 s |             5.0 |",
        "| ten steps: memory        |  100 MB |  100 MB |             1.0 |",
        "| eight oracles: wall time |  3.00 s | 12.00 s |             4.0 |",
        "| eight oracles: CPU time  |  1.50 s |  6.00 s |             4.0 |",
        "| eight oracles: memory    |  100 MB |  100 MB |             1.0 |",
    ]


def test_the_phases_of_a_trial_and_the_rest_make_its_wall_time() -> None:
    ours = [sample(4.0, environment=0.5, agent=1.0, verifier=1.0, teardown=0.25)]
    theirs = [sample(20.0, **{"environment": 1.0, "agent set-up": 2.0, "agent": 3.0, "verifier": 1.0, "teardown": 10})]
    rows = phases({"tbench": ours, "Harbor": theirs}).splitlines()[2:]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in rows] == [
        ["environment", "0.50 s", "1.00 s"],
        ["agent set-up", "", "2.00 s"],
        ["agent", "1.00 s", "3.00 s"],
        ["verifier", "1.00 s", "1.00 s"],
        ["teardown", "0.25 s", "10.00 s"],
        ["the rest of the run", "1.25 s", "3.00 s"],
        ["the run without its teardown", "3.75 s", "10.00 s"],
    ]


def harbor_result(**changes: Any) -> dict[str, Any]:
    def phase(begin: int, end: int) -> dict[str, str]:
        return {"started_at": f"2026-11-23T05:00:{begin:02}.5Z", "finished_at": f"2026-11-23T05:00:{end:02}.5Z"}

    return {
        **phase(1, 40),
        "environment_setup": phase(2, 4),
        "agent_setup": phase(4, 7),
        "agent_execution": phase(7, 20),
        "verifier": phase(21, 28),
        "verifier_result": {"rewards": {"reward": 1.0}},
        "exception_info": None,
        **changes,
    }


def test_harbors_results_are_read_with_the_teardown_as_what_comes_last(tmp_path: Path) -> None:
    unfinished = {"verifier": None, "verifier_result": None, "exception_info": {"exception_type": "AgentTimeoutError"}}
    for name, result in (("a", harbor_result()), ("b", harbor_result(**unfinished))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result))
    assert HARBOR.trials(tmp_path) == [
        Trial(1.0, None, {"environment": 2, "agent set-up": 3, "agent": 13, "verifier": 7, "teardown": 12}),
        Trial(None, "AgentTimeoutError", {"environment": 2, "agent set-up": 3, "agent": 13}),
    ]


def test_tbenchs_results_are_read_from_its_run_directory() -> None:
    found = Tbench().trials(TESTS / "data/killed-run/run")
    assert {trial.reward for trial in found} >= {1.0}
    assert {*found[0].phases} == {"environment", "agent", "verifier", "teardown"}


@pytest.mark.parametrize(
    ("case", "exit_code", "trials", "steps", "why"),
    [
        (STEPS, 0, [Trial(1.0, None, {})], range(REPLIES), None),
        (EIGHT, 0, [Trial(1.0, None, {})] * 8, (), None),
        (STEPS, 2, [], (), "it ended with 2"),
        (EIGHT, 0, [Trial(1.0, None, {})] * 7, (), "7 trials instead of 8"),
        (STEPS, 0, [Trial(0.0, None, {})], range(REPLIES), "reward 0.0 instead of 1 (no error)"),
        (STEPS, 0, [Trial(None, "lost", {})], range(REPLIES), "reward None instead of 1 (lost)"),
        (STEPS, 0, [Trial(1.0, None, {})], (0, 1, 1), "the endpoint was asked for steps [0, 1, 1] instead of"),
    ],
)
def test_a_run_counts_only_where_every_trial_passed_by_the_script(
    case: Case, exit_code: int, trials: list[Trial], steps: range, why: str | None
) -> None:
    said = problem(case, Cost(exit_code, 1.0, 1.0, 1.0), trials, [Exchange(step, step, step) for step in steps])
    assert said is why is None or (said or "").startswith(why or "?")


def test_without_harbor_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    argv = [sys.executable, str(TESTS / "beside_harbor"), "--harbor", str(tmp_path / "harbor")]
    bench = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    told = f"beside_harbor: no Harbor at {tmp_path}/harbor; `make bench-harbor` installs it\n"
    assert (bench.returncode, bench.stdout, bench.stderr) == (1, "", told)


def test_without_compose_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("harbor", "docker"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert Harbor(tmp_path / "harbor").missing() == NO_COMPOSE
    assert "\n" not in NO_COMPOSE


def ask(base_url: str, messages: list[dict[str, str]]) -> str:
    body = json.dumps({"model": "scripted-demo", "messages": messages}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body)) as answer:
        reply: str = json.load(answer)["choices"][0]["message"]["content"]
    return reply


def test_the_endpoint_plays_its_script_and_notes_when_it_was_asked() -> None:
    messages = [{"role": "user", "content": 'Answer with "keystrokes".'}]
    with TimedEndpoint() as endpoint:
        endpoint.begin(0.5)
        for _ in range(REPLIES):
            reply = ask(endpoint.base_url, messages)
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "seen"}]
        noted = endpoint.exchanges
        endpoint.begin(0.1)
        assert endpoint.exchanges == []
    replies = [json.loads(each["content"]) for each in messages if each["role"] == "assistant"]
    assert [reply["task_complete"] for reply in replies] == [False] * COMMANDS + [True, True]
    assert replies[COMMANDS - 1]["commands"] == [{"keystrokes": "touch /app/done\n", "duration": 0.5}]
    assert [each.step for each in noted] == list(range(REPLIES))
    assert all(before.answered <= after.arrived for before, after in pairwise(noted))


def test_a_step_lasts_from_an_answer_to_the_next_request_claims_left_out() -> None:
    gaps = [0.2, 0.3, 0.2, 0.9, 0.2, 0.3, 0.3, 0.3, 50.0]
    clock, exchanges = 0.0, []
    for step, gap in enumerate([*gaps, 0.0]):
        exchanges.append(Exchange(step, clock, clock + 1))
        clock += 1 + gap
    assert step_sec(exchanges) == pytest.approx(0.3)


def test_the_cost_of_a_process_includes_what_it_starts(tmp_path: Path) -> None:
    child = "import time; held = bytearray(64 << 20); time.sleep(1)"
    argv = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); exit(3)"]
    cost = run(argv, os.environ, tmp_path, tmp_path / "log")
    assert cost.exit_code == 3
    assert 1.0 < cost.wall_sec < 30
    assert 0 < cost.cpu_sec < cost.wall_sec
    assert cost.memory_mb > 64
