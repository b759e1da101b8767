"""Whole nights with fakes of `tbench` and the server: runs, resumption and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from full_disk import files_end_at
from nightly_bench import ENDPOINT, NightlyBench

from tbench.errors import UsageError
from tbench.nightly.journal import NightRecord, Nights
from tbench.storage.read_run import read_run

BOUND_SEC = 30
DRIVER = """
import asyncio, os, pathlib, sys
from nightly_bench import ENDPOINT, NightlyBench
from tbench.nightly.night import run_night
bench = NightlyBench.at(pathlib.Path(sys.argv[1]))
def say(words):
    if words.startswith(sys.argv[3]):
        os.kill(os.getpid(), 9)
asyncio.run(run_night(bench.read(), sys.argv[2], say, bench.tbench))
"""
"""A night in a separate process that is killed when it prints a line that begins with its third argument."""
WORSE = {"alpha": 0.0, "beta": [0.0, 1.0], "gamma": 0.0}


def surroundings() -> dict[str, str]:
    """Such that a process of its own finds what stands beside the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def killed(bench: NightlyBench, night: str, at: str) -> None:
    driver = [sys.executable, "-c", DRIVER, str(bench.folder), night, at]
    done = subprocess.run(driver, env=surroundings(), timeout=BOUND_SEC)
    assert done.returncode == -signal.SIGKILL


def runs_called(bench: NightlyBench) -> int:
    return sum(call[0] == "run" for call in bench.calls)


def test_ten_nights_with_a_drop_in_the_seventh_and_a_kill_in_the_sixth(bench: NightlyBench) -> None:
    bench.write()
    codes = []
    for number in range(1, 11):
        if number == 6:
            killed(bench, "n6", "run")
        if number == 7:
            bench.behave(rewards=WORSE)
        codes.append(bench.night(f"n{number}").exit_code)
    assert codes == [0, 0, 0, 0, 0, 0, 0, 5, 5, 5]
    assert runs_called(bench) == 10, "what was over before the kill is not done again"
    last = Nights(bench.directory).read("n10")
    assert last is not None and last.gates["m"]["drop"]["since"] == "n7"
    assert {"alpha", "gamma"} == set(last.gates["m"]["drop"]["likely"][:2])
    assert (last.first_seed, last.seeds) == (18, 2)
    summary = (bench.directory / "nights" / "n10" / "summary.md").read_text()
    assert summary.startswith("## alarm: bench, night n10\n") and "alpha: solved 0 of 8" in summary
    with pytest.raises(AssertionError):
        killed(bench, "n10", "night n10 of")
    assert bench.night("n10").exit_code == 5, "asked again, it says the same"


@pytest.mark.parametrize(
    "stage", ["gate", *(pytest.param(name, marks=pytest.mark.slow) for name in ("night", "index", "prune", "notify"))]
)
def test_a_night_that_was_killed_goes_on_where_it_was(bench: NightlyBench, stage: str) -> None:
    bench.write()
    killed(bench, "n1", stage)
    begun = Nights(bench.directory).read("n1")
    record = bench.night("n1")
    assert begun is not None and (record.status, record.exit_code, record.first_seed) == ("done", 0, 0)
    assert record.begun_at == begun.begun_at and record.stages.items() >= begun.stages.items()
    assert runs_called(bench) == 1


def test_a_kill_in_the_middle_of_a_run_ends_the_run_and_leaves_its_directory_to_the_next_start(
    bench: NightlyBench,
) -> None:
    bench.write(bench.serve("good"))
    bench.behave(hang=True)
    hanging = bench.directory / "runs" / "n1_m" / "hangs"
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(bench.folder), "n1", "never"], env=surroundings()
    ) as driver:
        wait_for(hanging)
        with pytest.raises(UsageError, match="a night is already under way here; wait for its end"):
            bench.night("n2")
        driver.kill()
    bench.behave()
    assert bench.night("n1").exit_code == 0
    assert not hanging.exists() and runs_called(bench) == 2
    assert "waiting for processes of a killed night to end" in bench.said


def test_a_night_that_was_cut_short_is_left_when_another_begins_and_can_be_finished_later(bench: NightlyBench) -> None:
    bench.write()
    killed(bench, "monday", "run")
    assert bench.night("tuesday").exit_code == 0
    assert "night monday was interrupted and is now abandoned; finish it with --night monday" in bench.said
    nights = Nights(bench.directory)
    assert [(each.name, each.status, each.first_seed) for each in nights.all()] == [
        ("monday", "abandoned", 0),
        ("tuesday", "done", 2),
    ]
    assert bench.night("monday").status == "done"


