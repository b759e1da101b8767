"""Reads from a verifier's logs which tests it ran, with the messages of failed ones, for display."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from harness.trajectory import Frozen
from tbench.text import one_line, without_escapes

_ERROR_LINES, _LINE_CHARS = 6, 200
"""Maximum number of lines of an error, and of their characters."""
_MESSAGE_CHARS = 1500
_SUMMARY_LINE = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S*::\S.*?)(?: - (.*))?$", re.MULTILINE)
_SECTION = re.compile(
    r"^_+ (?:ERROR at \w+ of )?(\S.*?) _+\n(.*?)(?=^_+ \S.* _+$|^=+ .* =+$|\Z)", re.MULTILINE | re.DOTALL
)
"""Section of pytest's output about one failure."""
_STATUSES = {
    "passed": "pass",
    "xfail": "pass",
    "failed": "fail",
    "xpass": "fail",
    "error": "error",
    "skipped": "missing",
    "pending": "missing",
}
_WORST_FIRST = ("fail", "error", "missing", "pass")


@dataclass(frozen=True, slots=True)
class CheckedTest:
    """Test that the verifier ran."""

    name: str
    status: str
    """Status in the test runner's terms: passed, failed, skipped …"""
    message: str = ""
    duration_sec: float | None = None

    @property
    def state(self) -> str:
        """The status as pass, fail, error or missing."""
        return _STATUSES.get(self.status.lower(), "error")

    @property
    def place(self) -> str:
        """File and class of the test, before its own name."""
        return "".join(self.name.rpartition("::")[:2])

    @property
    def own_name(self) -> str:
        return self.name.rpartition("::")[2]

    @property
    def error_lines(self) -> list[str]:
        """Lines of the message that pytest marks as errors, else its last line."""
        lines = [line.strip() for line in self.message.split("\n") if line.strip()]
        return [line[2:].strip() for line in lines if line.startswith("E ")] or lines[-1:]


class FailedTest(Frozen):
    """A failed test, with the first lines of its error."""

    name: str
    error: tuple[str, ...] = ()


def failed_tests(tests: Iterable[CheckedTest]) -> tuple[FailedTest, ...]:
    """Return the tests that failed, each with the first lines of its error."""
    failed = (test for test in tests if test.state in ("fail", "error"))
    return tuple(
        FailedTest(
            name=one_line(test.own_name),
            error=tuple(one_line(line, _LINE_CHARS) for line in test.error_lines[:_ERROR_LINES]),
        )
        for test in failed
    )


def read_tests(text_of: Callable[[str], str]) -> tuple[str, tuple[CheckedTest, ...]]:
    """Return the name of the log that lists the tests, and these tests, failed ones first.

    `text_of` reads a log by its name; empty if there is none.
    """
    parsers = (("ctrf.json", _parse_ctrf), ("junit.xml", _parse_junit), ("stdout.txt", _parse_output))
    found = next(((name, tests) for name, parse in parsers if (tests := parse(text_of(name)))), ("stdout.txt", []))
    return found[0], tuple(sorted(found[1], key=lambda test: _WORST_FIRST.index(test.state)))


def _parse_output(output: str) -> list[CheckedTest]:
    """Return the tests in pytest's summary, with messages from its sections about failures."""
    output = without_escapes(output)
    sections = dict(_SECTION.findall(output))
    return [
        CheckedTest(name, status.lower(), _message(sections.get(".".join(name.split("::")[1:]), message)))
        for status, name, message in _SUMMARY_LINE.findall(output)
    ]


def _parse_ctrf(text: str) -> list[CheckedTest]:
    """Return the tests in a report in the Common Test Report Format."""
    try:
        tests = json.loads(text or "{}")["results"]["tests"]
        return [_ctrf_test(test) for test in tests if isinstance(test, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def _ctrf_test(test: dict[str, Any]) -> CheckedTest:
    status = test.get("rawStatus") if test.get("status") == "other" else test.get("status")
    message = test.get("trace") or test.get("message") or ""
    return CheckedTest(str(test.get("name", "")), str(status), _message(str(message)), _seconds(test.get("duration")))


def _parse_junit(text: str) -> list[CheckedTest]:
    """Return the tests in a JUnit report; none if it has entity declarations, which could expand without bound."""
    if "<!" in text.replace("<![CDATA[", ""):
        return []
    try:
        cases = list(ElementTree.fromstring(text).iter("testcase"))
    except (ElementTree.ParseError, ValueError):
        return []
    return [_junit_test(case) for case in cases]


def _junit_test(case: ElementTree.Element) -> CheckedTest:
    name = "::".join(filter(None, (case.get("classname", "").replace(".", "/"), case.get("name", ""))))
    for tag, status in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
        if (found := case.find(tag)) is not None:
            message = found.text or found.get("message") or ""
            return CheckedTest(name, status, _message(message), _seconds(case.get("time")))
    return CheckedTest(name, "passed", "", _seconds(case.get("time")))


def _message(text: str) -> str:
    text = without_escapes(text).strip("\n")
    if len(text) <= _MESSAGE_CHARS:
        return text
    return f"{text[: _MESSAGE_CHARS // 3]}\n…\n{text[-2 * _MESSAGE_CHARS // 3 :]}"


def _seconds(value: Any) -> float | None:
    """Return a duration in seconds, as in reports of JUnit and of Harbor's plugin; None if it is not a number."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and 0 <= seconds < 1e7 else None
