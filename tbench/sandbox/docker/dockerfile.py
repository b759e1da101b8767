"""What a Dockerfile asks of its builder, as far as it matters which builder that is and what it can reach.

A Dockerfile is somebody else's: where it cannot be told what the builder would make of a line, the answer is the
careful one.
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
"""Without a colon, also a hidden one, there is no URL."""
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_ARG = re.compile(r"ARG\s+(.*)", re.IGNORECASE)
_ON_PLATFORM = re.compile(r"FROM\s+--platform=\S*?\$\{?((?:TARGET|BUILD)[A-Z]+)", re.IGNORECASE)
_PLATFORM = re.compile(r"(?:TARGET|BUILD)(?:PLATFORM|OS|ARCH)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_REFERENCE = re.compile(r"[\w./:@-]+", re.ASCII)


def read_dockerfile(path: Path) -> str:
    """The text of the Dockerfile at `path`, whatever its bytes are."""
    return path.read_text(encoding="utf-8", errors="replace")


@dataclass(frozen=True)
class _Instruction:
    """An instruction on one line, without the bodies of its heredocs."""

    text: str
    line: int
    """Number of the line that it begins in."""
    heredocs: tuple[str, ...]
    """Names of its heredocs, as they are ended by."""
    bodies: range
    """Numbers of the lines of their bodies."""


def needs_buildkit(dockerfile: str) -> str | None:
    """What only BuildKit can build, by name and line; None where any builder can build this."""
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
    """The heredoc that has a line in its body, by name and line; the first one where no line is given."""
    for each in _instructions(dockerfile):
        if each.heredocs and (line is None or line in each.bodies):
            return _named(each)
    return None


def _named(instruction: _Instruction) -> str:
    return f"the heredoc {instruction.heredocs[0]} in line {instruction.line}"


def without_syntax(dockerfile: str) -> str:
    """The Dockerfile without its directive `syntax`, each other instruction in the line that it was in."""
    lines = dockerfile.split("\n")
    count = next(at for at, line in enumerate([*lines, ""]) if not _DIRECTIVE.fullmatch(line.lstrip("\ufeff").strip()))
    kept = [line for line in lines[:count] if directive(line, "syntax") is None]
    return "\n".join([*kept, *[""] * (count - len(kept)), *lines[count:]])


def directive(dockerfile: str, name: str) -> str | None:
    """The value of a directive, such as `syntax`, which comments at the very top give."""
    for line in dockerfile.removeprefix("\ufeff").split("\n"):
        if (found := _DIRECTIVE.fullmatch(line.strip())) is None:
            return None
        if found[1].lower() == name:
            return found[2]
    return None


def platform_args(dockerfile: str) -> set[str]:
    """Variables of the platform that it declares without a value, and that BuildKit alone sets by itself."""
    declared = (_ARG.match(each.text) for each in _instructions(dockerfile))
    return {word for found in declared if found for word in found[1].split() if _PLATFORM.fullmatch(word)}


def why_not_closed(dockerfile: str, args: Mapping[str, str] = NO_ARGS) -> str | None:
    """Why a build of this cannot be kept from the engine's host, whatever its steps can reach; None where it can.

    The images of its stages may still bring such instructions along: `base_images`, `fetches_by_itself`.
    """
    if what := needs_buildkit(dockerfile):
        return f"it needs BuildKit ({what}), which builds on a network of its own choice"
    if _ESCAPE_DIRECTIVE.search(dockerfile):
        return "it sets another escape character, with which it cannot be told what it fetches"
    for lines in _readings(dockerfile):
        if (line := fetches_by_itself(lines)) is not None:
            return f"{line!r} may let the engine itself fetch a URL, over the network of its host; RUN can fetch it"
    if None in base_images(dockerfile, args):
        return "it cannot be told what image it begins FROM"
    return None


def fetches_by_itself(lines: Iterable[str]) -> str | None:
    """The first of these instructions that may let the engine itself fetch a URL."""
    return next((line for line in lines if (added := _ADD.fullmatch(line)) and _MAY_BE_A_URL.search(added[1])), None)


def base_images(dockerfile: str, args: Mapping[str, str] = NO_ARGS) -> set[str | None]:
    """The images that stages begin from, but for other stages and `scratch`; None for one that cannot be told.

    `args` are what the build gives to its variables.
    """
    return {name for lines in _readings(dockerfile) for name in _base_images(lines, args)}


def _readings(dockerfile: str) -> tuple[list[str], list[str]]:
    """The instructions as old and as new engines read them: they differ in indented comments within an instruction."""
    old, new = _instructions(dockerfile, str), _instructions(dockerfile)
    return [each.text for each in old], [each.text for each in new]


def _instructions(dockerfile: str, comment_of: Callable[[str], str] = str.lstrip) -> Iterator[_Instruction]:
    """The instructions; a line that goes on with one is a comment if `comment_of` it begins so."""
    escape = re.escape("`" if directive(dockerfile, "escape") == "`" else "\\")
    continued = re.compile(rf"(?:^|(?<=[^{escape}])){escape}[ \t]*$")
    lines = dockerfile.removeprefix("\ufeff").split("\n")
    numbered = enumerate(lines, start=1)
    begun, first = "", 0
    for number, raw in numbered:
        line = raw.rstrip("\r") if begun else raw.strip()
        if comment_of(line).startswith("#") or not line.strip():
            continue  # also within an instruction
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
    """The heredocs of an instruction, and how many of the following lines are theirs; none where one has no end."""
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
    """The heredocs that an instruction begins: whether tabs before their lines do not count, and their names."""
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
    """Words as Docker's own lexer has them, in which blanks may follow `<<`. None where a quote has no end.

    If `is_raw`, they have their quotes and escapes.
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
    """Take note of the variables of an ARG; one without a value takes an earlier value away."""
    for word in words.split():
        name, equals, value = word.partition("=")
        if name in args:
            defaults[name] = args[name]
        elif equals:
            defaults[name] = value.strip("\"'")
        else:
            defaults.pop(name, None)
