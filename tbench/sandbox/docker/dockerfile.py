"""What a Dockerfile asks of its builder, as far as it matters which builder that is and what it can reach.

A Dockerfile is somebody else's: where it cannot be told what the builder would make of a line, the answer is the
careful one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_NEEDS_BUILDKIT = re.compile(
    r"^\s*(?:RUN\s+--mount|(?:COPY|ADD)\s+(?:--\S+\s+)*--(?:chmod|link)\b|(?:RUN|COPY|ADD)\b[^\n#]*<<-?[\"']?\w+)",
    re.MULTILINE | re.IGNORECASE,
)
_ESCAPE_DIRECTIVE = re.compile(r"^\s*#\s*escape\s*=", re.MULTILINE | re.IGNORECASE)
_CONTINUED = re.compile(r"(?:^|(?<=[^\\]))\\[ \t]*$")
_ADD = re.compile(r"(?:ONBUILD\s+)*ADD\s+(?:--\S+\s+)*(.*)", re.IGNORECASE | re.DOTALL)
_MAY_BE_A_URL = re.compile(r"[:$\\]")
"""Without a colon, also a hidden one, there is no URL."""
_FROM = re.compile(r"FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_ARG = re.compile(r"ARG\s+(.*)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_REFERENCE = re.compile(r"[\w./:@-]+", re.ASCII)


def read_dockerfile(path: Path) -> str:
    """The text of the Dockerfile at `path`, whatever its bytes are."""
    return path.read_text(encoding="utf-8", errors="replace")


def needs_buildkit(dockerfile: str) -> bool:
    """Whether only BuildKit can build this: it has a heredoc, RUN --mount, or COPY --chmod."""
    return _NEEDS_BUILDKIT.search(dockerfile) is not None


def why_not_closed(dockerfile: str) -> str | None:
    """Why a build of this cannot be kept from the engine's host, whatever its steps can reach; None where it can.

    The images of its stages may still bring such instructions along: `base_images`, `fetches_by_itself`.
    """
    if needs_buildkit(dockerfile):
        return "it needs BuildKit (a heredoc, RUN --mount or COPY --chmod), which builds on a network of its own choice"
    if _ESCAPE_DIRECTIVE.search(dockerfile):
        return "it sets another escape character, with which it cannot be told what it fetches"
    for lines in _readings(dockerfile):
        if (line := fetches_by_itself(lines)) is not None:
            return f"{line!r} may let the engine itself fetch a URL, over the network of its host; RUN can fetch it"
    if None in base_images(dockerfile):
        return "it cannot be told what image it begins FROM"
    return None


def fetches_by_itself(lines: Iterable[str]) -> str | None:
    """The first of these instructions that may let the engine itself fetch a URL."""
    return next((line for line in lines if (added := _ADD.fullmatch(line)) and _MAY_BE_A_URL.search(added[1])), None)


def base_images(dockerfile: str) -> set[str | None]:
    """The images that stages begin from, but for other stages and `scratch`; None for one that cannot be told."""
    return {name for lines in _readings(dockerfile) for name in _base_images(lines)}


def _readings(dockerfile: str) -> tuple[list[str], list[str]]:
    """The instructions as old and as new engines read them: they differ in indented comments within an instruction."""
    return list(_instructions(dockerfile, str)), list(_instructions(dockerfile, str.lstrip))


def _instructions(dockerfile: str, comment_of: Callable[[str], str]) -> Iterator[str]:
    """The instructions, each on one line; a line that goes on with one is a comment if `comment_of` it begins so."""
    begun = ""
    for raw in dockerfile.removeprefix("\ufeff").split("\n"):
        line = raw.rstrip("\r") if begun else raw.strip()
        if comment_of(line).startswith("#") or not line.strip():
            continue  # also within an instruction
        line, continued = _CONTINUED.subn("", line)
        begun += line
        if not continued:
            yield begun
            begun = ""
    if begun:
        yield begun


def _base_images(lines: Iterable[str]) -> Iterator[str | None]:
    defaults: dict[str, str] = {}
    stages: set[str] = set()
    for line in lines:
        if stage := _FROM.match(line):
            name = _VARIABLE.sub(lambda variable: defaults.get(variable[1] or variable[2], "$"), stage[1])
            if name.lower() not in {"scratch", *stages}:
                yield name if _REFERENCE.fullmatch(name) else None
            stages.add((stage[2] or "scratch").lower())
        elif not stages and (declared := _ARG.match(line)):
            _declare(declared[1], defaults)


def _declare(words: str, defaults: dict[str, str]) -> None:
    """Take note of the variables of an ARG; one without a value takes an earlier value away."""
    for word in words.split():
        name, equals, value = word.partition("=")
        if equals:
            defaults[name] = value.strip("\"'")
        else:
            defaults.pop(name, None)
