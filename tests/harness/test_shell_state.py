"""terminal: state that a command leaves to the next in persistent and fresh shells; table in docs/terminal.md."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from terminals import LONG, digest, opened, run

from harness.limits import ShellMode
from harness.protocols.bash import MARKER, BashTool, one_command
from harness.terminal import Terminal
from harness.terminal.spec import UNATTENDED
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PAGE = Path(__file__).parents[2] / "docs" / "terminal.md"
MODES: tuple[ShellMode, ...] = ("persistent", "fresh")
LIMIT = 0.3
CONTROLS = "\t\ta\tb\n" + "".join(map(chr, range(1, 32))) + "\x7f"
KILOBYTE = "a line of text with a\ttab and a ' quote in it, which is 64 long\n" * 16
BASHRC = "export RC=$((RC + 1)); alias rc='echo alias'"
COMMIT = "git -c user.name=a -c user.email=a@example.com -C /tmp/repo commit --allow-empty"


@dataclass(frozen=True)
class Expected:
    """Expected result of a command; in its texts, `…` stands for anything."""

    output: str = ""
    exit_code: int | None = 0
    notes: tuple[str, ...] = ()
    background: str = ""
    timed_out: bool = False
    shown: str = "…"
    """Observation without notes."""
    submitted: bool = False


@dataclass(frozen=True)
class Step:
    command: str
    expected: dict[ShellMode, Expected]
    limit_sec: float
    after_sec: float


def step(
    command: str,
    persistent: str | Expected = "",
    fresh: str | Expected | None = None,
    *,
    limit_sec: float = LONG,
    after_sec: float = 0,
) -> Step:
    """One command of a row; a plain text is the output with exit code 0. `fresh` defaults to the persistent result."""
    cells = (persistent, persistent if fresh is None else fresh)
    expected = {
        mode: Expected(cell) if isinstance(cell, str) else cell for mode, cell in zip(MODES, cells, strict=True)
    }
    return Step(command, expected, limit_sec, after_sec)


def failed(exit_code: int, output: str = "") -> Expected:
    return Expected(output, exit_code)


def ended(exit_code: int, output: str = "", directory: str = "/app") -> Expected:
    """The command ended its shell, too."""
    return Expected(
        output, exit_code, notes=(f"shell_ended: …what was left of it did not run. …started in {directory}, …",)
    )


def stopped(output: str = "…", *notes: str) -> Expected:
    """The command was ended at its limit."""
    shown = f"<warning>The command exceeded its time limit…\n{output.rstrip()}…(exit_code=unknown)"
    return Expected(output, None, notes, timed_out=True, shown=shown)


def heredoc(text: str) -> Step:
    return step(f"sha256sum <<'END OF TEXT'\n{text}\nEND OF TEXT", digest(f"{text}\n"))


ROWS: dict[str, list[Step]] = {
    "directory": [step("cd /srv"), step("pwd", "/srv\n", "/app\n")],
    "exported variables": [step("export KEPT=2"), step('echo "<$KEPT>"', "<2>\n", "<>\n")],
    "other variables, functions, aliases, options, `umask`": [
        step("kept=1; f() { echo function; }; alias al='echo alias'; set -f; umask 027"),
        step('echo "<$kept>"', "<1>\n", "<>\n"),
        step("f", "function\n", failed(127, "…f: command not found\n")),
        step("al", "alias\n", failed(127, "…al: command not found\n")),
        step("echo /[b]in; set +f", "/[b]in\n", "/bin\n"),
        step("umask; umask 022", "0027\n", "0022\n"),
    ],
    "`$?`": [step("false", failed(1)), step("echo $?", "1\n", "0\n")],
    "background jobs": [
        step("sleep 30 >/dev/null 2>&1 &"),
        # A job's process has its own name a moment after it was started.
        step("jobs; pgrep -fc 'sleep 3[0]'", "[1]+  Running …\n1\n", "1\n", after_sec=0.5),
        step("kill %1", "", failed(1, "…no such job\n")),
        step("pkill -f 'sleep 3[0]'; true", Expected(background="…")),
    ],
    "`rm -rf /tmp/*`": [
        step("cd /srv; export KEPT=7"),
        step("rm -rf /tmp/* /tmp/.[a-z]*"),
        step('pwd; echo "$KEPT"', "/srv\n7\n", "/app\n\n"),
    ],
    "the shell": [
        step('[[ a ]] && a=(1 2) && echo "${a[1]} ${BASH_VERSION:+bash} $-"', "2 bash himBs\n", "2 bash hBc\n")
    ],
    "`exit 3`, followed by another line": [
        step("cd /srv; export KEPT=1; lost=1"),
        step("cd /tmp; export KEPT=2\nexit 3\ntouch /tmp/rest", ended(3, directory="/srv"), failed(3)),
        step('pwd; echo "<$KEPT$lost>"', "/srv\n<1>\n", "/app\n<>\n"),
        step("ls /tmp/rest", failed(2, "…No such file or directory\n")),
    ],
    "`set -e`, then a failure": [
        step("set -e\n(exit 5)\necho rest", ended(5), failed(5)),
        step("set -e"),
        step("false; echo rest", ended(1), "rest\n"),
    ],
    "`return 4` outside of a function": [step("return 4; echo rest", "…can only `return' from a function…\nrest\n")],
    "`exec true`, and a line behind it": [step("exec true\necho rest", ended(0), "")],
    "`kill -9 $$`": [step("echo a; kill -9 $$; echo rest", ended(137, "a\nKilled\n"), failed(137, "a\n"))],
    "`kill -TERM $$`": [step("kill -TERM $$; echo rest", "rest\n", failed(143))],
    "a program that SIGINT kills": [
        step("sh -c 'kill -INT $$'; echo rest\necho more", failed(130, "…\n"), "rest\nmore\n"),
        step("echo next", "next\n"),
    ],
    "a syntax error in line 2 of 3": [
        step("echo one\nfoo bar )\necho three", failed(2, "one\nbash: …line 2: syntax error …foo bar )'\n"))
    ],
    "an open quote, an `if` without `fi`": [
        step('echo "abc', failed(2, "bash: …unexpected EOF while looking for matching `\"'\n")),
        step("if true", failed(2, "bash: …syntax error: unexpected end of file\n")),
    ],
    "an open here-document": [step("cat <<E\nx", "bash: …warning: here-document …\nx\n")],
    "`pkill -f WORD` with a word of the command": [step("pkill -f zzqq; echo spared", "spared\n", failed(143))],
    "`kill -9 -1`": [
        step("kill -9 -1; echo rest", Expected("", None, notes=("terminal_reopened: …", "terminal_cut: …unknown."))),
        step("echo next", "next\n"),
    ],
    "exit code": [
        step("false | true"),
        step("true | false", failed(1)),
        step("nosuchcommand", failed(127, "…command not found\n")),
        step("/etc/passwd", failed(126, "…Permission denied\n")),
        step("(exit 300)", failed(44)),
    ],
    "standard input": [
        step("readlink /proc/self/fd/0; cat; read x; echo $?", "/dev/null\n1\n"),
        step("cat <<<text; echo piped | cat", "text\npiped\n"),
    ],
    "`read n`, and a line behind it": [
        step('read n; echo "<$n>"\nBob', failed(127, "<>\n…Bob: command not found\n")),
    ],
    "output and errors go to a terminal": [
        step("for i in 0 1 2; do [ -t $i ]; echo $?; done", "1\n0\n0\n", "1\n1\n1\n"),
        step("mkdir -p /tmp/list; touch /tmp/list/{a,b}; ls /tmp/list", "a  b\n", "a\nb\n"),
        step("[ $(ps -o sid= $$) = $$ ]", failed(1), ""),
    ],
    "a question on `/dev/tty`": [
        step("read x </dev/tty; echo $?", stopped(), "…No such device or address\n1\n", limit_sec=LIMIT)
    ],
    "`TERM`": [step("env | grep ^TERM=", "TERM=tmux-256color\n", failed(1))],
    "variables for programs": [
        step(
            f"env | grep -E '^({'|'.join(UNATTENDED)})=' | LC_ALL=C sort",
            "".join(f"{name}={UNATTENDED[name]}\n" for name in sorted(UNATTENDED)),
        )
    ],
    "`~/.bashrc`": [step("echo $RC", "1\n"), step("rc", "alias\n", failed(127, "…rc: command not found\n"))],
    "`!`": [step('echo "a!b" !!', "a!b !!\n")],
    "`git log`, `man`, `help()`": [
        step(f'git init -q /tmp/repo 2>/dev/null; {COMMIT} -qm "$(seq 200)"'),
        step("git -C /tmp/repo log", "commit …\n    200\n"),
        step("seq 3 | $PAGER; seq 3 | $MANPAGER", "1\n2\n3\n" * 2),
    ],
    "`less FILE`, longer than a screen": [
        step("seq 100 >/tmp/long; less /tmp/long", stopped(), "".join(f"{n}\n" for n in range(1, 101)), limit_sec=LIMIT)
    ],
    "`vim FILE`": [step("vim.tiny /tmp/file", stopped("Vim: Warning: …"), limit_sec=LIMIT)],
    "`git commit` without a message": [step(f"git init -q /tmp/repo; {COMMIT}", failed(1, "…no editor here: pass …"))],
    "a question of debconf in `apt-get install -y`": [
        step("dpkg-reconfigure tzdata", "\nCurrent default time zone: 'Etc/UTC'\n…"),
    ],
    "standard output and standard error": [
        step("for i in 1 2; do echo out$i; echo err$i >&2; done", "out1\nerr1\nout2\nerr2\n"),
    ],
    "carriage returns, backspaces": [step(r"printf '10%%\r20%%\nabc\b\bX\n'", "20%\naXc\n")],
    "escape sequences, control characters": [step(r"printf '\033[31mred\033[0m\033]0;title\007 \001\n'", "red \n")],
    "bytes that are no UTF-8; NUL; tabs": [step(r"printf 'a\377b\0c\td\n'", "a�bc\td\n")],
    "more than 10,000": [
        step("head -c 10000 /dev/zero | tr '\\0' a", Expected("a" * 10_000, shown="a" * 10_000 + "\n\n(exit_code=0)")),
        step(
            "head -c 10001 /dev/zero | tr '\\0' a",
            Expected("a" * 10_001, shown="…HEAD (5000 chars)…---- 1 chars elided ----…TAIL (5000 chars)…"),
        ),
    ],
    "no output": [step("true", Expected(shown="(no output)\n\n(exit_code=0)"))],
    "tabs and control characters": [heredoc(CONTROLS)],
    "NUL": [step("echo a\0b", Expected("ab\n", notes=("nul_dropped: …",)))],
    "a here-document of 100 kB": [heredoc(KILOBYTE * 100)],
    "a here-document of 1 MB": [heredoc(KILOBYTE * 1000)],
    "what is ended": [
        step("sleep 41", stopped(), limit_sec=LIMIT),
        step("pgrep -f 'sleep 4[1]'", failed(1)),
        step("echo next", "next\n"),
    ],
    "background processes of a command that reached its limit": [
        step("nohup sleep 42 >/dev/null 2>&1 & setsid sleep 43 >/dev/null 2>&1 & sleep 44", stopped(), limit_sec=LIMIT),
        step("pgrep -af 'sleep 4[234]'", "… sleep 42\n… sleep 43\n", "… sleep 43\n"),
        step("pkill -f 'sleep 4[23]'; sleep 0.1", "…"),
    ],
    "what is told": [step("echo before; sleep 45; echo after", stopped("before\n…"), limit_sec=LIMIT)],
    "the next command": [
        step("cd /srv; kept=1; sleep 46", stopped(), limit_sec=LIMIT),
        step('pwd; echo "<$kept>"', "/srv\n<1>\n", "/app\n<>\n"),
    ],
    "`server &`, output not redirected": [
        step("sleep 51 & echo started", "started\n", limit_sec=5),
        step("pgrep -fc 'sleep 5[1]'", "1\n"),
        step("pkill -f 'sleep 5[1]'; sleep 0.1", "…"),
    ],
    "what a background process prints later": [
        step("(sleep 0.1; echo late; until [ -e /tmp/go ]; do sleep 0.01; done; echo later) & echo first", "first\n"),
        step("echo second", Expected("second\n", background="late\n"), after_sec=0.4),
        step("touch /tmp/go; sleep 0.2; rm /tmp/go", "later\n"),
    ],
    "process substitution, as in `> >(tee f)`": [
        step("seq 3 > >(tee /tmp/copy)", "1\n2\n3\n"),
        step("echo slow > >(sleep 0.3; cat)", "slow\n"),
    ],
    "the run ends with": [
        step(f"printf {MARKER}", MARKER),
        step(f"echo {MARKER} && true", f"{MARKER}\n"),
        step(f"echo {MARKER}", Expected(f"{MARKER}\n", submitted=True)),
    ],
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def terminals(equipped: Container) -> AsyncIterator[dict[ShellMode, Terminal]]:
    await equipped.shell(f"echo {BASHRC!r} > /root/.bashrc", timeout_sec=20)
    async with AsyncExitStack() as stack:
        yield {
            mode: await stack.enter_async_context(opened(equipped, attended=False, shell_mode=mode)) for mode in MODES
        }


def first_words(row: str) -> str:
    return "-".join(re.findall(r"[\w/.$!&~-]+", row)[:3])


def like(text: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("…"))), text, re.DOTALL) is not None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("row", ROWS, ids=first_words)
async def test_the_row_is_true(terminals: dict[ShellMode, Terminal], row: str, mode: ShellMode) -> None:
    await run(terminals[mode], "cd /app")
    protocol = BashTool().in_shell(mode)
    for step in ROWS[row]:
        await asyncio.sleep(step.after_sec)
        result, expected = await run(terminals[mode], step.command, step.limit_sec), step.expected[mode]
        response = protocol.respond(one_command(step.command, []), result, claimed=False)
        assert (result.exit_code, result.timed_out) == (expected.exit_code, expected.timed_out), result
        assert like(result.output, expected.output), result
        assert like(result.background, expected.background), result
        assert len(result.notes) == len(expected.notes) and all(map(like, result.notes, expected.notes)), result
        notes = "".join(f"<warning>{note.partition(': ')[2]}</warning>\n" for note in result.notes)
        assert like(response.message.removeprefix(notes), expected.shown), response.message
        assert response.submitted == expected.submitted


async def test_every_row_of_the_page_is_tried() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("\n### Side by side\n")[2].partition("\n## ")[0]
    rows = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")} - {""}
    assert len(rows) > 15 and rows <= ROWS.keys()
