"""terminal: shells within the shell, of any kind, settle when they are back at their prompt, and not sooner.

The truth: words that only a command's output can have, as they are typed with quotes in them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
import pytest_asyncio
from terminals import LONG, NUMBERS, body, opened, type_in, under_load

from harness.protocols.base import Keys, ScreenView
from harness.terminal import Terminal
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


# -- programs that have a bash in them -----------------------------------------------------------

FORK = """import os, pty, time
if os.fork():
    os.wait()
    time.sleep(0.3)
    print('wit' + 'hin')
else:
    pty.spawn(['bash', '-ic', 'eval "$PROMPT_COMMAND"; sleep 0.3; echo "${PS1@P}"'])
"""
PEXPECT = """import pexpect, sys, time
bash = pexpect.spawn('bash', encoding='utf-8')
bash.logfile_read = sys.stdout
bash.sendline('sleep 0.2')
bash.sendline('exit')
bash.expect(pexpect.EOF)
time.sleep(0.3)
print('wit' + 'hin')
"""
WITHIN = {
    "expect": """expect -c 'spawn bash; expect "# "; sleep 0.7; send "sleep 0.3; echo wit\\150in\\r"; expect "# "'""",
    "expect-interact": """expect -c 'spawn bash; send "sleep 0.3; echo wit\\150in; exit\\r"; interact'""",
    "expect-silent": """expect -c 'log_user 0; spawn bash; send exit\\r; expect eof; sleep 0.3; puts with[list in]'""",
    "pexpect": f'python3 -c "{PEXPECT}"',
    "fork": "python3 /tmp/fork.py",
    "script-from-a-pipe": "(sleep 0.2; echo 'sleep 0.3; echo wi''thin'; echo exit) | script -qc bash /dev/null",
    "script-from-a-file": "script -qc bash /dev/null <<< 'sleep 0.3; echo wi''thin; exit'",
    "script-of-a-command": """script -qc "bash -ic 'sleep 0.3; echo wi\\"\\"thin'" /dev/null""",
    "the-hook": 'eval "$PROMPT_COMMAND"; sleep 0.3; echo wit""hin',
    "the-hook-in-lines": 'for i in 1 2; do\neval "$PROMPT_COMMAND"\nsleep 0.2\ndone; echo wit""hin',
    "a-prompt": 'echo "${PS1@P}"; sleep 0.3; echo wit""hin',
    "the-hook-and-a-prompt": 'eval "$PROMPT_COMMAND"; echo -n "${PS1@P}"; sleep 0.3; echo; echo wit""hin',
    "a-prompt-and-a-pause": (
        'eval "$PROMPT_COMMAND"; echo -n "${PS1@P}"; read -t 0.3 x < <(sleep 0.6); echo; echo wit""hin'
    ),
    "a-prompt-within": 'bash -ic \'eval "$PROMPT_COMMAND"; echo "${PS1@P}"; sleep 0.3\'; echo wit""hin',
    "what-was-recorded": 'cat /tmp/recorded; sleep 0.3; echo wit""hin',
    "a-prompt-in-the-background": 'script -qc "bash -ic :" /dev/null & sleep 0.3; echo wit""hin',
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def recorded(equipped: Container, desk: Terminal) -> None:
    """Create the programs' files, and let the terminal learn its prompt from a shell behind another program."""
    await equipped.shell(f"{BUSYBOX} cat > /tmp/fork.py", timeout_sec=20, stdin=FORK.encode())
    await type_in(desk, "export PS1\nscript -qc bash /tmp/recorded\n")
    await type_in(desk, "exit\nexport -n PS1\n")


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize("case", WITHIN)
async def test_a_bash_within_a_program_settles_nothing(desk: Terminal, case: str) -> None:
    assert (await desk.send(Keys(f"{WITHIN[case]}\n", LONG))).at_prompt
    assert "within" in words(await desk.view())
    assert (await desk.send(Keys('echo ne""xt; (exit 7)\n', LONG))).exit_code == 7
    assert body(await desk.view()) == ["next"]


