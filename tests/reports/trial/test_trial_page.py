"""The page of a trial: everything stored is shown or reported missing, and all of it stays text."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from hostile_runs import ESCAPES, MARKUP
from run_trees import a_result, write_run
from shown_trials import page_of, trials_in, write_steps, written_page
from written_trials import CAST_NAME, Exchange, WrittenTrial, recording, tear, write_files_of

from harness.trajectory import Outcome, Reply, Step
from reports.site.writer import write_site
from reports.trial.steps import FIRST_STEPS, LAST_STEPS
from tbench.results import Blame, ErrorInfo, Integrity, Stage, TaskStepResult


def halve(file: Path, keep: int | None = None) -> None:
    """Keep only the first half of a file, or `keep` bytes."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2 if keep is None else keep])


def test_the_head_says_what_became_of_the_trial(tmp_path: Path) -> None:
    seen = Integrity(tamper=("reward-file: the agent wrote it",), remarks=("tool-failure: a download failed",))
    words = page_of(tmp_path, result=a_result("task", 0, 0.0, outcome=Outcome.STEP_LIMIT, integrity=seen)).words
    assert "✗ failed 0 reward the agent ended: step limit" in words
    assert "model 20.0 s" in words
    assert "! sign of tampering reward-file: the agent wrote it" in words
    assert "remark tool-failure: a download failed" in words


def test_of_a_run_over_several_machines_the_page_says_on_which_one_the_trial_was(tmp_path: Path) -> None:
    page = page_of(tmp_path, result=a_result("task", 0, 1.0, machine="ssh://root@gpu-1"))
    assert "machine ssh://root@gpu-1" in page.words


def test_an_error_is_named_with_its_stage_and_its_blame(tmp_path: Path) -> None:
    error = ErrorInfo(
        stage=Stage.AGENT, type="endpoint_unavailable", blame=Blame.ENDPOINT, retryable=True, message="HTTP 503"
    )
    words = page_of(tmp_path, result=a_result("task", 0, None, error=error)).words
    assert "! no verdict" in words
    assert "endpoint unavailable in stage agent, blame: endpoint; another attempt may give a verdict HTTP 503" in words


def test_steps_show_reply_input_and_output(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    assert 'id="step-2"' in page.html
    words = page.words
    assert "The compiler will say where to look." in words
    assert "Build it." in words
    assert "✗ exit 2" in words
    assert "main.c:3: error: expected ‘;’" in words
    assert "the commands were cut off" in words
    assert "Mend the build of /app." in words


def test_escapes_that_stand_in_what_was_seen_are_colours(tmp_path: Path) -> None:
    assert '<span class="i1 b">main.c:3: error: expected ‘;’</span>' in page_of(tmp_path).html


def test_the_data_has_whole_texts_and_the_recording_with_the_times_of_steps(tmp_path: Path) -> None:
    page = page_of(tmp_path)
    steps = page.steps()
    assert [step["actions"] for step in steps][:2] == [["ls -l\n"], ["make\n"]]
    assert json.loads(steps[0]["reply"])["plan"] == "Look at the project."
    assert page.lines()[0]["told"] == ["Mend the build of /app."]
    assert next(line[2] for line in page.lines() if isinstance(line, list) and line[1] == "i") == "ls -l\n"
    begins = [times[0] for times in page.sections[0]["times"]]
    assert begins == sorted(begins)
    assert page.sections[0]["times"][1][1] == 2.2


def test_long_texts_are_cut_in_the_page_and_whole_in_its_data(tmp_path: Path) -> None:
    long = "".join(f"line {number}\n" for number in range(5000))
    page = page_of(tmp_path, WrittenTrial([Exchange("Flood.", "seq 5000\n", long)]))
    assert "line 1\n" in page.html
    assert "line 4999\n" in page.html
    assert "line 2500\n" not in page.html
    assert re.search(r"… [\d,]+ characters left out", page.html)
    assert "line 2500\n" in page.steps()[0]["observation"]


def test_a_trajectory_of_many_megabytes_gives_a_page_that_opens(tmp_path: Path) -> None:
    result = a_result("task", 0, 0.0)
    run = write_run(tmp_path / "runs" / "run", [result], {"task": "h"}, (0,))
    text = "all work and no play\n" * 1500
    steps = [
        Step(index=number, reply=Reply(content=text), actions=(text,), observation=text) for number in range(1, 701)
    ]
    write_steps(run, result, steps)
    page = written_page(tmp_path)
    assert len(page.html) < 1_500_000
    assert len(page.sections[0]["lines"]) < 14_000_000
    assert f"Steps {FIRST_STEPS + 1} to {700 - LAST_STEPS}, 100 steps, are left out" in page.words
    assert "are left out of this page …]" in page.steps()[0]["observation"]


def test_nothing_of_a_trial_is_markup_or_turns_the_reading_direction(tmp_path: Path) -> None:
    text = f"{MARKUP}\n{ESCAPES}\n]]>"
    trial = WrittenTrial(
        exchanges=[Exchange(text, text, text, warnings=(text,), reasoning=text)],
        instruction=text,
        output=text,
        tests={MARKUP: MARKUP},
    )

    def mark(directory: Path) -> None:
        with (directory / CAST_NAME).open("a") as cast:
            cast.write(json.dumps([9.0, "m", text]) + "\n")

    page = page_of(tmp_path, trial, change=mark)
    assert "<img" not in page.html
    assert "<b class=injected" not in page.html
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", page.html)
    assert page.words


@pytest.mark.parametrize("name", ["..", "../../../outside", "/etc", "a/../../../../outside"])
def test_a_name_leads_nowhere_outside_of_the_run(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside" / "seed-0"
    outside.mkdir(parents=True)
    (outside / CAST_NAME).write_text(recording([Exchange("", "", "secret")]))
    results = [
        a_result(name, 0, 1.0),
        a_result("task", 0, 1.0, task_steps=(TaskStepResult(name=f"../../../../{name}", reward=1.0),)),
    ]
    run = write_run(tmp_path / "runs" / "run", results, {name: "h", "task": "h"}, (0,))
    (run / "trials" / "task" / "seed-0" / "steps").mkdir(parents=True)
    site = write_site([tmp_path / "runs"], tmp_path / "site").overview.parent
    pages = trials_in(site / "runs" / "run")
    assert len(pages) == 2
    assert not any(section["recorded"] for page in pages.values() for section in page.sections)
    assert {file.parent for file in site.rglob("trials*.js")} == {site / "runs" / "run"}


def test_a_torn_recording_plays_up_to_there_and_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path, change=lambda directory: tear(directory / CAST_NAME))
    assert "the recording is cut off in the middle of a line and plays up to that point" in page.words
    assert page.sections[0]["recorded"]


def test_an_invalid_recording_is_left_out_with_a_note(tmp_path: Path) -> None:
    page = page_of(tmp_path, change=lambda directory: halve(directory / CAST_NAME, keep=5))
    assert "the recording is not asciicast version 2 and is not shown" in page.words
    assert not page.sections[0]["recorded"]
    assert "session-screen" not in page.html


def test_a_trajectory_that_cannot_be_read_costs_itself_and_the_steps_are_there(tmp_path: Path) -> None:
    page = page_of(tmp_path, change=lambda directory: halve(directory / "trajectory.json"))
    assert "restore it or delete it" in page.words
    assert "Build it." in page.words


def test_a_trial_of_which_only_the_result_is_left_has_a_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, change=shutil.rmtree)
    assert "only its result is stored" in page.words
    assert "No model steps are stored for this trial." in page.words


