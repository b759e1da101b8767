"""delivery: a delivered command arrives unchanged, and its end and output are exact."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from terminals import KILL_TMUX, LONG, Open, digest, kinds, now, output_of, press, run, under_load

from harness.protocols.base import CommandResult, Keys
from harness.terminal import Terminal, delivery
from tbench.sandbox.docker.container import Container

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CONTROLS = "".join(map(chr, range(1, 32))) + "\x7f"
TABBED = "".join(f"\tkey {number}\tvalue {number}\n" for number in range(40)) * 3
HOOKS = [
    ":",
    "unset PROMPT_COMMAND",
    "PROMPT_COMMAND='true'",
    "PROMPT_COMMAND=([1]=true)",
    "readonly PROMPT_COMMAND=true",
]
"""Commands that keep or remove the prompt's hook."""
AT_ONCE = 5.0
"""Far above the time of an answer, far below the limit that such a command used to wait for."""


@pytest_asyncio.fixture(loop_scope="module")
async def shell(open_terminal: Open) -> Terminal:
    """A terminal whose commands are delivered to one shell."""
    return await open_terminal(attended=False)


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(open_terminal: Open) -> AsyncIterator[Terminal]:
    """A terminal that runs each command in its own process."""
    yield await open_terminal(attended=False, shell_mode="fresh")


def heredoc(text: str, path: str) -> str:
    return f"cat > {path} <<'END OF TEXT'\n{text}\nEND OF TEXT\n"


# -- the text arrives whole -----------------------------------------------------------------------


@pytest.mark.parametrize("first", ["", "sleep 0.3\n", "python3 -c 'import json' 2>/dev/null\n", "read x\n", "cat\n"])
@pytest.mark.parametrize("text", [TABBED, CONTROLS * 40, "é日本語😀\u200d\u0301\n" * 200, "\\\n'\"`$(!!)\n" * 200])
async def test_text_behind_a_slow_first_line_arrives_exactly(shell: Terminal, first: str, text: str) -> None:
    result = await run(shell, f"{first}{heredoc(text, '/tmp/text')}")
    assert result == CommandResult(output="", exit_code=0)
    assert await output_of(shell, "sha256sum < /tmp/text") == digest(text + "\n")


@pytest.mark.parametrize("mode", ["persistent", "fresh"])
async def test_a_megabyte_of_any_characters_arrives_exactly(open_terminal: Open, mode: str) -> None:
    terminal = await open_terminal(attended=False, shell_mode=mode)
    chance = random.Random(5)
    text = "".join(chance.choice(CONTROLS + "abc '\"\\$`!é日😀\t\n") for _ in range(600_000))
    result = await run(terminal, f"{heredoc(text, '/tmp/large')}echo done")
    assert result == CommandResult(output="done\n", exit_code=0)
    assert await output_of(terminal, "sha256sum < /tmp/large") == digest(text + "\n")


async def test_a_character_that_no_shell_can_read_is_left_out_and_told_of(shell: Terminal) -> None:
    result = await run(shell, "echo a\0b")
    assert (result.output, kinds(result)) == ("ab\n", ["nul_dropped"])


async def test_half_a_character_becomes_a_question_mark(shell: Terminal) -> None:
    assert await output_of(shell, "echo a\ud800b") == "a?b\n"


@pytest.mark.parametrize("other", ["sh", "/opt/tbench/bin/busybox sh", "bash --posix"])
async def test_any_shell_can_read_what_delivers_a_command(shell: Terminal, other: str) -> None:
    script = Path(delivery.__file__).with_name("deliver.sh").read_text()
    result = await run(shell, f"{other} -n <<'END OF SCRIPT'\n{script}END OF SCRIPT")
    assert result == CommandResult(output="", exit_code=0)


async def test_what_the_command_line_is_called_does_not_matter(shell: Terminal) -> None:
    """The text is in no process's arguments: a command that looks for itself does not find itself."""
    assert await output_of(shell, "grep -lsz zzqq /proc/[0-9]*/cmdline | grep -c self; echo alive") == "0\nalive\n"


async def test_a_large_text_keeps_its_stream_on_a_busy_machine(box: Container, shell: Terminal) -> None:
    text = "".join(f"{number}\t{number:x}\n" for number in range(7_500))
    async with under_load(box):
        result = await run(shell, f"{heredoc(text, '/tmp/loaded')}echo written")
    assert result == CommandResult(output="written\n", exit_code=0)
    assert await output_of(shell, "sha256sum < /tmp/loaded") == digest(text + "\n")


