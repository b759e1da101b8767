"""Analyses Dockerfiles: which builder they need, and what their builds can reach.

Dockerfiles are untrusted: if a line may be read in several ways, the cautious answer is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

NO_ARGS: Mapping[str, str] = MappingProxyType({})
_NEEDS_BUILDKIT = re.compile(
    r"(?:ONBUILD\s+)*(?:RUN|COPY|ADD)\s+(?:--\S+\s+)*(--(?:mount|chmod|link)\b)", re.IGNORECASE
)
_MAY_HAVE_HEREDOC = re.compile(r"(?:ONBUILD\s+)*(?:RUN|COPY|ADD)\s+(?:--\S+\s+)*(.*<<.*)", re.IGNORECASE | re.DOTALL)
_HEREDOC = re.compile(r"\d*<<(-?)\s*([^<]+)")
_PART_OF_WORD = re.compile(
    r"""(?P<quoted>'[^']*'|"(?:\\.|[^"\\])*")|(?P<escaped>\\.)|(?P<blank>\s+)|(?P<plain><<\s*|\$\{[^}]*\}|[^'"])""",
    re.DOTALL,
)
_DIRECTIVE = re.compile(r"#\s*([a-z][a-z0-9]*)\s*=\s*(.+?)\s*", re.IGNORECASE)
_ESCAPE_DIRECTIVE = re.compile(r"^\s*#\s*escape\s*=", re.MULTILINE | re.IGNORECASE)
_ADD = re.compile(r"(?:ONBUILD\s+)*ADD\s+(?:--\S+\s+)*(.*)", re.IGNORECASE | re.DOTALL)
_MAY_BE_A_URL = re.compile(r"[:$\\]")
"""A URL contains a colon, which a variable or an escape may hide."""
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_ARG = re.compile(r"ARG\s+(.*)", re.IGNORECASE)
_ON_PLATFORM = re.compile(r"FROM\s+--platform=\S*?\$\{?((?:TARGET|BUILD)[A-Z]+)", re.IGNORECASE)
_PLATFORM = re.compile(r"(?:TARGET|BUILD)(?:PLATFORM|OS|ARCH)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_REFERENCE = re.compile(r"[\w./:@-]+", re.ASCII)


def read_dockerfile(path: Path) -> str:
    """Read the Dockerfile at `path`; invalid UTF-8 is replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class _Instruction:
    """An instruction joined into one line, without the bodies of its heredocs."""

    text: str
    line: int
    """Number of its first line."""
    heredocs: tuple[str, ...]
    """Delimiters of its heredocs."""
    bodies: range
    """Line numbers of the heredocs' bodies."""


def needs_buildkit(dockerfile: str) -> str | None:
    """Return the first feature that Docker's classic builder lacks, with its line; None if any builder will do."""
    declared = platform_args(dockerfile)
    for each in _instructions(dockerfile):
        if each.heredocs:
            return _named(each)
        if (variable := _ON_PLATFORM.match(each.text)) and variable[1] not in declared:
            return f"${variable[1]} without ARG in line {each.line}"
        if option := _NEEDS_BUILDKIT.match(each.text):
            return f"{option[1]} in line {each.line}"
    return None


def heredoc_around(dockerfile: str, line: int | None) -> str | None:
    """Describe the heredoc whose body contains `line`, or the first one if `line` is None; None if there is none."""
    for each in _instructions(dockerfile):
        if each.heredocs and (line is None or line in each.bodies):
            return _named(each)
    return None


def _named(instruction: _Instruction) -> str:
    return f"the heredoc {instruction.heredocs[0]} in line {instruction.line}"


def without_syntax(dockerfile: str) -> str:
    """Return the Dockerfile without its `syntax` directive; line numbers of instructions do not change."""
    lines = dockerfile.split("\n")
    count = next(at for at, line in enumerate([*lines, ""]) if not _DIRECTIVE.fullmatch(line.lstrip("\ufeff").strip()))
    kept = [line for line in lines[:count] if directive(line, "syntax") is None]
    return "\n".join([*kept, *[""] * (count - len(kept)), *lines[count:]])


def directive(dockerfile: str, name: str) -> str | None:
    """Return the value of a parser directive such as `syntax`, from the comments at the top."""
    for line in dockerfile.removeprefix("\ufeff").split("\n"):
        if (found := _DIRECTIVE.fullmatch(line.strip())) is None:
            return None
        if found[1].lower() == name:
            return found[2]
    return None


def platform_args(dockerfile: str) -> set[str]:
    """Return the platform variables declared without a value, which Docker's classic builder does not set."""
    declared = (_ARG.match(each.text) for each in _instructions(dockerfile))
    return {word for found in declared if found for word in found[1].split() if _PLATFORM.fullmatch(word)}


def network_bypass(dockerfile: str, args: Mapping[str, str] = NO_ARGS) -> str | None:
    """Explain why the build could reach the engine's host despite a closed network; None if it cannot.

    ONBUILD instructions of the `base_images` are not looked at: check these with `find_remote_add`.
    """
    if what := needs_buildkit(dockerfile):
        return f"it needs BuildKit ({what}), which chooses its network itself"
    if _ESCAPE_DIRECTIVE.search(dockerfile):
        return "it sets another escape character, so its downloads cannot be determined"
    for lines in _readings(dockerfile):
        if (line := find_remote_add(lines)) is not None:
            return f"{line!r} may make the engine itself fetch a URL over its host's network; fetch it with RUN instead"
    if None in base_images(dockerfile, args):
        return "its image in FROM cannot be determined"
    return None


def find_remote_add(lines: Iterable[str]) -> str | None:
    """Return the first ADD instruction that may make the engine itself fetch a URL."""
    return next((line for line in lines if (added := _ADD.fullmatch(line)) and _MAY_BE_A_URL.search(added[1])), None)


def base_images(dockerfile: str, args: Mapping[str, str] = NO_ARGS) -> set[str | None]:
    """Return the images in FROM, without other stages and `scratch`; includes None if one cannot be determined.

    `args` are the build arguments.
    """
    return {name for lines in _readings(dockerfile) for name in _base_images(lines, args)}


def _readings(dockerfile: str) -> tuple[list[str], list[str]]:
    """Parse the instructions like old and like new engines, which differ in indented comments inside instructions."""
    old, new = _instructions(dockerfile, str), _instructions(dockerfile)
    return [each.text for each in old], [each.text for each in new]


def _instructions(dockerfile: str, comment_of: Callable[[str], str] = str.lstrip) -> Iterator[_Instruction]:
    """Yield the instructions; a continuation line is a comment if `comment_of(line)` begins with #."""
    escape = re.escape("`" if directive(dockerfile, "escape") == "`" else "\\")
    continued = re.compile(rf"(?:^|(?<=[^{escape}])){escape}[ \t]*$")
    lines = dockerfile.removeprefix("\ufeff").split("\n")
    numbered = enumerate(lines, start=1)
    begun, first = "", 0
    for number, raw in numbered:
        line = raw.rstrip("\r") if begun else raw.strip()
        if comment_of(line).startswith("#") or not line.strip():
            continue  # even inside an instruction
        line, goes_on = continued.subn("", line)
        begun, first = begun + line, first or number
        if not goes_on:
            names, length = _heredocs(begun, lines[number:])
            yield _Instruction(begun, first, names, range(number + 1, number + 1 + length))
            begun, first = "", 0
            next(islice(numbered, length, length), None)
    if begun:
        yield _Instruction(begun, first, (), range(0))


def _heredocs(instruction: str, following: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """Return the heredocs of an instruction and the number of their lines; none at all if one is not terminated."""
    names, length = [], 0
    for is_chomped, name in _heredoc_words(instruction):
        lines = (line.rstrip("\r") for line in following[length:])
        ends = (
            number for number, line in enumerate(lines, start=1) if (line.lstrip("\t") if is_chomped else line) == name
        )
        if (taken := next(ends, None)) is None:
            return (), 0
        names.append(name)
        length += taken
    return tuple(names), length


def _heredoc_words(instruction: str) -> Iterator[tuple[bool, str]]:
    """Yield the heredocs of an instruction: whether leading tabs are stripped, and the delimiter."""
    arguments = _MAY_HAVE_HEREDOC.fullmatch(instruction)
    if arguments is None or _is_json_list(arguments[1]):
        return
    for word in _words(arguments[1], is_raw=True):
        found = _HEREDOC.fullmatch(word)
        if found is not None and len(names := _words(found[2], is_raw=False)) == 1:
            yield bool(found[1]), names[0]


def _is_json_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def _words(text: str, *, is_raw: bool) -> list[str]:
    """Split text into words as Docker's lexer does, with blanks allowed after `<<`; empty if a quote is not closed.

    If `is_raw`, quotes and escapes are kept.
    """
    words, at = [""], 0
    while at < len(text):
        if (part := _PART_OF_WORD.match(text, at)) is None:
            return []
        at = part.end()
        if part["blank"]:
            words.append("")
        elif is_raw or part["plain"]:
            words[-1] += part[0]
        elif part["escaped"]:
            words[-1] += part[0][1:]
        else:
            inner = part[0][1:-1]
            words[-1] += inner if part[0][0] == "'" else re.sub(r"\\([\"$\\])", r"\1", inner)
    return [word for word in words if word]


def _base_images(lines: Iterable[str], args: Mapping[str, str]) -> Iterator[str | None]:
    defaults: dict[str, str] = {}
    stages: set[str] = set()
    for line in lines:
        if stage := _FROM.match(line):
            name = _VARIABLE.sub(lambda variable: defaults.get(variable[1] or variable[2], "$"), stage[1])
            if name.lower() not in {"scratch", *stages}:
                yield name if _REFERENCE.fullmatch(name) else None
            stages.add((stage[2] or "scratch").lower())
        elif not stages and (declared := _ARG.match(line)):
            _declare(declared[1], defaults, args)


def _declare(words: str, defaults: dict[str, str], args: Mapping[str, str]) -> None:
    """Record the variables of an ARG; one without a value removes an earlier value."""
    for word in words.split():
        name, equals, value = word.partition("=")
        if name in args:
            defaults[name] = args[name]
        elif equals:
            defaults[name] = value.strip("\"'")
        else:
            defaults.pop(name, None)
