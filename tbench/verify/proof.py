"""Checks a reward against other evidence: bash's trace of test.sh, and what pytest reported.

A sign, `kind: observation`, only flags a verdict. Honest work often causes the kinds in results.WEAK_SIGNALS. The
reward itself is changed only if another process is proven to have written it, if a signal ended test.sh, or if bash's
trace was cut off.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tbench.reward import canonical, is_solved
from tbench.text import names_text, plain
from tbench.verifier_logs import Logs, tests_ran
from tbench.verify.report import Facts
from tbench.verify.reward import parse_reward, rewards_of_files

# -- the rewards that test.sh writes -------------------------------------------------------------
#
# Bash traces each command (`set -x`, with file and line in PS4) into a channel in which no other process can pose as
# bash (images/tools/witness.c). Only lines of test.sh that write a reward are kept. They show when another process has
# rewritten the file. Only direct writes are recognised, such as `echo 1 > /logs/verifier/reward.txt`.

_WRITES = re.compile(
    r"""(?:^|[;&|(){]|\b(?:then|else|do)\b) \s* (?:echo|printf) \b [^;&|\n]*?
    (?: ; \s* (?:fi|done|esac|\}) \s* | ; \s* else \s+ (?:echo|printf) \b [^;&|\n]*? ; \s* fi \s* )?
    (?<![>&\d]) >\|? \s* ["']? [^\s;&|"']* reward [^\s;&|"']*""",
    re.VERBOSE | re.IGNORECASE,
)
"""A command that writes a reward, or a compound command on one line that does: `if …; fi > reward.txt`."""
_WRITERS = (["echo"], ["printf"])
_HERE_DOCUMENT = re.compile(r"<<-?\s*[\"'\\]?(\w+)")
_ENDS_TRACE = re.compile(r"\bset\s+\+\w*x|\bset\s+\+o\s+xtrace|\bBASH_XTRACEFD\b|\bPS4=")
_SUBSHELL = re.compile(r"&&|\|\||[<>]&\d?|&>|([(|&`]|\bdone\b)")
_TRACED_WRITE = re.compile(r"\+*/tests/test\.sh:(\d+) (.*)")


def reward_lines(test_script: bytes) -> tuple[int, ...]:
    """Return the numbers, from 1, of the lines of test.sh that write a reward; none if it turns tracing off."""
    text = test_script.decode("utf-8", "replace")
    return () if _ENDS_TRACE.search(text) else tuple(_reward_lines(text))


def is_only_reward_writer(test_script: bytes, others: Iterable[bytes]) -> bool:
    """Whether the tests mention a reward only where test.sh writes one, so that every write is traced."""
    lines = set(reward_lines(test_script))
    text = test_script.decode("utf-8", "replace").split("\n")
    rest = (line for number, line in enumerate(text, 1) if number not in lines and not line.lstrip().startswith("#"))
    return bool(lines) and not any("reward" in line for line in rest) and not any(b"reward" in each for each in others)


def starts_no_subshell(test_script: bytes, traced_writes: Sequence[str]) -> bool:
    """Whether test.sh cannot start a subshell, which has a trace of its own, after its last traced write.

    Commands that bash runs itself are traced, also if it returns to an earlier line at the end of a loop or to call a
    function.
    """
    found = (_TRACED_WRITE.fullmatch(line) for line in traced_writes)
    writes = [match for match in found if match and _words(match[2])[:1] in _WRITERS]
    lines = test_script.decode("utf-8", "replace").split("\n")[int(writes[-1][1]) - 1 :] if writes else []
    write = _WRITES.search(lines[0]) if lines else None
    if write is None:
        return False
    rest = "\n".join(re.sub(r"(?:^|\s)#.*", "", line) for line in [lines[0][write.end() :], *lines[1:]])
    return not any(found[1] for found in _SUBSHELL.finditer(rest))


def _reward_lines(text: str) -> Iterator[int]:
    ends: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if ends:
            if line.strip() == ends[0]:
                ends.pop(0)
            continue
        if _WRITES.search(line):
            yield number
        ends += _HERE_DOCUMENT.findall(line)


def traced_reward(traced_writes: Sequence[str], metric: str | None = None) -> float | None:
    """Return the reward of the last traced write; None if none can be parsed."""
    for line in reversed(traced_writes):
        found = _TRACED_WRITE.fullmatch(line)
        words = _words(found[2]) if found else []
        if words[:1] in _WRITERS and (value := _value(words, metric)) is not None:
            return value
    return None


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return []


def _value(words: Sequence[str], metric: str | None) -> float | None:
    arguments = [word for at, word in enumerate(words[1:]) if not (at == 0 and re.fullmatch(r"-[neE]+|--", word))]
    if words[0] == "printf":
        # A format without conversions is printed as it is.
        arguments = arguments[-1:] if len(arguments) > 1 else [argument.replace("\\n", "") for argument in arguments]
    return parse_reward(" ".join(arguments).encode(), metric)


# -- signs against a reward ----------------------------------------------------------------------

_SUMMARY = re.compile(r"\b\d+ (?:passed|failed|errors?|skipped)\b.* in [\d.]+\s?s", re.IGNORECASE)
_FAILURES = re.compile(r"\b([1-9]\d{0,8}) (?:failed|errors?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class CheckedReward:
    """The reward that counts, and the signs against it."""

    reward: float | None
    """None if the verifier reached no reward."""
    signs: tuple[str, ...]


def check_reward(
    facts: Facts,
    logs: Logs,
    reward: float | None,
    *,
    calls_pytest: bool = False,
    is_only_writer: bool = False,
    metric: str | None = None,
) -> CheckedReward:
    """Check the reward that was read against other evidence. `is_only_writer`: only test.sh writes rewards, all traced.

    `metric` is the name of the number that counts, if one was chosen.
    """
    signs = list(_general_signs(facts))
    if reward is None:
        if facts.was_killed and not facts.out_of_memory:
            # If the agent left no process, the tests sent the signal, or the work that they run.
            signs.append(_killed_sign(facts, is_weak=not facts.leftovers))
        return CheckedReward(None, tuple(dict.fromkeys(signs)))
    proven = list(_proven_rewards(facts, logs, reward, is_only_writer, metric))
    signs += [sign for _, sign in proven]
    if reward > 0:
        signs += _doubts(facts, logs, reward, calls_pytest, is_only_writer, metric)
    return CheckedReward(min([reward, *(value for value, _ in proven)]), tuple(dict.fromkeys(signs)))


def _general_signs(facts: Facts) -> Iterator[str]:
    """Yield the signs that do not depend on the reward."""
    yield from (f"forgery: {words}" for words in facts.forged)
    planted = [path for path in facts.evidence if path.endswith(("/reward.txt", "/reward.json", "/ctrf.json"))]
    yield from (f"planted-reward: {plain(path)} was there before the tests" for path in planted)
    if "/tests/test.sh" in facts.evidence:
        yield "planted-tests: /tests/test.sh was there before the tests"
    if facts.changed_tests:
        yield f"tests-changed: {names_text(map(plain, facts.changed_tests))} changed while the tests ran"
    if touched := [path for path in facts.touched_tests if path not in facts.changed_tests]:
        kind = "tests-changed" if "/tests/test.sh" in touched else "tests-touched"
        yield f"{kind}: {names_text(map(plain, touched))} was written, or got another mode, while the tests ran"
    if facts.new_tests:
        yield f"tests-changed: {names_text(map(plain, facts.new_tests))} appeared while the tests ran"


def _proven_rewards(
    facts: Facts, logs: Logs, reward: float, is_only_writer: bool, metric: str | None
) -> Iterator[tuple[float, str]]:
    """Yield proven rewards, each with a sign. A lower one replaces the reward that was read."""
    traced = traced_reward(facts.traced_writes, metric)
    if traced is not None and canonical(traced) != canonical(reward) and _is_final_write(facts, logs, is_only_writer):
        yield traced, f"contradiction: test.sh wrote {traced:g}, but the file says {reward:g}"
    if facts.was_killed and facts.has_watcher:
        yield 0.0, _killed_sign(facts)
    if facts.is_cut or (facts.was_halted and is_only_writer and not facts.traced_writes):
        yield 0.0, "trace-cut: a program that the tests started cut bash's trace off"


def _is_final_write(facts: Facts, logs: Logs, is_only_writer: bool) -> bool:
    """Whether the tests cannot have written the file that counts after the last traced write.

    Unless test.sh is the only writer, commands that it runs later may have written it, or a reward.json.
    """
    return is_only_writer or (facts.wrote_last and "reward.json" not in logs)


def _doubts(
    facts: Facts, logs: Logs, reward: float, calls_pytest: bool, is_only_writer: bool, metric: str | None
) -> Iterator[str]:
    """Yield the signs that flag a reward above 0 without changing it."""
    if calls_pytest and not tests_ran(logs):
        yield "no-test-ran: the tests passed, but neither ctrf.json nor the output shows that one ran"
    if facts.was_killed and not facts.has_watcher:
        yield _killed_sign(facts)
    traced, files = traced_reward(facts.traced_writes, metric), rewards_of_files(logs, metric)
    if (
        traced is not None
        and canonical(traced) != canonical(reward)
        and not _is_final_write(facts, logs, is_only_writer)
    ):
        yield f"other-reward: test.sh wrote {traced:g}, and commands of the tests may have written {reward:g} later"
    if len(set(map(canonical, files))) > 1:
        yield f"other-reward: reward.json, which counts, says {files[0]:g}, and reward.txt {files[1]:g}"
    if is_solved(reward) and (failed := max(_failed_tests(logs))):
        yield f"failed-tests: reward {reward:g}, and {failed} failed tests are reported"
    if facts.was_halted:
        yield "unwitnessed: the reader of bash's trace was stopped for a while, and may have missed a write"
    if is_only_writer and facts.has_watcher and not facts.traced_writes:
        yield "unwitnessed: test.sh writes the reward itself, but bash's trace shows no write"
    elif facts.outlived and traced is None:
        yield (
            f"unwitnessed: {facts.outlived} processes that started with the tests outlived them, and the writer of the "
            "reward is unknown"
        )


def _killed_sign(facts: Facts, *, is_weak: bool = False) -> str:
    kind = "verifier-killed" if facts.has_watcher and not is_weak else "verifier-ended"
    return f"{kind}: test.sh ended by signal {(facts.exit_code or 128) - 128}"


def _failed_tests(logs: Logs) -> tuple[int, int]:
    """Return the numbers of failed tests in ctrf.json and in the last summary of the output."""
    return _failed_by_report(logs), sum(int(number) for number in _FAILURES.findall(_summary(logs)))


def _failed_by_report(logs: Logs) -> int:
    try:
        return int(json.loads(logs["ctrf.json"])["results"]["summary"]["failed"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return 0


def _summary(logs: Logs) -> str:
    output = logs.get("stdout.txt", b"").decode("utf-8", "replace")
    return next((line for line in reversed(output.splitlines()) if _SUMMARY.search(line)), "")


# -- calls of pytest -----------------------------------------------------------------------------
#
# Bash's trace shows whether test.sh runs pytest. Its text counts, too, as a script may end before the call.
# Any use of the word pytest that neither installs, queries nor prints it counts as a call. So an unknown way to run it
# counts, too: then a 0 without tests is an error, not a score.

_PYTEST = re.compile(
    r"(?<!\S)(?<!-w )(?<!--with )(?<!--from )(?<!--spec )(?<!unittest )"
    r"(?:[^\s=]*/|-\w*m)?(?:pytest|py\.test)(?:-?3[\d.]*)?(?:[=@<>~!\[]\S*)?(?!\S)|\bpytest\.main\("
)
"""Pytest as a separate word, possibly with a path or a version, but not as a package that a launcher installs."""
_NO_CALL = re.compile(
    r"\s*(?:(?:if|then|else|elif|do|while|until|!|\{) +)*(?:\w+=\S* +)*(?:cat|command -[vV]|which|type|hash|\w?grep|"
    r"test|\[\[?|export|declare|local|touch|cp|mv|rm|ln|ls|find|for|case)(?!\S)"
    r"|.*(?<!\S)(?:echo|printf|install|uninstall|add|remove|venv|import|download)(?!\S)"
)
"""Text before the word pytest in commands that do not run it."""
_QUERIES = re.compile(r"(?<!\S)(?:-h|--help|-V|--version)(?!\S)")
_REDIRECTS = re.compile(r"(?<![\d>&<])(?:&|1)?>>?\|?\s*(?![\s>&(|]|/dev/(?:std|tty|fd))")
_WRITTEN_DOCUMENT = re.compile(
    r"^[^\n]*\b(?:cat|tee)\b[^\n]*<<-?\s*(['\"]?)([\w ]+)\1.*?\n\s*\2$", re.MULTILINE | re.DOTALL
)
"""A here-document that is written to a file."""
_SUBSTITUTION = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")
"""A command substitution, whose output is not printed."""
_PRINTS = re.compile(r"\b(?:echo|printf)(?:\s+-\w+)*\s+(?:\"[^\"]*\"|'[^']*')")
_COMMENT_OR_PATTERN = re.compile(r"(?:^|(?<=\s))#[^\n]*|^[ \t]*\(?[\w|*.-]+\)", re.MULTILINE)
_SEPARATOR = re.compile(r"[;\n]|&&|\|\|?|(?<![<>&])&(?![>&])|(?<![<>=\w])\(|\)")
_TRACED_COMMAND = re.compile(r"\+*([^:]+):(\d+) (.*)", re.DOTALL)


def calls_pytest(script: str, others: Mapping[str, str] | None = None, traced: Sequence[str] = ()) -> bool:
    """Whether `script` runs tests with pytest, so that its output or a ctrf.json shows them.

    A call whose output is redirected (`pytest >log`, `$(pytest)`) leaves no trace, and counts only with `--ctrf`.
    `others` are other scripts by path below /tests; those that the script runs count. `traced` are lines of bash's
    trace, `+FILE:LINE COMMAND`.
    """
    others = others or {}
    for file, number, command in (found.groups() for line in traced if (found := _TRACED_COMMAND.fullmatch(line))):
        text = others.get(file.removeprefix("/tests/"), script if file == "/tests/test.sh" else "")
        if _is_call(command) and any(map(_shows_output, _commands(_full_line(text, int(number)) or command))):
            return True
    commands = [each for each in _commands(script) if _shows_output(each)]
    rest = {name: text for name, text in others.items() if not any(_runs_script(name, each) for each in commands)}
    return any(map(_is_call, commands)) or any(calls_pytest(others[name], rest) for name in others.keys() - rest)


def _full_line(text: str, number: int) -> str:
    """Return a line of a script, joined with the lines that continue it or that it continues."""
    lines = [each for each in text.replace("\\\n", "\r").split("\n") for _ in range(1 + each.count("\r"))]
    return lines[number - 1].replace("\r", " ") if 0 < number <= len(lines) else ""


def _commands(text: str) -> Iterator[str]:
    """Split a script into its commands, without quotes."""
    text = _WRITTEN_DOCUMENT.sub("", text.replace("\\\n", " ").replace("\r", ""))
    text = _SUBSTITUTION.sub(lambda found: found[0] if "--ctrf" in found[0] else "", text)
    text = _COMMENT_OR_PATTERN.sub("", _PRINTS.sub("", text))
    return (re.sub(r"[\"'\t ]+", " ", each) for each in _SEPARATOR.split(text))


def _is_call(command: str) -> bool:
    found = _PYTEST.search(command)
    if found is None or _NO_CALL.match(command[: found.start()]):
        return False
    return _QUERIES.search(command[found.end() :]) is None


def _shows_output(command: str) -> bool:
    return "--ctrf" in command or _REDIRECTS.search(command) is None


def _runs_script(script: str, command: str) -> bool:
    found = re.search(rf"(?:/tests|\$\{{?TEST_DIR\}}?)/{re.escape(script)}(?!\S)", command)
    return found is not None and not _NO_CALL.match(command[: found.start()])