# -- it is read whole -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "exit_code", "says"),
    [
        ('echo "abc', 2, "unexpected EOF while looking for matching"),
        ("echo 'abc", 2, "unexpected EOF while looking for matching"),
        ("echo $(ls", 2, "unexpected EOF while looking for matching"),
        ("echo `ls", 2, "unexpected EOF while looking for matching"),
        ("echo ${x", 2, "unexpected EOF while looking for matching"),
        ("if true", 2, "unexpected end of file"),
        ("for i in 1 2; do\necho $i", 2, "unexpected end of file"),
        ("f() {\necho", 2, "unexpected end of file"),
        ("echo )", 2, "unexpected token"),
        ("case x in", 2, "unexpected end of file"),
        ("echo begun\nfoo bar )", 2, "unexpected token"),
        # A warning, to bash: the text stands as far as it goes.
        ("cat <<E\nx", 0, "x"),
    ],
)
@pytest.mark.parametrize("mode", ["persistent", "fresh"])
async def test_unfinished_text_is_answered_at_once(
    open_terminal: Open, command: str, exit_code: int, says: str, mode: str
) -> None:
    terminal = await open_terminal(attended=False, shell_mode=mode)
    result = await run(terminal, command, AT_ONCE)
    assert (result.timed_out, result.exit_code) == (False, exit_code)
    assert says in result.output
    assert await output_of(terminal, "echo usable") == "usable\n"


@pytest.mark.parametrize("command", ["", "\n\n", "# a comment", "  ", "\t# a\n# b\n", ":", "true\n\n\n"])
async def test_text_that_does_nothing_is_a_success(shell: Terminal, command: str) -> None:
    await run(shell, "true")
    assert await run(shell, command) == CommandResult(output="", exit_code=0)


@pytest.mark.parametrize("opened", ["echo $(date", "cat <(ls", "x=$(echo a\necho b", "tee >(cat"])
async def test_an_unfinished_substitution_does_the_shell_no_harm(shell: Terminal, opened: str) -> None:
    """bash 5.2 corrupts its memory after reading one."""
    await run(shell, "f() { echo kept; }; cd /tmp")
    for _ in range(5):
        assert (await run(shell, opened, AT_ONCE)).exit_code == 2
        assert await run(shell, "f; pwd", AT_ONCE) == CommandResult(output="kept\n/tmp\n", exit_code=0)


@pytest.mark.parametrize(
    ("last", "exit_code", "prints", "notes"),
    [
        ("echo $(date", 2, "one\nbash: eval: line 6: unexpected EOF", []),
        ("echo $(date\necho two\nv=2", 2, "one\nbash: eval: line 8: unexpected EOF", []),
        ("echo )\nv=2", 2, "one\nbash: eval: line 5: syntax error", []),
        (": ${v:?}\necho 'two\nv=2", 2, "one\nbash: eval: line 6: unexpected EOF", []),
        # Broken from so early on that not every line is tried: what could be lost is told.
        ("read v <<E\n$(echo 2)\n" * 20, 0, "one\nbash: warning: here-document", ["ran_in_copy"]),
        ("shopt -s extglob\necho @(two) $(echo two)\nv=1", 0, "one\n@(two) two\n", []),
        ("shopt -s extglob; cat <(echo @(two))\nx=!(y)", 2, "one\nbash: eval: line 5: syntax error", []),
        ("shopt -s extglob\nset -u\necho @(two)\nset +u", 0, "one\n@(two)\n", []),
        ("shopt -s extglob\n: ${v:?}\necho @(two) $?\necho ${w:?none}\nv=2", 127, "one\n@(two) 0\nbash: w: none\n", []),
        ("echo shopt -s extglob >lib; . ./lib\necho @(two)$(echo 2)", 0, "one\n@(two)2\n", []),
        ("shopt -s extglob\nx=$(echo @(2))\nbreak; return 3\necho $x $LINENO", 0, "one\nbash: break: only", []),
        ("v=1; echo ${v:?}\\", 0, "one\n1\\\n", []),
        ("shopt -s extglob\n" + "v=$(echo 1)\n" * 300 + "echo @(two)", 0, "one\n@(two)\n", []),
    ],
)
async def test_what_a_text_has_done_is_kept_though_it_cannot_be_read_at_once(
    shell: Terminal, last: str, exit_code: int, prints: str, notes: list[str]
) -> None:
    result = await run(shell, f"cd /usr/lib; v=1; umask 027\nf() {{ echo f; }}\nexport NAME=kept\necho one\n{last}")
    assert (result.exit_code, result.output.startswith(prints), kinds(result)) == (exit_code, True, notes), result
    assert await output_of(shell, "pwd; umask; echo $NAME $v; f") == "/usr/lib\n0027\nkept 1\nf\n"


