"""terminal: common programs, and shells of other users."""

from __future__ import annotations

import pytest
from terminals import LONG, body, output_of, press, type_in

from harness.protocols.base import Keys
from harness.terminal import Settled, Terminal

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

QUESTION = """Template: asking/answer
Type: string
Description: What is the answer?
"""
CONFIG = """#!/bin/sh
set -e
. /usr/share/debconf/confmodule
db_fset asking/answer seen false
db_input critical asking/answer || true
db_go
db_get asking/answer
echo "$RET" > /tmp/answer
"""
BUILD_PACKAGE = f"""mkdir -p /tmp/asking/DEBIAN && cd /tmp/asking/DEBIAN
printf '%s: %s\\n' Package asking Version 1 Architecture all Maintainer m Description asks Depends debconf > control
cat > templates <<'E'
{QUESTION}E
cat > config <<'E'
{CONFIG}E
printf '#!/bin/sh\\n. /usr/share/debconf/confmodule\\n' > postinst
chmod 755 config postinst && dpkg-deb --build /tmp/asking /tmp/asking.deb
"""


async def shows(terminal: Terminal, keystrokes: str, words: str, within_sec: float = LONG) -> str:
    """Send keystrokes to a program that keeps running; return the screen once it shows `words`."""
    await terminal.send(Keys(keystrokes, 0.1))
    for _ in range(int(within_sec / 0.1)):
        screen = (await terminal.view()).screen
        if words in screen:
            return screen
        await terminal.send(Keys("", 0.1))
    raise AssertionError(f"{words!r} is not shown: {screen}")


async def test_vim_is_written_in_and_left(desk: Terminal) -> None:
    await shows(desk, "vim.tiny /tmp/note\n", "[New]")
    assert (await desk.view()).new_output is None
    await shows(desk, "ifirst line\nsecond line", "second line")
    await press(desk, "Escape", 0.1)
    assert (await desk.send(Keys(":wq\n", LONG))).at_prompt
    assert await output_of(desk, "cat /tmp/note") == "first line\nsecond line\n"


async def test_less_is_paged_and_left(desk: Terminal) -> None:
    await type_in(desk, "seq 1000 > /tmp/numbers\n")
    await shows(desk, "less /tmp/numbers\n", "\n39")
    await shows(desk, "G", "1000")
    assert (await desk.send(Keys("q", LONG))).at_prompt


async def test_top_redraws_until_it_is_left(desk: Terminal) -> None:
    assert "COMMAND" in await shows(desk, "top -d 0.2\n", "load average")
    assert (await desk.send(Keys("q", LONG))).at_prompt
    await desk.view()
    assert body(await type_in(desk, "echo after\n")) == ["after"]


async def test_python_is_talked_to(desk: Terminal) -> None:
    await shows(desk, "python3\n", ">>>")
    await shows(desk, "print(6 * 7)\n", "\n42")
    settled = await desk.send(Keys("import sys\nsys.exit(3)\n", LONG))
    assert (settled.at_prompt, settled.exit_code) == (True, 3)


async def test_an_interactive_rebase_opens_its_editor(desk: Terminal) -> None:
    await type_in(
        desk,
        "rm -rf /tmp/repo && git init -q /tmp/repo && cd /tmp/repo\n"
        "git config user.email a@b.c && git config user.name A\n"
        "for i in 1 2 3; do echo $i > f && git add f && git commit -qm c$i; done\n"
        "export GIT_EDITOR=vim.tiny\n",
    )
    await shows(desk, "git rebase -i HEAD~2\n", "pick")
    await shows(desk, ":%s/^pick \\(.* c3\\)/drop \\1/\n", "drop")
    assert (await desk.send(Keys(":wq\n", LONG))).at_prompt
    assert await output_of(desk, "git log --format=%s") == "c2\nc1\n"


async def test_a_question_of_debconf_is_answered(desk: Terminal) -> None:
    assert (await desk.run(BUILD_PACKAGE, LONG)) is not None
    await shows(desk, "DEBIAN_FRONTEND=readline dpkg -i /tmp/asking.deb\n", "What is the answer?")
    assert (await desk.send(Keys("42\n", LONG))).at_prompt
    assert await output_of(desk, "cat /tmp/answer; dpkg -P asking >/dev/null 2>&1") == "42\n"


@pytest.mark.slow
async def test_a_question_of_debconf_does_not_hold_a_command_beyond_its_limit(desk: Terminal) -> None:
    assert (await desk.run(BUILD_PACKAGE, LONG)) is not None
    result = await desk.run("DEBIAN_FRONTEND=readline dpkg -i /tmp/asking.deb </dev/tty", 2.0)
    assert result.timed_out
    assert "What is the answer?" in result.output
    assert await output_of(desk, "dpkg -P asking >/dev/null 2>&1; echo usable") == "usable\n"


# -- other users and other shells ----------------------------------------------------------------


async def test_another_user_with_the_same_environment_settles_exactly(desk: Terminal) -> None:
    assert (await desk.send(Keys("su agent\n", LONG))).at_prompt
    settled = await desk.send(Keys("sleep 0.2\nwhoami; (exit 4)\n", LONG))
    assert (settled.at_prompt, settled.exit_code) == (True, 4)
    assert (await desk.send(Keys("exit\n", LONG))).at_prompt
    assert await output_of(desk, "whoami") == "root\n"


@pytest.mark.parametrize("command", ["sudo -u agent -i", "su - agent", "zsh -f", "dash"])
async def test_a_shell_without_marks_settles_too_and_can_be_left(desk: Terminal, command: str) -> None:
    assert await desk.send(Keys(f"{command}\n", LONG)) == Settled(at_prompt=True)
    assert await desk.send(Keys("sleep 0.3; echo in$((6 * 7))side\n", LONG)) == Settled(at_prompt=True)
    assert "\nin42side\n" in (await desk.view()).screen
    assert (await desk.send(Keys("exit\n", LONG))).at_prompt
    assert await output_of(desk, "echo back") == "back\n"


async def test_a_shell_replaced_by_another_kind_can_be_used_and_left(desk: Terminal) -> None:
    assert (await desk.send(Keys("exec zsh -f\n", LONG))).at_prompt
    await shows(desk, "echo in$((6 * 7))side\n", "in42side")
    assert (await desk.send(Keys("exit\n", LONG))).at_prompt
    assert "this is a new one" in (await desk.view()).screen


@pytest.mark.parametrize(
    "command",
    [
        "cat </dev/tty",
        *(pytest.param(f"{each} </dev/tty", marks=pytest.mark.slow) for each in ("python3", "sudo -u agent -i", "zsh")),
        pytest.param("exec </dev/tty; exec zsh -f", marks=pytest.mark.slow),
    ],
)
async def test_what_waits_for_input_holds_a_command_no_longer_than_its_limit(desk: Terminal, command: str) -> None:
    result = await desk.run(command, 0.5)
    assert result.timed_out
    assert await output_of(desk, "echo $0; whoami") == "bash\nroot\n"
