"""Parsing of tests from logs: all reports name a test alike, quoted output is ignored, and no input makes it raise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.verify import tests_shown as showing

TESTS = """
import subprocess, sys, unittest
from pathlib import Path

import pytest

def test_ok():
    print("PASSED test_printed.py::test_never_there")

@pytest.mark.parametrize("x", ["a - b", "c[d]", "e"])
def test_each(x): pass

def test_skipped(): raise unittest.SkipTest("so")

@pytest.mark.xfail
def test_xfailed(): assert 0

@pytest.mark.xfail
def test_xpassed(): pass

def test_failed(): assert 0

class TestGroup:
    def test_member(self): pass

@pytest.fixture
def broken(): raise ValueError

def test_error(broken): pass

def test_quoting(tmp_path):
    (tmp_path / "test_inner.py").write_text("def test_a(): pass\\ndef test_b(): assert 0\\n")
    command = [sys.executable, "-m", "pytest", "-rA", str(tmp_path)]
    print(subprocess.run(command, capture_output=True, text=True).stdout)
"""
NAMED = {
    **{f"test_work::{name}": "passed" for name in ("test_ok", "TestGroup::test_member", "test_quoting")},
    **{f"test_work::test_each[{each}]": "passed" for each in ("a - b", "c[d]", "e")},
    **{f"test_work::test_{status}": status for status in ("xfailed", "xpassed", "failed", "error")},
}


@pytest.fixture(scope="module")
def tests_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("work") / "tests"
    path.mkdir()
    (path / "test_work.py").write_text(TESTS)
    return path


def logs_of(tests: Path, *options: str, cwd: Path | None = None) -> dict[str, bytes]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *options, str(tests)]
    done = subprocess.run(command, cwd=cwd or tests, capture_output=True, check=False)
    files = {each.name: each.read_bytes() for each in tests.parent.glob("*.xml")}
    return {"stdout.txt": done.stdout, **files}


@pytest.mark.parametrize("options", [["-q", "-rA"], ["-rA", "--color=yes"]])
def test_a_summary_names_all_tests_except_skipped_ones_which_are_numbered(
    tests_directory: Path, options: list[str]
) -> None:
    assert showing.tests_shown(logs_of(tests_directory, *options)) == {**NAMED, "unnamed skipped 1": "skipped"}


def test_verbose_output_names_skipped_tests_in_any_working_directory(tests_directory: Path) -> None:
    expected = {**NAMED, "test_work::test_skipped": "skipped"}
    for cwd in (tests_directory, Path("/")):
        assert showing.tests_shown(logs_of(tests_directory, "-v", cwd=cwd)) == expected


def test_tests_without_names_are_numbered_and_deselected_ones_always(tests_directory: Path) -> None:
    shown = showing.tests_shown(logs_of(tests_directory, "-q", "--deselect", "test_work.py::test_ok"))
    # The summary names failed tests by itself.
    names = {"test_work::test_failed", "test_work::test_error", *(f"unnamed passed {n}" for n in range(1, 6))}
    others = {f"unnamed {status} 1" for status in ("skipped", "xfailed", "xpassed", "deselected")}
    assert shown.keys() == names | others


def test_junit_names_tests_like_pytest_itself(tests_directory: Path) -> None:
    logs = logs_of(tests_directory, f"--junitxml={tests_directory.parent / 'junit.xml'}", cwd=tests_directory.parent)
    # JUnit has no status for unexpected passes.
    expected = {**NAMED, "test_work::test_skipped": "skipped", "test_work::test_xpassed": "passed"}
    assert showing.tests_shown({"junit.xml": logs["junit.xml"]}) == expected


def test_ctrf_names_tests_like_pytest_and_the_worst_status_of_a_name_counts() -> None:
    tests = [
        {"name": "../tests/test_work.py::test_a", "status": "passed", "raw_status": "call_passed"},
        {"name": "test_work.py::test_b", "status": "other", "raw_status": "call_xfailed"},
        {"name": "test_work.py::test_c", "status": "pending"},
        {"name": "half \ud800", "status": "passed"},
        {"name": "a sentence", "status": "failed", "raw_status": "call_failed"},
    ]
    output = b"PASSED test_work.py::test_c\nFAILED tests/test_work.py::test_a - AssertionError: no\n"
    report = json.dumps({"results": {"tests": tests}}).encode()
    assert showing.tests_shown({"ctrf.json": report, "stdout.txt": output}) == {
        "test_work::test_a": "failed",
        "test_work::test_b": "xfailed",
        "test_work::test_c": "skipped",
        "half ?": "passed",
        "a sentence": "failed",
    }


def test_headings_that_a_script_prints_hide_no_tests() -> None:
    output = b"=== Running ===\n== test session starts ==\nt.py::a PASSED [ 50%]\n== 1 passed, 1 warning in 0.1s ==\n"
    assert showing.tests_shown({"stdout.txt": output}) == {"t::a": "passed"}


def test_passed_names_beyond_the_count_of_the_summary_are_ignored() -> None:
    names = b"PASSED t.py::a\nt.py::b PASSED [ 10%]\n"
    assert showing.tests_shown({"stdout.txt": names + b"2 skipped in 0.1s\n"}) == {
        "unnamed skipped 1": "skipped", "unnamed skipped 2": "skipped",
    }  # fmt: skip
    assert showing.tests_shown({"stdout.txt": names + b"2 passed in 0.1s\n"}) == {"t::a": "passed", "t::b": "passed"}


def test_lines_of_several_workers_are_parsed() -> None:
    output = b"[gw0] [ 50%] PASSED t.py::a\n[gw1] [100%] SKIPPED t.py::b\n1 passed, 1 skipped in 0.1s\n"
    assert showing.tests_shown({"stdout.txt": output}) == {"t::a": "passed", "t::b": "skipped"}


@pytest.mark.parametrize(
    "logs",
    [
        {"ctrf.json": b"[" * 100_000},
        {"ctrf.json": b'{"results": {"tests": [1, {"name": 2}, null]}}'},
        {"a.xml": b'<!DOCTYPE a [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><testcase name="&b;"/>'},
        {"a.xml": b'<?xml version="1.0" encoding="no-such"?><testcase name="a"/>'},
        {"stdout.txt": b"a::" * 2_000_000 + b"\n" + b"a::b[] PASSED" * 1_000_000},
        {"stdout.txt": b"= " * 4_000_000 + b"\n" + b"1 passed, " * 500_000},
    ],
)
def test_hostile_reports_show_no_tests(logs: dict[str, bytes]) -> None:
    assert showing.tests_shown(logs) == {}


def test_the_number_of_tests_is_limited() -> None:
    assert len(showing.tests_shown({"stdout.txt": b"999999999 passed in 1s"})) == showing.MAX_TESTS
    assert len(showing.tests_shown({"a.xml": b"<a>" + b"<testcase name='x'/>" * (showing.MAX_TESTS + 5)})) == 1


LINES = st.lists(
    st.one_of(
        st.sampled_from(["== test session starts ==", "== PASSES ==", "== short test summary info ==", "a::b PASSED"]),
        st.sampled_from(["=== 1 passed, 2 skipped in 0.1s ===", "SKIPPED a::b[]", "1 passed in 1s", "FAILED a::b - x"]),
        st.text(max_size=20),
    )
)


@given(ctrf=st.binary(max_size=200), xml=st.binary(max_size=200), lines=LINES, raw=st.binary(max_size=100))
def test_no_input_makes_it_raise(ctrf: bytes, xml: bytes, lines: list[str], raw: bytes) -> None:
    output = "\n".join(lines).encode("utf-8", "replace") + raw
    shown = showing.tests_shown({"ctrf.json": ctrf, "x.xml": b"<testcase name='a'>" + xml, "stdout.txt": output})
    assert set(shown.values()) <= set(showing.STATUSES)


def test_test_files_are_listed_as_pytest_names_them() -> None:
    output = (
        b"tests/test_a.py ..F.                        [ 50%]\nsub/test_b.py::test_x[1] PASSED\n"
        b"== PASSES ==\nother/test_c.py ..\n== short test summary info ==\nPASSED tests/test_d.py::test_y\n"
        b"== 5 passed in 0.1s =="
    )
    assert showing.test_files_shown({"stdout.txt": output}) == ["tests/test_a.py", "sub/test_b.py", "tests/test_d.py"]
    many = "".join(f"test_{number}.py .\n" for number in range(50)).encode()
    assert len(showing.test_files_shown({"stdout.txt": many})) == 20
    assert showing.test_files_shown({}) == []
