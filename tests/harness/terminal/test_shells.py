"""terminal: shells that die, are replaced, are nested or are unusual."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from terminals import BASH, KILL_TMUX, LONG, NUMBERS, Open, body, opened, output_of, press, started, type_in, write_task

from harness.protocols.base import CommandResult, Keys
from harness.terminal import COLUMNS, ROWS, Terminal
from harness.terminal.plain_text import plain_text
from harness.terminal.tap import Recording
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# -- the shell and its surroundings --------------------------------------------------------------


async def test_a_shell_that_exits_is_followed_by_a_new_one(terminal: Terminal) -> None:
    settled = await terminal.send(Keys("cd /usr; exit 3\n", LONG))
    assert settled.at_prompt
    assert "exited with code 3" in (await terminal.view()).screen
    assert await output_of(terminal, "echo back") == "back\n"


@pytest.mark.parametrize(
    "command", ["exec sleep 0.1", "kill -9 $$", "suspend", "set -e; false", "exec bash -c 'exit 2'"]
)
async def test_a_shell_that_ends_in_any_way_leaves_a_terminal_with_job_control(
    terminal: Terminal, command: str
) -> None:
    assert (await terminal.send(Keys(f"{command}\n", LONG))).at_prompt
    assert "this is a new one" in (await terminal.view()).screen
    assert "job control" not in (await terminal.view()).screen
    assert not (await terminal.send(Keys("sleep 100\n", 0.1))).at_prompt
    assert await press(terminal, "C-c")
    assert await output_of(terminal, "echo back") == "back\n"


async def test_a_program_in_the_shells_place_can_be_interrupted(terminal: Terminal) -> None:
    await terminal.send(Keys("exec sleep 100\n", 0.1))
    assert await press(terminal, "C-c")
    assert "this is a new one" in (await terminal.view()).screen
    assert terminal._link.reopened == 0


async def test_a_run_that_exits_the_shell_returns(terminal: Terminal) -> None:
    result = await terminal.run("exit 5", LONG)
    assert result is not None
    assert await output_of(terminal, "echo back") == "back\n"


async def test_a_nested_shell_without_marks_settles_too(terminal: Terminal) -> None:
    await type_in(terminal, "env -u PS0 -u PROMPT_COMMAND bash --norc\n")
    assert "\ninner\n" in (await type_in(terminal, "sleep 0.3; echo inner\n")).screen
    assert (await terminal.send(Keys("exit\n", LONG))).at_prompt


@pytest.mark.parametrize("command", ["bash", "exec bash", "bash --norc", "bash --posix"])
async def test_a_bash_within_or_instead_of_the_first_one_settles_exactly_too(terminal: Terminal, command: str) -> None:
    assert (await terminal.send(Keys(f"{command}\n", LONG))).at_prompt
    settled = await terminal.send(Keys("echo a\nsleep 0.2\n(exit 9)\n", LONG))
    assert (settled.at_prompt, settled.exit_code) == (True, 9)
    assert await terminal.run("echo inner; false", LONG) == CommandResult(output="inner\n", exit_code=1)
    assert (await terminal.send(Keys("exit\nsleep 0.2; (exit 8)\n", LONG))).exit_code == 8
    assert await output_of(terminal, "echo usable") == "usable\n"


@pytest.mark.parametrize(
    "spoil",
    ["exec > /tmp/log", "exec 2> /tmp/log", "unset PROMPT_COMMAND", "PS1='mine> '", "PS0=", "set -x", "unset LINENO"],
)
async def test_a_shell_whose_marks_were_spoilt_still_settles(terminal: Terminal, spoil: str) -> None:
    assert (await terminal.send(Keys(f"{spoil}\n", LONG))).at_prompt
    assert (await terminal.send(Keys("sleep 0.2\ntouch /tmp/spoilt\n", LONG))).at_prompt
    view = await terminal.run("rm /tmp/spoilt", LONG)
    assert not isinstance(view, CommandResult) or (view.exit_code in (0, None) and not view.timed_out)
    assert "cannot remove" not in (await terminal.view()).screen


async def test_output_sent_to_a_file_has_no_marks_in_it(terminal: Terminal) -> None:
    await terminal.send(Keys("exec > /tmp/clean\n", LONG))
    await terminal.send(Keys("echo one\necho two\n", LONG))
    await terminal.send(Keys("exec > /dev/tty\n", LONG))
    assert await output_of(terminal, "cat -v /tmp/clean") == "one\ntwo\n"


async def test_a_trace_shows_nothing_of_the_marks(terminal: Terminal) -> None:
    await terminal.send(Keys("set -x\n", LONG))
    await terminal.view()
    assert body(await type_in(terminal, "echo traced\n")) == ["+ echo traced", "traced"]


async def test_a_history_expansion_that_fails_settles_at_once(terminal: Terminal) -> None:
    view = await type_in(terminal, "echo no!such\n")
    assert "event not found" in view.screen
    assert (await terminal.send(Keys("echo a\necho no!such\n", LONG))).at_prompt


async def test_an_agent_that_kills_every_process_has_a_terminal_afterwards(
    engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    async with (
        started(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH)) as container,
        opened(container) as terminal,
    ):
        for _ in range(2):
            await terminal.send(Keys("kill -9 -1\n", LONG))
            assert await output_of(terminal, "echo alive") == "alive\n"
        await type_in(terminal, "(sleep 0.1 &)\n")
        await terminal.send(Keys("", 0.5))
        assert await output_of(terminal, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l") == "0\n"


async def test_a_killed_command_leaves_the_shell_with_its_directory_and_variables(terminal: Terminal) -> None:
    await type_in(terminal, "cd /usr; kept=yes\n")
    result = await terminal.run("sh -c 'trap \"\" INT QUIT; echo stubborn; while :; do sleep 1; done'", 0.3)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert await output_of(terminal, "echo $PWD $kept") == "/usr yes\n"


@pytest.mark.slow
async def test_a_shell_that_is_stuck_itself_is_started_again(terminal: Terminal) -> None:
    result = await terminal.run("trap '' INT QUIT; while :; do :; done", 0.3)
    assert result.timed_out
    assert await output_of(terminal, "echo usable") == "usable\n"


async def test_a_prompt_of_the_agents_own_keeps_settling(terminal: Terminal) -> None:
    await type_in(terminal, "PS1='mine> '\n")
    view = await type_in(terminal, "echo still\n")
    assert body(view) == ["still"]
    assert view.screen.endswith("mine>")


@pytest.mark.parametrize(
    "rc",
    [
        "PS1='custom> '\nPROMPT_COMMAND='echo -n \"[$?]\"; touch /tmp/prompted'\n",
        "PS1='custom> '\nPROMPT_COMMAND=('echo -n \"[$?]\"' 'touch /tmp/prompted')\n",
        "PS1='custom> '\nPROMPT_COMMAND='echo -n \"[$?]\"; touch /tmp/prompted;'\nPS0='started '\nset -u\n",
    ],
    ids=["string", "array", "trailing-semicolon"],
)
async def test_the_users_own_rc_file_keeps_working(box: Container, open_terminal: Open, rc: str) -> None:
    home = f"/home/user-{next(NUMBERS)}"
    await box.shell(
        f"{BUSYBOX} mkdir -p {home}; {BUSYBOX} rm -f /tmp/prompted; {BUSYBOX} cat > {home}/.bashrc",
        timeout_sec=20,
        stdin=(rc + "alias greet='echo hi'\n").encode(),
    )
    terminal = await open_terminal(environment={"HOME": home})
    view = await type_in(terminal, "greet; false\n")
    assert body(view)[-1].endswith("hi")
    assert view.screen.split("\n")[-1] == "[1]custom>"
    assert await terminal.run("ls /tmp/prompted; (exit 4)", LONG) == CommandResult(
        output="/tmp/prompted\n", exit_code=4
    )


async def test_a_killed_tmux_is_opened_again_and_the_next_step_works(open_terminal: Open, tmp_path: Path) -> None:
    path = tmp_path / "session.cast"
    recording = Recording(path, columns=COLUMNS, rows=ROWS)
    terminal = await open_terminal(recording=recording)
    await terminal.send(Keys(f"{KILL_TMUX}\n", LONG))
    view = await type_in(terminal, "echo alive\n")
    assert "\nalive\n" in view.screen
    assert await output_of(terminal, "echo usable") == "usable\n"
    recording.close()
    assert '"m", "the terminal was lost' in path.read_text()


async def test_keys_typed_after_an_unnoticed_loss_are_not_dropped(box: Container, open_terminal: Open) -> None:
    terminal = await open_terminal()
    await box.shell(KILL_TMUX, timeout_sec=20)
    await asyncio.wait_for(terminal._link.wait_until_cut(), 20)
    assert "\nalive\n" in (await type_in(terminal, "echo alive\n")).screen
    await box.shell(KILL_TMUX, timeout_sec=20)
    await asyncio.wait_for(terminal._link.wait_until_cut(), 20)
    assert await output_of(terminal, "echo alive") == "alive\n"


async def test_an_emptied_tmp_does_not_harm_the_terminal(terminal: Terminal) -> None:
    await type_in(terminal, "rm -rf /tmp/* /tmp/.[!.]*\n")
    assert body(await type_in(terminal, "echo alive\n")) == ["alive"]


async def test_the_last_line_is_at_hand_for_a_live_display(terminal: Terminal) -> None:
    await type_in(terminal, "echo first\n")
    await terminal.send(Keys("printf '\\033[1mworking 50%%\\033[0m'; sleep 100\n", 0.2))
    assert terminal.last_line == "working 50%"
    await press(terminal, "C-c")


async def test_the_recording_holds_what_was_printed_and_typed(open_terminal: Open, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "session.cast", columns=COLUMNS, rows=ROWS)
    terminal = await open_terminal(recording=recording)
    await type_in(terminal, "echo 'naïve 日'\n")
    await press(terminal, "C-c")
    recording.close()
    header, *events = [json.loads(line) for line in (tmp_path / "session.cast").read_bytes().split(b"\n") if line]
    assert (header["width"], header["height"]) == (COLUMNS, ROWS)
    assert [text for _, kind, text in events if kind == "i"] == ["echo 'naïve 日'\n", "C-c"]
    printed = plain_text("".join(text for _, kind, text in events if kind == "o").encode())
    assert "echo 'naïve 日'\nnaïve 日\n" in printed
