"""Layout of the full-screen debugger at any size."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tbench.cli import app
from tbench.cli.debug.keys import LineEditor
from tbench.cli.debug.panes import PaneState, Question, file_lines
from tbench.cli.debug.screen import render_screen
from tbench.config.settings import RunConfig
from tbench.control.wire import DebugState, DraftSeen, Screen, StepSeen, VerdictSeen

HOSTILE = "\x1b]0;title\x07\x1b[2J日本語\tend\r\n\x00‮"


def a_screen(columns: int = 160, rows: int = 40, cursor: tuple[int, int] = (0, 0), line: str = "") -> Screen:
    return Screen(
        columns=columns,
        rows=rows,
        cursor=cursor,
        cursor_visible=True,
        application_keys=False,
        lines=tuple(line or f"row {row}: {'x' * columns}"[:columns] for row in range(rows)),
    )


def a_draft(step: int = 3, **more: object) -> DraftSeen:
    return DraftSeen.model_validate({"step": step, "content": "{}", "actions": ["make\n"], "chosen": True, **more})


def shown(columns: int = 80, rows: int = 24, **more: object) -> PaneState:
    steps = (StepSeen(index=1, thoughts=("look first",), actions=("ls\n",), exit_code=0, warnings=("odd: yes",)),)
    state = PaneState("task/0", columns, rows, screen=a_screen())
    values = {"version": 1, "waits_for": "decision", "step": 3, "steps": steps, "draft": a_draft(), **more}
    state.update(DebugState.model_validate(values))
    return state


def lines_of(state: PaneState) -> list[str]:
    return [line.plain for line in render_screen(state).lines]


@pytest.mark.parametrize("size", [(80, 24), (120, 30), (200, 60), (40, 10), (39, 10), (1, 1)])
@pytest.mark.parametrize("pane", ["terminal", "steps", "samples"])
def test_every_line_has_the_width_of_the_screen(size: tuple[int, int], pane: str) -> None:
    state = shown(*size, samples=[a_draft(), a_draft(chosen=False, actions=[HOSTILE], thoughts=[HOSTILE])])
    state.pane = pane  # type: ignore[assignment]
    state.screen = a_screen(line=f"\x1b[32m{HOSTILE}")
    lines = lines_of(state)
    assert len(lines) == size[1]
    assert {cell_len(line) for line in lines} == {size[0]}
    assert not any(char < " " for line in lines for char in line)


def test_80_by_24_is_enough() -> None:
    lines = lines_of(shown())
    assert lines[0].startswith(" task/0  |  step 3  |  waiting for you")
    assert lines[1].startswith("row 0: xxx")
    assert lines[16].startswith("── next: step 3 ──")
    assert lines[17].startswith("> make")
    assert lines[22].startswith("s step")
    assert lines[22].rstrip().endswith("? help")


def test_where_there_is_room_the_steps_stand_beside_the_terminal() -> None:
    lines = lines_of(shown(120, 24))
    assert lines[2][:6] == "row 1:"
    assert lines[2][72:].startswith("│look first")
    assert any("odd: yes" in line for line in lines)


def test_the_terminal_is_shown_around_its_cursor_in_its_colours() -> None:
    state = shown()
    state.screen = a_screen(cursor=(100, 39), line=f"{'x' * 100}\x1b[31my\x1b[m")
    found = render_screen(state)
    assert found.cursor is not None
    line = found.lines[found.cursor.row]
    assert line.plain[found.cursor.column] == "y"
    assert [str(span.style) for span in line.spans] == ["color(1)"]


def test_samples_stand_side_by_side_with_the_chosen_one_among_them() -> None:
    samples = [a_draft(actions=[f"make {at}"], seed=at, chosen=at == 7) for at in range(9)]
    state = shown(samples=samples)
    state.pane = "samples"
    lines = lines_of(state)
    assert "8 seed 7 *" in lines[1]
    assert lines[1].count("│") == 2
    assert "> make 7" in lines[2]


def test_what_was_verified_how_it_ended_and_what_went_wrong_is_reported() -> None:
    verdict = VerdictSeen(step=1, state="done", reward=0.25)
    state = shown(verdicts=[verdict], ended={"outcome": "submitted", "reward": 1.0}, draft=None)
    state.show_message("cannot be done\nhere", is_error=True)
    lines = lines_of(state)
    assert "ended: submitted, reward 1" in lines[0]
    assert "verify at 1: reward 0.25" in lines[0]
    assert lines[-1].startswith("cannot be done\\u000ahere")


@given(st.text(max_size=300), st.integers(0, 300))
def test_the_cursor_of_what_is_written_is_on_the_screen(text: str, at: int) -> None:
    state = shown()
    state.prompt = Question("asked", "edit", LineEditor(text, min(at, len(text))))
    found = render_screen(state)
    assert found.cursor is not None
    assert 0 <= found.cursor.column < 80
    assert 16 <= found.cursor.row < 24
    assert len(found.lines) == 24


def test_a_verdict_shows_its_failed_tests_where_the_steps_are_and_files_are_below_their_step() -> None:
    verdict = {"step": 3, "state": "done", "reward": 0.0, "tests": 2, "failures": 1}
    verdict["failed"] = [{"name": "test_sum", "error": [f"assert 3 == 4 {HOSTILE}"]}]
    state = shown(verdicts=[verdict])
    assert state.pane == "steps"
    lines = [line.rstrip() for line in lines_of(state)]
    assert lines[lines.index("verify at 3: reward 0, 1 of 2 tests failed") + 1] == "  ✗ test_sum"
    assert not any(char < " " for line in lines for char in line)
    seen = StepSeen(index=1, files={"/a": "added", "/b\n": "removed"}, more_files=3)
    assert list(file_lines(seen)) == ["+ /a", "- /b\\u000a", "… and 3 more files"]


def test_a_stop_is_said() -> None:
    assert shown(stopped="exit code 1 at step 2").message == "stopped: exit code 1 at step 2"


def test_a_yes_or_no_question_and_its_keys_fit_a_narrow_screen() -> None:
    state = shown()
    state.prompt = Question("end the trial, and remove its container?", "quit", is_question=True)
    assert any(line.rstrip().endswith("Enter or y: yes; Esc: no") for line in lines_of(state))


def test_what_a_fork_reports_is_printed_only_after_its_screen_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = list[Callable[[str], None]]()

    @contextlib.asynccontextmanager
    async def debug_fork(*_: object, say: Callable[[str], None], **__: object) -> AsyncIterator[Any]:
        reports.append(say)
        yield SimpleNamespace(directory=Path("runs/fork"), trial="t/0", result=None, quit=AsyncMock())

    async def run_debugger(*_: object, **__: object) -> str:
        reports[0]("storage is only watched")
        assert capsys.readouterr().err == ""
        return "quit"

    monkeypatch.setattr("tbench.api.forking.debug_fork", debug_fork)
    monkeypatch.setattr("tbench.cli.debug.session.run_debugger", run_debugger)
    monkeypatch.setattr("tbench.cli.debug.session.supports_full_screen", lambda: True)
    monkeypatch.setattr("tbench.cli.fork._config_and_directory", lambda *_: (RunConfig(), None))
    app.main(["fork", "runs/one/t/0", "--at-step", "1", "--debug"], standalone_mode=False)
    assert capsys.readouterr().err == "storage is only watched\n"
