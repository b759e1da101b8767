"""pane: output is attributed to a command, to the time between two, or to the shell itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.pane import Capture
from harness.terminal.settling import Mark

PROMPT = b"\x1b[?2004hroot@box:/app# "
ECHO = b"\r\n\x1b[?2004l\r"
"""The line editor's echo of an empty line."""

ASKS_AGAIN = b" . /opt/tbench/run/1.command\r\n"
"""Echo of the line that requests a command if the hook does not respond."""


class Pane:
    """Simulates a pane for a capture: the shell with its hook, commands and background jobs."""

    def __init__(self, *, prompt: bytes = PROMPT, has_mark: bool = True) -> None:
        self.capture = Capture()
        self._prompt = prompt
        self._has_mark = has_mark
        self._id = 0

    def draw_prompt(self) -> None:
        self.capture.take(Mark("D", exit_code=0))
        self.capture.append(self._prompt)
        if self._has_mark:
            self.capture.take(Mark("B"))

    def begin(self, *, late: bytes = b"", answer: bytes = b"") -> None:
        """Request a command; `late` is printed before the shell starts it; the shell's prompt before is `answer`."""
        self._id += 1
        self.capture.expect(self._id)
        self.capture.note_requested(b"\r\n")
        if answer:
            self.capture.append(ECHO + answer)
            self.capture.take(Mark("B"))
            self.capture.note_requested(b"\r\n")
        self.capture.append(late + ECHO)
        self.capture.take(Mark("C"))
        self.capture.take(Mark("D", exit_code=0))
        self.capture.take(Mark("S"))
        self.capture.append(b"\r\x1b[A\x1b[K$ echo shown\n")
        self.capture.take(Mark("C", id=self._id))

    def end(self, exit_code: int = 0) -> tuple[str, str]:
        """End the command; return its output and the output before it."""
        self.capture.take(Mark("D", exit_code=exit_code, id=self._id))
        assert self.capture.ended is not None
        said = self.capture.output().text, self.capture.background
        self.capture.release()
        return said

    def run(self, output: bytes = b"", *, late: bytes = b"", answer: bytes = b"") -> tuple[str, str]:
        self.begin(late=late, answer=answer)
        self.capture.append(output)
        said = self.end()
        self.draw_prompt()
        return said


@pytest.fixture(params=[True, False], ids=["marked", "unmarked"])
def pane(request: pytest.FixtureRequest) -> Pane:
    pane = Pane(has_mark=request.param)
    pane.draw_prompt()
    return pane


def test_only_what_is_between_its_marks_is_a_commands_output(pane: Pane) -> None:
    assert pane.run(b"out\r\n") == ("out\n", "")
    assert pane.run() == ("", "")


def test_what_comes_between_two_commands_is_reported_with_the_second(pane: Pane) -> None:
    pane.run(b"one\r\n")
    pane.capture.append(b"late\r\n")
    assert pane.run(b"two\r\n")[0] == "two\n"


def test_what_comes_behind_the_prompt_is_kept() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    pane.capture.append(b"late\r\nlater\r\n")
    assert pane.run(b"two\r\n") == ("two\n", "late\nlater\n")
    assert pane.run() == ("", "")


def test_what_comes_before_the_prompt_is_kept() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.end()
    pane.capture.append(b"late\r\n")
    pane.draw_prompt()
    assert pane.run() == ("", "late\n")


def test_what_comes_while_a_command_is_asked_for_is_kept() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    assert pane.run(late=b"late\r\n") == ("", "late\n")


def test_what_comes_while_the_prompt_is_drawn_is_kept() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    for noise in (b"late\r\n", b"later\r\n"):
        pane.begin()
        pane.end()
        editor, prompt = PROMPT[:8], PROMPT[8:]
        pane.capture.append(editor + noise + prompt)
        pane.capture.take(Mark("B"))
        assert pane.run()[1] == noise.decode().replace("\r", "")


def test_a_prompt_of_another_directory_is_a_prompt() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    pane.begin()
    pane.end()
    pane.capture.append(PROMPT.replace(b"/app", b"/tmp"))
    pane.capture.take(Mark("B"))
    assert pane.run() == ("", "")


def test_a_prompt_that_is_drawn_twice_is_a_prompt() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    pane.capture.append(b"late\r\n" + PROMPT)
    pane.capture.take(Mark("B"))
    assert pane.run() == ("", "late\n")


def test_a_prompt_that_is_the_answer_to_what_asks_for_a_command_is_a_prompt() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    assert pane.run(answer=PROMPT.replace(b"/app", b"/tmp")) == ("", "")


