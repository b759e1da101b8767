"""Reads a verifier's logs: whether tests ran, and which tool failed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

Logs = Mapping[str, bytes]
"""Files of /logs/verifier by name."""

_PYTEST_SUMMARY = re.compile(
    r"\b\d+ (?:passed|failed|error(?:s)?|skipped|xfailed|xpassed)\b.* in [\d.]+\s?s", re.IGNORECASE
)
_OTHER_RUNNERS = re.compile(
    r"^(?:ok|not ok) \d+|^Ran [1-9]\d* tests? in|\bcollected [1-9]\d* items?|^\S+ +\[100%\]$"
    r"|^(?:PASS(?:ED)?|FAIL(?:ED)?)\b",
    re.MULTILINE,
)
_TOOL_FAILURES = (
    (re.compile(r"Could not get lock /var/lib/(?:dpkg|apt)"), "another process holds the dpkg lock"),
    (re.compile(r"dpkg was interrupted"), "dpkg was interrupted and is half configured"),
    (re.compile(r"No space left on device"), "the disk is full"),
    (re.compile(r"Temporary failure (?:in name resolution|resolving)|Could not resolve"), "names cannot be resolved"),
    (re.compile(r"(?i)certificate.verify.failed|SSL certificate problem"), "no trusted CA certificate"),
    (re.compile(r"getcwd: cannot access parent directories|cannot access parent"), "the working directory was deleted"),
    (re.compile(r"(?:curl|uvx?|pytest|python3?): (?:command )?not found"), "a tool of the verifier is missing"),
    (re.compile(r"Unable to (?:fetch|locate)|Failed to (?:fetch|download)|error sending request"), "a download failed"),
)  # fmt: skip


def tests_ran(logs: Logs) -> bool:
    """Whether tests ran, by a ctrf.json with tests or the output of a known test runner."""
    output = _output(logs)
    found = _PYTEST_SUMMARY.search(output) or _OTHER_RUNNERS.search(output)
    return found is not None or _ctrf_has_tests(logs.get("ctrf.json"))


def tool_failure(logs: Logs) -> str | None:
    """Describe the tool of the verifier that failed; None if the output shows no failure."""
    output = _output(logs)
    return next((meaning for pattern, meaning in _TOOL_FAILURES if pattern.search(output)), None)


def _output(logs: Logs) -> str:
    return logs.get("stdout.txt", b"").decode("utf-8", "replace")


def _ctrf_has_tests(raw: bytes | None) -> bool:
    try:
        summary = json.loads(raw or b"{}")["results"]["summary"]
        return int(summary["tests"]) > 0
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return False


def last_line(logs: Logs) -> str:
    """Quote the last line of the verifier's output for a message."""
    last = next((line.strip() for line in reversed(_output(logs).split("\n")) if line.strip()), "")
    return f"last line of output: {last[:200]!r}" if last else "it printed nothing"
