"""The user's terminal: drawing on the whole screen, and restoring it."""

from __future__ import annotations

import sys
import termios

import pexpect

DRAWS = """
import sys
from tbench.cli.full_screen import FullScreen

with FullScreen() as own:
    assert own.size == (20, 4), own.size
    own.show(["first", "x" * 20], (5, 0))
    sys.stdin.read(1)
    own.show(["first", "second"], None, application_keys=True)
    sys.stdin.read(1)
print("behind it")
"""


def test_only_rows_that_have_changed_are_drawn_and_all_is_given_back() -> None:
    child = pexpect.spawn(sys.executable, ["-c", DRAWS], dimensions=(4, 20), timeout=20, encoding="utf-8")
    before = termios.tcgetattr(child.child_fd)
    child.expect_exact("\x1b[?1049h")
    child.expect_exact(f"\x1b[1;1H\x1b[0m\x1b[Kfirst\x1b[2;1H\x1b[0m\x1b[K{'x' * 20}\x1b[0m\x1b[?1l\x1b[1;6H\x1b[?25h")
    assert termios.tcgetattr(child.child_fd)[3] & termios.ICANON == 0
    child.send("a")
    child.expect_exact("\x1b[?25l\x1b[2;1H\x1b[0m\x1b[Ksecond\x1b[0m\x1b[?1h")
    child.send("b")
    child.expect_exact("\x1b[?1l\x1b[?2004l\x1b[?25h\x1b[?1049l")
    child.expect_exact("behind it")
    assert termios.tcgetattr(child.child_fd) == before
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
