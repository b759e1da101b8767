"""Compares terminal output of two executions, ignoring what always varies, such as times and process ids."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tbench.text import one_line

_SHOWN_CHARS = 80
_MONTHS = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
_DAYS = "Mon|Tue|Wed|Thu|Fri|Sat|Sun"
_VARYING = re.compile(
    "|".join(
        (
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?",  # a date, and a time
            r"\b\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:\s?[AP]M)?\b",  # a time
            rf"\b(?:(?:{_DAYS})[a-z]*,?\s+)?(?:{_MONTHS})[a-z]*\s+\d{{1,2}}\b(?:,?\s+\d{{4}}\b)?",  # Mon Nov  2
            rf"\b(?:(?:{_DAYS})[a-z]*,?\s+)?\d{{1,2}}[ /](?:{_MONTHS})[a-z]*[ /]\d{{4}}\b",  # 02 Nov 2026
            r"\b\d+(?:\.\d+)?\s?(?:ns|[uµ]s|ms|s|sec|secs|seconds?|minutes?|min)\b|\b\d+m\d+(?:\.\d+)?s\b",  # durations
            r"(?<=\])\s+\d{2,7}\b|\b(?i:pid|process|ppid)\b[ :=#(]*\d+",  # [1] 4711, pid 4711
            r"\b0x[0-9a-fA-F]+\b",  # an address
            r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",  # a UUID
            r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,}\b",  # a hash, or the host name of a container
            r"\b(?i:id): [0-9a-f]{6}\b",  # such as the ids that Codex gives to the outputs of commands
            r"/tmp/[\w.-]+",
            r"\d+(?:\.\d+)?\s?(?:[kKMG]i?B|bytes)/s(?:ec)?\b",  # a speed
        )
    )
)


def first_difference(before: str, now: str) -> str | None:
    """Describe the first line in which two observations differ; None if they are equivalent.

    Times, durations, process ids, hashes, addresses, temporary files and speeds are ignored.
    """
    found = first_differing_lines(before, now)
    return None if found is None else f"{found[1]} where {found[0]} was before"


def first_differing_lines(one: str, other: str) -> tuple[str, str] | None:
    """Return the first pair of lines in which two observations differ, formatted for users; None if equivalent."""
    mine, others = list(_lines(one)), list(_lines(other))
    for number in range(max(len(mine), len(others))):
        left, right = (lines[number] if number < len(lines) else None for lines in (mine, others))
        if left is None or right is None or normalised_line(left) != normalised_line(right):
            return _quoted(left), _quoted(right)
    return None


def normalised_line(line: str) -> str:
    """Normalise a line by replacing everything that varies: equivalent lines become equal."""
    return _VARYING.sub("…", " ".join(line.split()))


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.split("\n") if line.strip())


def _quoted(line: str | None) -> str:
    return "nothing" if line is None else repr(one_line(line.strip(), _SHOWN_CHARS))
