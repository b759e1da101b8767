"""Reads and extends the text of Dockerfiles: paths that are copied, additional lines, platforms."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

_CONTINUED = re.compile(r"\\[ \t]*\n(?:[ \t]*#.*\n)*")
_COPY = re.compile(r"^\s*(?:COPY|ADD)\s+(.*)$", re.IGNORECASE | re.MULTILINE)
_FROM = re.compile(r"^(\s*FROM)\s+(?!--platform)", re.IGNORECASE | re.MULTILINE)


def copied_paths(dockerfile: str) -> Iterator[str]:
    """Iterate over the sources of COPY and ADD in the build context, without a leading `./`; patterns stay patterns."""
    for found in _COPY.finditer(_CONTINUED.sub(" ", dockerfile)):
        words = _words(found[1])
        options = [word for word in words if word.startswith("--")]
        if not any(option.startswith("--from=") for option in options):
            for path in words[len(options) : -1]:
                yield path.removeprefix("./").lstrip("/")


def takes(dockerfile: str, path: str) -> bool:
    """Whether COPY or ADD copies a path of the build context, by name, pattern or parent directory."""
    for source in copied_paths(dockerfile):
        plain = source.rstrip("/")
        if plain in ("", ".") or path == plain or path.startswith(f"{plain}/") or fnmatch(path, plain):
            return True
    return False


def with_lines(dockerfile: str, lines: Sequence[str]) -> str:
    """Return the Dockerfile with lines appended."""
    return "\n".join([dockerfile.rstrip("\n"), *lines, ""]) if lines else dockerfile


def for_platform(dockerfile: str, platform: str) -> str:
    """Return the Dockerfile with a platform added to each FROM that has none."""
    return _FROM.sub(rf"\1 --platform={platform} ", dockerfile)


def copy_line(source: str, target: str) -> str:
    """Return the line that copies `source` in the build context to `target`."""
    return f"COPY {json.dumps([source, target])}"


def _words(arguments: str) -> list[str]:
    if (start := arguments.find("[")) >= 0:
        try:
            listed = json.loads(arguments[start:])
            return [*arguments[:start].split(), *map(str, listed)]
        except ValueError:
            pass
    try:
        return shlex.split(arguments)
    except ValueError:
        return arguments.split()