def test_commands_are_offered_as_far_as_the_files_of_the_trial_are_there(tmp_path: Path) -> None:
    def without_steps(directory: Path) -> None:
        for name in ("steps.jsonl", "trajectory.json"):
            (directory / name).unlink(missing_ok=True)

    failed = a_result("task", 0, 0.0)
    whole = page_of(tmp_path / "whole", result=failed).words
    pruned = page_of(tmp_path / "pruned", result=failed, change=without_steps).words
    gone = page_of(tmp_path / "gone", result=failed, change=shutil.rmtree).words
    assert [("tbench why" in words, "tbench blame" in words) for words in (whole, pruned, gone)] == [
        (True, True),
        (True, False),
        (False, False),
    ]


def test_each_step_of_a_task_is_a_section_with_steps_of_its_own(tmp_path: Path) -> None:
    parts = (
        TaskStepResult(name="one", reward=1.0),
        TaskStepResult(name="two", reward=0.0, stopped="reward below 0.5"),
        TaskStepResult(name="three", begun=False),
    )
    result = a_result("task", 0, 0.5, task_steps=parts)
    run = write_run(tmp_path / "runs" / "run", [result], {"task": "h"}, (0,))
    for part in parts[:2]:
        written = write_files_of(tmp_path / part.name, result, WrittenTrial())
        shutil.copytree(written, run / "trials" / "task" / "seed-0" / "steps" / part.name)
    page = written_page(tmp_path)
    assert [section["name"] for section in page.sections] == ["one", "two", "three"]
    assert 'id="step-1.2"' in page.html
    assert 'id="step-2.2"' in page.html
    words = page.words
    assert "Step 2 of the task: two reward 0 reward below 0.5" in words
    assert "Step 3 of the task: three · never started" in words


def test_seeds_and_attempts_lead_to_each_other(tmp_path: Path) -> None:
    results = [
        a_result("task", 0, 1.0),
        a_result("task", 1, None, final=False),
        a_result("task", 1, 0.0, attempt=2),
    ]
    write_run(tmp_path / "runs" / "run", results, {"task": "h"}, (0, 1))
    first = written_page(tmp_path)
    assert 'rel="next" href="trial.html?task--1.2"' in first.html
    second = written_page(tmp_path, "task--1.2")
    assert 'rel="prev" href="trial.html?task--0"' in second.html
    assert 'href="trial.html?task--1">attempt 1: error' in second.html


def test_of_many_seeds_the_nearest_are_linked(tmp_path: Path) -> None:
    results = [a_result("task", seed, 1.0) for seed in range(60)]
    write_run(tmp_path / "runs" / "run", results, {"task": "h"}, range(60))
    linked = re.findall(r'class="chip pass" href="trial\.html\?task--(\d+)"', written_page(tmp_path, "task--30").html)
    assert linked == [str(seed) for seed in range(25, 36)]
    assert 'href="trial.html?task--59" aria-current="page"' in written_page(tmp_path, "task--59").html


def test_lines_of_a_recording_are_never_taken_for_texts_of_steps(tmp_path: Path) -> None:
    def pretend(directory: Path) -> None:
        with (directory / CAST_NAME).open("a") as cast:
            cast.write('{"told": ["pretended"], "n": 1}\n{torn\n')

    page = page_of(tmp_path, change=pretend)
    assert [step["n"] for step in page.steps()] == [1, 2, 3]


def test_the_command_that_repeats_it_is_there_for_runs_of_tbench_alone(tmp_path: Path) -> None:
    assert "tbench run \\ -t task \\ --seeds 1 --first-seed 0 \\ -d bundled" in page_of(tmp_path / "own").words
    bare = tmp_path / "bare" / "runs" / "run"
    bare.mkdir(parents=True)
    (bare / "results.jsonl").write_text('{"task": "task", "seed": 0, "reward": 1}\n')
    assert "These results were imported" in written_page(tmp_path / "bare").words
