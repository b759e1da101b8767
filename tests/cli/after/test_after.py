"""`tbench show`, `why`, `diff` and `play` on stored trials."""

from __future__ import annotations

import os
import sys
import termios
from pathlib import Path

import pexpect
import pytest
from after_trials import PYTEST, a_step, write_trial
from in_process import tbench
from run_trees import a_result, write_run
from shown_trials import write_steps

from tbench.results import Blame, ErrorInfo, Integrity, Stage

CAST = [
    (0.1, "m", "step 1"),
    (0.2, "o", "\x1b[31mred\x1b[0m one\r\n"),
    (1.0, "m", "step 2"),
    (1.1, "o", "two \x1b]52;c;aGk=\x07\r\n"),
    (30.0, "m", "step 3"),
    (30.1, "o", "three"),
]


def test_steps_are_shown_with_what_was_thought_typed_and_seen(tmp_path: Path) -> None:
    long = "".join(f"line {number}\n" for number in range(40))
    steps = [a_step(1, "seq 40\n", long), a_step(2, "\x1b]0;x\x07\n", "\u009b31m", warnings=("odd: so",))]
    steps.append(a_step(3, actions=(), format_error="no_json", exit_code=None))
    done = tbench("show", write_trial(tmp_path / "run", steps))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "step 1 of 3: model 1.5 s, commands 0.2 s, exit 0, 1,000 + 50 tokens" in lines
    assert lines[lines.index("  thought 1") :][1:3] == ["  content 1", "  > seq 40"]
    assert "  | … 28 lines …" in lines
    assert "  warning: odd: so" in lines
    assert "  format error: no_json" in lines
    assert "\x1b]0" not in done.stdout and "\u009b" not in done.stdout


def test_one_step_is_shown_whole_with_the_screen_behind_it(tmp_path: Path) -> None:
    steps = [a_step(number, seen="".join(f"{line}\n" for line in range(30))) for number in (1, 2, 3)]
    trial = write_trial(tmp_path / "run", steps, cast=CAST)
    lines = tbench("show", trial, "--step", "2").stdout.splitlines()
    assert "  content 2" in lines and "  content 1" not in lines
    assert [line for line in lines if line.startswith("  | ")][-1] == "  | 29"
    assert lines[-2:] == ["red one", "two"]
    assert tbench("show", trial, "--step", "4").stderr.startswith("tbench: --step 4: ")
    without = tbench("show", write_trial(tmp_path / "other", steps), "--step", "1").stdout
    assert "the recording does not show the screen at its end" in without


def test_of_a_run_the_failed_trials_are_listed_worst_first(tmp_path: Path) -> None:
    lost = ErrorInfo(type="sandbox_lost", message="gone", stage=Stage.AGENT, blame=Blame.INFRA, retryable=True)
    rewards = {("a", 0): 0.5, ("a", 1): 1.0, ("b", 0): 0.0, ("b", 1): None}
    results = [
        a_result(task, seed, reward, error=lost if reward is None else None) for (task, seed), reward in rewards.items()
    ]
    run = write_run(tmp_path / "run", results, {"a": "sha256:a", "b": "sha256:b"}, (0, 1))
    for result in results:
        write_steps(run, result, [a_step(1)])
    done = tbench("why", str(run))
    first, *failed, last = done.stdout.splitlines()
    assert (done.returncode, first) == (0, "3 of 4 trials failed, worst first")
    assert [line.split()[0] for line in failed] == [f"{run}/{name}" for name in ("b/0", "a/0", "b/1")]
    assert "reward 0.5" in failed[1] and "no verdict (sandbox_lost)" in failed[2]
    assert last == f"tbench why {run}/b/0"
    assert tbench("why", f"{run}/a").stdout.splitlines()[0] == "1 of 2 trials failed, worst first"


def test_only_the_steps_that_match_are_shown(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "run", [a_step(1), a_step(2, "cat notes\n"), a_step(3)])
    said = tbench("show", trial, "--grep", "not[e]s").stdout
    assert "step 2 of 3" in said and "step 1 of 3" not in said
    assert "no match in" in tbench("show", trial, "--grep", "zebra").stderr
    assert "invalid regular expression" in tbench("show", trial, "--grep", "(").stderr


def test_a_trial_is_found_by_its_name_or_its_directory_and_others_are_proposed(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "run", [a_step(1)])
    for name in (trial, f"{tmp_path}/run/trials/task/seed-0", f"{trial}/"):
        assert tbench("show", name).returncode == 0
    assert f"did you mean {trial}?" in tbench("show", f"{tmp_path}/run/tsk/0").stderr
    assert f"did you mean {tmp_path}/run?" in tbench("show", f"{tmp_path}/rum/task/0").stderr
    assert "write RUN/TASK/SEED" in tbench("show", "task").stderr
    assert "has 1 attempt, but no attempt 4" in tbench("show", f"{trial}/attempt-4").stderr


