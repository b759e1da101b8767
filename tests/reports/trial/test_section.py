"""Times of steps in a recording, from its markers or from what was typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.trajectory import Reply, Step
from reports.trial.section import SessionCast, StepTimes, read_cast, step_times

HEADER = {"version": 2, "width": 80, "height": 24}


def cast_of(path: Path, *events: tuple[float, str, str]) -> SessionCast:
    file = path / "session.cast"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in (HEADER, *events)))
    return read_cast(file)


def a_step(number: int, *actions: str, model_sec: float = 1.0, command_sec: float = 0.5) -> Step:
    return Step(index=number, reply=Reply(content=""), actions=actions, model_sec=model_sec, command_sec=command_sec)


def test_markers_give_the_times_of_steps(tmp_path: Path) -> None:
    cast = cast_of(
        tmp_path, (0.5, "m", "step 1"), (2.0, "i", "ls\n"), (3.0, "m", "step 2"), (3.5, "m", "a gap"), (5.0, "o", "x")
    )
    assert step_times([a_step(1, "ls\n"), a_step(2)], cast) == [StepTimes(0.5, 2.0, 3.0), StepTimes(3.0, 3.0, 5.0)]
    assert cast.remarks == ((3.5, "a gap"),)


def test_without_markers_the_input_gives_the_times(tmp_path: Path) -> None:
    cast = cast_of(tmp_path, (2.0, "i", "ls\n"), (2.2, "o", "a"), (5.0, "i", "make\n"), (9.0, "o", "b"))
    first, second = step_times([a_step(1, "ls\n"), a_step(2, "make\n", model_sec=2.0)], cast)
    assert (first, second) == (StepTimes(1.0, 2.0, 3.0), StepTimes(3.0, 5.0, 9.0))


def test_a_step_that_types_nothing_comes_when_the_one_before_is_over(tmp_path: Path) -> None:
    cast = cast_of(tmp_path, (2.0, "i", "ls\n"), (2.2, "o", "a"), (9.0, "o", "b"))
    assert step_times([a_step(1, "ls\n"), a_step(2)], cast) == [StepTimes(1.0, 2.0, 2.5), StepTimes(2.5, 2.5, 9.0)]


def test_without_any_relation_to_the_recording_there_are_no_times(tmp_path: Path) -> None:
    assert step_times([a_step(1, "ls\n")], cast_of(tmp_path, (2.0, "o", "a"))) == [None]
    assert step_times([a_step(1, "ls\n")], read_cast(tmp_path / "none")) == [None]


def test_a_trial_whose_first_reply_never_came_has_no_times_but_a_recording(tmp_path: Path) -> None:
    assert step_times([], cast_of(tmp_path, (0.5, "m", "step 1"), (2.0, "o", "$ "))) == []


def test_a_large_recording_is_cut_at_a_line_with_a_note(tmp_path: Path) -> None:
    cast_of(tmp_path, *((float(at), "o", "x" * 50) for at in range(100)))
    cut = read_cast(tmp_path / "session.cast", limit_bytes=2000)
    assert json.loads(cut.text.splitlines()[-1])[0] == cut.duration_sec
    assert len(cut.text) <= 2000
    assert cut.notes[0].startswith("the recording is ")


@pytest.mark.parametrize("line", ["null", '["1", "m", "step 1"]', '[1e999, "m", "step 2"]', "[" * 9999])
def test_lines_that_are_no_events_are_passed_over(tmp_path: Path, line: str) -> None:
    file = tmp_path / "session.cast"
    file.write_text(f'{json.dumps(HEADER)}\n{line}\n[2.0, "m", "step 1"]\n[3.0, "o", "x"]\n')
    assert read_cast(file).steps == {1: 2.0}


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"version": 2, "width": NaN}\n[1.0, "o", "x"]\n', "is not asciicast version 2"),
        ('{"version": 3}\n[1.0, "o", "x"]\n', "is not asciicast version 2"),
        ('{"version": 2}\n[1.0, "i", "x"]\n', "contains no output"),
        ("", "is not asciicast version 2"),
    ],
)
def test_a_recording_that_cannot_be_played_is_left_out_with_a_note(tmp_path: Path, text: str, note: str) -> None:
    file = tmp_path / "session.cast"
    file.write_text(text)
    cast = read_cast(file)
    assert cast.text == ""
    assert note in cast.notes[0]
