"""terminal: a delivered script does what `bash -c` does with the same text.

The truth: a plain bash in the same container, which runs each script in the same directory, empty again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
import shlex
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from plain_bash import Files, PlainBash, Ran
from random_scripts import CONCURRENT, FUNCTIONS, NAMES, SCRIPTS, WELL_FORMED, script_lines
from sampled import examples
from terminals import LONG, Open, digest, opened, under_load

from harness.protocols.base import CommandResult, Keys
from harness.terminal import Terminal
from harness.terminal.plain_text import plain_text
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

LIMIT_SEC = 25.0
PLACES = count()
TRIES = 5
"""Number of tries of a script that is not deterministic, or crashes bash."""
CRASHED = {134, 139}
RESET = f"""wait
exec >/dev/tty 2>&1 3>&- 4>&- 5>&- 6>&- 10>&-
ulimit -S -f unlimited
unset -v TMOUT COPROC
PROMPT_COMMAND=$HOOK
[[ -z ${{word-}} || $word == *[!0-9]* ]] || exec {{word}}>&-
set +euafCT +o pipefail
shopt -u nullglob extglob dotglob failglob globstar
trap - ERR USR1 INT RETURN
unset -v {" ".join(NAMES)} job OPTIND
unset -f {" ".join(FUNCTIONS)} h
IFS=$' \\t\\n'
set --
umask 022
dirs -c
[[ a =~ b ]]
job=$(jobs -p)
disown -a
for job in $job; do kill -9 -- -$job; done
"""
"""Removes files that a script may have left."""


@dataclass(frozen=True)
class Did:
    """Effects of a script."""

    output: str
    exit_code: int | None
    directory: str | None
    files: Files

    @property
    def in_any_order(self) -> Did:
        """Ignore the order of output, as concurrent processes print in any order."""
        return dataclasses.replace(self, output="".join(sorted(self.output)))

    def is_part_of(self, other: Did) -> bool:
        """Whether the other script had all these effects, too."""
        lines = Counter(self.output.split("\n")) - Counter(other.output.split("\n"))
        return not lines and self.files.keys() <= other.files.keys()


class Twins:
    """A terminal and a plain bash that run the same scripts in the same directory, one after the other."""

    def __init__(self, terminal: Terminal, bash: PlainBash, directory: str, is_fresh: bool) -> None:
        self.terminal = terminal
        self._bash = bash
        self._directory = directory
        self._go_back = f"cd {directory}; cd {directory}"
        self._is_fresh = is_fresh

    async def difference(self, script: str, pieces: list[str] | None = None, *, reset: bool = True) -> str | None:
        """Describe the difference between the two. The script is delivered whole, or in pieces."""
        by_chance: list[Did] = []
        for _ in range(TRIES):
            delivered, result = await self._deliver(pieces or [script], reset)
            files, ran = await self._bash.run(script)
            delivered = dataclasses.replace(delivered, files=files)
            plain = Did(plain_text(ran.printed), ran.exit_code, None, ran.files)
            if self._is_fresh:
                delivered, plain = edited(delivered, _PASSING, ""), edited(plain, _PASSING, "")
            else:
                plain = self._as_in_a_terminal(ran, result)
                delivered, plain = unnumbered(delivered), unnumbered(plain)
            plain = with_gap_of(result, delivered.output, plain)
            if delivered == plain or await self._is_known(script, delivered, plain):
                return None
            if pieces and not all([await self._can_be_read(piece) for piece in [script, *pieces]]):
                # The pieces behind a broken one run, and one that has no end has no other's end.
                return None
            if {delivered.exit_code, plain.exit_code} & CRASHED or _OWN_BUGS.search(delivered.output + plain.output):
                continue
            if not CONCURRENT.search(script):
                break
            by_chance += [] if plain.in_any_order in by_chance else [plain.in_any_order]
            if delivered.in_any_order == plain.in_any_order:
                return None
            if len(by_chance) > 1 and delivered.in_any_order in by_chance:
                return None
        else:
            if not by_chance:
                return None
        return in_words(script, delivered, plain, result)

    async def _deliver(self, pieces: list[str], reset: bool) -> tuple[Did, CommandResult]:
        """Deliver the pieces; return their effects except for files."""
        output, lines = "", 0
        for piece in pieces:
            result = await self._run("\n" * lines + piece)
            lines += piece.count("\n")
            output += result.background + result.output
            if result.notes:
                break
        if self._is_fresh:
            if CONCURRENT.search("".join(pieces)):
                # What it has left behind may have something to say yet.
                left = await self._run("sleep 0.05")
                output += left.background + left.output
            return Did(output, result.exit_code, None, {}), result
        left = await self._run(f"{RESET if reset else ''}printf '@%s' \"$PWD\"; {self._go_back}")
        if left.exit_code in CRASHED:
            return Did("", left.exit_code, None, {}), result
        assert not left.notes, (pieces, left)
        late, _, directory = left.output.rpartition("@")
        late = _OF_JOBS.sub("", left.background + late)
        return Did(output + late, result.exit_code, directory, {}), result

    async def _run(self, command: str) -> CommandResult:
        return await self.terminal.run(command, LIMIT_SEC)

    async def state(self) -> list[str]:
        """Return the shell's state and its open files."""
        passing = "BASH_|EPOCH|LINENO|PIPESTATUS|S?RANDOM|SECONDS|_=|__tbench_"
        result = await self._run(
            f"set | grep -Ev '^({passing})'; compgen -v __tbench_; set -o; shopt; trap; alias; declare -F; umask; "
            "ulimit -a; dirs; jobs; ls /proc/$$/fd; readlink /proc/$$/fd/*; :"
        )
        return result.output.split("\n")

    def _as_in_a_terminal(self, ran: Ran, result: CommandResult) -> Did:
        """Convert the effects of `bash -c` to the terminal's form."""
        # An interactive shell names no line in most of its messages.
        printed = _OF_A_LINE.sub(b"bash: ", ran.printed)
        printed = _OF_THE_TEXT.sub(rb"bash: eval: line \1: ", printed)
        directory = ran.directory
        if directory is None or any(note.startswith("shell_ended") for note in result.notes):
            # A new shell begins where the one before began this command.
            directory = self._directory
        return Did(plain_text(printed), ran.exit_code, directory, ran.files)

    async def _is_known(self, script: str, delivered: Did, plain: Did) -> bool:
        """Whether the difference is documented."""
        if self._is_fresh:
            return False
        less, more = delivered.is_part_of(plain), plain.is_part_of(delivered)
        if may_end_early(script) and less and _ENDS_A_LINE.search(plain.output):
            # Read at once, the text is one line to an interactive bash, and what ends a line ends it all.
            return True
        if may_end_early(script) and more and _EVALUATES.search(script):
            # What is evaluated in the text is read line by line.
            return True
        # A text that is broken somewhere runs in a copy of the shell, which any error ends, with code 1. And where a
        # quote is not closed, `bash -c` ends with the code of the line before.
        return less and delivered.exit_code in (1, 2) and not await self._can_be_read(script)

    async def _can_be_read(self, script: str) -> bool:
        """Whether the script has no syntax error."""
        _, ran = await self._bash.run(f"bash -n -c {shlex.quote(script)}")
        return not ran.printed


