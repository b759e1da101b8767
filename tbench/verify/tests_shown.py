"""Which tests a verifier's logs show, by identity, and how each of them ended.

Names come from ctrf.json, from JUnit's XML, and from what pytest prints with -v or -rA. Where its summary counts more
tests of a status than it names, the others are shown by number. Other test runners are not read: they show nothing.
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
"""How a test ended. Of several ends of one identity the last of these counts."""
STATUSES: tuple[Status, ...] = get_args(Status)
NOT_FAILED = frozenset(STATUSES) - {"error", "failed"}
TEST_SUMS = "test-files.sha256"
"""Name of the file among a verifier's logs that has the sha256 of each test file of the work that a pass showed."""
_MOST_FILES = 20
MOST_TESTS = 50_000
"""Tests of one report that are read; one with more shows no others."""
_MOST_BYTES = 16 << 20
_MOST_CHARS = 500
_LONGEST_LINE = 2000
_OF_WORD: dict[str, Status] = {
    **{status: status for status in STATUSES},
    "xfail": "xfailed",
    "xpass": "xpassed",
    "errors": "error",
}

_XML = r"[^/]+\.xml"
_COLOUR = re.compile(r"\x1b\[[0-9;]*[mK]")
_QUOTING = frozenset({"FAILURES", "ERRORS", "PASSES", "XFAILURES", "XPASSES"})
"""Headings of pytest's sections that quote what tests printed."""
_WORDS = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS"
_NAME = r"(?P<{}>(?:[^\s\[:]|:(?!:))++::[^\s\[]++(?:\[.*?\])?)"
_LINE = re.compile(
    # In the short summary, and with several workers, the status stands first.
    rf"(?:\[gw\d+\] (?:\[ *\d+%\] )?)?(?P<first>{_WORDS}) {_NAME.format('after')}(?: - .*)?"
    rf"|{_NAME.format('before')} (?P<last>{_WORDS})(?: +\[ *\d+%\]| \(.*)?"
)
_PROGRESS = re.compile(r"(\S+\.py) [.FEsxX]+(?: +\[ *\d+%\])?")
_COUNT = r"\d{1,9} (?:passed|failed|errors?|skipped|deselected|xfailed|xpassed|warnings?|rerun|subtests passed)"
_SUMMARY = re.compile(rf"(?:=+ )?(?P<counts>{_COUNT}(?:, {_COUNT})*) in [\d.:]+ ?s\b.*")


def tests_shown(logs: Logs) -> dict[str, Status]:
    """The tests that the files of /logs/verifier show, by identity. Never raises: what cannot be read shows nothing."""
    shown: dict[str, Status] = {}
    reports = [_ctrf(logs.get("ctrf.json", b"")[:_MOST_BYTES])]
    reports += [_junit(logs[name][:_MOST_BYTES]) for name in sorted(logs) if re.fullmatch(_XML, name)]
    reports.append(_pytest(_stdout(logs)))
    for report in reports:
        _take(shown, report)
    return shown


def test_files_shown(logs: Logs) -> list[str]:
    """Return the paths of the first test files that pytest itself names, as it names them: relative to its root."""
    found: dict[str, None] = {}
    for line in _of_sessions(_stdout(logs)):
        if match := _LINE.fullmatch(line):
            found[(match["after"] or match["before"]).partition("::")[0]] = None
        elif match := _PROGRESS.fullmatch(line):
            found[match[1]] = None
    return list(islice(found, _MOST_FILES))


def claimed_passes(logs: Logs) -> set[str]:
    """Return the identities of tests that any line of the output calls passed, whoever printed it."""
    lines = (line.strip() for line in _COLOUR.sub("", _stdout(logs)).split("\n"))
    found = (_LINE.fullmatch(line) for line in lines if "PASSED" in line and len(line) <= _LONGEST_LINE)
    passed = (match for match in found if match and (match["first"] or match["last"]) == "PASSED")
    return {_identity(match["after"] or match["before"]) for match in islice(passed, MOST_TESTS)}


def _stdout(logs: Logs) -> str:
    # Its end has the summary.
    return logs.get("stdout.txt", b"")[-_MOST_BYTES:].decode("utf-8", "replace")