def test_a_trial_that_was_cut_in_mid_line_is_shown_up_to_there(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "run", [a_step(1), a_step(2)])
    directory = tmp_path / "run/trials/task/seed-0"
    (directory / "result.json").unlink()
    with (directory / "steps.jsonl").open("a") as file:
        file.write('{"index": 3, "rep')
    said = tbench("show", trial).stdout
    assert "no result: the trial is still running, or was interrupted" in said
    assert "step 2 of 2" in said
    assert "no result: the trial is still running" in tbench("why", trial).stdout


def test_why_tells_tests_limits_form_signs_and_the_last_steps_on_one_screen(tmp_path: Path) -> None:
    steps = [a_step(1, format_error="no_json"), a_step(2, warnings=("slow: x",)), a_step(3, "make\n", "a\nerror: no\n")]
    integrity = Integrity(tamper=("hosts: something",))
    trial = write_trial(
        tmp_path / "run", steps, verifier=PYTEST, outcome="agent_timeout", integrity=integrity, out_of_memory=True
    )
    lines = tbench("why", trial).stdout.splitlines()
    assert lines[1] == "tests; failed, reward 0 (agent_timeout, 3 steps, 36 s)"
    assert lines[2:] == [
        "limit: agent_timeout: the agent's time was up",
        "limit: a process was killed because memory ran out",
        "tests: 1 of 2 failed (stdout.txt)",
        "  ✗ test_sum",
        "      assert 3 == 4",
        "format errors: no_json 1",
        "warnings: slow 1",
        "sign: hosts: something",
        "last steps",
        "    1  ls → exit 0",
        "       | file",
        "    2  ls → exit 0",
        "       | file",
        "    3  make → exit 0",
        "       | error: no",
        "",
        f"tbench show {trial} --step 3",
        f"tbench blame {trial}",
        f"tbench fork {trial} --at-step 3 --debug",
    ]


def test_why_tells_an_error_and_what_a_verifier_without_tests_printed(tmp_path: Path) -> None:
    error = ErrorInfo(stage=Stage.AGENT, type="sandbox_lost", blame=Blame.INFRA, retryable=True, message="gone")
    trial = write_trial(tmp_path / "run", [], verifier="one\ntwo\n", error=error, reward=None)
    said = tbench("why", trial).stdout
    assert "error: sandbox_lost: gone" in said
    assert "verifier: two" in said
    assert "blame" not in said


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ([a_step(1), a_step(2, "cat x\n"), a_step(3)], "they differ at step 2: different input"),
        (
            [a_step(1), a_step(2, seen="other\n")],
            "they differ at step 2: the same input, but 'file' was seen in one and 'other' in the other",
        ),
        ([a_step(1), a_step(2)], "the same up to step 2, where one of them ends"),
        ([a_step(1), a_step(2), a_step(3)], "the same in all 3 steps"),
        ([], "nothing to compare: "),
    ],
)
def test_two_trials_part_at_a_step(tmp_path: Path, second: list[object], words: str) -> None:
    one = write_trial(tmp_path / "one", [a_step(1), a_step(2), a_step(3)])
    other = write_trial(tmp_path / "other", second)  # type: ignore[arg-type]
    said = tbench("diff", one, other).stdout
    assert words in said


def test_a_recording_is_played_in_the_terminal_which_is_sane_afterwards(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "run", [a_step(1), a_step(2), a_step(3)], cast=CAST)
    words = ["-m", "tbench", "play", trial, "--from-step", "2", "--speed", "10", "--idle", "0.2"]
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = pexpect.spawn(sys.executable, words, env=environment, encoding="utf-8", timeout=30, dimensions=(24, 80))
    before = termios.tcgetattr(child.child_fd)
    child.expect("\x1b\\[\\?1049h")
    child.expect("two")
    child.expect("three")
    child.expect(pexpect.EOF)
    assert child.before is not None
    assert "\x1b[?25h" in child.before and "\x1b]52" not in child.before
    assert termios.tcgetattr(child.child_fd) == before
    child.close()
    assert child.exitstatus == 0
    child = pexpect.spawn(sys.executable, words[:4], env=environment, encoding="utf-8", timeout=30, dimensions=(24, 80))
    child.expect("red")
    child.sendintr()
    child.expect(pexpect.EOF)
    assert child.before is not None and "\x1b[?1049l" in child.before
    child.close()
    assert child.exitstatus == 0
    assert "play needs a terminal; tbench show" in tbench("play", trial).stderr


def test_why_names_the_parser_that_a_server_lacks(tmp_path: Path) -> None:
    steps = [a_step(1, format_error="reply_in_reasoning"), a_step(2, format_error="raw_tool_call")]
    said = tbench("why", write_trial(tmp_path / "run", steps)).stdout
    assert "start the server with this model's --reasoning-parser" in said
    assert "start the server with this model's --tool-call-parser" in said


def test_a_run_is_not_one_trial_to_debug(tmp_path: Path) -> None:
    trial = write_trial(tmp_path / "run", [a_step(1)], verifier=PYTEST)
    done = tbench("why", str(Path(trial).parents[1]), "--debug")
    assert done.returncode == 2 and "write RUN/TASK/SEED" in done.stderr
