"""From the bytes that verifier.sh prints to facts and files."""

from __future__ import annotations

from tbench.sandbox.archive import FileEntry, pack
from tbench.verify.report import Facts, Suspect, read_report

LIMIT = 1 << 20


def printed(*lines: str, **files: bytes) -> bytes:
    archive = pack({f"/logs/{name.replace('__', '/')}": FileEntry(data) for name, data in files.items()})
    return "".join(f"{line}\n" for line in lines).encode() + b"\0" + archive


def test_every_kind_of_line_is_a_fact() -> None:
    lines = (
        *("code\t137", "late\t1", "left\t2", "evidence\t/tests", "evidence\t/tests/x", "repair\tcwd: gone"),
        *("hosts\t127.0.0.1 astral.sh", "forged\tit was", "changed\t/tests/test.sh", "end\t"),
    )
    facts, files = read_report(printed(*lines, verifier__stdout=b"words"), LIMIT)
    assert facts == Facts(
        exit_code=137,
        timed_out=True,
        leftovers=2,
        forged=("it was",),
        evidence=("/tests", "/tests/x"),
        repairs=("cwd: gone",),
        changed_tests=("/tests/test.sh",),
        hosts=("127.0.0.1 astral.sh",),
        is_complete=True,
    )
    assert files == {"verifier/stdout": b"words"}


def test_a_suspect_has_its_own_records_and_the_beginning_of_its_file() -> None:
    lines = (
        *("suspect\t1\t/usr/bin/x\t/opt/x\t1\tm\ts", "suspect\t2\t/usr/bin/y\t/usr/bin/y\t0\tm2\ts2"),
        *("known\t1\tm  opt/x", "known\t2\tm2  usr/bin/y", "end\t"),
    )
    facts, files = read_report(printed(*lines, suspects__1=b"\x7fELF"), LIMIT)
    assert facts.suspects == (
        Suspect("/usr/bin/x", "/opt/x", True, "m", "s", ("m  opt/x",), b"\x7fELF"),
        Suspect("/usr/bin/y", "/usr/bin/y", False, "m2", "s2", ("m2  usr/bin/y",), b""),
    )
    assert files == {}


def test_output_that_broke_off_is_not_complete() -> None:
    facts, files = read_report(b"code\t0\nlate", LIMIT)
    assert (facts.exit_code, facts.is_complete, files) == (0, False, {})
    assert read_report(b"", LIMIT) == (Facts(), {})


def test_files_are_cut_at_the_limit() -> None:
    _, files = read_report(printed("end\t", verifier__a=b"12345", verifier__b=b"678"), 6)
    assert files == {"verifier/a": b"12345", "verifier/b": b"6"}