async def test_lines_before_an_error_have_run_as_in_a_script(shell: Terminal) -> None:
    result = await run(shell, "echo one\necho 'two\necho three")
    assert (result.output.startswith("one\n"), result.exit_code) == (True, 2)


# -- what ends the shell ends the command -----------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "exit_code"),
    [
        ("exit 3", 3),
        ("cd /nonexistent 2>/dev/null || exit 1", 1),
        ("set -e; false", 1),
        ("set -e\n(exit 7)", 7),
        ("f() { exit 4; }; f", 4),
        ("exec sh -c 'exit 6'", 6),
        ("exec true", 0),
        ("kill -9 $$", 137),
        ("kill -HUP $$; sleep 1", 129),
        ("logout 2>/dev/null; exit 5", 5),
        ("set -u; echo $nope_x", 127),
        ("echo ${nope_x:?missing}", 127),
        ("trap 'exit 8' USR1; kill -USR1 $$", 8),
    ],
)
async def test_what_ends_the_shell_ends_the_command(
    box: Container, shell: Terminal, ending: str, exit_code: int
) -> None:
    await run(shell, "mkdir -p /tmp/kept && cd /tmp/kept && touch precious")
    result = await run(shell, f"{ending}\nrm -rf ./precious; echo went on")
    assert (result.exit_code, "went on" in result.output) == (exit_code, False)
    assert await output_of(shell, "ls /tmp/kept; pwd") == "precious\n/tmp/kept\n"


async def test_a_new_shell_has_the_directory_and_the_exported_variables(shell: Terminal) -> None:
    await run(shell, "cd /usr/lib; export NAME=$'a\nb \"c\"'; plain=1; f() { :; }")
    result = await run(shell, "exit 3")
    assert (result.exit_code, kinds(result)) == (3, ["shell_ended"])
    assert "in /usr/lib, with the exported variables" in result.notes[0]
    kept = await output_of(shell, 'echo "$PWD|$NAME|$plain|"; type f')
    assert kept == '/usr/lib|a\nb "c"||\nbash: type: f: not found\n'


async def test_the_very_first_command_may_end_the_shell(open_terminal: Open) -> None:
    terminal = await open_terminal(attended=False)
    result = await run(terminal, "exit 3")
    assert (result.exit_code, "A new shell was started in /app, with" in result.notes[0]) == (3, True)


async def test_a_new_shell_says_where_it_is_when_the_directory_is_gone(shell: Terminal) -> None:
    await run(shell, "mkdir /tmp/gone; cd /tmp/gone")
    await run(shell, "rmdir /tmp/gone")
    result = await run(shell, "exit 4")
    assert f"started in {(await output_of(shell, 'pwd')).strip()}, with" in result.notes[0]


@pytest.mark.parametrize(
    "text", ["return 4; echo rest", "return 4; echo $(echo rest)", "eval 'return 4'; echo ${PWD:+rest}"]
)
@pytest.mark.parametrize("hook", HOOKS)
async def test_return_outside_of_a_function_is_an_error_and_nothing_more(shell: Terminal, hook: str, text: str) -> None:
    await run(shell, hook)
    result = await run(shell, text, AT_ONCE)
    assert (result.exit_code, result.output.endswith("sourced script\nrest\n")) == (0, True), result


@pytest.mark.parametrize("hook", HOOKS[:-1])
async def test_what_ends_a_command_early_has_its_code_whatever_hook_there_is(shell: Terminal, hook: str) -> None:
    await run(shell, hook)
    for text, code in [("echo a; kill -INT $$; echo b", 130), ("echo a; exec ./none; echo b", 127)]:
        result = await run(shell, text, AT_ONCE)
        assert (result.exit_code, result.output[:2], "\nb\n" in result.output) == (code, "a\n", False), result


