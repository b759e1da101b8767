"""What test.sh itself wrote as its reward, as bash told while it ran: a witness against whoever rewrites the file.

Bash traces each command (`set -x`, with file and line in PS4) into a channel in which nobody else can pass for it
(images/tools/witness.c); of the trace only the lines of test.sh that write a reward are kept. Only direct writes are
known, such as `echo 1 > /logs/verifier/reward.txt`: what another program writes has no witness.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from tbench.verify.reward import parse_reward

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
