"""Tells whether a test.sh runs pytest, by what bash was heard to run and by a short rule over its text.

The text is asked, too, as a script may end before it comes there. Taken for a call is whatever names pytest as a word
of its own and neither installs it nor asks or speaks of it. So a runner that nobody knows is one: then a 0 without any
test is an error, which is seen, and not a score.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

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
