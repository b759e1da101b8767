"""Reading runs for explanations: one result per trial, few values, several runs as one side."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from run_trees import FIRST_NIGHT, a_result, write_run
from written_trials import WrittenTrial, write_files_of

from tbench.errors import UsageError
from tbench.explaining.trials import Trial, read_side
from tbench.results import HostSample

HASHES = {"a": "h", "b": "h"}


def test_the_last_final_attempt_counts_and_planned_trials_without_a_result_are_there(tmp_path: Path) -> None:
    results = [
        a_result("a", 0, 0.0, attempt=2),
        a_result("a", 0, 1.0),
        a_result("a", 1, 1.0, final=False),
        a_result("a", 1, 0.0, attempt=2, human_touched=True),
        a_result("b", 0, 1.0, host=HostSample(load_max=9.0)),
    ]
    side = read_side([write_run(tmp_path / "run", results, HASHES, [0, 1])])
    first, second = side.trials["a"]
    assert (first.attempt, first.reward, first.passed) == (2, 0.0, False)
    assert (second.reward, second.error is not None and second.error.type) == (None, "human_touched")
    assert [each.attempt for each in side.trials["b"]] == [1, 0]
    assert side.trials["b"][0].is_pressed
    assert "1 trial without a result" in side.notes[0]
    assert side.path_of(first) == f"{tmp_path}/run/a/0/attempt-2"


def test_several_runs_count_together_and_the_newest_is_sampled_first(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / name, [a_result("a", seed, 1.0)], {"a": "h"}, [seed]) for seed, name in enumerate("xy")
    ]
    for seed, path in enumerate(paths):
        write_files_of(path, a_result("a", seed, 1.0), WrittenTrial())
    side = read_side(paths)
    assert [each.run for each in side.trials["a"]] == [0, 1]
    assert side.name == "x … y"
    assert [(trial.run, len(steps)) for trial, steps in side.sample] == [(1, 3), (0, 3)]


def test_a_failed_test_of_the_verifier_is_quoted_and_links_are_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [a_result("a", 0, 0.0), a_result("b", 0, 0.0)], HASHES, [0])
    for task in "ab":
        write_files_of(run, a_result(task, 0, 0.0), WrittenTrial(tests={"test_sum": "AssertionError: 3 is not 4"}))
    secret = tmp_path / "secret.xml"
    secret.write_text((run / "trials/b/seed-0/verifier/junit.xml").read_text())
    (run / "trials/b/seed-0/verifier/junit.xml").unlink()
    (run / "trials/b/seed-0/verifier/junit.xml").symlink_to(secret)
    side = read_side([run])
    assert side.failed_test_of(side.trials["a"][0]).startswith("test_sum")
    assert side.failed_test_of(side.trials["b"][0]) == ""
    assert side.failed_test_of(Trial(run=0, task="a", seed=7)) == ""


def test_a_run_that_plans_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plans no trial"):
        read_side([write_run(tmp_path / "run", [a_result("a", 0, 1.0)], {}, [0])])


def test_damaged_steps_and_several_models_in_one_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [a_result("a", 0, 0.0)], {"a": "h"}, [0])
    steps = run / "trials/a/seed-0/steps.jsonl"
    steps.parent.mkdir(parents=True)
    steps.write_text("not JSON\n{}\n")
    side = read_side([run])
    assert side.steps_of(side.trials["a"][0]) == ()
    lines = [{"task": "a", "seed": seed, "reward": 1, "model": f"m{seed}"} for seed in (0, 1)]
    (tmp_path / "mixed.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(UsageError, match="2 models"):
        read_side([tmp_path / "mixed.jsonl"])


_MEASURED = """
import resource, sys, time
from tbench.explaining.explain import explain
began = time.process_time()
found = explain(sys.argv[1], sys.argv[2])
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(time.process_time() - began, memory, found.run.trials, len(found.notes))
"""


def test_a_file_of_results_is_named_by_its_own_path(tmp_path: Path) -> None:
    file = tmp_path / "results of a table.jsonl"
    file.write_text('{"task": "t", "seed": 0, "reward": 0}\n')
    side = read_side([file])
    assert side.path_of(side.trials["t"][0]) == f"{file}/t/0"
    assert all(note.startswith(f"{file}: ") for note in side.notes)


@pytest.mark.slow
def test_a_hundred_thousand_trials_need_little_time_and_memory(tmp_path: Path) -> None:
    names = {f"task-{at:03}": "h" for at in range(100)}
    for number in (0, 1):
        run = write_run(tmp_path / f"run-{number}", [], names, range(500))
        line = a_result("TASK", 0, 0.5, FIRST_NIGHT, run=run.name, model="m", outcome="submitted").model_dump(
            mode="json"
        )
        with (run / "results.jsonl").open("w") as file:
            for seed in range(500):
                for at, name in enumerate(names):
                    reward = float((seed * 7 + at * 13) % 10 < 5 - number)
                    file.write(
                        json.dumps({**line, "task": name, "seed": seed, "trial": f"{name}.s{seed}", "reward": reward})
                        + "\n"
                    )
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(tmp_path / "run-1"), str(tmp_path / "run-0")],
        capture_output=True, text=True, timeout=280, check=True,
    )  # fmt: skip
    cpu, memory, trials, _ = map(float, done.stdout.split())
    print(f"{cpu:.1f} s, {memory:.0f} MB", resource.RUSAGE_SELF)
    assert (trials, memory <= 600) == (50_000, True)
