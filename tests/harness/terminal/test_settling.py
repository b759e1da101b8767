"""settling: the shell's state according to its marks, for any typed text and timing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.terminal.settling import (
    GRACE_SEC,
    PROMPT_SEC,
    QUIET_SEC,
    UNANSWERED_SEC,
    UNPROVEN_SEC,
    UNSEEN_SEC,
    LastLine,
    Mark,
    MarkScanner,
    ShellState,
    looks_like_prompt,
    looks_like_shell_prompt,
    same_prompt,
)

SHELL, OTHER = 100, 200
RUNS = Mark("C")


def ended(line: int | None, code: int = 0, *, pending: bool | None = False, pid: int = SHELL) -> Mark:
    return Mark("D", code, pending, line, pid)


def prompt(line: int | None = None, pid: int = SHELL, number: int | None = None) -> Mark:
    return Mark("B", line=line, pid=pid, number=number)


def take(shell: ShellState, *marks: Mark) -> ShellState:
    for mark in marks:
        shell.take(mark)
    return shell


def idle(line: int = 0) -> ShellState:
    """A bash that has shown its first prompt."""
    return take(ShellState(), ended(line), prompt(line))


def typed(text: str, shell: ShellState | None = None) -> ShellState:
    shell = shell or idle()
    shell.note_typed(text)
    shell.keys_arrived()
    return shell


def test_the_first_prompt_settles() -> None:
    shell = idle()
    assert (shell.at_prompt, shell.wait_sec) == (True, 0)


def test_a_line_has_settled_when_its_prompt_is_drawn() -> None:
    shell = typed("false\n")
    assert (shell.at_prompt, shell.wait_sec) == (False, None)
    assert take(shell, RUNS).wait_sec is None
    assert take(shell, ended(1, 1)).wait_sec == PROMPT_SEC
    take(shell, prompt(1))
    assert (shell.at_prompt, shell.wait_sec, shell.exit_code) == (True, 0, 1)


def test_a_prompt_of_the_agents_own_is_waited_for_only_once() -> None:
    shell = take(typed("PS1='mine> '\n"), RUNS, ended(1))
    assert shell.wait_sec == PROMPT_SEC
    shell.settle()
    shell = take(typed("true\n", shell), RUNS, ended(2))
    assert shell.wait_sec == GRACE_SEC
    shell.settle()
    assert take(typed("PS1=$MARKED\n", shell), RUNS, ended(3), prompt(3)).at_prompt
    assert take(typed("true\n", shell), RUNS, ended(4)).wait_sec == PROMPT_SEC


def test_only_the_last_of_several_lines_settles() -> None:
    shell = typed("sleep 1\nsleep 2\n")
    assert take(shell, RUNS, ended(1, pending=False), prompt(1)).wait_sec == UNPROVEN_SEC
    assert take(shell, RUNS).wait_sec is None
    assert take(shell, ended(2), prompt(2)).at_prompt


def test_the_lines_of_a_here_document_count() -> None:
    shell = typed("cat <<E\none\ntwo\nE\n")
    assert take(shell, RUNS, ended(4), prompt(4)).at_prompt


def test_lines_that_a_program_has_read_are_waited_for_a_moment() -> None:
    shell = typed("python3\nprint(1)\nexit()\n")
    assert take(shell, RUNS, ended(1), prompt(1)).wait_sec == UNPROVEN_SEC
    shell.settle()
    assert take(typed("true\n", shell), RUNS, ended(2), prompt(2)).at_prompt


def test_a_line_that_still_waits_is_waited_for() -> None:
    assert take(typed("python3\nexit()\nsleep 1\n"), RUNS, ended(1, pending=True), prompt(1)).wait_sec is None


def test_what_was_typed_while_a_command_ran_is_waited_for_too() -> None:
    shell = take(typed("sleep 1\n"), RUNS)
    typed("echo done\n", shell)
    assert take(shell, ended(1), prompt(1)).wait_sec == UNPROVEN_SEC
    assert take(shell, RUNS, ended(2), prompt(2)).at_prompt


def test_marks_from_before_the_keys_arrived_prove_nothing() -> None:
    shell = take(typed("sleep 1\n"), RUNS)
    shell.note_typed("echo done\n")
    take(shell, ended(1, pending=False))
    shell.keys_arrived()
    assert shell.wait_sec is None


def test_text_without_a_newline_is_not_proven_to_have_arrived() -> None:
    assert take(typed("true\nhalf a line"), RUNS, ended(1), prompt(1)).wait_sec == QUIET_SEC


def test_an_interrupt_makes_the_count_a_guess_until_things_have_settled() -> None:
    shell = take(typed("sleep 9\nsleep 9\n"), RUNS)
    shell.note_pressed("C-c")
    shell.keys_arrived()
    take(shell, ended(1, 130), prompt(1))
    assert shell.wait_sec == UNPROVEN_SEC
    shell.settle()
    assert take(typed("a\nb\n", shell), RUNS, ended(2, pending=True), RUNS, ended(3), prompt(3)).at_prompt


def test_an_interrupt_at_the_prompt_settles_after_a_short_quiet() -> None:
    shell = idle()
    shell.note_pressed("C-c")
    shell.keys_arrived()
    assert take(shell, ended(1, 130), prompt(1)).wait_sec == QUIET_SEC


@pytest.mark.parametrize("key", ["Enter", "C-m"])
def test_a_key_that_ends_a_line_counts_as_one(key: str) -> None:
    shell = idle()
    shell.note_typed("ls")
    shell.note_pressed(key)
    shell.keys_arrived()
    assert take(shell, RUNS, ended(1), prompt(1)).at_prompt


def test_other_keys_leave_the_count_alone() -> None:
    shell = idle()
    for key in ("Up", "Enter"):
        shell.note_pressed(key)
        shell.keys_arrived()
    assert take(shell, RUNS, ended(1), prompt(1)).at_prompt


def test_a_shell_within_the_shell_has_a_count_of_its_own() -> None:
    shell = take(typed("bash\n"), RUNS, ended(0, pid=OTHER), prompt(0, pid=OTHER))
    assert (shell.at_prompt, shell.wait_sec) == (False, QUIET_SEC)  # it may have a terminal of its own
    shell.settle()
    assert take(typed("a\nb\n", shell), RUNS, ended(1, pid=OTHER)).wait_sec == UNPROVEN_SEC
    assert take(shell, RUNS, ended(2, pid=OTHER), prompt(2, OTHER)).at_prompt
    assert take(typed("exit\n", shell), RUNS, ended(1), prompt(1)).at_prompt
    assert take(typed("a\nb\n", shell), RUNS, ended(3), prompt(3)).at_prompt


def test_a_shell_in_a_terminal_of_its_own_proves_nothing() -> None:
    shell = take(typed("script -c bash\n"), RUNS, ended(0, pid=OTHER), prompt(0, OTHER, 1))
    assert not shell.at_prompt
    take(shell, RUNS, ended(1, pid=OTHER), prompt(1, OTHER, 2))
    assert not shell.at_prompt
    assert take(shell, ended(1), prompt(1)).at_prompt


@pytest.mark.parametrize(
    "copies", [[prompt(1, number=1)], [ended(1), prompt(1, number=1)], [ended(0), prompt(0, number=0)]]
)
def test_a_copy_of_a_prompt_proves_nothing(copies: list[Mark]) -> None:
    shell = take(ShellState(), ended(0), prompt(0, number=1))
    assert not take(typed("cat session.log\n", shell), RUNS, *copies).at_prompt
    assert take(shell, ended(1), prompt(1, number=2)).at_prompt
    assert take(typed("\n", shell), ended(2), prompt(2, number=2)).at_prompt


def test_a_new_shell_has_not_been_counted_yet() -> None:
    shell = typed("exit\nsleep 1\n")
    assert take(shell, ended(0, pending=False, pid=OTHER), prompt(0, OTHER)).wait_sec == UNPROVEN_SEC


def test_a_prompt_alone_is_proof_where_ends_are_no_longer_told() -> None:
    shell = take(typed("unset PROMPT_COMMAND\n"), RUNS, prompt(1))
    assert (shell.at_prompt, shell.exit_code) == (True, None)
    assert take(typed("a\nb\n", shell), RUNS, prompt(2)).wait_sec is None
    assert take(shell, RUNS, prompt(3)).at_prompt


def test_a_history_expansion_that_fails_is_not_counted_by_bash() -> None:
    shell = take(typed("echo a!b\n"), prompt(1))
    assert shell.at_prompt
    assert take(typed("a\nb\n", shell), RUNS, ended(1), prompt(1)).wait_sec == UNPROVEN_SEC
    assert take(shell, RUNS, ended(2), prompt(2)).at_prompt


def test_a_prompt_drawn_again_by_a_key_settles_after_quiet() -> None:
    shell = idle()
    shell.note_pressed("C-l")
    shell.keys_arrived()
    assert take(shell, prompt(0)).wait_sec == UNPROVEN_SEC


def test_shells_without_counts_answer_each_line() -> None:
    shell = take(ShellState(), ended(None, pending=None), prompt())
    typed("cat <<E\ntext\nE\n", shell)
    assert take(shell, Mark("P"), Mark("P")).wait_sec is None
    assert take(shell, ended(None, 3, pending=None), prompt()).at_prompt
    assert shell.exit_code == 3


def test_shells_without_counts_are_given_a_second_where_lines_are_unanswered() -> None:
    shell = take(ShellState(), ended(None, pending=None), prompt())
    assert take(typed("read x\nanswer\n", shell), ended(None, pending=None), prompt()).wait_sec == UNANSWERED_SEC


@pytest.mark.parametrize("change", ["", "LINENO=7\n"])
def test_a_count_that_the_agent_has_spoilt_proves_nothing(change: str) -> None:
    shell = typed(f"{change}sleep 1\nsleep 1\n")
    line = None if not change else 9
    assert take(shell, RUNS, ended(line, pending=False), prompt(line)).wait_sec == UNPROVEN_SEC


def test_lost_sight_of_nothing_is_known() -> None:
    shell = take(typed("sleep 1\n"), RUNS)
    shell.lose_track()
    assert (shell.at_prompt, shell.wait_sec) == (False, UNSEEN_SEC)
    assert take(shell, ended(1)).wait_sec in (QUIET_SEC, UNPROVEN_SEC)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=8), st.data())
def test_bash_never_settles_before_its_last_line_and_always_then(
    commands: list[tuple[int, int]], data: st.DataObject
) -> None:
    """`commands`: number of lines and exit code of each. The pending flag may be wrong if the rest is under way."""
    shell = idle()
    for cut in sorted(data.draw(st.lists(st.integers(1, len(commands)), max_size=2))):
        shell.note_typed("x\n" * sum(lines for lines, _ in commands[:cut]))
        shell.keys_arrived()
        commands_now, commands = commands[:cut], commands[cut:]
        line = shell._read[SHELL]
        for number, (lines, code) in enumerate(commands_now, 1):
            line += lines
            last = number == len(commands_now)
            take(shell, RUNS, ended(line, code, pending=False if last else data.draw(st.booleans())), prompt(line))
            assert shell.at_prompt == last
            assert shell.exit_code == code
        if not commands:
            break


@given(
    st.lists(
        st.one_of(
            st.builds(Mark, st.sampled_from("BCDP"), st.integers(0, 3), st.sampled_from([None, True, False]),
                      st.one_of(st.none(), st.integers(0, 9)), st.sampled_from([None, SHELL, OTHER])),
            st.sampled_from(["text", "a\nb\n", "\x03", ""]),
            st.sampled_from(["C-c", "Enter", "Up"]).map(lambda key: (key,)),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_no_sequence_of_events_breaks_the_state(events: list[Mark | str | tuple[str]]) -> None:
    shell = ShellState()
    for event in events:
        match event:
            case Mark():
                shell.take(event)
            case str():
                shell.note_typed(event)
                shell.keys_arrived()
            case (key,):
                shell.note_pressed(key)
                shell.keys_arrived()
        assert shell.wait_sec is None or 0 <= shell.wait_sec <= UNANSWERED_SEC


# marks: the shell's marks are found wherever the stream was cut, and what lies between them stays exact.

C = b"\x1b]133;C;aid=tbench\x1b\\"
B = b"\x1b]133;B;aid=tbench\x1b\\"


def done(code: int, pending: str) -> bytes:
    return b"\x1b]133;D;%d;aid=tbench;pending=%s\x1b\\" % (code, pending.encode())


STREAM = b"$ ls" + C + b"a\r\nb\x1b[0m\r\n" + done(0, "1") + b"$ " + B + b"x" + C + done(130, "0") + B + b"$ "
PIECES: list[bytes | Mark] = [
    b"$ ls",
    Mark("C"),
    b"a\r\nb\x1b[0m\r\n",
    Mark("D", 0, pending=True),
    b"$ ",
    Mark("B"),
    b"x",
    Mark("C"),
    Mark("D", 130, pending=False),
    Mark("B"),
    b"$ ",
]


def scan(*portions: bytes) -> list[bytes | Mark]:
    """Return all pieces, with adjacent text joined."""
    scanner = MarkScanner()
    joined: list[bytes | Mark] = []
    for portion in portions:
        for piece in scanner.feed(portion):
            if isinstance(piece, bytes) and joined and isinstance(joined[-1], bytes):
                joined[-1] += piece
            elif piece:
                joined.append(piece)
    return joined


def test_text_and_marks_come_in_order() -> None:
    assert scan(STREAM) == PIECES


def test_a_stream_cut_after_every_byte_gives_the_same_pieces() -> None:
    assert scan(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == PIECES


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_cut_anywhere_gives_the_same_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert scan(*(STREAM[start:end] for start, end in pairwise(places))) == PIECES


@given(
    st.lists(
        st.sampled_from([C, B, done(1, "unknown"), b"\x1b]133;", b"\x1b]13", b"\x1b", b"\x1b\\", b"133;C", b"text"]),
        max_size=20,
    ),
    st.integers(1, 50),
)
def test_beginnings_of_marks_in_the_text_do_not_hide_marks(parts: list[bytes], size: int) -> None:
    stream = b"".join(parts) + b"." * 64  # nothing is held back behind that
    portions = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert scan(*portions) == scan(stream)


@pytest.mark.parametrize(
    "foreign",
    [
        b"\x1b]133;C\x07",
        b"\x1b]133;D;1\x1b\\",
        b"\x1b]133;A;aid=other\x1b\\",
        b"\x1b]133;C;aid=tbench2\x1b\\",
        b"\x1b]133;E;aid=tbench\x1b\\",
    ],
)
def test_marks_of_other_programs_are_text(foreign: bytes) -> None:
    assert scan(b"a" + foreign + C) == [b"a" + foreign, Mark("C")]


def test_a_shell_that_cannot_tell_leaves_pending_open() -> None:
    assert scan(done(3, "unknown")) == [Mark("D", 3, pending=None)]


def test_marks_may_end_with_a_bell_and_ask_for_more_lines() -> None:
    stream = b"\x1b]133;P;aid=tbench\x07> \x1b]133;D;2;aid=tbench;pending=unknown\x07"
    pieces = [Mark("P"), b"> ", Mark("D", 2, pending=None)]
    assert scan(stream) == pieces
    assert scan(*(stream[at : at + 1] for at in range(len(stream)))) == pieces


def test_a_mark_that_never_ends_holds_back_a_bounded_tail() -> None:
    scanner = MarkScanner()
    scanner.feed(b"\x1b]133;D;")
    (piece,) = scanner.feed(b"9" * 1000)
    assert piece == b"\x1b]133;D;" + b"9" * 1000


# last_line: the line that the cursor stands on, and which lines are prompts.


def test_the_line_is_what_came_since_the_last_line_break() -> None:
    line = LastLine()
    line.follow(b"one\r\ntwo\r\n\x1b[32mroot\x1b[0m@box:~# ")
    assert (line.text, line.is_fresh) == ("root@box:~#", True)
    line.begin()
    line.follow(b"ls")
    assert (line.text, line.is_fresh) == ("root@box:~# ls", False)


@pytest.mark.parametrize("cleared", [b"\x1b[2J", b"\x1b[H\x1b[J", b"\x1bc", b"\x1b[1;1H"])
def test_a_cleared_screen_begins_the_line_too(cleared: bytes) -> None:
    line = LastLine()
    line.begin()
    line.follow(cleared)
    assert line.is_fresh


@given(st.lists(st.one_of(st.binary(max_size=9), st.sampled_from([b"\r\n", b"\x1b[2J", b"$ ", b"x" * 5000]))))
def test_how_often_it_is_looked_at_makes_no_difference(pieces: list[bytes]) -> None:
    often, once = LastLine(), LastLine()
    for piece in pieces:
        often.follow(piece)
        once.follow(piece)
        assert isinstance(often.is_fresh, bool)
    assert often.text[-1000:] == once.text[-1000:]


@pytest.mark.parametrize("text", ["root@box:~#", "$", "user$", ">>>", "(gdb)", "In [12]:", "box%", "❯", "db=#"])
def test_prompts_are_known_by_their_ends(text: str) -> None:
    assert looks_like_prompt(text)


@pytest.mark.parametrize("text", ["####", "100%", "37.5 %" + "x", "done.", "[====>   ", "Password:", ""])
def test_progress_and_questions_are_no_shells_prompts(text: str) -> None:
    assert not looks_like_shell_prompt(text)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("a@b:~$", "a@b:/tmp/x$", True),
        ("In [1]:", "In [23]:", True),
        ("a@b:~$", "a@c:~$", False),
        ("$", "#", False),
        ("", "", False),
    ],
)
def test_a_prompt_is_the_same_whatever_its_directory_and_numbers_are(one: str, other: str, same: bool) -> None:
    assert same_prompt(one, other) == same