def may_end_early(script: str) -> bool:
    return re.search(r"\$\{[^}]*\?|\bset\b.*u", script) is not None


def is_whole(lines: str) -> bool:
    """Whether the text is complete: it ends there, whatever follows."""
    return not may_end_early(lines) and not lines.endswith("\\\n") and "exit 1 2" not in lines


def with_gap_of(result: CommandResult, delivered: str, plain: Did) -> Did:
    """Omit the same part of its output as of the delivered command's, if the rest is equal."""
    if result.gap is None:
        return plain
    head, _, tail = delivered.partition(result.gap.text[len(result.gap.head) : -len(result.gap.tail)])
    is_same = plain.output.startswith(head) and plain.output.endswith(tail)
    return dataclasses.replace(plain, output=delivered) if is_same else plain


_ENDS_A_LINE = re.compile(
    r"error token is|bad substitution|invalid (?:indirect exp|variable name)|bad array sub|readonly"
)
_EVALUATES = re.compile(r"\beval\b|\./lib\b")
_OF_A_LINE = re.compile(rb"(?:bash|\./lib|/dev/fd/\d+|environment): line \d+: ")
_OF_THE_TEXT = re.compile(rb"bash: -c: line (\d+): ")
_OF_ANY_BASH = re.compile(r"(?:(?:(?:ba)?sh|\./lib|/dev/fd/\d+|environment|main): (?:(?:-c|eval): )?(?:line \d+: )?)+")
_OF_JOBS = re.compile(r"^\[\d+\][+-]? +(?:Done|Exit \d+) .*", re.MULTILINE | re.DOTALL)
"""An interactive shell's job messages before its prompt."""
_OWN_BUGS = re.compile(r"free\(\): |malloc|wait_for: No record of process|wait: warning: job \d+\[\d*\] stopped")
_PASSING = re.compile(r"\bpid \d+|(?<=\*)\d+|(?<=sh: fg: ).*")
"""Numbers of processes and jobs."""