@pytest.mark.parametrize("ends", ["kill -9 $$", "exit", "kill -HUP $$"])
async def test_a_shell_that_ends_between_two_commands_takes_none_with_it(shell: Terminal, ends: str) -> None:
    await run(shell, f"cd /srv; export KEPT=1; lost=2; rm -f /tmp/runs; PROMPT_COMMAND='{ends}'")
    result = await run(shell, 'echo run >>/tmp/runs; echo "$PWD|$KEPT|$lost"; (exit 3)')
    assert (result.output, result.exit_code, kinds(result)) == ("/srv|1|\n", 3, ["shell_lost"])
    assert await run(shell, "cat /tmp/runs") == CommandResult(output="run\n", exit_code=0)


@pytest.mark.parametrize("kind", ["", "export", "readonly"])
async def test_a_timeout_for_idle_shells_ends_no_command(shell: Terminal, kind: str) -> None:
    await run(shell, f"{kind} TMOUT=1; kept=2")
    assert await run(shell, "sleep 1.2; echo $TMOUT $kept; (exit 4)") == CommandResult(output="1 2\n", exit_code=4)


async def test_a_limit_on_files_costs_neither_the_shell_nor_what_a_new_one_begins_with(shell: Terminal) -> None:
    assert await run(shell, "kept=1; ulimit -f 0; cd /srv; export NAME='a; b'") == CommandResult(output="", exit_code=0)
    assert await run(shell, "echo $kept; (exit 3)") == CommandResult(output="1\n", exit_code=3)
    assert (await run(shell, "exit 4")).exit_code == 4
    assert await output_of(shell, "pwd; echo $NAME") == "/srv\na; b\n"


async def test_shells_that_end_again_and_again_are_followed_by_new_ones(shell: Terminal) -> None:
    for code in range(20):
        assert (await run(shell, f"exit {code}")).exit_code == code
    assert await output_of(shell, "echo usable") == "usable\n"


# -- exit codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoilt",
    [
        "PS0=",
        "PS0= PS1= PS2=",
        "unset PROMPT_COMMAND",
        "PROMPT_COMMAND='false'",
        "PROMPT_COMMAND='echo prompting'",
        "PROMPT_COMMAND=; PS0=; PS1='me> '",
        "set -x",
        "set -v",
        "set -u",
        "set -f",
        "shopt -s extdebug",
        "trap 'true' DEBUG",
        "trap 'true' ERR",
        "alias printf=false cat=false eval=false",
        "printf() { echo mine; }; cat() { echo mine; }",
        "for name in alias cd command eval exec exit export mapfile read set test true unset : [ echo; do "
        'command eval "function $name { return 1; }"; done',
        "export PATH=/nonexistent",
        "exec 2>/dev/null",
        "exec </dev/null",
        "stty -echo </dev/tty",
        "IFS=0123456789",
        "bind 'RETURN: self-insert' 2>/dev/null",
        "set -o vi",
        "HISTFILE=/dev/null; set +o history",
        "ulimit -n 20",
        "ulimit -n 9",
        "ulimit -S -f 0",
        "set -r 2>/dev/null",
        "PROMPT_COMMAND='exit 3'",
        "PROMPT_COMMAND='return 3'",
        "readonly PROMPT_COMMAND='echo prompting'",
        "TMOUT=1",
        "set -T; trap 'true' RETURN",
        "umask 777",
        "set -- a b c",
        "readonly PROMPT_COMMAND PS1",
        "unset TMUX TERM HOME PWD",
        "shopt -s nullglob failglob; set -o noclobber",
        "set -o posix",
        "LC_ALL=POSIX",
    ],
)
async def test_the_exit_code_is_right_whatever_became_of_the_shell(shell: Terminal, spoilt: str) -> None:
    await run(shell, spoilt, AT_ONCE)
    for command, code in [("(exit 7)", 7), (":", 0), ("no-such-command 2>/dev/null", 127), ("(exit 9)", 9)]:
        assert (await run(shell, command, AT_ONCE)).exit_code == code
    assert (await run(shell, "builtin echo out", AT_ONCE)).output.endswith("out\n")


async def test_a_shell_that_takes_no_more_commands_is_followed_by_a_new_one(shell: Terminal) -> None:
    await run(shell, "cd /srv; export KEPT=1")
    await run(shell, "shopt -s extdebug; trap false DEBUG")
    result = await run(shell, 'echo "$PWD|$KEPT"; (exit 3)')
    assert (result.output, result.exit_code, kinds(result)) == ("/srv|1\n", 3, ["shell_restarted"])
    assert await run(shell, "builtin echo out") == CommandResult(output="out\n", exit_code=0)


