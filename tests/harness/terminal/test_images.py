"""terminal: minimal images, and common terminal programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminals import (
    BASH,
    LONG,
    NO_BASH,
    NO_ROOT,
    NO_SHELL,
    Open,
    body,
    opened,
    output_of,
    press,
    started,
    type_in,
    write_task,
)

from harness.errors import TerminalLost
from harness.protocols.base import CommandResult, Keys
from harness.terminal import Terminal, TerminalSpec
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# -- other images --------------------------------------------------------------------------------


@pytest.mark.parametrize("dockerfile", [NO_BASH, NO_SHELL], ids=["dash", "busybox"])
@pytest.mark.slow
async def test_an_image_without_bash_settles_by_its_prompts(
    engine: Engine, tools_volume: str, tmp_path: Path, dockerfile: str
) -> None:
    async with (
        started(engine, tools_volume, write_task(tmp_path / "no-bash", dockerfile)) as container,
        opened(container) as terminal,
    ):
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
        assert await terminal.run("echo shown; false", LONG) == CommandResult("shown\n", 1)
        # What bash is to read at once: a missing variable, and a backslash with nothing behind it.
        assert await terminal.run("echo ${HOME:?missing}; (exit 3)", LONG) == CommandResult("/root\n", 3)
        assert await terminal.run("echo ${HOME:?missing} \\", LONG) == CommandResult("/root \\\n", 0)


async def test_an_image_with_a_user_of_its_own_works(engine: Engine, tools_volume: str, tmp_path: Path) -> None:
    async with (
        started(engine, tools_volume, write_task(tmp_path / "no-root", NO_ROOT)) as container,
        opened(container) as terminal,
    ):
        assert await output_of(terminal, "whoami; pwd; cd; pwd") == "agent\n/home/agent\n/home/agent\n"
        await terminal.view()
        assert body(await type_in(terminal, "echo typed\n")) == ["typed"]


async def test_a_terminal_lost_again_and_again_is_lost_for_good(open_terminal: Open) -> None:
    terminal = await open_terminal()
    kill = Keys(f"{TerminalSpec().tmux} -S ${{TMUX%%,*}} kill-server\n", LONG)
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
    async with (
        started(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH), "65534") as container,
        opened(container) as terminal,
    ):
        await terminal.send(Keys("kill -9 -1\n", LONG))
        assert await output_of(terminal, "echo alive") == "alive\n"


async def test_an_image_that_is_little_more_than_busybox_has_a_terminal(
    engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    """Like Alpine: no bash, no terminfo, no tmux, no C library, busybox's own sh."""
    async with started(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH)) as helper:
        (busybox,) = (await helper.fetch(BUSYBOX, 16 << 20)).values()
    task = write_task(
        tmp_path / "only-busybox",
        'FROM scratch\nCOPY busybox /bin/busybox\nRUN ["/bin/busybox", "--install", "-s", "/bin"]\nWORKDIR /app\n',
    )
    (task / "environment/busybox").write_bytes(busybox)
    (task / "environment/busybox").chmod(0o755)
    async with (
        started(engine, tools_volume, task) as container,
        opened(container) as terminal,
    ):
        assert body(await type_in(terminal, "echo one\n")) == ["one"]
        settled = await terminal.send(Keys("sleep 0.2\ncat <<E\ntext\nE\nfalse\n", LONG))
        assert (settled.at_prompt, settled.exit_code) == (True, 1)
        await type_in(terminal, "seq 100 > /numbers\n")
        assert not (await terminal.send(Keys("vi /numbers\n", 0.3))).at_prompt
        assert (await terminal.view()).screen.split("\n")[:2] == ["1", "2"]
        assert (await terminal.send(Keys(":q\n", LONG))).at_prompt


async def test_a_read_only_root_file_system_has_a_terminal(engine: Engine, tools_volume: str, tmp_path: Path) -> None:
    async with (
        started(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH), read_only=True) as container,
        opened(container) as terminal,
    ):
        assert "Read-only file system" in await output_of(terminal, "touch /app/file")
        await terminal.view()
        assert body(await type_in(terminal, "echo typed\n")) == ["typed"]
        heredoc = await output_of(terminal, "cat <<E\ntext\nE\n")
        assert heredoc == "text\n" or "here-document" in heredoc


async def test_an_image_without_terminfo_and_network_draws_full_screens(
    engine: Engine, tools_volume: str, tmp_path: Path
) -> None:
    dockerfile = "FROM debian:bookworm-slim\nRUN rm -rf /usr/share/terminfo /lib/terminfo /etc/terminfo\nWORKDIR /app\n"
    async with (
        started(engine, tools_volume, write_task(tmp_path / "no-terminfo", dockerfile)) as container,
        opened(container) as terminal,
    ):
        assert await output_of(terminal, "tput cols; tput smcup | cat -v; echo") == "160\n^[[?1049h\n"
        assert await output_of(terminal, "ls /sys/class/net") == "lo\n"
        view = await type_in(terminal, "clear; echo after\n")
        assert view.screen.split("\n")[0] == "after"
