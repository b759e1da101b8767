"""Parsing of the output of verifier.sh into facts and files."""

from __future__ import annotations

import math

import pytest

from tbench.sandbox.archive import FileEntry, pack
from tbench.verify.report import Facts, PartOutput, read_report

LIMIT = 1 << 20
MARK = "01234567-89ab-cdef-0123-456789abcdef"


def printed(*lines: str, **files: bytes) -> bytes:
    archive = pack({f"/logs/{name.replace('__', '/')}": FileEntry(data) for name, data in files.items()})
    report = "".join(f"{line}\n" for line in lines)
    return f"{MARK}\n".encode() + archive + f"{MARK}\n{report}{MARK} end\n".encode()


def read(*outputs: bytes, limit: int = LIMIT) -> tuple[Facts, dict[str, bytes]]:
    return read_report([PartOutput.read(output) for output in outputs], limit)


def test_every_kind_of_line_is_a_fact() -> None:
    tests = (
        *("code\t137", "late\t1", "left\t2", "evidence\t/tests", "evidence\t/tests/x", "repair\tcwd: gone"),
        *("forged\tit was", "killed\t2", "staged_at\t12.5", "began\t"),
        *("told\t+/tests/test.sh:3 echo 1", "told_by\t7 +/tests/test.sh:3 echo 0", "wrote_last\tand others spoke"),
        *("called\t+/tests/test.sh:2 pytest", "program\t/x/y", "runner\t/x/pytest", "unlooked\t", "cut\t", "halted\t"),
    )
    after = (
        "changed\t/tests/test.sh",
        "new\t/tests/x.py",
        "odd\t/logs/x is a fifo",
        "killed\t3",
        "outlived\t3",
        "ended\t",
    )
    facts, files = read(printed(*tests), printed(*after, verifier__stdout=b"words"))
    assert facts == Facts(
        exit_code=137,
        timed_out=True,
        leftovers=2,
        staged_at=12.5,
        out_of_memory=True,
        forged=("it was",),
        evidence=("/tests", "/tests/x"),
        repairs=("cwd: gone",),
        changed_tests=("/tests/test.sh",),
        new_tests=("/tests/x.py",),
        odd_reward_files=("/logs/x is a fifo",),
        outlived=3,
        has_watcher=True,
        has_ended=True,
        traced_writes=("+/tests/test.sh:3 echo 1",),
        wrote_last=True,
        others_wrote_trace=True,
        called=("+/tests/test.sh:2 pytest",),
        programs=("/x/y", "/x/pytest"),
        runners=("/x/pytest",),
        has_unchecked_programs=True,
        is_cut=True,
        was_halted=True,
        is_complete=True,
    )
    assert files == {"verifier/stdout": b"words"}


def test_output_that_is_cut_off_is_incomplete_and_yields_no_facts() -> None:
    whole = printed("code\t0", verifier__a=b"1")
    for output in (b"", whole[:-1], whole[:-60], whole[:10]):
        assert read(printed("left\t1"), output) == (Facts(leftovers=1), {})


@pytest.mark.parametrize(
    "output",
    [
        printed("code\t0") + printed("code\t0", verifier__reward=b"1"),
        b"x" + printed("code\t0"),
        printed("code\t0") + b"x",
        printed("code\t0").replace(MARK.encode(), b"f" * 36) + printed("code\t0"),
        printed("code\t0", f"{MARK}\n"),
        f"{MARK} end\n".encode(),
    ],
    ids=["two", "before", "behind", "two marks", "its own mark within", "end alone"],
)
def test_output_that_another_process_wrote_into_is_ignored(output: bytes) -> None:
    facts, files = read(printed("code\t1"), output)
    assert (facts.exit_code, facts.is_complete, files) == (1, False, {})
    assert facts.forged == ("another process wrote into the verifier's output",)


def test_an_inspection_is_read_between_marks_only_if_one_may_be_there() -> None:
    output = printed("code\t1").replace(b"code", b"\0looked\0end%b\ncode" % MARK.encode())
    found = PartOutput.read(output, inspects=True)
    assert (found.inspection, found.facts["code"], found.is_whole) == (b"\0looked\0end", ["1"], True)
    assert PartOutput.read(printed("code\t1"), inspects=True).inspection == b""
    assert (
        PartOutput.read(output).has_foreign_output
        and PartOutput.read(output + output, inspects=True).has_foreign_output
    )


def test_files_are_cut_at_the_limit() -> None:
    _, files = read(printed(verifier__a=b"12345", verifier__b=b"678"), limit=6)
    assert files == {"verifier/a": b"12345", "verifier/b": b"6"}


def test_a_script_was_killed_where_a_signal_ended_it_before_its_end() -> None:
    assert Facts(exit_code=137).was_killed
    assert not Facts(exit_code=137, has_ended=True).was_killed
    assert not Facts(exit_code=137, timed_out=True).was_killed
    assert not Facts(exit_code=1).was_killed
    assert not Facts(exit_code=255).was_killed
    assert not Facts().was_killed


def test_the_trace_of_a_single_subshell_counts_if_bash_itself_traced_nothing() -> None:
    line = "+/tests/test.sh:3 echo"
    assert read(printed(f"told_by\t7 {line} 0", f"told_by\t7 {line} 1"))[0].traced_writes == (f"{line} 0", f"{line} 1")
    assert read(printed(f"told_by\t7 {line} 0", f"told_by\t8 {line} 1"))[0].traced_writes == ()
    assert read(printed(f"told_by\t7 {line} 1", f"told\t{line} 0"))[0].traced_writes == (f"{line} 0",)


def test_malformed_numbers_and_times_are_ignored() -> None:
    facts, _ = read(printed("left\tx", "peak\t-1", "staged_at\t1.5x", "code\t", "killed\t1", "killed\t1"))
    assert (facts.leftovers, facts.memory_peak_bytes, facts.staged_at, facts.exit_code) == (0, 0, math.inf, None)
    assert not facts.out_of_memory
    assert read() == (Facts(is_complete=True), {})