async def test_output_sent_to_a_file_leaves_the_code_known(shell: Terminal) -> None:
    await run(shell, "exec >/tmp/log 2>&1")
    assert await run(shell, "echo to the file; (exit 5)") == CommandResult(output="", exit_code=5)
    assert await run(shell, "exec >/dev/tty 2>&1") == CommandResult(output="", exit_code=0)
    assert await output_of(shell, "cat /tmp/log") == "to the file\n"


async def test_a_trace_shows_the_text_and_nothing_of_what_delivers_it(shell: Terminal) -> None:
    await run(shell, "set -x")
    for command in ("echo traced", "set -u; echo traced", "echo $(echo traced)"):
        result = await run(shell, command)
        assert ("tbench" in result.output + result.background, "echo traced\n" in result.output) == (False, True)


async def test_a_text_has_the_low_descriptors_to_itself(shell: Terminal) -> None:
    await run(shell, "exec 10>/tmp/ten 11>&10; echo one >&10")
    assert await output_of(shell, "echo two >&11; cat /tmp/ten; exec 10>&- 11>&-") == "one\ntwo\n"


async def test_exporting_everything_exports_no_text(shell: Terminal) -> None:
    await run(shell, "set -a")
    long = "x" * 300_000
    assert await output_of(shell, f": {long}\nmine=yes; env | grep -c -e {long[:50]} -e ^mine=yes") == "1\n"


@pytest.mark.parametrize("inner", ["bash", "exec bash", "bash --norc", "exec sh", "sh", "env -i bash --norc"])
async def test_a_shell_on_empty_input_ends_as_in_a_script(shell: Terminal, inner: str) -> None:
    assert not (await run(shell, f"{inner}\n", AT_ONCE)).timed_out
    assert await run(shell, "echo a; (exit 4)", AT_ONCE) == CommandResult(output="a\n", exit_code=4)


# -- output -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("printf 'abc\\b\\bX\\n'", "aXc\n"),
        ("printf '10%%\\r20%%\\r30%%\\n'", "30%\n"),
        ("printf '\\033]0;%s\\007shown\\n' \"$(seq 3000)\"", "shown\n"),
        ("printf '\\033P%s\\033\\\\shown\\n' \"$(seq 3000)\"", "shown\n"),
        ("printf '\\033[1;31mred\\033[0m\\n'", "red\n"),
        ("ls /nope 2> >(tee /tmp/err.log >&2)", "ls: cannot access '/nope': No such file or directory\n"),
        ("echo through > >(sleep 0.1; cat)", "through\n"),
        ("diff <(echo a) <(echo b)", "1c1\n< a\n---\n> b\n"),
        ("echo one; echo two >&2; echo three", "one\ntwo\nthree\n"),
        ("echo no end; printf unfinished", "no end\nunfinished"),
        ("cat; echo read nothing", "read nothing\n"),
        ("read line; echo $?", "1\n"),
        ("[ -t 0 ] || [ ! -t 1 ] || echo empty input, a terminal as output", "empty input, a terminal as output\n"),
        ("printf '\\033]133;D;0;aid=tbench\\033\\\\'; echo went on", "went on\n"),
        ('echo "$PROMPT_COMMAND" >/dev/null; eval "$PROMPT_COMMAND"; echo went on', "went on\n"),
    ],
)
async def test_exactly_what_a_reader_sees_is_returned(shell: Terminal, command: str, output: str) -> None:
    assert await output_of(shell, command) == output


async def test_what_a_job_prints_between_commands_is_shown_with_the_next(box: Container, shell: Terminal) -> None:
    waits = "until [ -e /tmp/{0} ]; do sleep 0.02; done; echo {0}"
    await run(shell, f"rm -f /tmp/late /tmp/later; ({waits.format('late')}; {waits.format('later')}) &")
    await box.shell("touch /tmp/late", timeout_sec=20)
    await asyncio.sleep(0.3)
    first = await run(shell, "echo first")
    await box.shell("touch /tmp/later", timeout_sec=20)
    await asyncio.sleep(0.3)
    second = await run(shell, "echo second")
    assert (first.output, first.background) == ("first\n", "late\n")
    assert (second.output, second.background.startswith("later\n")) == ("second\n", True)


