"""approval: which commands, lines and keys rules allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.approval import Approval, Approver, BadApproval, read_rules
from harness.protocols.base import Action, Command, Keys, Parsed
from harness.protocols.bash import SUBMIT_COMMAND


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rules.txt"
    path.write_text("# reading\nls( -\\w+)*\ncat [\\w./]+\n\nC-c\nEnter\n")
    return path


@pytest.fixture
def approver(file: Path) -> Approver:
    return Approver(Approval.read(f"allowlist={file}"))


def typed(*texts: str) -> Parsed:
    return Parsed(tuple(Keys(text, 0.1) for text in texts))


def run(command: str) -> Parsed:
    return Parsed((Command(command),))


@pytest.mark.parametrize(
    ("setting", "asks", "number"), [("ask", True, 0), ("allowlist={}", False, 4), ("ask,allowlist={}", True, 4)]
)
def test_a_setting_says_who_approves(file: Path, setting: str, asks: bool, number: int) -> None:
    approval = Approval.read(setting.format(file))
    assert (approval.asks, len(approval.rules)) == (asks, number)


@pytest.mark.parametrize("setting", ["", "yes", "ask,", "ask,ls", "allowlist=", "allowlist"])
def test_a_setting_that_is_none_is_refused(setting: str) -> None:
    with pytest.raises(BadApproval, match="write ask, allowlist=FILE, or ask,allowlist=FILE"):
        Approval.read(setting)


def test_files_that_cannot_be_used_are_told_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(BadApproval, match=r"missing\.txt: No such file or directory"):
        read_rules(tmp_path / "missing.txt")
    (bad := tmp_path / "bad.txt").write_text("ls\n(\n")
    with pytest.raises(BadApproval, match=r"bad.txt:2: \(: is no regular expression"):
        read_rules(bad)
    (empty := tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(BadApproval, match="has no rule"):
        read_rules(empty)
    (binary := tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadApproval, match="is no UTF-8 text"):
        read_rules(binary)


def test_a_fingerprint_is_of_the_rules_and_not_of_their_file(file: Path, tmp_path: Path) -> None:
    (copy := tmp_path / "copy.txt").write_text(file.read_text().replace("# reading\n", ""))
    assert Approval.read(f"allowlist={copy}").fingerprint == Approval.read(f"allowlist={file}").fingerprint
    assert Approval.read(f"ask,allowlist={copy}").fingerprint.startswith("ask,allowlist:")
    assert Approval.read("ask").fingerprint == "ask"


@pytest.mark.parametrize(
    ("parsed", "refused"),
    [
        (run("ls -l"), ()),
        (run("ls -l\n"), ()),
        (run("ls -l; rm -r x"), ("ls -l; rm -r x",)),
        (run("ls\nrm -r x"), ("ls\nrm -r x",)),
        (typed("ls -l\n"), ()),
        (typed("ls", " -l", "\n"), ()),
        (typed("ls", "; rm x\n"), ("ls; rm x",)),
        (typed("ls\nrm x\n"), ("rm x",)),
        (typed("ls\r\ncat a\r"), ()),
        (typed("ls"), ()),
        (typed("rm"), ("rm",)),
        (typed("\n"), ()),
        (typed(""), ()),
        (typed("cat a\x7f\x7f\x7f\n"), ("cat a\x7f\x7f\x7f",)),
        (typed("ls\x1b"), ("ls\x1b",)),
        (Parsed((Keys("", 0.1, key="C-c"),)), ()),
        (Parsed((Keys("", 0.1, key="C-d"),)), ("C-d",)),
        (Parsed((Keys("rm x", 0.1), Keys("", 0.1, key="C-c"), Keys("ls\n", 0.1))), ()),
        (Parsed((), complete=True), ()),
        (Parsed((Command(SUBMIT_COMMAND),), complete=True), ()),
    ],
)
def test_a_command_and_a_typed_line_count_as_a_whole(
    approver: Approver, parsed: Parsed, refused: tuple[str, ...]
) -> None:
    assert approver.refused(parsed) == refused


def test_a_line_goes_on_where_an_earlier_reply_has_left_it(approver: Approver) -> None:
    approver.done(typed("ls -l"))
    assert approver.refused(typed("; rm x\n")) == ("ls -l; rm x",)
    assert approver.refused(typed("a\n")) == ()
    approver.done(typed("a\n"))
    assert approver.refused(typed("; rm x\n")) == ("; rm x",)


def test_the_rules_that_allow_a_reply_are_told_once_each(approver: Approver) -> None:
    actions: tuple[Action, ...] = (Command("ls"), Command("cat a"), Command("ls -l"))
    assert approver.rules_for(Parsed(actions)) == ("ls( -\\w+)*", "cat [\\w./]+")


def test_the_model_reads_what_was_refused_and_what_is_allowed(file: Path) -> None:
    words = Approval.read(f"allowlist={file}").words_for_model(["rm x"])
    assert "  rm x\n" in words
    assert "  cat [\\w./]+" in words
    assert "nobody has approved it" in Approval.read("ask").words_for_model(["rm x"])
