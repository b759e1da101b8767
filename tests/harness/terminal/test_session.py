"""terminal: typed, settled and read in a real container.

The tests share one container; each has its own tmux server in it.
"""

from __future__ import annotations

import pytest
from terminals import LONG, Open, body, now, output_of, press, type_in

from harness.protocols.base import CommandResult, Keys
from harness.terminal import COLUMNS, ROWS, Terminal
from tbench.sandbox.backend import BUSYBOX

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# -- keystrokes ----------------------------------------------------------------------------------


async def test_a_command_settles_at_once_and_shows_what_is_new(terminal: Terminal) -> None:
    started = now()
    first = await type_in(terminal, "echo one\n")
    second = await type_in(terminal, "echo two; false\n")
    assert now() - started < LONG
    assert body(first) == ["one"]
    assert body(second) == ["two"]
    assert "one" not in (second.new_output or "")
    assert "one" in second.screen and "two" in second.screen
    assert second.elided_lines == 0
    assert (await terminal.send(Keys("false\n", LONG))).exit_code == 1
    assert (await terminal.send(Keys("(exit 42)\n", LONG))).exit_code == 42


async def test_lines_typed_at_once_settle_at_the_last(terminal: Terminal) -> None:
    keystrokes = "echo a\nsleep 0.3; echo b\ncat <<E\nfirst\nsecond\nE\nsleep 0.2\necho c; false\n"
    settled = await terminal.send(Keys(keystrokes, LONG))
    view = await terminal.view()
    assert (settled.at_prompt, settled.exit_code) == (True, 1)
    lines = (view.new_output or "").split("\n")
    assert [line for line in lines if line in ("a", "b", "first", "second", "c")] == ["a", "b", "first", "second", "c"]


async def test_a_program_that_waits_for_input_has_the_whole_duration(terminal: Terminal) -> None:
    started = now()
    settled = await terminal.send(Keys("read -p 'name? ' name\n", 0.3))
    assert not settled.at_prompt
    assert now() - started >= 0.3
    assert (await terminal.view()).screen.endswith("name?")
    assert body(await type_in(terminal, "Ada\necho hello $name\n"))[-1] == "hello Ada"


async def test_text_without_a_newline_waits_and_can_be_ended_by_a_key(terminal: Terminal) -> None:
    assert not (await terminal.send(Keys("echo half", 0.5))).at_prompt
    assert (await terminal.view()).screen.endswith("echo half")
    assert await press(terminal, "Enter")
    assert body(await terminal.view()) == ["half"]


async def test_keys_are_pressed_by_name(terminal: Terminal) -> None:
    await type_in(terminal, "echo again\n")
    assert not await press(terminal, "Up", 0.5)
    assert (await terminal.view()).screen.endswith("echo again")
    assert await press(terminal, "Enter")
    assert not (await terminal.send(Keys("sleep 100\n", 0.1))).at_prompt
    settled = await terminal.send(Keys("", LONG, key="C-c"))
    assert (settled.at_prompt, settled.exit_code) == (True, 130)
    assert "^C" in (await terminal.view()).screen


@pytest.mark.parametrize(
    ("key", "shown"),
    [("M-;", "^[;"), ("M-'", "^['"), ("M-\\", "^[\\"), ("M-~", "^[~"), ("M-#", "^[#"), ('M-"', '^["'), ("F1", "^[OP")],
)
async def test_keys_that_look_like_syntax_arrive(shared: Terminal, key: str, shown: str) -> None:
    await shared.send(Keys("cat -v\n", 0.05))
    assert not await press(shared, key, 0.05)
    await shared.send(Keys("\n", 0.1))
    assert (await shared.view()).screen.split("\n")[-1] == shown
    assert await press(shared, "C-c")