def words(view: ScreenView) -> list[str]:
    return (view.screen if view.new_output is None else view.new_output).split()


# -- shells --------------------------------------------------------------------------------------

INNER = {
    "bash-with-a-slow-hook": "env -u PS0 PROMPT_COMMAND='sleep 0.1' PS1='slow> ' bash --norc",
    "su-login": "su - agent",
    "ssh": "ssh localhost",
    "script": "script -q /dev/null",
    "zsh": "zsh -f",
    "fish": "fish",
    "dash": "dash",
    "ash": "busybox ash",
}
MORE_INNER = {
    "bash": "bash",
    "bash-without-environment": "env -i bash",
    "bash-with-a-slow-prompt": "env -i PS1='$(sleep 0.1)own> ' bash --norc",
    "sudo": "sudo -i",
    "bash-of-its-own": "bash --norc --noprofile",
    "bash-with-its-own-hook": "env PROMPT_COMMAND='sleep 0.1' PS1='slow> ' bash --norc",
    "su": "su agent",
    "sudo-user": "sudo -u agent -i",
    "ssh-user": "ssh agent@localhost",
    "pty": "python3 -c 'import pty; pty.spawn(\"bash\")'",
    "expect": "expect -c 'spawn -noecho bash; interact'",
    "mksh": "mksh",
    "ksh": "ksh",
}
LINES = "cd /usr\necho one\nsleep 0.1\necho 'two\nthree'\npwd; echo do''ne\n"


@pytest.mark.parametrize("case", [*INNER, *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_INNER)])
async def test_a_shell_within_the_shell_settles_at_its_prompt(desk: Terminal, case: str) -> None:
    assert (await desk.send(Keys(f"{({**INNER, **MORE_INNER})[case]}\n", LONG))).at_prompt
    await desk.view()
    assert body(await type_in(desk, "echo hi\n")) == ["hi"]
    assert body(await type_in(desk, "sleep 0.2; echo do''ne\n")) == ["done"]
    assert body(await type_in(desk, LINES))[-2:] == ["/usr", "done"]
    assert (await desk.send(Keys("exit\n", LONG))).at_prompt
    await desk.view()
    assert body(await type_in(desk, "pwd\n")) == ["/app"]


@pytest.mark.parametrize("program", ["python3 -q", "sqlite3", "bash --noediting"])
async def test_a_prompt_that_was_there_before_is_recognised(desk: Terminal, program: str) -> None:
    ask, answer, leave = {
        "python3 -q": ("import time; time.sleep(0.2); print(6 * 7)", "42", "exit()"),
        "sqlite3": ("select 6 * 7;", "42", ".exit"),
        "bash --noediting": ("sleep 0.2; echo $((6 * 7))", "42", "exit"),
    }[program]
    await desk.send(Keys(f"{program}\n", 0.5))
    await desk.view()
    for _ in range(2):
        assert body(await type_in(desk, f"{ask}\n")) == [answer]
    assert (await desk.send(Keys(f"{leave}\n", LONG))).at_prompt


@pytest.mark.parametrize("shell", ["zsh -f", "su - agent"])
async def test_what_is_printed_behind_a_prompt_does_not_hide_it(desk: Terminal, shell: str) -> None:
    await type_in(desk, f"{shell}\n")
    await type_in(desk, "sh -c '(sleep 0.1; echo late) & sleep 0.09'\n")
    assert (await desk.send(Keys("exit\n", LONG))).at_prompt


async def test_a_shell_with_no_prompt_settles(desk: Terminal) -> None:
    for command in ("env PS1= bash --norc", "sleep 0.2; echo do''ne"):
        assert (await desk.send(Keys(f"{command}\n", LONG))).at_prompt
    assert words(await desk.view())[-1] == "done"
    assert (await desk.send(Keys("exit\n", LONG))).at_prompt


