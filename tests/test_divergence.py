"""divergence: what counts as the same on a terminal, and what does not."""

from __future__ import annotations

import pytest

from tbench.divergence import first_difference, normalised_line


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("-rw-r--r-- 1 root root 5926 Nov 23 21:22 web.log", "-rw-r--r-- 1 root root 5926 Dec  2 08:01 web.log"),
        ("2026-11-23T21:22:01.123Z started", "2026-11-24T07:00:59.9Z started"),
        ("Mon Nov 23 21:22:01 UTC 2026", "Tue Nov 24 07:00:00 UTC 2026"),
        ("real\t0m1.203s", "real\t0m0.911s"),
        ("12 passed in 0.53s", "12 passed in 1.2s"),
        ("[1] 4711", "[1] 815"),
        ("killed pid 4711", "killed pid 12"),
        ("root@38dec3665350:/app#", "root@9f00a1b2c3d4:/app#"),
        ("commit 3794afbdeadbeef0123456789abcdef012345678", "commit d68ca680000000000000000000000000000000ab"),
        ("object at 0x7f91d7a3ea50", "object at 0x7f91d78c51d0"),
        ("Chunk ID: 403a89", "Chunk ID: 201234"),
        ("written to /tmp/tmp.Xk2jd9", "written to /tmp/tmp.aaaaaa"),
        ("took 31.2 MB/s", "took 9 MB/s"),
        ("a\n\n\nb  ", "a\nb"),
    ],
)
def test_times_numbers_of_processes_and_hashes_are_no_difference(before: str, now: str) -> None:
    assert first_difference(before, now) is None


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("12 passed", "11 passed"),
        ("-rw-r--r-- 1 root root 5926 Nov 23 21:22 web.log", "-rw-r--r-- 1 root root 5927 Nov 23 21:22 web.log"),
        ("reward 1", "reward 0"),
        ("error: no such file", "ok"),
        ("deadbeef", "cafebabe"),
    ],
)
def test_whatever_else_differs_is_reported_with_its_line(before: str, now: str) -> None:
    assert first_difference(f"same\n{before}\nend", f"same\n{now}\nend") == f"{now!r} where {before!r} was before"


def test_more_or_less_is_a_difference() -> None:
    assert first_difference("a", "a\nb") == "'b' where nothing was before"
    assert first_difference("a\nb", "a") == "nothing where 'b' was before"


def test_a_long_line_is_reported_in_part() -> None:
    told = first_difference("x" * 5000, "y" * 5000)
    assert told is not None
    assert len(told) < 300


def test_what_varies_is_marked() -> None:
    assert normalised_line("at  21:22:01 in 3 ms") == "at … in …"
