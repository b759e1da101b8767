"""terminal: delivered commands with programs that expect a user at the keyboard."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from terminals import LONG, opened, output_of, run

from harness.terminal import Terminal
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

REPOSITORY = """git config --global user.email a@b && git config --global user.name a && git init -q /tmp/repository &&
cd /tmp/repository && for i in $(seq 60); do git commit -q --allow-empty -m "commit $i"; done &&
echo x > file && git add file"""


@pytest_asyncio.fixture(
    loop_scope="module", scope="module", params=["persistent", pytest.param("fresh", marks=pytest.mark.slow)]
)
async def desk(equipped: Container, request: pytest.FixtureRequest) -> AsyncIterator[Terminal]:
    async with opened(equipped, attended=False, shell_mode=request.param) as terminal:
        await terminal.run(f"[ -d /tmp/repository ] || {{ {REPOSITORY}\n}}", LONG)
        yield terminal


@pytest.mark.parametrize(
    ("command", "exit_code", "shows"),
    [
        ("cd /tmp/repository && git log --format=%s", 0, "commit 60\n"),
        ("cd /tmp/repository && git log -p --stat && git diff --cached", 0, "+x"),
        ("cd /tmp/repository && git branch -a", 0, "*"),
        ("cd /tmp/repository && git commit", 1, "There is no editor here"),
        ("cd /tmp/repository && git -c rebase.autoStash=true rebase -i --root", 1, "There is no editor here"),
        ("cd /tmp/repository && git commit --amend", 1, "There is no editor here"),
        ("cd /tmp/repository && git add -p", 0, ""),
        ("python3 -c 'help(str)'", 0, "class str(object)"),
        ("python3 -m pydoc len", 0, "Return the number of items"),
        ("python3", 0, ""),
        ("python3 -c 'input(\"Name: \")'", 1, "EOFError"),
        ("sqlite3 /tmp/x.db", 0, ""),
        ("printf 'one\\ntwo\\n' > /tmp/short; less /tmp/short", 0, "one\ntwo\n"),
        ("systemctl --version 2>/dev/null; echo $PAGER $MANPAGER $GIT_PAGER", 0, "cat cat cat\n"),
        ("select x in a b; do echo $x; done", 1, "1) a"),
        ("$EDITOR file", 1, "There is no editor here"),
        ("read -p 'sure? ' x; echo \"<$x>\"", 0, "<>"),
        ("apt-get install no-such-package-here 2>&1 | tail -1", 0, "no-such-package-here"),
        ("echo a > f && rm -i f < /dev/null; ls f", 0, "f\n"),
        ("bash -i -c 'echo inner'", 0, "inner\n"),
        ("ssh -o BatchMode=yes nobody@localhost -p 1 true", 255, "connect to host"),
        ("script -qc 'echo in a terminal' /dev/null", 0, "in a terminal\n"),
        ("expect -c 'spawn -noecho echo spawned; expect eof'", 0, "spawned\n"),
        ("echo $DEBIAN_FRONTEND $PIP_PROGRESS_BAR $TQDM_DISABLE $GIT_TERMINAL_PROMPT", 0, "noninteractive off 1 0\n"),
    ],
)
async def test_what_would_wait_for_someone_ends(desk: Terminal, command: str, exit_code: int, shows: str) -> None:
    result = await run(desk, command)
    assert (result.timed_out, result.exit_code, shows in result.output) == (False, exit_code, True), result
    assert await output_of(desk, "echo usable") == "usable\n"


@pytest.mark.parametrize(
    "command",
    [
        "PAGER=less python3 -c 'help(str)'",
        "seq 1000 > /tmp/long; less /tmp/long",
        "more /tmp/long",
        "vim.tiny /tmp/x",
        "nano /tmp/x",
        "top",
        "fzf < /tmp/long",
        "su agent -c 'seq 1000 | less'",
        "su agent -c 'seq 1000 | less' & wait",
        "sudo -u agent less /tmp/long",
        "setsid less /tmp/long </dev/tty; sleep 100",
        "(setsid cat </dev/tty &); sleep 100",
        "script -qc 'less /tmp/long' /dev/null",
        "expect -c 'spawn less /tmp/long; expect never; set timeout -1; expect eof'",
        "ssh root@localhost -o ProxyCommand='sleep 100'",
        "su asked -c 'sudo true'",
    ],
)
async def test_what_waits_all_the_same_is_stopped_and_reads_nothing_that_follows(desk: Terminal, command: str) -> None:
    result = await run(desk, command, 0.7)
    for number in range(4):
        said = await run(desk, f"echo {number}")
        assert (said.output, said.exit_code) == (f"{number}\n", 0), result


@pytest.mark.parametrize(
    "query",
    [
        r"printf '\033[6n'",
        r"printf '\033[c\033[>c\033[5n\033[18t'; sleep 0.2",
        r"(sleep 0.3; printf '\033[6n') & sleep 0.5",
    ],
)
async def test_the_terminals_answer_to_a_query_is_no_command(desk: Terminal, query: str) -> None:
    await run(desk, 'command_not_found_handle() { echo "$*" >> /tmp/ran; }; rm -f /tmp/ran')
    await run(desk, query)
    for number in range(2):
        said = await run(desk, f"echo {number}; cat /tmp/ran")
        assert said.output == f"{number}\ncat: /tmp/ran: No such file or directory\n", said
        # A query sent between two commands is answered between them, and the tty shows the answer as any key typed.
        between = re.sub(r"\^\[\[\d+;\d+R|[][1+ \n]", "", said.background)
        assert between == "" or between.startswith("Done"), said


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def impatient(equipped: Container) -> AsyncIterator[Terminal]:
    async with opened(equipped, attended=False, idle_sec=0.4) as terminal:
        await run(terminal, "seq 1000 > /tmp/long")
        yield terminal


@pytest.mark.parametrize(
    "command",
    [
        "more /tmp/long",
        "less /tmp/long",
        "seq 1000 | less",
        "vim.tiny /tmp/x",
        "read x </dev/tty",
        "read -n1 x </dev/tty",
        "read -rsp 'Password: ' x </dev/tty",
        "bash -c 'read x </dev/tty'",
        "cat /dev/tty | wc -l",
        "python3 -c 'import getpass; getpass.getpass()'",
        "for i in 1 2; do more /tmp/long; done",
    ],
)
async def test_what_waits_for_someone_to_type_is_ended_before_its_limit(impatient: Terminal, command: str) -> None:
    result = await run(impatient, command, 2 * LONG)
    assert result.timed_out, result
    assert "waits_for_keys" in {note.partition(":")[0] for note in result.notes}
    assert await output_of(impatient, "echo usable") == "usable\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 2",
        "read -t 2 x < <(sleep 3); sleep 1",
        "python3 -c 'import select; select.select([], [], [], 2)'",
        "perl -e 'select(undef, undef, undef, 2)'",
        "script -qc 'sleep 2' /dev/null",
        "stty raw -echo </dev/tty; sleep 2; stty sane </dev/tty",
        "expect -c 'spawn -noecho sleep 2; expect eof'",
        "ssh root@localhost sleep 2",
        "ssh -tt root@localhost sleep 2 </dev/tty",
        "python3 -c 'import pty, os, time; p, f = pty.fork(); p or time.sleep(2); os.read(f, 9)' 2>/dev/null; true",
        "python3 -c 'import socket, threading, time; a, b = socket.socketpair(); "
        "threading.Timer(2, b.close).start(); a.recv(1)'",
        "sleep 2 | less",
        "(seq 100; sleep 2; touch /tmp/done) | timeout -s KILL 4 less; ls /tmp/done && rm /tmp/done",
        "(seq 100; timeout 9 bash -c 'for ((i = 0; i < 700000; i++)); do :; done'; touch /tmp/done) | timeout 6 more; "
        "ls /tmp/done && rm /tmp/done",
        "timeout 3 vim.tiny /tmp/x; [ $? = 124 ]",
        "timeout --foreground 2 cat /dev/tty; [ $? = 124 ]",
        "(sleep 2; pkill -x vim.tiny) & vim.tiny /tmp/x; [ $? = 143 ] || [ $? = 1 ]",
        "bash -c '(sleep 2; kill -USR1 $$) & trap \"exit 0\" USR1; read x </dev/tty'",
        "python3 -c 'import threading, os; threading.Timer(2, os._exit, [0]).start(); open(\"/dev/tty\").read()'",
        "sleep 2 & wait",
    ],
)
async def test_what_waits_for_something_else_is_left_alone(impatient: Terminal, command: str) -> None:
    result = await run(impatient, command, LONG)
    assert (result.timed_out, result.exit_code) == (False, 0), result
