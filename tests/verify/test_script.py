"""Names and numbers that verifier.sh and verifier.py share."""

from __future__ import annotations

import re
from pathlib import Path

from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BUSYBOX, NOT_STAGED
from tbench.verify.verifier import VerifierScript

SCRIPT = VerifierScript("/.stage", {"/.stage/tests/test.sh": FileEntry(b"true\n", 0o755)}, "/app", 10.0, (3, 8))


def test_every_variable_is_read_and_removed() -> None:
    given = set(SCRIPT.environment("whole"))
    taken, removed = (
        set(re.findall(r"TBENCH_VERIFIER_\w+", text))
        for text in re.findall(r"((?:^\w+=\$TBENCH.*\n)+)unset ((?:.*\\\n)*.*)\n", SCRIPT.text, re.MULTILINE)[0]
    )
    assert given == taken == removed


def test_exit_codes_and_the_path_of_the_shell_agree_with_python() -> None:
    values = dict(re.findall(r"^(\w+)=(\S+)$", SCRIPT.text, re.MULTILINE))
    assert values["busybox"] == BUSYBOX
    assert values["exit_not_staged"] == str(NOT_STAGED)


def test_the_script_is_the_same_for_every_task() -> None:
    assert SCRIPT.text == VerifierScript("/.other", {}, "/", 1.0).text
    assert SCRIPT.text.endswith((Path(__file__).parents[2] / "tbench" / "verify" / "verifier.sh").read_text())


def test_line_numbers_are_between_spaces() -> None:
    assert SCRIPT.environment("whole")["TBENCH_VERIFIER_LINES"] == " 3 8 "


def test_limits_are_whole_seconds_and_at_least_one() -> None:
    assert VerifierScript("/.stage", {}, "/", 0.2).environment("run")["TBENCH_VERIFIER_LIMIT_SEC"] == "1"
    assert VerifierScript("/.stage", {}, "/", 2.6).environment("run")["TBENCH_VERIFIER_LIMIT_SEC"] == "3"