def logs_in(directory: Path) -> Logs:
    """The stored files of a verifier that may show tests, of each so much as is read of it; none where there are none.

    Raises OSError for one that is there and cannot be read.
    """
    found: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        is_one = path.name in ("ctrf.json", "stdout.txt", TEST_SUMS) or re.fullmatch(_XML, path.name)
        if not is_one or path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if path.name == "stdout.txt":
                file.seek(max(0, path.stat().st_size - _MOST_BYTES))
            found[path.name] = file.read(_MOST_BYTES)
    return found


def _take(shown: dict[str, Status], report: Iterator[tuple[str, Status]]) -> None:
    for name, status in islice(report, MOST_TESTS):
        name = name[:_MOST_CHARS].encode("utf-8", "replace").decode()  # JSON may hold half a character
        shown[name] = max(shown.get(name, status), status, key=STATUSES.index)


def _identity(name: str) -> str:
    """One name for a test from whatever directory it was run: its path below tests/, without the suffix."""
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
    """The status of a test; what is neither passed nor failed was not run to its end, such as pending."""
    words = (str(test.get("raw_status", "")).rpartition("_")[2], str(test.get("status", "")))
    found = [_OF_WORD[word] for word in words if word in _OF_WORD]
    return max(found, key=STATUSES.index, default="skipped")


class _Unread(Exception):
    """A report that is not read on."""


def _junit(raw: bytes) -> Iterator[tuple[str, Status]]:
    found: list[tuple[str, Status]] = []
    case: list[str] = []

    def start(tag: str, given: dict[str, str]) -> None:
        if tag == "testcase":
            if len(found) == MOST_TESTS:
                raise _Unread
            never = {given.get("status"), given.get("result")} & {"notrun", "skipped", "disabled"}
            case[:] = [_junit_identity(given)]
            found.append((case[0], "skipped" if never else "passed"))
        elif case and tag in ("failure", "error", "skipped"):
            status: Status = "failed" if tag == "failure" else "error" if tag == "error" else "skipped"
            found[-1] = case[0], "xfailed" if given.get("type") == "pytest.xfail" else status

    def end(tag: str) -> None:
        if tag == "testcase":
            case.clear()

    def entity(*_: object) -> None:
        raise _Unread

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.EntityDeclHandler = start, end, entity
    # What came before is shown.
    with contextlib.suppress(expat.ExpatError, _Unread, ValueError, LookupError):
        parser.Parse(raw, True)
    return iter(found)


def _junit_identity(given: dict[str, str]) -> str:
    """The identity that pytest prints: modules as a path, classes behind it."""
    parts = _below_tests(given.get("classname", "").split("."))
    first = next((at for at, part in enumerate(parts) if at and part[:1].isupper()), len(parts))
    return "::".join(filter(None, ["/".join(parts[:first]), *parts[first:], given.get("name", "")]))


def _pytest(output: str) -> Iterator[tuple[str, Status]]:
    """The tests of the sessions of pytest itself, not of those whose output it only shows, and those without a name."""
    named: set[tuple[str, Status]] = set()
    counts: Counter[Status] = Counter()
    for line in _of_sessions(output):
        if summary := _SUMMARY.fullmatch(line):
            for each in summary["counts"].split(", "):
                number, _, word = each.partition(" ")
                if word in _OF_WORD:
                    counts[_OF_WORD[word]] += int(number)
        elif (found := _LINE.fullmatch(line)) and len(named) < MOST_TESTS:
            word = (found["first"] or found["last"]).lower()
            named.add((_identity(found["after"] or found["before"]), _OF_WORD[word]))
    names = Counter(status for _, status in named)
    if counts and names["passed"] > counts["passed"]:
        # Its summary knows nothing of some of them: somebody else has printed names.
        named, names = {each for each in named if each[1] != "passed"}, Counter({**names, "passed": 0})
    yield from sorted(named)
    for status, count in counts.items():
        for number in range(1, min(count - names[status], MOST_TESTS) + 1):
            yield f"unnamed {status} {number}", status


def _of_sessions(output: str) -> Iterator[str]:
    """The lines in which pytest tells of its own tests: all but its sections of details, which quote what tests print.

    A session that is quoted there has a beginning and an end of its own.
    """
    quoted, is_detail, is_framed = 0, False, False
    for line in _COLOUR.sub("", output).split("\n"):
        line = line[:_LONGEST_LINE].strip()
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
            is_detail = heading in _QUOTING or (is_detail and heading != "short test summary info")
        elif not is_detail:
            yield line