@pytest.mark.parametrize(
    "own",
    [
        "PS1='an own prompt> '",
        "PROMPT_COMMAND='history -a'",
        "unset PROMPT_COMMAND; cd /tmp",
        "PROMPT_COMMAND=; PS1='me> '",
        "set +o emacs",
    ],
)
async def test_the_prompt_and_the_echo_are_nobodys_output(shell: Terminal, own: str) -> None:
    await run(shell, own)
    for _ in range(5):
        assert await run(shell, "echo x") == CommandResult(output="x\n", exit_code=0)


async def test_one_true_number_says_what_was_left_out(shell: Terminal) -> None:
    result = await run(shell, "seq 300000")
    assert result.gap is not None
    everything = "".join(f"{number}\n" for number in range(1, 300_001))
    head, (_, _, tail) = result.gap.head, result.output.partition(" left out ...]\n")
    assert everything.startswith(head) and everything.endswith(tail)
    assert result.gap.elided_chars == len(everything) - len(head) - len(tail)


# -- the limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100",
        "cat </dev/tty",
        "sleep 100 | cat | cat",
        "while :; do :; done",
        "sh -c 'trap \"\" INT QUIT; while :; do sleep 1; done'",
        "trap '' INT QUIT TERM; sleep 100",
        "set -e; sleep 100",
        "(sleep 100)",
        "yes",
        "stty raw -echo </dev/tty; sleep 100",
        "read x </dev/tty",
        "trap '' INT QUIT; read -e x </dev/tty && touch never",
    ],
)
@pytest.mark.parametrize("mode", ["persistent", pytest.param("fresh", marks=pytest.mark.slow)])
async def test_a_limit_holds_and_the_next_command_is_itself(open_terminal: Open, command: str, mode: str) -> None:
    terminal = await open_terminal(attended=False, shell_mode=mode)
    begun = now()
    result = await run(terminal, f"echo begun; {command}; echo never", 0.5)
    if result.timed_out:
        assert (result.exit_code, now() - begun < 4) == (None, True)
    else:
        assert mode == "fresh"  # where there is no terminal to read from
    assert result.output.startswith("begun\n")
    for number in range(3):
        assert await run(terminal, f"echo {number}", AT_ONCE) == CommandResult(output=f"{number}\n", exit_code=0)
    assert await output_of(terminal, "ls never 2>&- || echo none") == "none\n"


async def test_a_shell_whose_prompt_loses_the_key_that_interrupts_it_is_kept(shell: Terminal) -> None:
    await run(shell, "PROMPT_COMMAND+='; (trap \"\" INT; sleep 0.2)'; kept=1")
    result = await run(shell, "read x </dev/tty; echo never", 0.3)
    assert (result.timed_out, kinds(result)) == (True, [])
    assert await output_of(shell, "echo $kept") == "1\n"


async def test_a_shell_that_had_to_be_killed_is_reported(shell: Terminal) -> None:
    await run(shell, "cd /srv; export KEPT=1; lost=2")
    result = await run(shell, "trap '' INT QUIT; while :; do :; done", 0.3)
    assert (result.timed_out, kinds(result)) == (True, ["shell_restarted"])
    assert await output_of(shell, 'echo "$PWD|$KEPT|$lost"') == "/srv|1|\n"


async def test_the_keys_that_end_a_command_are_not_its_output(shell: Terminal) -> None:
    assert (await run(shell, "printf begun; sleep 100", 0.3)).output.strip() == "begun"


async def test_what_was_started_late_in_a_command_is_cleared_too(shell: Terminal) -> None:
    result = await run(shell, "sleep 0.5; setsid sh -c 'sleep 50; echo tick' & sleep 100", 0.8)
    assert "terminal_cleared" in kinds(result)


async def test_what_is_left_over_in_a_session_of_its_own_reads_no_later_command(shell: Terminal) -> None:
    reader = "setsid sh -c 'while read -r line; do echo stolen: $line; done' </dev/tty"
    # Long enough for the reader to be in its own session on a busy machine: before that, C-c ends it with the rest.
    result = await run(shell, f"({reader} &); sleep 100", 3)
    assert (result.timed_out, "terminal_cleared" in kinds(result)) == (True, True)
    for number in range(5):
        assert await output_of(shell, f"echo {number}") == f"{number}\n"