def test_a_glob_runs_each_checkpoint_once_and_what_failed_again(bench: NightlyBench) -> None:
    for step in (1000, 900):
        (bench.folder / f"step-{step}").mkdir()
    bench.write(checkpoints=[f"{bench.folder}/step-*"])
    bench.behave(codes={"run": 2})
    failed = bench.night("n1")
    assert failed.exit_code == 2 and [each.slug for each in failed.checkpoints] == ["step-900", "step-1000"]
    bench.behave()
    assert [each.slug for each in bench.night("n2").checkpoints] == ["step-900", "step-1000"]
    (bench.folder / "step-20").mkdir()
    third = bench.night("n3")
    assert [each.slug for each in third.checkpoints] == ["step-20"]
    fourth = bench.night("n4")
    assert (fourth.checkpoints, fourth.exit_code) == ((), 0)
    assert "night n4 of bench: no new checkpoint" in bench.said
    (bench.folder / "step-30").mkdir()
    assert [each.slug for each in bench.night("n4").checkpoints] == ["step-30"], "the same night, later"


def test_a_run_gets_its_directory_seeds_endpoint_and_model(bench: NightlyBench) -> None:
    bench.write(f'{ENDPOINT}[[proxy]]\nkind = "replay"\n', checkpoints=["org/model"])
    bench.night("n1")
    replay = bench.calls[1]
    assert replay[:2] == ["replay", "run"] and replay[-2:] == ["--model", "org/model"] and "--base-url" not in replay
    settings = (bench.directory / "nights" / "n1" / "proxy-replay.toml").read_text()
    assert settings == '[model]\nbase_url = "http://127.0.0.1:9/v1"\n'
    assert bench.calls[0] == [
        *("run", "--first-seed", "0", "-c", str(bench.directory / "nights" / "n1" / "run.toml")),
        *("--output", str(bench.directory / "runs" / "n1_model"), "--resume", "--model", "org/model"),
    ]
    bench.write(bench.serve("good") + '[[proxy]]\nkind = "extract"\n', checkpoints=["org/model"], advance_seeds=False)
    record = bench.night("n2")
    run, extract = bench.calls[2:]
    assert run[:3] == ["run", "--first-seed", "0"] and run[7:9] == ["--resume", "--base-url"] and len(run) == 10
    assert extract[0] == "extract" and extract[-1] == run[-1] and extract[-2] == "--base-url"
    assert record.checkpoints[0].stages["proxies"].state == "done"


@pytest.mark.parametrize(
    ("code", "expected", "done"),
    [
        (3, 3, True),
        (4, 4, False),
        *(pytest.param(*each, False, marks=pytest.mark.slow) for each in ((1, 1), (2, 2), (9, 2))),
    ],
)
def test_a_failed_run_is_recorded_and_repeated_in_the_same_night(
    bench: NightlyBench, code: int, expected: int, done: bool
) -> None:
    bench.write()
    bench.behave(codes={"run": code})
    record = bench.night("n1")
    assert record.exit_code == expected and record.checkpoints[0].has_run == done
    assert record.stages["gate"].state == ("done" if done else "skipped")
    bench.behave()
    again = bench.night("n1")
    assert again.exit_code == 0 and again.stages["gate"].state == "done"
    assert again.ended_at is not None and runs_called(bench) == 2


def test_a_server_that_ends_under_a_run_ends_the_run_and_the_alarm_still_counts(bench: NightlyBench) -> None:
    bench.write(bench.serve("leaves"))
    bench.behave(hang=True)
    record = bench.night("n1")
    assert record.exit_code == 4
    words = record.checkpoints[0].stages["run"].words
    assert "the model server ended with code 1: " in words and "CUDA error: out of memory" in words


def test_a_server_that_does_not_start_costs_its_checkpoint_and_no_other(bench: NightlyBench) -> None:
    bench.write(bench.serve("dies"), checkpoints=["one", "two"])
    record = bench.night("n1")
    assert record.exit_code == 4 and [set(each.stages) for each in record.checkpoints] == [{"serve"}, {"serve"}]
    assert not (bench.folder / "calls.jsonl").exists()
    assert "- one serve: failed to start" in (bench.directory / "nights" / "n1" / "summary.md").read_text()


def test_a_stage_that_fails_loses_nothing_before_it_and_is_done_at_the_next_start(bench: NightlyBench) -> None:
    bench.write()
    index = bench.directory / "history.sqlite"
    index.mkdir(parents=True)
    record = bench.night("n1")
    assert record.exit_code == 2 and record.checkpoints[0].has_run
    assert {name for name, stage in record.stages.items() if stage.state == "failed"} == {"index", "gate", "site"}
    index.rmdir()
    assert bench.night("n1").exit_code == 0
    assert runs_called(bench) == 1