@pytest.mark.parametrize(
    "text",
    [
        *("-x; ~ #{pane_id} $HOME", "C-c", "a;", "'\"\\\\%", "{ Enter }", "tab\there", "#", '-l -- "x" ; -H 41'),
        *(" \\n\\012\\", "".join(map(chr, range(0x20, 0x7F))) * 8, "é日😀 and\nASCII\n\nlines"),
    ],
)
async def test_text_is_typed_exactly(shared: Terminal, text: str) -> None:
    await shared.send(Keys(f"cat > /tmp/typed\n{text}\n", 0.3))
    assert await press(shared, "C-d")
    assert await output_of(shared, "cat /tmp/typed") == f"{text}\n"


async def test_empty_keystrokes_wait_the_whole_duration(terminal: Terminal) -> None:
    started = now()
    settled = await terminal.send(Keys("", 0.25))
    assert now() - started >= 0.25
    assert settled.at_prompt


async def test_a_wait_sees_what_a_background_job_prints_meanwhile(terminal: Terminal) -> None:
    await type_in(terminal, "(sleep 0.2; echo from behind) &\n")
    await terminal.send(Keys("", 0.6))
    assert "from behind" in ((await terminal.view()).new_output or "")


async def test_strict_mode_always_waits_the_whole_duration(open_terminal: Open) -> None:
    terminal = await open_terminal(settling="strict")
    started = now()
    settled = await terminal.send(Keys("echo quick\n", 0.4))
    assert now() - started >= 0.4
    assert settled.at_prompt
    assert body(await terminal.view()) == ["quick"]


async def test_a_server_in_the_background_does_not_hold_the_step(terminal: Terminal) -> None:
    await type_in(terminal, "(while :; do sleep 0.05; echo tick; done) &\n")
    assert "here" in (await type_in(terminal, "echo here\n")).screen
    await type_in(terminal, "kill %1; wait\n")


async def test_commands_that_draw_no_new_prompt_line_settle_too(shared: Terminal) -> None:
    assert (await shared.send(Keys("\n", LONG))).at_prompt
    assert (await shared.send(Keys("# a comment\n", LONG))).at_prompt
    assert (await shared.send(Keys("if then\n", LONG))).exit_code == 2


# -- screens -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["clear", "tput reset", "printf '\\033[2J\\033[H'"])
async def test_after_clearing_only_the_screen_can_be_shown(terminal: Terminal, command: str) -> None:
    await type_in(terminal, "echo before\n")
    view = await type_in(terminal, f"{command}; echo after\n")
    assert view.new_output is None
    assert view.screen.split("\n")[0] == "after"
    assert body(await type_in(terminal, "echo then\n")) == ["then"]


async def test_a_full_screen_program_shows_its_screen(terminal: Terminal) -> None:
    await type_in(terminal, "seq 100 > /tmp/numbers\n")
    assert not (await terminal.send(Keys(f"{BUSYBOX} vi /tmp/numbers\n", 0.3))).at_prompt
    view = await terminal.view()
    assert view.new_output is None
    assert view.screen.split("\n")[:3] == ["1", "2", "3"]
    await terminal.send(Keys("dd", 0.1))
    assert (await terminal.view()).screen.split("\n")[0] == "2"
    await type_in(terminal, ":wq\n")
    assert await output_of(terminal, "head -1 /tmp/numbers") == "2\n"


async def test_a_pager_is_left_with_a_key(terminal: Terminal) -> None:
    await terminal.send(Keys(f"seq 1000 | {BUSYBOX} less\n", 0.2))
    await press(terminal, "PageDown", 0.1)
    assert str(ROWS) in (await terminal.view()).screen.split("\n")
    assert (await terminal.send(Keys("q", LONG))).at_prompt


async def test_text_of_every_kind_arrives_on_the_screen(terminal: Terminal) -> None:
    text = "日本語 naïve e\u0301 \U0001f600 ─│"
    assert body(await type_in(terminal, f"echo '{text}'\n")) == [text]
    assert await output_of(terminal, f"echo '{text}'") == f"{text}\n"


