"""Files left by the verifier of a trial: its output, the tests that it ran, the rewards that it wrote."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reports.page_frame import STATUS_SYMBOLS
from reports.trial.page_text import amount_text, coloured, plain_text
from tbench.text import size_text

_HEAD_CHARS, _TAIL_CHARS = 6_000, 18_000
"""Characters of the output in a page: mostly from its end, where test runners print the results."""
_LARGEST_BYTES = 4 << 20
_MOST_TESTS = 300
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
_NO_TEXT = Markup()
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
        """CSS class of the status."""
        return _STATUSES.get(self.status.lower(), "error")

    @property
    def symbol(self) -> str:
        return STATUS_SYMBOLS[self.state]

    @property
    def place(self) -> str:
        """File and class of the test, before its own name."""
        return "".join(self.name.rpartition("::")[:2])

    @property
    def own_name(self) -> str:
        return self.name.rpartition("::")[2]


@dataclass(frozen=True, slots=True)
class VerifierView:
    """Verifier as the page shows it."""

    output: Markup
    output_rest: str = ""
    """Amount of output left out between `output` and `output_end`."""
    output_end: Markup = _NO_TEXT
    tests: tuple[CheckedTest, ...] = ()
    """Failed ones first."""
    tests_left_out: int = 0
    source: str = ""
    """File that the tests were read from."""
    numbers: tuple[tuple[str, str], ...] = ()
    """Name and content of the reward files."""

    @property
    def passed(self) -> int:
        return sum(test.state == "pass" for test in self.tests)


def read_verifier(directory: Path) -> VerifierView | None:
    """Read the `verifier` directory of a trial; None if it has nothing to show."""
    output = _text(directory / "stdout.txt")
    source, tests = _tests(directory, output)
    numbers = tuple(_numbers(directory))
    if not output and not tests and not numbers:
        return None
    ordered = sorted(tests, key=lambda test: _WORST_FIRST.index(test.state))
    rest = len(ordered) - _MOST_TESTS
    head, between, tail = _ends(output)
    return VerifierView(
        coloured(head), between, coloured(tail), tuple(ordered[:_MOST_TESTS]), max(rest, 0), source, numbers
    )


def _ends(output: str) -> tuple[str, str, str]:
    between = len(output) - _HEAD_CHARS - _TAIL_CHARS
    if between <= 0:
        return output, "", ""
    return output[:_HEAD_CHARS], amount_text(between), output[-_TAIL_CHARS:]


def _tests(directory: Path, output: str) -> tuple[str, list[CheckedTest]]:
    for name, read in (("ctrf.json", _parse_ctrf), ("junit.xml", _parse_junit)):
        if found := read(_text(directory / name)):
            return name, found
    return "stdout.txt", _parse_output(plain_text(output))


def _parse_output(output: str) -> list[CheckedTest]:
    """Return the tests in pytest's summary, with messages from its sections about failures."""
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
    text = plain_text(text).strip("\n")
    if len(text) <= _MESSAGE_CHARS:
        return text
    return f"{text[: _MESSAGE_CHARS // 3]}\n…\n{text[-2 * _MESSAGE_CHARS // 3 :]}"


def _seconds(value: Any) -> float | None:
    """Return a duration in seconds, as in JUnit reports and those of Harbor's plugin; None if it is not a number."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and 0 <= seconds < 1e7 else None


def _numbers(directory: Path) -> Iterator[tuple[str, str]]:
    for name in ("reward.txt", "reward.json"):
        if text := _text(directory / name).strip():
            yield name, text[:400]


def _text(file: Path) -> str:
    """Read a file that was written in a container: only the end of a huge one; empty if it is missing."""
    try:
        if file.is_symlink() or not file.is_file():
            return ""
        size = file.stat().st_size
        with file.open("rb") as opened:
            if size > _LARGEST_BYTES:
                opened.seek(size - _LARGEST_BYTES)
            raw = opened.read(_LARGEST_BYTES)
    except (OSError, ValueError):
        return ""
    cut = f"[… the first {size_text(size - _LARGEST_BYTES)} are left out …]\n" if size > _LARGEST_BYTES else ""
    return cut + raw.decode("utf-8", "replace")
