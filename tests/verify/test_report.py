"""From the bytes that verifier.sh prints to facts and files."""

from __future__ import annotations

from tbench.sandbox.archive import FileEntry, pack
from tbench.verify.report import Facts, read_report

LIMIT = 1 << 20


def printed(*lines: str, **files: bytes) -> bytes:
    archive = pack({f"/logs/{name.replace('__', '/')}": FileEntry(data) for name, data in files.items()})
    return "".join(f"{line}\n" for line in lines).encode() + b"\0" + archive


def test_every_kind_of_line_is_a_fact() -> None:
    lines = (
        *("code\t137", "late\t1", "left\t2", "evidence\t/tests", "evidence\t/tests/x", "repair\tcwd: gone"),
        *("forged\tit was", "changed\t/tests/test.sh", "new\t/tests/x.py", "before\t/usr/bin/x", "odd\t/logs/x"),
        *("killed\t2", "killed\t3", "outlived\t3", "began\t", "told\t+/tests/test.sh:3 echo 1", "ended\t", "end\t"),
    )
    facts, files = read_report(printed(*lines, verifier__stdout=b"words"), LIMIT)
    assert facts == Facts(
        exit_code=137,
        timed_out=True,
        leftovers=2,
        out_of_memory=True,
        forged=("it was",),
        evidence=("/tests", "/tests/x"),
        repairs=("cwd: gone",),
        changed_tests=("/tests/test.sh",),
        new_tests=("/tests/x.py",),
        changed_before=frozenset({"/usr/bin/x"}),
        odd=("/logs/x",),
        outlived=3,
        has_watcher=True,
        has_ended=True,
        told=("+/tests/test.sh:3 echo 1",),
        is_complete=True,
    )
    assert files == {"verifier/stdout": b"words"}


def test_output_that_broke_off_is_not_complete() -> None:
    facts, files = read_report(b"code\t0\nlate", LIMIT)
    assert (facts.exit_code, facts.is_complete, files) == (0, False, {})
    assert read_report(b"", LIMIT) == (Facts(), {})


def test_files_are_cut_at_the_limit() -> None:
    _, files = read_report(printed("end\t", verifier__a=b"12345", verifier__b=b"678"), 6)
    assert files == {"verifier/a": b"12345", "verifier/b": b"6"}


def test_a_script_was_killed_where_a_signal_ended_it_before_its_end() -> None:
    assert Facts(exit_code=137).was_killed
    assert not Facts(exit_code=137, has_ended=True).was_killed
    assert not Facts(exit_code=137, timed_out=True).was_killed
    assert not Facts(exit_code=1).was_killed
    assert not Facts().was_killed
