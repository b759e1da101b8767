"""The pictures of the documentation, taken of a real run: `make pictures` needs tmux and chromium beside an engine.

The demo with 64 trials plays in a tmux of the asked size. Its screen is taken while it runs, and afterwards a browser
shows its report.

    python tests/pictures.py [--size 110x19] [--after TRIALS] [--at-once TRIALS] [--output docs/pictures]
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
SEEDS = 8
DEADLINE_SEC = 600.0
REPORT_SIZE = (1300, 1250)
_DONE = re.compile(r"(\d+)/\d+ done")


class Screen:
    """A tmux of its own with one program in it."""

    def __init__(self, size: tuple[int, int], command: str):
        self._socket = f"pictures-{time.monotonic_ns()}"
        width, height = map(str, size)
        # What the program prints last is still on the screen afterwards.
        self._tmux("new-session", "-d", "-x", width, "-y", height, f"{command}; sleep {DEADLINE_SEC:.0f}")
        self._tmux("set-option", "status", "off")
        self._tmux("resize-window", "-x", width, "-y", height)

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout

    def read(self, *, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", *(["-e"] if colours else []))

    def close(self) -> None:
        self._tmux("kill-server")


def trials_done(screen: str) -> int:
    found = _DONE.search(screen)
    return int(found[1]) if found else 0


def as_svg(screen: str, size: tuple[int, int], title: str) -> str:
    """A screen as a picture that loads no font from elsewhere."""
    console = Console(record=True, width=size[0], height=size[1], file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen), end="", soft_wrap=True)
    picture = console.export_svg(title=title, unique_id="tbench")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def live(command: str, size: tuple[int, int], after: int, run: Path) -> str:
    """The screen of a demo when this many of its trials are done, which then plays to its end."""
    program = shlex.join([sys.executable, "-m", *command.split(), "--output", str(run)])
    screen, taken, until = Screen(size, program), "", time.monotonic() + DEADLINE_SEC
    try:
        while time.monotonic() < until:
            shown = screen.read()
            if "report: " in shown:
                return taken
            if not taken and trials_done(shown) >= after:
                taken = screen.read(colours=True)
            time.sleep(0.2)
        raise SystemExit(f"the demo did not end within {DEADLINE_SEC:.0f} s:\n{shown}")
    finally:
        screen.close()


def photograph(page: Path, picture: Path, size: tuple[int, int]) -> None:
    """A browser's view of a page, as PNG."""
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"]
        window = f"--window-size={size[0]},{size[1]}"
        command = ["chromium", *flags, window, f"--screenshot={picture}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="110x19", help="columns x lines of the terminal")
    parser.add_argument("--after", type=int, default=30, help="trials that are done when the screen is taken")
    parser.add_argument("--output", type=Path, default=PICTURES)
    parser.add_argument("--at-once", type=int, default=12)
    given = parser.parse_args()
    command = f"tbench demo -k {SEEDS} -n {given.at_once}"
    columns, lines = map(int, given.size.split("x"))
    given.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "demo"
        screen = live(command, (columns, lines), given.after, run)
        (given.output / "live.svg").write_text(as_svg(screen, (columns, lines), command), encoding="utf-8")
        photograph(run / "report.html", given.output / "report.png", REPORT_SIZE)
    print(f"written: {given.output}/live.svg, {given.output}/report.png")


if __name__ == "__main__":
    main()
