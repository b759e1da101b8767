"""The verifier's files: tests from any of its reports, and its output in colour."""

from __future__ import annotations

import json
from pathlib import Path

from reports.trial.page_text import coloured
from reports.trial.verdict import read_verifier
from tbench.text import without_escapes


def test_tests_of_a_ctrf_report_come_first_where_they_failed(tmp_path: Path) -> None:
    tests = [
        {"name": "t.py::good", "status": "passed", "duration": 0.5},
        {"name": "t.py::bad", "status": "failed", "trace": "\x1b[31mAssertionError\x1b[0m", "duration": "x"},
    ]
    (tmp_path / "ctrf.json").write_text(json.dumps({"results": {"tests": [*tests, None]}}))
    seen = read_verifier(tmp_path)
    assert seen is not None
    assert [(test.own_name, test.state, test.message) for test in seen.tests] == [
        ("bad", "fail", "AssertionError"),
        ("good", "pass", ""),
    ]
    assert [test.duration_sec for test in seen.tests] == [None, 0.5]


def test_a_junit_report_is_read_unless_it_declares_entities(tmp_path: Path) -> None:
    case = '<testcase classname="test_a" name="b" time="0.1"><failure message="m">why</failure></testcase>'
    report = f"<testsuites><testsuite>{case}</testsuite></testsuites>"
    (tmp_path / "junit.xml").write_text(report)
    seen = read_verifier(tmp_path)
    assert seen is not None
    assert [(test.name, test.status, test.message) for test in seen.tests] == [("test_a::b", "failed", "why")]
    (tmp_path / "junit.xml").write_text(f'<!DOCTYPE x [<!ENTITY a "aaaa">]>{report}')
    assert read_verifier(tmp_path) is None


def test_without_a_report_the_tests_come_from_the_output(tmp_path: Path) -> None:
    (tmp_path / "stdout.txt").write_text("\x1b[32mPASSED\x1b[0m t.py::a\nFAILED t.py::b - assert 1 == 2\n")
    (tmp_path / "ctrf.json").write_text("[" * 100_000)
    seen = read_verifier(tmp_path)
    assert seen is not None
    assert [(test.name, test.status, test.message) for test in seen.tests] == [
        ("t.py::b", "failed", "assert 1 == 2"),
        ("t.py::a", "passed", ""),
    ]


def test_what_pytest_shows_of_a_failure_is_the_message_of_its_test(tmp_path: Path) -> None:
    (tmp_path / "stdout.txt").write_text(
        """==== FAILURES ====
_____ test_sum[a b] _____

>   assert 3 == 4
E   assert 3 == 4
_____ ERROR at setup of TestA.test_two _____
E   OSError: no
==== short test summary info ====
FAILED t.py::test_sum[a b] - asse...
ERROR t.py::TestA::test_two
FAILED t.py::test_other - why
"""
    )
    seen = read_verifier(tmp_path)
    assert seen is not None
    assert [(test.own_name, test.message) for test in seen.tests] == [
        ("test_sum[a b]", ">   assert 3 == 4\nE   assert 3 == 4"),
        ("test_other", "why"),
        ("test_two", "E   OSError: no"),
    ]


def test_a_long_output_has_its_ends_and_says_how_much_is_between(tmp_path: Path) -> None:
    (tmp_path / "stdout.txt").write_text("begin\n" + "x" * 200_000 + "\nend")
    seen = read_verifier(tmp_path)
    assert seen is not None
    assert seen.output.startswith("begin")
    assert seen.output_end.endswith("end")
    assert seen.output_rest == "0.2 MB of text"


def test_nothing_was_left(tmp_path: Path) -> None:
    assert read_verifier(tmp_path) is None


def test_colours_become_classes_and_other_escapes_nothing() -> None:
    assert coloured("\x1b[1;31mred\x1b[39m bold\x1b[0m <plain>") == (
        '<span class="i1 b">red</span><span class="b"> bold</span> &lt;plain&gt;'
    )
    assert coloured("\x1b[38;5;9ma\x1b[48;2;1;2;3mb\x1b[38;5;200mc") == (
        '<span class="i9">a</span><span class="i9 g0">b</span><span class="i13 g0">c</span>'
    )
    assert coloured("\x1b]8;;javascript:x\x1b\\link\x1b]8;;\x07\x1b[2J\x1b[99;9H") == "link"


def test_a_line_that_was_drawn_over_is_as_it_was_last() -> None:
    assert without_escapes("10 %\r50 %\r100 %\r\ndone\r\n") == "100 %\ndone\n"


def test_many_changes_of_colour_are_bounded() -> None:
    assert coloured("\x1b[31mx\x1b[32my" * 50_000).count("<span") <= 4001
