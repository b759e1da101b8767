"""Files left by the verifier of a trial: its output, the tests that it ran, the rewards that it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from reports.trial.page_text import amount_text, coloured
from tbench.checked_tests import CheckedTest, read_tests
from tbench.text import size_text

_HEAD_CHARS, _TAIL_CHARS = 6_000, 18_000
"""Characters of the output in a page: mostly from its end, where test runners print the results."""
_LARGEST_BYTES = 4 << 20
_MAX_TESTS = 300
_NO_TEXT = Markup()


@dataclass(frozen=True, slots=True)
class VerifierView:
    """Verifier as the page shows it."""

    output: Markup
    output_rest: str = ""
    """Amount of output left out between `output` and `output_end`."""
    output_end: Markup = _NO_TEXT
    tests: tuple[CheckedTest, ...] = ()
    """Failed ones first."""
    tests_left_out: int = 0
    source: str = ""
    """File that the tests were read from."""
    numbers: tuple[tuple[str, str], ...] = ()
    """Name and content of the reward files."""

    @property
    def passed(self) -> int:
        return sum(test.state == "pass" for test in self.tests)


def read_verifier(directory: Path) -> VerifierView | None:
    """Read the `verifier` directory of a trial; None if it has nothing to show."""
    output = _text(directory / "stdout.txt")
    source, tests = read_tests(lambda name: output if name == "stdout.txt" else _text(directory / name))
    numbers = tuple(_numbers(directory))
    if not output and not tests and not numbers:
        return None
    rest = len(tests) - _MAX_TESTS
    head, between, tail = _ends(output)
    return VerifierView(coloured(head), between, coloured(tail), tests[:_MAX_TESTS], max(rest, 0), source, numbers)


def _ends(output: str) -> tuple[str, str, str]:
    between = len(output) - _HEAD_CHARS - _TAIL_CHARS
    if between <= 0:
        return output, "", ""
    return output[:_HEAD_CHARS], amount_text(between), output[-_TAIL_CHARS:]


def _numbers(directory: Path) -> Iterator[tuple[str, str]]:
    for name in ("reward.txt", "reward.json"):
        if text := _text(directory / name).strip():
            yield name, text[:400]


def _text(file: Path) -> str:
    """Read a file that was written in a container: only the end of a huge one; empty if it is missing."""
    try:
        if file.is_symlink() or not file.is_file():
            return ""
        size = file.stat().st_size
        with file.open("rb") as opened:
            if size > _LARGEST_BYTES:
                opened.seek(size - _LARGEST_BYTES)
            raw = opened.read(_LARGEST_BYTES)
    except (OSError, ValueError):
        return ""
    cut = f"[… the first {size_text(size - _LARGEST_BYTES)} are left out …]\n" if size > _LARGEST_BYTES else ""
    return cut + raw.decode("utf-8", "replace")
