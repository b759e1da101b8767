"""Finds the tests that a verifier's logs show, with their statuses.

Tests are named by ctrf.json, by JUnit's XML, and by pytest's output with -v or -rA. If pytest's summary counts more
tests of a status than its output names, the others get numbers. The output of other test runners is not parsed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args
from xml.parsers import expat

from tbench.verifier_logs import Logs

Status = Literal["passed", "xpassed", "xfailed", "deselected", "skipped", "error", "failed"]
"""Status of a test. If a test has several, the last one in this order counts."""
STATUSES: tuple[Status, ...] = get_args(Status)
NOT_FAILED = frozenset(STATUSES) - {"error", "failed"}
TEST_SUMS = "test-files.sha256"
"""Name of the log file with the sha256 of each test file outside /tests that the output of a pass names."""
_MAX_FILES = 20
MAX_TESTS = 50_000
"""Maximum number of tests that are read from one report."""
_MAX_BYTES = 16 << 20
_MAX_NAME_CHARS = 500
_MAX_LINE_CHARS = 2000
_STATUS_BY_WORD: dict[str, Status] = {
    **{status: status for status in STATUSES},
    "xfail": "xfailed",
    "xpass": "xpassed",
    "errors": "error",
}

_XML = r"[^/]+\.xml"
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_QUOTING_SECTIONS = frozenset({"FAILURES", "ERRORS", "PASSES", "XFAILURES", "XPASSES"})
"""Headings of pytest's sections that quote the output of tests."""
_WORDS = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
_NAME = r"(?P<{}>(?:[^\s\[:]|:(?!:))+::[^\s\[]++(?:\[.*?\])?)"
_LINE = re.compile(
    # In the short summary, and with several workers, the status comes first.
    rf"(?:\[gw\d+\] (?:\[ *\d+%\] )?)?(?P<first>{_WORDS}) {_NAME.format('after')}(?: - .*)?"
    rf"|{_NAME.format('before')} (?P<last>{_WORDS})(?: +\[ *\d+%\]| \(.*)?"
)
_PROGRESS = re.compile(r"(\S+\.py) [.FEsxX]+(?: +\[ *\d+%\])?")
_COUNT = r"\d{1,9} (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun|subtests passed)"
_SUMMARY = re.compile(rf"(?:=+ )?(?P<counts>{_COUNT}(?:, {_COUNT})*) in [\d.:]+ ?s\b.*")


def tests_shown(logs: Logs) -> dict[str, Status]:
    """Return the statuses of tests in /logs/verifier, by identity. Never raises: an invalid report shows no tests."""
    shown: dict[str, Status] = {}
    reports = [_ctrf(logs.get("ctrf.json", b"")[:_MAX_BYTES])]
    reports += [_junit(logs[name][:_MAX_BYTES]) for name in sorted(logs) if re.fullmatch(_XML, name)]
    reports.append(_pytest(_stdout(logs)))
    for report in reports:
        _add_report(shown, report)
    return shown


def test_files_shown(logs: Logs) -> list[str]:
    """Return the paths of the first test files that pytest itself names, as it names them: relative to its root."""
    found: dict[str, None] = {}
    for line in _own_lines(_stdout(logs)):
        if match := _LINE.fullmatch(line):
            found[(match["after"] or match["before"]).partition("::")[0]] = None
        elif match := _PROGRESS.fullmatch(line):
            found[match[1]] = None
    return list(islice(found, _MAX_FILES))


def claimed_passes(logs: Logs) -> set[str]:
    """Return the identities of tests that any line of the output calls passed, even if pytest did not print it."""
    lines = (line.strip() for line in _COLOUR.sub("", _stdout(logs)).split("\n"))
    found = (_LINE.fullmatch(line) for line in lines if "PASSED" in line and len(line) <= _MAX_LINE_CHARS)
    passed = (match for match in found if match and (match["first"] or match["last"]) == "PASSED")
    return {_identity(match["after"] or match["before"]) for match in islice(passed, MAX_TESTS)}


def _stdout(logs: Logs) -> str:
    # The summary is at the end.
    return logs.get("stdout.txt", b"")[-_MAX_BYTES:].decode("utf-8", "replace")


def logs_in(directory: Path) -> Logs:
    """Read the stored log files that may show tests, each up to a limit. Raises OSError for an unreadable file."""
    found: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        may_show = path.name in ("ctrf.json", "stdout.txt", TEST_SUMS) or re.fullmatch(_XML, path.name)
        if not may_show or path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if path.name == "stdout.txt":
                file.seek(max(0, path.stat().st_size - _MAX_BYTES))
            found[path.name] = file.read(_MAX_BYTES)
    return found


def _add_report(shown: dict[str, Status], report: Iterator[tuple[str, Status]]) -> None:
    for name, status in islice(report, MAX_TESTS):
        name = name[:_MAX_NAME_CHARS].encode("utf-8", "replace").decode()  # JSON may contain lone surrogates
        shown[name] = max(shown.get(name, status), status, key=STATUSES.index)


