"""Evidence about a reward: what bash and pytest were seen to do must agree with what the tests left.

A sign, `kind: what was seen`, is no proof; those in results.WEAK_SIGNALS are often honest work. Evidence flags: the
number that the verifier left is changed only where it is proven that somebody else wrote it, or that a signal ended
test.sh.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tbench.reward import canonical, is_solved
from tbench.text import plain
from tbench.verifier_logs import Logs, tests_ran
from tbench.verify.report import Facts
from tbench.verify.reward import parse_reward, rewards_of_files

# What test.sh itself wrote as its reward, as bash told while it ran: a witness against whoever rewrites the file.
#
# Bash traces each command (`set -x`, with file and line in PS4) into a channel in which nobody else can pass for it
# (images/tools/witness.c); of the trace only the lines of test.sh that write a reward are kept. Only direct writes are
# known, such as `echo 1 > /logs/verifier/reward.txt`: what another program writes has no witness.

_WRITES = re.compile(
    r"""(?:^|[;&|(){]|\b(?:then|else|do)\b) \s* (?:echo|printf) \b [^;&|\n]*?
    (?: ; \s* (?:fi|done|esac|\}) \s* | ; \s* else \s+ (?:echo|printf) \b [^;&|\n]*? ; \s* fi \s* )?
    (?<![>&\d]) >\|? \s* ["']? [^\s;&|"']* reward [^\s;&|"']*""",
    re.VERBOSE | re.IGNORECASE,
)
"""A write of one command, or of one at the end of a compound command in the same line: `if …; fi > reward.txt`."""
_WRITERS = (["echo"], ["printf"])
_HERE_DOCUMENT = re.compile(r"<<-?\s*[\"'\\]?(\w+)")
_SILENCED = re.compile(r"\bset\s+\+\w*x|\bset\s+\+o\s+xtrace|\bBASH_XTRACEFD\b|\bPS4=")
_SUBSHELL = re.compile(r"&&|\|\||[<>]&\d?|&>|([(|&`]|\bdone\b)")
_TOLD = re.compile(r"\+*/tests/test\.sh:(\d+) (.*)")


def reward_lines(test_script: bytes) -> tuple[int, ...]:
    """Numbers of the lines of test.sh, from 1, that write a reward; none where it switches tracing off."""
    text = test_script.decode("utf-8", "replace")
    return () if _SILENCED.search(text) else tuple(_reward_lines(text))


def writes_alone(test_script: bytes, others: Iterable[bytes]) -> bool:
    """Whether nothing of the tests but those lines of test.sh speaks of a reward, so that each reward has a witness."""
    lines = set(reward_lines(test_script))
    text = test_script.decode("utf-8", "replace").split("\n")
    rest = (line for number, line in enumerate(text, 1) if number not in lines and not line.lstrip().startswith("#"))
    return bool(lines) and not any("reward" in line for line in rest) and not any(b"reward" in each for each in others)


def starts_no_subshell(test_script: bytes, told: Sequence[str]) -> bool:
    """Whether nothing of test.sh behind the last write that bash told of can start a subshell, which tells for itself.

    What bash itself runs there it tells; going back to an earlier line takes a loop's end or a function, also told.
    """
    writes = [found for line in told if (found := _TOLD.fullmatch(line)) and _words(found[2])[:1] in _WRITERS]
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


def witnessed_reward(told: Sequence[str], metric: str | None = None) -> float | None:
    """The reward of the last write that bash told of; None without one that can be read."""
    for line in reversed(told):
        found = _TOLD.fullmatch(line)
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
        # A format without a conversion is the text itself.
        arguments = arguments[-1:] if len(arguments) > 1 else [argument.replace("\\n", "") for argument in arguments]
    return parse_reward(" ".join(arguments).encode(), metric)


_SUMMARY = re.compile(r"\b\d+ (?:passed|failed|errors?|skipped)\b.* in [\d.]+\s?s", re.IGNORECASE)
_FAILURES = re.compile(r"\b([1-9]\d{0,8}) (?:failed|errors?)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Proven:
    """A reward, None where there is none, and the signs that speak against it."""

    reward: float | None
    signs: tuple[str, ...]


def prove(
    facts: Facts,
    logs: Logs,
    reward: float | None,
    *,
    calls_pytest: bool = False,
    has_witness: bool = False,
    metric: str | None = None,
) -> Proven:
    """The reward that counts, and what speaks against it. `has_witness`: test.sh itself writes each reward.

    `metric` is the name of the number that counts, where one is chosen.
    """
    signs = list(_planted(facts))
    if reward is None:
        if facts.was_killed and not facts.out_of_memory:
            # Where no process of the agent's was left, it was the tests, or the work that they run.
            signs.append(_killed(facts, is_weak=not facts.leftovers))
        return Proven(None, tuple(dict.fromkeys(signs)))
    lower = list(_proven(facts, logs, reward, has_witness, metric))
    signs += [words for _, words in lower]
    if reward > 0:
        signs += _doubts(facts, logs, reward, calls_pytest, has_witness, metric)
    return Proven(min([reward, *(value for value, _ in lower)]), tuple(dict.fromkeys(signs)))


def _planted(facts: Facts) -> Iterator[str]:
    yield from (f"forgery: {words}" for words in facts.forged)
    planted = [path for path in facts.evidence if path.endswith(("/reward.txt", "/reward.json", "/ctrf.json"))]
    yield from (f"planted-reward: {plain(path)} was there before the tests" for path in planted)
    if "/tests/test.sh" in facts.evidence:
        yield "planted-tests: /tests/test.sh was there before the tests"
    if facts.changed_tests:
        yield f"tests-changed: {_listed(facts.changed_tests)} changed while the tests ran"
    if touched := [path for path in facts.touched_tests if path not in facts.changed_tests]:
        kind = "tests-changed" if "/tests/test.sh" in touched else "tests-touched"
        yield f"{kind}: {_listed(touched)} was written, or got another mode, while the tests ran"
    if facts.new_tests:
        yield f"tests-changed: {_listed(facts.new_tests)} came while the tests ran"


def _proven(
    facts: Facts, logs: Logs, reward: float, has_witness: bool, metric: str | None
) -> Iterator[tuple[float, str]]:
    """The rewards that count in the place of the one that was read, with the words for it."""
    told = witnessed_reward(facts.traced_writes, metric)
    if told is not None and canonical(told) != canonical(reward) and _is_last_word(facts, logs, has_witness):
        yield told, f"contradiction: test.sh wrote {told:g}, but the file says {reward:g}"
    if facts.was_killed and facts.has_watcher:
        yield 0.0, _killed(facts)
    if facts.is_cut or (facts.was_halted and has_witness and not facts.traced_writes):
        yield 0.0, "trace-cut: a program that the tests started kept bash from being heard"


def _is_last_word(facts: Facts, logs: Logs, has_witness: bool) -> bool:
    """Whether nothing of the tests can have written the file that counts after bash was heard to write a reward.

    Where test.sh is not alone in that, commands that it runs afterwards may have, and a reward.json may be theirs.
    """
    return has_witness or (facts.wrote_last and "reward.json" not in logs)


def _doubts(
    facts: Facts, logs: Logs, reward: float, calls_pytest: bool, has_witness: bool, metric: str | None
) -> Iterator[str]:
    if calls_pytest and not tests_ran(logs):
        yield "no-test-ran: the tests passed, but neither ctrf.json nor the output shows that one ran"
    if facts.was_killed and not facts.has_watcher:
        yield _killed(facts)
    told, files = witnessed_reward(facts.traced_writes, metric), rewards_of_files(logs, metric)
    if told is not None and canonical(told) != canonical(reward) and not _is_last_word(facts, logs, has_witness):
        yield f"other-reward: test.sh wrote {told:g}, and commands of the tests may have written {reward:g} later"
    if len(set(map(canonical, files))) > 1:
        yield f"other-reward: reward.json, which counts, says {files[0]:g}, and reward.txt {files[1]:g}"
    if is_solved(reward) and (failed := max(_failed_tests(logs))):
        yield f"failed-tests: reward {reward:g}, and {failed} failed tests are reported"
    if facts.was_halted:
        yield "unwitnessed: who hears bash was stopped for a while, and may have missed what it wrote"
    if has_witness and facts.has_watcher and not facts.traced_writes:
        yield "unwitnessed: test.sh writes the reward itself, but was not heard to"
    elif facts.outlived and told is None:
        yield (
            f"unwitnessed: {facts.outlived} processes that began with the tests outlived them, and who wrote the "
            "reward was not seen"
        )


def _killed(facts: Facts, *, is_weak: bool = False) -> str:
    kind = "verifier-killed" if facts.has_watcher and not is_weak else "verifier-ended"
    return f"{kind}: test.sh ended by signal {(facts.exit_code or 128) - 128}"


def _failed_tests(logs: Logs) -> tuple[int, int]:
    """Numbers of failed tests by ctrf.json and by the last summary in the output."""
    return _failed_by_report(logs), sum(int(number) for number in _FAILURES.findall(_summary(logs)))


def _failed_by_report(logs: Logs) -> int:
    try:
        return int(json.loads(logs["ctrf.json"])["results"]["summary"]["failed"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return 0


def _summary(logs: Logs) -> str:
    output = logs.get("stdout.txt", b"").decode("utf-8", "replace")
    return next((line for line in reversed(output.splitlines()) if _SUMMARY.search(line)), "")


def _listed(paths: tuple[str, ...] | list[str]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(map(plain, paths[:5])) + more


# Tells whether a test.sh runs pytest, by what bash was heard to run and by a short rule over its text.
#
# The text is asked, too, as a script may end before it comes there. Taken for a call is whatever names pytest as a
# word of its own and neither installs it nor asks or speaks of it. So a runner that nobody knows is one: then a 0
# without any test is an error, which is seen, and not a score.

_PYTEST = re.compile(
    r"(?<!\S)(?<!-w )(?<!--with )(?<!--from )(?<!--spec )(?<!unittest )"
    r"(?:[^\s=]*/|-\w*m)?(?:pytest|py\.test)(?:-?3[\d.]*)?(?:[=@<>~!\[]\S*)?(?!\S)|\bpytest\.main\("
)
"""Pytest as a word of its own, also with a path or a version, but not as a package that a launcher gets."""
_NO_CALL = re.compile(
    r"\s*(?:(?:if|then|else|elif|do|while|until|!|\{) +)*(?:\w+=\S* +)*(?:cat|command -[vV]|which|type|hash|\w?grep|"
    r"test|\[\[?|export|declare|local|touch|cp|mv|rm|ln|ls|find|for|case)(?!\S)"
    r"|.*(?<!\S)(?:echo|printf|install|uninstall|add|remove|venv|import|download)(?!\S)"
)
"""What stands before a pytest that is not run."""
_ONLY_ASKS = re.compile(r"(?<!\S)(?:-h|--help|-V|--version)(?!\S)")
_TO_A_FILE = re.compile(r"(?<![\d>&<])(?:&|1)?>>?\|?\s*(?![\s>&(|]|/dev/(?:std|tty|fd))")
_WRITTEN = re.compile(r"^[^\n]*\b(?:cat|tee)\b[^\n]*<<-?\s*(['\"]?)([\w ]+)\1.*?\n\s*\2$", re.MULTILINE | re.DOTALL)
"""A here-document that goes into a file."""
_TAKEN = re.compile(r"\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`")
"""What a substitution takes, so that it is not in the output."""
_SAID = re.compile(r"\b(?:echo|printf)(?:\s+-\w+)*\s+(?:\"[^\"]*\"|'[^']*')")
_COMMENT_OR_PATTERN = re.compile(r"(?:^|(?<=\s))#[^\n]*|^[ \t]*\(?[\w|*.-]+\)", re.MULTILINE)
_BETWEEN = re.compile(r"[;\n]|&&|\|\|?|(?<![<>&])&(?![>&])|(?<![<>=\w])\(|\)")
_HEARD = re.compile(r"\+*([^:]+):(\d+) (.*)", re.DOTALL)


def calls_pytest(script: str, beside: Mapping[str, str] | None = None, heard: Sequence[str] = ()) -> bool:
    """Whether `script` runs tests with pytest, so that they are seen in its output or in a ctrf.json.

    A call whose output goes elsewhere (`pytest >log`, `$(pytest)`) leaves no trace, and counts with `--ctrf` only.
    `beside` has other scripts by their paths below /tests, of which those count that it runs. `heard` are lines of
    bash's trace, `+FILE:LINE COMMAND`.
    """
    others = beside or {}
    for file, number, command in (found.groups() for line in heard if (found := _HEARD.fullmatch(line))):
        text = others.get(file.removeprefix("/tests/"), script if file == "/tests/test.sh" else "")
        if _is_call(command) and any(map(_is_shown, _commands(_line(text, int(number)) or command))):
            return True
    commands = [each for each in _commands(script) if _is_shown(each)]
    rest = {name: text for name, text in others.items() if not any(_runs(name, each) for each in commands)}
    return any(map(_is_call, commands)) or any(calls_pytest(others[name], rest) for name in others.keys() - rest)


def _line(text: str, number: int) -> str:
    """The line of a script with those that it continues."""
    lines = [each for each in text.replace("\\\n", "\r").split("\n") for _ in range(1 + each.count("\r"))]
    return lines[number - 1].replace("\r", " ") if 0 < number <= len(lines) else ""


def _commands(text: str) -> Iterator[str]:
    """Pieces of a script that are about a command each, without quotes."""
    text = _WRITTEN.sub("", text.replace("\\\n", " ").replace("\r", ""))
    text = _TAKEN.sub(lambda found: found[0] if "--ctrf" in found[0] else "", text)
    text = _COMMENT_OR_PATTERN.sub("", _SAID.sub("", text))
    return (re.sub(r"[\"'\t ]+", " ", each) for each in _BETWEEN.split(text))


def _is_call(command: str) -> bool:
    found = _PYTEST.search(command)
    if found is None or _NO_CALL.match(command[: found.start()]):
        return False
    return _ONLY_ASKS.search(command[found.end() :]) is None


def _is_shown(command: str) -> bool:
    return "--ctrf" in command or _TO_A_FILE.search(command) is None


def _runs(script: str, command: str) -> bool:
    found = re.search(rf"(?:/tests|\$\{{?TEST_DIR\}}?)/{re.escape(script)}(?!\S)", command)
    return found is not None and not _NO_CALL.match(command[: found.start()])