async def test_bytes_that_are_no_text_do_no_harm(terminal: Terminal) -> None:
    assert await output_of(terminal, "printf 'a\\377\\376b\\0c\\n'") == "a\ufffd\ufffdbc\n"
    await type_in(terminal, "head -c 20000 /dev/urandom\n")
    assert (await terminal.run("reset; echo fine", LONG)) is not None
    assert await output_of(terminal, "echo fine") == "fine\n"


async def test_a_line_longer_than_the_screen_is_one_line(terminal: Terminal) -> None:
    view = await type_in(terminal, f"printf '%0{3 * COLUMNS + 7}d\\n' 7\n")
    assert body(view) == ["7".rjust(3 * COLUMNS + 7, "0")]
    long_text = "x" * 512
    assert body(await type_in(terminal, f"echo {long_text}\n")) == [long_text]


async def test_more_output_than_the_history_holds_keeps_head_or_tail_and_says_so(terminal: Terminal) -> None:
    view = await type_in(terminal, "seq 20000\n")
    assert view.elided_lines > 9000
    lines = (view.new_output or "").split("\n")
    assert lines[1:4] == ["1", "2", "3"]
    assert lines[-2] == "20000"
    await type_in(terminal, "yes | head -200000\n")
    assert body(await type_in(terminal, "echo right\n")) == ["right"]
    assert await output_of(terminal, "echo exact") == "exact\n"


# -- run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output", "exit_code"),
    [
        ("echo hello", "hello\n", 0),
        ("false", "", 1),
        ("printf 'no newline'; exit_with() { return 7; }; exit_with", "no newline", 7),
        ("echo out; echo err >&2", "out\nerr\n", 0),
        ("echo one\necho two\n\n", "one\ntwo\n", 0),
        ("cd /usr && pwd", "/usr\n", 0),
        ("cat <<E\n  $((6*7))\nE", "  42\n", 0),
        ("for i in 1 2 3; do\n  echo $i\ndone", "1\n2\n3\n", 0),
        ("printf '\\033[1;31mred\\033[0m\\n'", "red\n", 0),
        ("printf '10%%\\r100%%\\n'", "100%\n", 0),
        ("printf 'progress 100%%\\r\\033[Kdone\\n'", "done\n", 0),
        ("no-such-command", "bash: no-such-command: command not found\n", 127),
        ("sh -c 'kill -9 $$'", "Killed\n", 137),
        ("stty -echo </dev/tty; echo quiet; stty echo </dev/tty", "quiet\n", 0),
        ("true | false | true; echo ${PIPESTATUS[@]}", "0 1 0\n", 0),
    ],
)
async def test_a_command_returns_exactly_what_it_printed(
    shared: Terminal, command: str, output: str, exit_code: int
) -> None:
    assert await shared.run(command, LONG) == CommandResult(output=output, exit_code=exit_code)


async def test_the_exit_code_of_one_command_is_seen_by_the_next(shared: Terminal) -> None:
    await shared.run("(exit 9)", LONG)
    assert await output_of(shared, "echo $?") == "9\n"


async def test_long_output_keeps_head_and_tail(shared: Terminal) -> None:
    result = await shared.run("seq 200000", LONG)
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("199999\n200000\n")
    assert result.elided_bytes > 1_000_000
    assert len(result.output) < 70_000


async def test_a_command_that_outlives_its_limit_is_interrupted(shared: Terminal) -> None:
    result = await shared.run("echo begun; sleep 100", 0.3)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert result.output.startswith("begun\n")
    assert await output_of(shared, "echo usable") == "usable\n"


@pytest.mark.slow
async def test_a_command_that_ignores_interrupts_is_killed(terminal: Terminal) -> None:
    result = await terminal.run("sh -c 'trap \"\" INT QUIT; echo stubborn; sleep 100 & wait; sleep 100'", 0.3)
    assert result.timed_out
    assert result.output.startswith("stubborn\n")
    assert await output_of(terminal, "echo usable") == "usable\n"
    await terminal.view()
    assert body(await type_in(terminal, "echo typed\n")) == ["typed"]