def _identity(name: str) -> str:
    """Return a test's name independent of the working directory: its path below tests/, without the suffix."""
    path, colons, rest = name.partition("::")
    if not colons:
        return name.strip()
    parts = [part for part in path.removesuffix(".py").split("/") if part not in ("", ".", "..")]
    return "/".join(_below_tests(parts)) + colons + rest


def _below_tests(parts: list[str]) -> list[str]:
    at = max((at for at, part in enumerate(parts[:-1]) if part == "tests"), default=-1)
    return parts[at + 1 :]


def _ctrf(raw: bytes) -> Iterator[tuple[str, Status]]:
    try:
        tests = json.loads(raw or b"{}")["results"]["tests"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for each in tests if isinstance(tests, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            yield _identity(each["name"]), _ctrf_status(each)


def _ctrf_status(test: dict[str, Any]) -> Status:
    """Return the status of a test; an unknown one, such as pending, means that it did not run to its end."""
    words = (str(test.get("raw_status", "")).rpartition("_")[2], str(test.get("status", "")))
    found = [_STATUS_BY_WORD[word] for word in words if word in _STATUS_BY_WORD]
    return max(found, key=STATUSES.index, default="skipped")


class _StopParsing(Exception):
    """Ends the parsing of a report; what was parsed before counts."""


def _junit(raw: bytes) -> Iterator[tuple[str, Status]]:
    found: list[tuple[str, Status]] = []
    is_in_case = False

    def start(tag: str, given: dict[str, str]) -> None:
        nonlocal is_in_case
        if tag == "testcase":
            if len(found) == MAX_TESTS:
                raise _StopParsing
            never_ran = {given.get("status"), given.get("result")} & {"notrun", "skipped", "disabled"}
            is_in_case = True
            found.append((_junit_identity(given), "skipped" if never_ran else "passed"))
        elif is_in_case and tag in ("failure", "error", "skipped"):
            status: Status = "failed" if tag == "failure" else "error" if tag == "error" else "skipped"
            found[-1] = found[-1][0], "xfailed" if given.get("type") == "pytest.xfail" else status

    def end(tag: str) -> None:
        nonlocal is_in_case
        is_in_case = is_in_case and tag != "testcase"

    def entity(*_: object) -> None:
        raise _StopParsing

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = start, end, entity
    with contextlib.suppress(expat.ExpatError, _StopParsing, ValueError, LookupError):
        parser.Parse(raw, True)
    return iter(found)


def _junit_identity(given: dict[str, str]) -> str:
    """Return the identity that pytest prints: modules as a path, then classes."""
    parts = _below_tests(given.get("classname", "").split("."))
    first = next((at for at, part in enumerate(parts) if at and part[:1].isupper()), len(parts))
    return "::".join(filter(None, ["/".join(parts[:first]), *parts[first:], given.get("name", "")]))


def _pytest(output: str) -> Iterator[tuple[str, Status]]:
    """Yield the tests that pytest's own sessions name, not quoted ones, and a number for each unnamed test."""
    named: set[tuple[str, Status]] = set()
    counts: Counter[Status] = Counter()
    for line in _own_lines(output):
        if summary := _SUMMARY.fullmatch(line):
            for each in summary["counts"].split(", "):
                number, _, word = each.partition(" ")
                if word in _STATUS_BY_WORD:
                    counts[_STATUS_BY_WORD[word]] += int(number)
        elif (found := _LINE.fullmatch(line)) and len(named) < MAX_TESTS:
            word = (found["first"] or found["last"]).lower()
            named.add((_identity(found["after"] or found["before"]), _STATUS_BY_WORD[word]))
    names = Counter(status for _, status in named)
    if counts and names["passed"] > counts["passed"]:
        # The summary counts fewer passed tests, so another program has printed some of the names.
        named, names = {each for each in named if each[1] != "passed"}, Counter({**names, "passed": 0})
    yield from sorted(named)
    for status, count in counts.items():
        for number in range(1, min(count - names[status], MAX_TESTS) + 1):
            yield f"unnamed {status} {number}", status


def _own_lines(output: str) -> Iterator[str]:
    """Yield the lines that pytest prints about its own tests, without the sections that quote the output of tests.

    A quoted session has its own start and end.
    """
    quoted, is_detail, is_framed = 0, False, False
    for line in _COLOUR.sub("", output).split("\n"):
        line = line[:_MAX_LINE_CHARS].strip()
        heading = line.strip("=").strip() if line.startswith("==") and line.endswith("==") else ""
        is_end = _SUMMARY.fullmatch(line) is not None
        if heading == "test session starts":
            quoted += is_detail
            is_framed = True
        elif quoted:
            quoted -= is_end and bool(heading)
        elif is_end and (heading or not is_framed):
            is_detail = is_framed = False
            yield line
        elif heading:
            is_detail = heading in _QUOTING_SECTIONS or (is_detail and heading != "short test summary info")
        elif not is_detail:
            yield line