def test_noise_around_the_echo_is_whole() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    assert pane.run(late=b"noise\r\nnoise\r\n")[1] == "noise\nnoise\n"


def test_a_line_that_asks_once_more_is_nobodys_output_though_it_is_shown_twice() -> None:
    """It is echoed by the terminal, as it came before the line editor, and by the editor."""
    pane = Pane()
    pane.run()
    pane.capture.expect(7)
    pane.capture.note_requested(b"\r\n")
    pane.capture.append(b"\r\n")
    for _ in range(2):
        pane.capture.note_requested(ASKS_AGAIN)
        pane.capture.append(ASKS_AGAIN)
    pane.capture.append(b"of a job\r\n" + ASKS_AGAIN + b"\x1b[?2004l\r")
    pane.capture.take(Mark("C", id=7))
    assert pane.capture.background.strip() == "of a job"


def test_a_line_that_asks_once_more_for_what_has_begun_is_no_output() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    line = ASKS_AGAIN
    pane.capture.note_requested(line)
    pane.capture.append(line + b"precious\r\n")
    assert pane.end() == ("precious\n", "")


def test_what_the_terminal_shows_of_a_pressed_key_is_no_output() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.note_pressed(b"^C")
    pane.capture.append(b"before\r\n^C")
    pane.capture.append(b"^C is what the program says\r\n")
    assert pane.end() == ("before\n^C is what the program says\n", "")


def test_a_prompt_that_is_drawn_twice_is_nobodys_output(pane: Pane) -> None:
    pane.run()
    pane.draw_prompt()
    assert pane.run(b"x\r\n") == ("x\n", "")


def test_marks_that_a_program_prints_are_not_its_end() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.append(b"before\r\n")
    pane.capture.take(Mark("D", exit_code=0))
    pane.capture.append(b"between\r\n")
    pane.capture.take(Mark("B"))
    pane.capture.append(b"after\r\n")
    assert pane.end() == ("before\nbetween\nafter\n", "")


@pytest.mark.parametrize("seen", [0, 10, len(PROMPT)])
def test_a_prompt_that_is_half_drawn_when_a_command_is_given_up_is_nobodys_output(seen: int) -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.append(b"out\r\n")
    pane.capture.take(Mark("D", exit_code=130))
    pane.capture.append(PROMPT[:seen])
    assert pane.capture.output().text == "out\n"
    pane.capture.release()
    pane.capture.append(PROMPT[seen:])
    pane.capture.take(Mark("B"))
    assert pane.run(b"two\r\n") == ("two\n", "")


def test_the_prompt_behind_an_abandoned_command_is_not_its_output() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.append(b"before\r\n")
    pane.draw_prompt()
    assert pane.capture.output().text == "before\n"


def test_long_output_behind_a_printed_mark_is_not_held_back() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.take(Mark("D", exit_code=0))
    pane.capture.append(b"x" * 5000 + b"\r\n")
    assert len(pane.capture.output().text) == 5001


def test_another_commands_marks_are_not_this_ones() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.take(Mark("D", exit_code=7, id=99))
    assert not pane.capture.is_over
    assert pane.end(3)[0] == ""


def test_a_shell_that_ends_ends_the_command() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.begin()
    pane.capture.append(b"last words\r\n")
    pane.capture.take(Mark("X", exit_code=3))
    pane.capture.append(b"[the shell exited with code 3; this is a new one]\r\n")
    assert (pane.capture.is_over, pane.capture.output().text) == (True, "last words\n")


def test_a_shell_that_ends_before_a_command_has_begun_does_not_end_it() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    pane.capture.expect(2)
    pane.capture.take(Mark("X", exit_code=3))
    assert not pane.capture.is_over
    pane.capture.take(Mark("C", id=2))
    assert (pane.capture.begun, pane.capture.shell_lost, pane.capture.is_over) == (True, True, False)


def test_what_was_seen_on_the_screen_is_not_told_again() -> None:
    pane = Pane()
    pane.draw_prompt()
    pane.run()
    pane.capture.append(b"seen\r\n")
    pane.capture.discard_background()
    assert pane.run() == ("", "")


@given(
    st.lists(st.tuples(st.binary(max_size=50).filter(lambda data: b"\x1b" not in data), st.integers(1, 20)), max_size=6)
)
def test_output_in_any_pieces_is_the_same(outputs: list[tuple[bytes, int]]) -> None:
    whole, pieces = Pane(), Pane()
    for pane in (whole, pieces):
        pane.draw_prompt()
    for output, size in outputs:
        pieces.begin()
        for start in range(0, len(output), size):
            pieces.capture.append(output[start : start + size])
        said = pieces.end()
        pieces.draw_prompt()
        assert said == whole.run(output)