def unnumbered(did: Did) -> Did:
    """Remove line numbers in bash's messages, and process and job numbers."""
    return edited(edited(did, _OF_ANY_BASH, "sh: "), _PASSING, "")


def edited(did: Did, pattern: re.Pattern[str], by: str) -> Did:
    """Replace all matches, also in files."""
    files = {
        name: dataclasses.replace(file, content=pattern.sub(by, file.content.decode("latin-1")).encode("latin-1"))
        for name, file in did.files.items()
    }
    return dataclasses.replace(did, output=pattern.sub(by, did.output), files=files)


def in_words(script: str, delivered: Did, plain: Did, result: CommandResult) -> str:
    lines = ["", f"script: {script[:3000]!r}"]
    for field in dataclasses.fields(Did):
        ours, theirs = getattr(delivered, field.name), getattr(plain, field.name)
        if ours != theirs:
            lines += [f"{field.name} delivered:  {ours!r:.2000}", f"{field.name} of bash -c: {theirs!r:.2000}"]
    return "\n".join([*lines, *result.notes])


@asynccontextmanager
async def twins(box: Container, **options: Any) -> AsyncIterator[Twins]:
    place = f"/same/{next(PLACES)}"
    directory = f"{place}/in/here"
    await box.shell(f"mkdir -p {directory}", timeout_sec=20)
    is_fresh = options.get("shell_mode") == "fresh"
    # Also for scripts that would not end, or tell the time.
    environment = {"HOME": directory, "TIMEFORMAT": "took", "FUNCNEST": "6"}
    async with opened(box, attended=False, environment=environment, **options) as terminal:
        go = f"cd {directory}; cd {directory}"
        await (terminal.send(Keys(f"{go}\n", LIMIT_SEC)) if is_fresh else terminal.run(go, LIMIT_SEC))
        await terminal.run(f"export HOOK=$PROMPT_COMMAND; export -p >{place}/environment", LIMIT_SEC)
        bash = await PlainBash.start(box, directory, f"{place}/environment", on_a_pty=not is_fresh)
        try:
            yield Twins(terminal, bash, directory, is_fresh)
        finally:
            await bash.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def persistent(box: Container) -> AsyncIterator[Twins]:
    async with twins(box) as both:
        yield both


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def fresh(box: Container) -> AsyncIterator[Twins]:
    async with twins(box, shell_mode="fresh") as both:
        yield both


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def several(box: Container) -> AsyncIterator[list[Twins]]:
    """Four pairs of each kind, for concurrent use."""
    async with AsyncExitStack() as stack:
        kinds = ["persistent", "fresh"] * 4
        yield [await stack.enter_async_context(twins(box, shell_mode=kind)) for kind in kinds]


# -- one script after the other ------------------------------------------------------------------


@given(script=SCRIPTS)
@examples(250)
async def test_a_delivered_script_does_what_bash_does_with_it(persistent: Twins, script: str) -> None:
    assert (difference := await persistent.difference(script)) is None, difference


@given(script=SCRIPTS)
@examples(100)
async def test_a_script_in_a_process_of_its_own_does_what_bash_does_with_it(fresh: Twins, script: str) -> None:
    assert (difference := await fresh.difference(script)) is None, difference


# As one word: a here-document whose body ends sooner than it seems would close the parenthesis before the script's end.
@given(scripts=st.lists(WELL_FORMED.map(lambda text: f"(\neval {shlex.quote(text)}\n)\n"), min_size=3, max_size=6))
@examples(25)
async def test_a_script_that_changes_nothing_leaves_the_shell_as_it_was(persistent: Twins, scripts: list[str]) -> None:
    before = await persistent.state()
    for script in scripts:
        assert (difference := await persistent.difference(script, reset=False)) is None, difference
    assert await persistent.state() == before


