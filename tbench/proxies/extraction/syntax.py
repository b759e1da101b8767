"""Asks `bash -n` whether bash accepts a command: it reads and parses, and executes nothing.

The command comes on stdin, in an empty environment (no BASH_ENV, no exported functions or options), without start-up
files, in `/`, bounded in length and time.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

from tbench.errors import UsageError
from tbench.text import one_line

LONGEST_COMMAND = 200_000
"""Most bytes of a command that bash is asked about; a longer one is not accepted."""
_ARGUMENTS = ("--norc", "--noprofile", "-n", "-s")
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class SyntaxCheck:
    """Whether bash accepts a command, and what it says of it."""

    accepted: bool
    complaint: str = ""
    """bash's first line, or why it was not asked."""


class BashSyntax:
    """Asks the machine's bash about commands, and remembers its answers."""

    def __init__(self, bash: str | None = None, *, timeout_sec: float = 5.0) -> None:
        """Find bash, the machine's own unless it is named. Raises UsageError where there is none."""
        found = bash or shutil.which("bash")
        if found is None:
            raise UsageError("bash: not found on this machine; the syntactic level asks it (bash -n), so install it")
        self._bash = found
        self._timeout_sec = timeout_sec
        self._known: dict[str, SyntaxCheck] = {}
        self.version = self._version()

    def check(self, command: str) -> SyntaxCheck:
        """Whether `bash -n` exits with 0."""
        if command not in self._known:
            self._known[command] = self._ask(command)
        return self._known[command]

    def _ask(self, command: str) -> SyntaxCheck:
        data = command.encode("utf-8", "replace") + b"\n"
        if len(data) > LONGEST_COMMAND:
            return SyntaxCheck(False, f"longer than {LONGEST_COMMAND} bytes")
        if b"\0" in data:
            return SyntaxCheck(False, "a NUL character")
        try:
            done = self._run(*_ARGUMENTS, stdin=data)
        except subprocess.TimeoutExpired:
            return SyntaxCheck(False, f"bash -n took longer than {self._timeout_sec:g} s")
        lines = done.stderr[:10_000].decode("utf-8", "replace").splitlines()
        if done.returncode == 0:
            return SyntaxCheck(True, one_line(lines[0], 200) if lines else "")
        return SyntaxCheck(False, one_line(lines[0], 200) if lines else f"bash -n ended with {done.returncode}")

    def _version(self) -> str:
        try:
            lines = self._run("--version").stdout.decode("utf-8", "replace").splitlines()
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UsageError(f"{self._bash}: cannot be started: {error}") from None
        return one_line(lines[0]) if lines else "unknown"

    def _run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._bash, *arguments],
            input=stdin,
            capture_output=True,
            timeout=self._timeout_sec,
            check=False,
            cwd="/",
            env=_ENVIRONMENT,
        )
