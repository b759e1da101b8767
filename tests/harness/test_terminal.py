"""terminal: typed, settled and read in real containers.

The tests share one container, each has a tmux server of its own in it; other images have a container per test.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from harness.errors import TerminalLost
from harness.marks import plain_text
from harness.protocols.base import CommandResult, Keys, ScreenView
from harness.recording import Recording
from harness.terminal import COLUMNS, ROWS, Terminal, TerminalSpec
from tbench.container import Container, Limits
from tbench.engine import Engine
from tbench.image import Images
from tbench.sandbox import BUSYBOX
from tbench.task import Task

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

BASH = "FROM debian:bookworm-slim\nWORKDIR /app\n"
NO_BASH = "FROM debian:bookworm-slim\nRUN rm -f /bin/bash /usr/bin/bash\nWORKDIR /app\n"
NO_SHELL = "FROM debian:bookworm-slim\nRUN rm -f /bin/bash /usr/bin/bash /bin/sh /usr/bin/sh\nWORKDIR /app\n"
NO_ROOT = "FROM debian:bookworm-slim\nRUN useradd --create-home agent\nWORKDIR /home/agent\nUSER agent\n"
LONG = 30.0
"""A duration that no test waits for: returning before it is what is tested."""
KILL_TMUX = "for p in /proc/[0-9]*; do read -r c < $p/comm; case $c in tmux*) kill -9 ${p#/proc/};; esac; done"
NUMBERS = count()

Open = Callable[..., Awaitable[Terminal]]


async def start_container(engine: Engine, tools_volume: str, task: Path, user: str | None = None) -> Container:
    image = await Images(engine).get(Task.read(task))
    return await Container.start(
        engine,
        image,
        limits=Limits(cpus=2, memory_mb=512, pids=512),
        tools_volume=tools_volume,
        run="tests",
        trial="terminal",
        has_internet=False,
        environment={},
        agent_user=user,
    )


def write_task(directory: Path, dockerfile: str) -> Path:
    for name, text in {
        "task.toml": "[environment]\nmemory_mb = 512\n",
        "instruction.md": "Nothing.\n",
        "environment/Dockerfile": dockerfile,
        "tests/test.sh": "true\n",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def box(engine: Engine, tools_volume: str, tmp_path_factory: Any) -> AsyncIterator[Container]:
    """A container with bash."""
    task = write_task(tmp_path_factory.mktemp("box") / "terminal-box", BASH)
    container = await start_container(engine, tools_volume, task)
    yield container
    await container.remove()


@asynccontextmanager
async def opened(container: Container, **options: Any) -> AsyncIterator[Terminal]:
    """A terminal on a tmux server of its own, which is ended afterwards."""
    environment = dict(TerminalSpec().environment) | options.pop("environment", {})
    spec = TerminalSpec(socket=f"/opt/tbench/run/{next(NUMBERS)}", environment=environment)
    terminal = Terminal(container.connect, spec, **options)
    await terminal.open()
    try:
        yield terminal
    finally:
        await terminal.close()
        await container.shell(f"{spec.tmux} -S {spec.socket} kill-server", timeout_sec=20)


@pytest_asyncio.fixture(loop_scope="module")
async def open_terminal(box: Container) -> AsyncIterator[Open]:
    """Opens terminals in the shared container."""
    async with AsyncExitStack() as stack:

        async def open_one(**options: Any) -> Terminal:
            return await stack.enter_async_context(opened(box, **options))

        yield open_one


@pytest_asyncio.fixture(loop_scope="module")
async def terminal(open_terminal: Open) -> Terminal:
    return await open_terminal()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(box: Container) -> AsyncIterator[Terminal]:
    """One terminal for the tests that leave it as they found it."""
    async with opened(box) as terminal:
        yield terminal


async def type_in(terminal: Terminal, keystrokes: str, duration_sec: float = LONG) -> ScreenView:
    """Send keystrokes that end at the prompt; what is new then."""
    settled = await terminal.send(Keys(keystrokes, duration_sec))
    assert settled.at_prompt
    return await terminal.view()


async def press(terminal: Terminal, key: str, duration_sec: float = LONG) -> bool:
    return (await terminal.send(Keys("", duration_sec, key=key))).at_prompt


async def output_of(terminal: Terminal, command: str, limit_sec: float = LONG) -> str:
    result = await terminal.run(command, limit_sec)
    assert isinstance(result, CommandResult), result
    return result.output


def body(view: ScreenView) -> list[str]:
    """New lines between the command's and the prompt's."""
    assert view.new_output is not None
    return view.new_output.split("\n")[1:-1]


def now() -> float:
    return asyncio.get_running_loop().time()


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
    assert not (await terminal.send(Keys("echo half", 0.1))).at_prompt
    assert (await terminal.view()).screen.endswith("echo half")
    assert await press(terminal, "Enter")
    assert body(await terminal.view()) == ["half"]


async def test_keys_are_pressed_by_name(terminal: Terminal) -> None:
    await type_in(terminal, "echo again\n")
    assert not await press(terminal, "Up", 0.1)
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


@pytest.mark.parametrize("text", ["-x; ~ #{pane_id} $HOME", "C-c", "a;", "'\"\\\\%", "{ Enter }", "tab\there"])
async def test_text_is_typed_exactly(shared: Terminal, text: str) -> None:
    assert await output_of(shared, f"cat <<'END OF IT'\n{text}\nEND OF IT") == f"{text}\n"


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


# -- much of everything --------------------------------------------------------------------------


async def test_a_heredoc_of_100_kilobytes_is_typed_in_one_go(terminal: Terminal) -> None:
    content = "".join(f"line {number:06} {'.' * 40}\n" for number in range(1900))
    assert len(content) > 100_000
    settled = await terminal.send(Keys(f"cat > /tmp/big <<'E'\n{content}E\ncksum < /tmp/big\n", LONG))
    assert settled.at_prompt
    size = await output_of(terminal, "wc -c < /tmp/big")
    assert int(size) == len(content)
    assert await output_of(terminal, "tail -1 /tmp/big") == content.splitlines(keepends=True)[-1]


async def test_a_flood_is_stopped_by_a_key(terminal: Terminal) -> None:
    assert not (await terminal.send(Keys("yes\n", 1.0))).at_prompt
    assert await press(terminal, "C-c")
    view = await terminal.view()
    assert view.new_output is None or view.elided_lines > 1000
    assert "^C\n" in view.screen
    assert body(await type_in(terminal, "echo usable\n")) == ["usable"]


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
        ("no-such-command", "bash: no-such-command: command not found\n", 127),
        ("sh -c 'kill -9 $$'", "Killed\n", 137),
        ("stty -echo; echo quiet; stty echo", "quiet\n", 0),
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
    assert isinstance(result, CommandResult)
    assert result.output.startswith("1\n2\n3\n")
    assert result.output.endswith("199999\n200000\n")
    assert result.elided_bytes > 1_000_000
    assert len(result.output) < 70_000


async def test_what_was_not_run_is_answered_with_the_screen(shared: Terminal) -> None:
    view = await shared.run("if then", LONG)
    assert isinstance(view, ScreenView)
    assert "syntax error" in view.screen


async def test_a_command_that_outlives_its_limit_is_interrupted(shared: Terminal) -> None:
    result = await shared.run("echo begun; sleep 100", 0.3)
    assert isinstance(result, CommandResult)
    assert (result.timed_out, result.exit_code) == (True, None)
    assert result.output.startswith("begun\n")
    assert await output_of(shared, "echo usable") == "usable\n"


async def test_a_command_that_ignores_interrupts_is_killed(terminal: Terminal) -> None:
    result = await terminal.run("sh -c 'trap \"\" INT QUIT; echo stubborn; sleep 100 & wait; sleep 100'", 0.3)
    assert isinstance(result, CommandResult)
    assert result.timed_out
    assert result.output.startswith("stubborn\n")
    assert await output_of(terminal, "echo usable") == "usable\n"
    await terminal.view()
    assert body(await type_in(terminal, "echo typed\n")) == ["typed"]


async def test_an_open_quote_does_not_wedge_the_terminal(shared: Terminal) -> None:
    view = await shared.run("echo 'never closed", 0.3)
    assert isinstance(view, ScreenView)
    assert await output_of(shared, "echo usable") == "usable\n"


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
    assert terminal._reopened == 0


async def test_a_run_that_exits_the_shell_returns(terminal: Terminal) -> None:
    result = await terminal.run("exit 5", LONG)
    assert result is not None
    assert await output_of(terminal, "echo back") == "back\n"


async def test_a_nested_shell_without_marks_has_the_whole_duration(terminal: Terminal) -> None:
    assert not (await terminal.send(Keys("env -u PS1 bash --norc\n", 0.2))).at_prompt
    assert not (await terminal.send(Keys("echo inner\n", 0.2))).at_prompt
    assert "\ninner\n" in (await terminal.view()).screen
    assert (await terminal.send(Keys("exit\n", LONG))).at_prompt


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
        output=("started " if "PS0" in rc else "") + "/tmp/prompted\n", exit_code=4
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
    await asyncio.wait_for(terminal._client.lost.wait(), 20)
    assert "\nalive\n" in (await type_in(terminal, "echo alive\n")).screen
    await box.shell(KILL_TMUX, timeout_sec=20)
    await asyncio.wait_for(terminal._client.lost.wait(), 20)
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


# -- other images --------------------------------------------------------------------------------


@pytest.mark.parametrize("dockerfile", [NO_BASH, NO_SHELL], ids=["dash", "busybox"])
async def test_an_image_without_bash_settles_by_its_prompts(
    engine: Engine, tools_volume: str, tmp_path: Path, dockerfile: str
) -> None:
    container = await start_container(engine, tools_volume, write_task(tmp_path / "no-bash", dockerfile))
    try:
        async with opened(container) as terminal:
            assert body(await type_in(terminal, "echo one\n")) == ["one"]
            settled = await terminal.send(Keys("sleep 0.2; (exit 7)\n", LONG))
            assert (settled.at_prompt, settled.exit_code) == (True, 7)
            keystrokes = "echo a\nsleep 0.3; echo b\ncat <<E\nfirst\nE\n\nif true; then\nsleep 0.2\nfi\n(exit 8)\n"
            settled = await terminal.send(Keys(keystrokes, LONG))
            assert (settled.at_prompt, settled.exit_code) == (True, 8)
            assert (await terminal.send(Keys("read x\nan answer\n", LONG))).at_prompt
            assert not (await terminal.send(Keys("sleep 100\necho never\n", 0.1))).at_prompt
            assert await press(terminal, "C-c")
            await terminal.view()
            view = await terminal.run("echo shown; false", LONG)
            assert isinstance(view, ScreenView)
            assert body(view) == ["shown"]
    finally:
        await container.remove()


async def test_an_image_with_a_user_of_its_own_works(engine: Engine, tools_volume: str, tmp_path: Path) -> None:
    container = await start_container(engine, tools_volume, write_task(tmp_path / "no-root", NO_ROOT))
    try:
        async with opened(container) as terminal:
            assert await output_of(terminal, "whoami; pwd; cd; pwd") == "agent\n/home/agent\n/home/agent\n"
            await terminal.view()
            assert body(await type_in(terminal, "echo typed\n")) == ["typed"]
    finally:
        await container.remove()


async def test_a_terminal_lost_again_and_again_is_lost_for_good(open_terminal: Open) -> None:
    terminal = await open_terminal()
    kill = Keys(f"{TerminalSpec().tmux} -S {terminal._spec.socket} kill-server\n", LONG)
    with pytest.raises(TerminalLost):
        for _ in range(10):
            await terminal.send(kill)
    with pytest.raises(TerminalLost):
        await terminal.view()


async def test_where_tmux_cannot_start_the_terminal_is_lost(box: Container) -> None:
    terminal = Terminal(box.connect, TerminalSpec(socket="/no/such/directory/socket"))
    with pytest.raises(TerminalLost, match="server exited"):
        await terminal.open()
    await terminal.close()


async def test_a_user_whose_login_shell_refuses_has_a_terminal_and_may_kill_all_his_processes(
    engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    container = await start_container(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH), "65534")
    try:
        async with opened(container) as terminal:
            await terminal.send(Keys("kill -9 -1\n", LONG))
            assert await output_of(terminal, "echo alive") == "alive\n"
    finally:
        await container.remove()


# -- settling ------------------------------------------------------------------------------------


def random_lines(chance: random.Random) -> str:
    """Some lines, typed at once, of everything that could make a shell look idle in between."""
    kinds: list[Callable[[], str]] = [
        lambda: f"echo {chance.randrange(1000)}",
        lambda: f"sleep 0.0{chance.randrange(1, 6)}",
        lambda: f"cat <<'E'\n{'text $x `y`' * chance.randrange(4)}\n\nE",
        lambda: f"seq {chance.randrange(3000)} | sort -r | tail -{chance.randrange(1, 5)}",
        lambda: f"(sleep 0.0{chance.randrange(1, 6)}; echo late) &",
        lambda: "for i in 1 2 3; do\n  sleep 0.01\n  echo $i\ndone",
        lambda: "if true; then\n  false\nfi",
        lambda: "",
        lambda: "# a comment",
        lambda: "wait",
        lambda: "( exit 3 )",
        lambda: f"printf %s {'x' * chance.randrange(1, 400)}",
    ]
    return "".join(f"{chance.choice(kinds)()}\n" for _ in range(chance.randrange(1, 8)))


async def test_no_mix_of_lines_settles_before_its_last_command_has_ended(box: Container, terminal: Terminal) -> None:
    """The counter that the last command writes is read out of band as soon as the step has settled."""
    chance = random.Random(133)
    counter = "/dev/shm/counter"
    for number in range(1, 61):
        lines = random_lines(chance)
        settled = await terminal.send(Keys(f"{lines}sleep 0.02; echo {number} > {counter}; (exit {number})\n", LONG))
        assert (settled.at_prompt, settled.exit_code) == (True, number), lines
        if number % 4 == 0:
            written = await box.shell(f"{BUSYBOX} cat {counter}", timeout_sec=20)
            assert written.output.split() == [str(number).encode()], lines