@given(pieces=st.lists(script_lines(1).filter(is_whole), min_size=2, max_size=4))
@examples(50)
async def test_a_script_that_is_delivered_in_pieces_does_what_the_whole_does(
    persistent: Twins, pieces: list[str]
) -> None:
    assert (difference := await persistent.difference("".join(pieces), pieces)) is None, difference


TELL = f"""declare -p {" ".join(NAMES)} 2>/dev/null; declare -f {" ".join(FUNCTIONS)} h; umask
trap -p USR1 ERR INT RETURN; set +o | grep -E 'noglob|errexit|nounset|pipefail|noclobber|allexport|functrace'
shopt -p extglob nullglob dotglob failglob
"""
"""Prints the state that a script has left in the shell."""


@given(script=WELL_FORMED.filter(is_whole))
@examples(100)
async def test_a_script_leaves_in_the_shell_what_it_leaves_in_bash(persistent: Twins, script: str) -> None:
    assert (difference := await persistent.difference(script + TELL, [script, TELL])) is None, difference


# -- many ----------------------------------------------------------------------------------------


async def all_of(pairs: list[Twins], scripts: list[str]) -> None:
    """Run each script once, with whichever pair is free."""
    left = iter(scripts)

    async def work(pair: Twins) -> list[str]:
        return [difference for script in left if (difference := await pair.difference(script))]

    # To the end in any case: a pair that was left in the middle of a script could not be used again.
    differences = [difference for some in await asyncio.gather(*map(work, pairs)) for difference in some]
    assert not differences, min(differences, key=len)


@given(scripts=st.lists(SCRIPTS, min_size=8, max_size=8))
@settings(max_examples=300, suppress_health_check=[HealthCheck.data_too_large, HealthCheck.too_slow])
@pytest.mark.slow
async def test_thousands_of_scripts_in_shells_side_by_side_do_what_bash_does(
    several: list[Twins], scripts: list[str]
) -> None:
    await all_of(several, scripts)


def drawn(count: int) -> list[str]:
    scripts: list[str] = []

    @given(script=SCRIPTS)
    @settings(max_examples=count, database=None, phases=[Phase.generate])
    def draw(script: str) -> None:
        scripts.append(script)

    draw()
    return scripts


@pytest.mark.slow
async def test_hundreds_of_scripts_on_a_busy_machine_do_what_bash_does(box: Container, several: list[Twins]) -> None:
    async with under_load(box):
        await all_of(several, drawn(400))


# -- what is in a text ---------------------------------------------------------------------------


def a_text(chance: random.Random, size: int) -> str:
    """A random text of UTF-8 characters except NUL; sometimes many of the same kind."""
    kinds = [
        "".join(map(chr, range(1, 0x20))),
        "\t\t\n",
        "\n'\"\\$`",
        "abc ",
        "é日\u0301\U0001f642",
        "\x7f\x80\x9b\xff",
    ]
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        kind = chance.choice([*kinds, ""])
        letters = kind or [chr(chance.choice((*range(1, 0xD800, 97), *range(0xE000, 0x110000, 997)))) for _ in range(9)]
        parts.append("".join(chance.choices(letters, k=chance.randrange(1, 2000))))
    return "".join(parts)[:size]


async def texts_arrive(terminal: Terminal, seed: int, sizes: list[int]) -> None:
    chance = random.Random(seed)
    for size in sizes:
        text, code = a_text(chance, size), chance.randrange(100, 200)
        command = f"sha256sum <<'end of {seed}'\n{text}\nend of {seed}\n(exit {code})"
        assert await terminal.run(command, LONG) == CommandResult(digest(f"{text}\n"), code), (seed, size)


async def test_a_text_of_any_characters_arrives_whole(open_terminal: Open) -> None:
    for size in (0, 1, 1000, 100_000):
        await texts_arrive(await open_terminal(attended=False), size, [size])


@pytest.mark.slow
async def test_sixteen_terminals_on_a_busy_machine_do_not_lose_a_byte(box: Container, open_terminal: Open) -> None:
    terminals = [await open_terminal(attended=False) for _ in range(16)]
    chance = random.Random(16)
    async with under_load(box), asyncio.TaskGroup() as group:
        for seed, terminal in enumerate(terminals):
            sizes = [round(1000 * 200 ** chance.random()) for _ in range(12)]
            group.create_task(texts_arrive(terminal, seed, [*sizes, 77_000, 200_000]))