def test_a_disk_that_is_full_is_one_line_and_the_night_goes_on_later(bench: NightlyBench) -> None:
    bench.write()
    killed(bench, "n1", "run")
    with files_end_at(200), pytest.raises(UsageError, match=r"night\.json: cannot be written: File too large; free"):
        bench.night("n1")
    assert bench.night("n1").exit_code == 0


@pytest.mark.slow
def test_a_record_that_is_damaged_is_named(bench: NightlyBench) -> None:
    bench.write()
    bench.night("n1")
    file = bench.directory / "nights" / "n1" / "night.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "status": "odd"}))
    with pytest.raises(UsageError, match=r"night\.json: status: .*; it is damaged or from another version"):
        bench.night("n2")


def test_a_directory_that_cannot_be_written_is_one_line(bench: NightlyBench) -> None:
    bench.write(directory=str(bench.folder / "bench.toml" / "x"))
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        bench.night("n1")


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "x" * 90])
def test_a_night_has_a_name_that_a_file_can_have(bench: NightlyBench, name: str) -> None:
    bench.write()
    with pytest.raises(UsageError, match="not a valid name; use letters, digits, dots and dashes"):
        bench.night(name)


def test_each_night_is_compared_with_the_one_before_and_the_baseline(bench: NightlyBench) -> None:
    bench.write()
    bench.night("n1")
    bench.write(baseline=str(bench.directory / "runs" / "n1_m"))
    bench.behave(rewards=WORSE)
    lines = bench.night("n2").comparisons["n2_m"]
    assert lines[0].startswith("-37.5 points since n1 (95 % interval ") and "; p 0." in lines[0]
    assert lines[1] == "newly failed: gamma (50.0 → 0.0 %), alpha (100.0 → 0.0 %)"
    assert lines[len(lines) // 2].startswith("-37.5 points since the baseline (95 % interval ")


@pytest.mark.slow
def test_nights_that_were_run_differently_are_not_compared(bench: NightlyBench) -> None:
    bench.write()
    bench.night("n1")
    document = json.loads((bench.folder / "template" / "run.json").read_text())
    bench.behave(document={"config": {**document["config"], "verify": {"mode": "isolated"}}})
    (line,) = bench.night("n2").comparisons["n2_m"]
    assert line == 'not compared with n1, whose configuration differs: verify.mode: "shared" → "isolated"'


def test_old_nights_lose_what_is_large_and_keep_their_results(bench: NightlyBench) -> None:
    bench.write(keep=2)
    records = [bench.night(f"n{number}") for number in range(1, 4)]
    assert [record.stages["prune"].words[:8] for record in records] == ["nothing ", "nothing ", "1 night,"]
    left = {file.name for file in (bench.directory / "runs" / "n1_m").rglob("*") if file.is_file()}
    assert left == {"run.json", "results.jsonl", "journal.jsonl", "report.html", "result.json"}
    assert len(list((bench.directory / "runs" / "n2_m").rglob("session.cast"))) == 8
    assert len(read_run(bench.directory / "runs" / "n1_m").results) == 8
    assert bench.night("n4").stages["prune"].words.startswith("1 night,")


def test_each_night_brings_the_site_up_to_date(bench: NightlyBench) -> None:
    bench.write(keep=1)
    first = bench.night("n1").stages["site"]
    assert first.words == str(bench.directory / "site" / "index.html")
    page = bench.directory / "site" / "runs" / "n1_m" / "index.html"
    written = page.parent / ".written"
    before = written.read_text()
    bench.night("n2")
    assert page.is_file() and (bench.directory / "site" / "nights" / "n2.html").is_file()
    assert written.read_text() != before, "the first night was pruned, so its trials are written again"
    before = written.read_text()
    bench.night("n3")
    assert written.read_text() == before


def test_the_site_can_lie_elsewhere_or_be_left_out(bench: NightlyBench, tmp_path: Path) -> None:
    bench.write(site=str(tmp_path / "www"))
    assert bench.night("n1").stages["site"].words == str(tmp_path / "www" / "index.html")
    bench.write(site="")
    assert bench.night("n2").stages["site"].state == "skipped"
    assert not (bench.directory / "site").exists()


def wait_for(path: Path) -> None:
    ends_at = time.monotonic() + BOUND_SEC
    while not path.exists():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def test_records_of_nights_are_plain_json(bench: NightlyBench) -> None:
    bench.write()
    bench.night("n1")
    file = bench.directory / "nights" / "n1" / "night.json"
    assert NightRecord.model_validate_json(file.read_text()).exit_code == 0
    assert set(json.loads(file.read_text())) == set(NightRecord.model_fields)