# -- the first screen ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rc", ["PROMPT_COMMAND='sleep 0.2'\nPS1='own> '\n", "PS1='$(sleep 0.2)own> '\n"], ids=["hook", "prompt"]
)
async def test_the_first_screen_has_a_prompt_that_takes_its_time(equipped: Container, rc: str) -> None:
    home = f"/home/slow-{next(NUMBERS)}"
    await equipped.shell(f"mkdir -p {home}; cat > {home}/.bashrc", timeout_sec=20, stdin=rc.encode())

    async def first_screen() -> str:
        async with opened(equipped, environment={"HOME": home}) as terminal:
            return (await terminal.view()).screen

    for _ in range(2):
        assert await asyncio.gather(*(first_screen() for _ in range(5))) == ["own>"] * 5


# -- never early ---------------------------------------------------------------------------------


def a_command(chance: random.Random, *, ahead: bool = False) -> str:
    """A random command that could make a shell look idle meanwhile, in syntax that all shells know."""
    kinds: list[Callable[[], str]] = [
        lambda: f"echo {chance.randrange(1000)}",
        lambda: f"sleep 0.0{chance.randrange(1, 9)}",
        lambda: f"seq {chance.randrange(3000)} | sort -r | tail -{chance.randrange(1, 5)}",
        lambda: "echo 'a quote\nof two lines'",
        lambda: "",
        lambda: "false",
        lambda: "no-such-command 2>/dev/null; true",
        lambda: f"printf %s {'x' * chance.randrange(1, 400)}",
        lambda: "sh -c 'sleep 0.02; exit 2'",
        lambda: "cd /tmp; cd /usr",
        lambda: "printf 'no prompt$ '; sleep 0.05; echo",
        lambda: "sh -c '(sleep 0.05; true) & sleep 0.01'",
    ]
    # What is typed ahead of a program that reads is for the line editor's kind of terminal, also at a plain tmux.
    readers: list[Callable[[], str]] = [
        lambda: f"head -n 1\nan answer {chance.randrange(100)}",
        lambda: "sh -c 'read x; sleep 0.02; echo $x'\nanother",
    ]
    return chance.choice(kinds if ahead else kinds + readers)()


async def type_steps(terminal: Terminal, steps: int, seed: int) -> None:
    """Check that each settled step shows its last command's output; typing pauses now and then."""
    chance = random.Random(seed)
    for number in range(steps):
        ahead = ""
        if chance.random() < 0.2:
            ahead = "".join(f"{a_command(chance, ahead=True)}\n" for _ in range(chance.randrange(3)))
            await terminal.send(Keys(ahead, chance.choice([0.0, 0.05])))
        lines = "".join(f"{a_command(chance)}\n" for _ in range(chance.randrange(5)))
        view = await type_in(terminal, f"{lines}sleep 0.0{chance.randrange(9)}; echo last''-{number}\n")
        assert f"last-{number}" in words(view), (number, ahead, lines)


SHELLS = ["zsh -f", "fish", "dash", "ssh agent@localhost", "su - agent"]
MORE_SHELLS = ["mksh", "busybox ash", "sudo -i", "env -i bash", "script -q /dev/null"]


async def type_in_each(box: Container, shells: list[str], steps: int, seed: int) -> None:
    """Type in several terminals at once, each with another shell."""

    async def type_within(shell: str) -> None:
        async with opened(box) as terminal:
            await type_in(terminal, f"{shell}\n")
            await type_steps(terminal, steps, seed)

    await asyncio.gather(*map(type_within, shells))


async def test_no_step_within_another_shell_settles_early(equipped: Container) -> None:
    await type_in_each(equipped, SHELLS, 7, 11)


@pytest.mark.slow
async def test_no_step_within_another_shell_settles_early_on_a_busy_machine(equipped: Container) -> None:
    async with under_load(equipped):
        await type_in_each(equipped, SHELLS + MORE_SHELLS, 60, 12)
