"""The pictures of the documentation, taken of real runs: `make pictures` needs tmux and chromium beside an engine.

The demo with 64 trials plays in a tmux of the asked size. While it runs, its screen is taken, and the wall of terminals
in a browser. The other pages are those of ten demo nights, which are played where they are not there yet. What the
debugger shows while somebody uses it moves.

    python tests/pictures.py [PICTURE ...] [--size 110x19] [--seeds N] [--after TRIALS] [--at-once TRIALS]
                             [--nights DIR] [--output docs/pictures]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from page_pictures import photograph_live, photograph_pages
from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
NIGHTS = Path("runs/nights")
KINDS = ("pages", "live", "debug", "attach", "why")
SEEDS = 8
DEADLINE_SEC = 600.0
TBENCH = (sys.executable, "-m", "tbench")
EXIT_ALARM = 5
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
        return self._tmux("capture-pane", "-p", *(["-e", "-N"] if colours else []))

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

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


def live(command: str, size: tuple[int, int], after: int, run: Path, beside: Callable[[], None]) -> str:
    """The screen of a demo when this many of its trials are done, after which `beside` looks at it, too."""
    program = shlex.join([*TBENCH, *command.split()[1:], "--output", str(run)])
    screen, taken, until = Screen(size, program), "", time.monotonic() + DEADLINE_SEC
    try:
        while time.monotonic() < until:
            shown = screen.read()
            if "report: " in shown:
                return taken
            if not taken and trials_done(shown) >= after:
                taken = screen.read(colours=True)
                beside()
            time.sleep(0.2)
        raise SystemExit(f"the demo did not end within {DEADLINE_SEC:.0f} s:\n{shown}")
    finally:
        screen.close()


@contextlib.contextmanager
def viewed(folder: Path) -> Iterator[str]:
    """The address at which `tbench view` shows the runs of a folder."""
    command = [*TBENCH, "view", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().removeprefix("view: ").strip()
        finally:
            server.terminate()


def play_nights(directory: Path) -> Path:
    """The site of ten demo nights; those that are there already are not played again."""
    done = subprocess.run([*TBENCH, "nightly", "--demo", str(directory)], timeout=2 * DEADLINE_SEC)
    if done.returncode != EXIT_ALARM:
        raise SystemExit(f"the nights ended with {done.returncode}, not with their alarm")
    return directory / "nightly" / "site"


def photograph_demo(given: argparse.Namespace) -> None:
    """The screen of the demo, and the wall of its terminals at the same time."""
    command = f"tbench demo -k {given.seeds} -n {given.at_once}"
    columns, lines = map(int, given.size.split("x"))
    with tempfile.TemporaryDirectory() as directory, viewed(Path(directory)) as address:
        wall = given.output / "live.png"
        screen = live(
            command,
            (columns, lines),
            given.after,
            Path(directory) / "demo",
            lambda: photograph_live(f"{address.rstrip('/')}/live", wall),
        )
    (given.output / "live.svg").write_text(as_svg(screen, (columns, lines), command), encoding="utf-8")


def main() -> None:
    import recordings  # which needs what stands above

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", default=KINDS, help=f"all of: {' '.join(KINDS)}")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each of the demo's tasks")
    parser.add_argument("--size", default="110x19", help="columns x lines of the terminal")
    parser.add_argument("--after", type=int, default=24, help="trials that are done when the screen is taken")
    parser.add_argument("--output", type=Path, default=PICTURES)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--nights", type=Path, default=NIGHTS, help="directory of the demo's nights")
    given = parser.parse_args()
    if unknown := set(given.pictures) - set(KINDS):
        parser.error(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    given.output.mkdir(parents=True, exist_ok=True)
    if "pages" in given.pictures:
        photograph_pages(play_nights(given.nights), given.output)
    if "live" in given.pictures:
        photograph_demo(given)
    for name, size, taken in (
        ("debug", (120, 30), recordings.debugged),
        ("attach", (100, 20), recordings.attached),
        ("why", (110, 26), recordings.looked_into),
    ):
        if name in given.pictures:
            (given.output / f"{name}.svg").write_text(taken(size), encoding="utf-8")
    print(f"written: {given.output}")


if __name__ == "__main__":
    main()