async def test_a_thief_that_was_left_on_purpose_is_stopped_before_it_harms_a_command(shell: Terminal) -> None:
    await run(shell, "(setsid cat </dev/tty >/dev/null 2>&1 &)")
    for number in range(5):
        assert await output_of(shell, f"echo {number}") == f"{number}\n"


# -- a process for each command ----------------------------------------------------------------------


async def test_a_fresh_command_has_no_terminal_and_leaves_nothing(fresh: Terminal) -> None:
    await run(fresh, "cd /tmp; export KEPT=1; set -e; f() { :; }")
    assert await output_of(fresh, 'echo "$PWD|$KEPT|$(type -t f)|$-"') == "/app|||hBc\n"
    assert await output_of(fresh, "[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none; tty </dev/tty") != ""
    assert await run(fresh, "exit 3\necho rest") == CommandResult(output="", exit_code=3)
    assert await run(fresh, "kill -9 $$") == CommandResult(output="", exit_code=137)
    assert await run(fresh, "echo a; echo b >&2; echo c") == CommandResult(output="a\nb\nc\n", exit_code=0)


async def test_a_start_directory_that_was_made_again_is_entered_again(box: Container, open_terminal: Open) -> None:
    terminal = await open_terminal(attended=False, shell_mode="fresh")
    await run(terminal, "cd / && rm -rf /app && mkdir /app")
    assert await run(terminal, "touch here; pwd; ls") == CommandResult(output="/app\nhere\n", exit_code=0)


async def test_a_fresh_commands_survivors_keep_their_output_at_the_limit(fresh: Terminal) -> None:
    survivor = "setsid sh -c 'sleep 0.6; echo alive' & sleep 100"
    assert kinds(await run(fresh, survivor, 0.3)) == []
    await asyncio.sleep(1.0)
    assert (await run(fresh, "echo next")).background == "alive\n"


async def test_a_fresh_commands_jobs_go_on_and_are_heard(fresh: Terminal) -> None:
    assert await run(fresh, "(sleep 0.2; echo late) &", AT_ONCE) == CommandResult(output="", exit_code=0)
    await asyncio.sleep(0.4)
    result = await run(fresh, "echo next")
    assert (result.output, result.background) == ("next\n", "late\n")


# -- what else happens to a terminal -------------------------------------------------------------------


async def test_keys_and_commands_can_take_turns(shell: Terminal) -> None:
    await shell.send(Keys("echo typed", 0.1))
    assert await press(shell, "Enter")
    assert await output_of(shell, "echo delivered") == "delivered\n"
    assert (await shell.send(Keys("(exit 3)\n", LONG))).exit_code == 3
    assert await output_of(shell, "echo $?") == "3\n"


async def test_a_command_after_half_a_line_was_typed_is_itself(shell: Terminal) -> None:
    await shell.send(Keys("echo half ", 0.1))
    assert (await run(shell, "echo whole", AT_ONCE)).output.endswith("whole\n")
    assert await output_of(shell, "echo next") == "next\n"


async def test_a_command_that_kills_the_terminal_says_so(box: Container, open_terminal: Open) -> None:
    terminal = await open_terminal(attended=False)
    result = await run(terminal, f"({KILL_TMUX})")
    assert (result.exit_code, kinds(result)[-1]) == (None, "terminal_cut")
    assert await output_of(terminal, "echo usable") == "usable\n"


async def test_a_stopped_command_gives_the_prompt_back(shell: Terminal) -> None:
    assert not (await run(shell, "sh -c 'kill -STOP $$'", AT_ONCE)).timed_out
    assert (await run(shell, "exit 3\necho went on", AT_ONCE)).exit_code == 3


@pytest.mark.slow
async def test_many_terminals_on_a_busy_machine_deliver_every_command_once(box: Container, open_terminal: Open) -> None:
    async def work(number: int) -> None:
        terminal = await open_terminal(attended=False)
        for turn in range(30):
            said = await run(
                terminal, f"echo {turn} >> /tmp/turns-{number}; wc -l < /tmp/turns-{number}; (exit {turn})"
            )
            assert said == CommandResult(output=f"{turn + 1}\n", exit_code=turn)

    async with under_load(box):
        work_done: list[Any] = await asyncio.gather(*(work(number) for number in range(8)))
    assert len(work_done) == 8
