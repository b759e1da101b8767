"""All commands print through functions that escape terminal controls."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

import tbench.cli
from tbench.cli.printing import coloured_line, folded_line, print_line, print_text
from tbench.cli.progress import LiveView
from tbench.events import Note, TrialPhase, TrialStep

CLI = Path(tbench.cli.__file__).parent
HOSTILE = "\x1b[2J\x9b31m\r\n12:00:00 forged\u202e"


def test_a_line_stays_a_line_and_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(f"quoted: {HOSTILE}", err=True)
    assert capsys.readouterr().err == "quoted: \\u001b[2J\\u009b31m\\u000d\\u000a12:00:00 forged\\u202e\n"


def test_json_and_tables_keep_their_lines_and_their_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(json.dumps({"name": HOSTILE}, indent=2, ensure_ascii=False))
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 3
    assert json.loads(said) == {"name": HOSTILE}


def test_a_coloured_line_keeps_its_colours_and_nothing_else_that_steers() -> None:
    assert coloured_line(f"\x1b[1;31mred\x1b[0m {HOSTILE}") == (
        "\x1b[1;31mred\x1b[0m \\u001b[2J\\u009b31m\\u000d\\u000a12:00:00 forged\\u202e"
    )


def test_a_line_too_wide_for_the_terminal_is_broken_between_words_with_its_columns_kept() -> None:
    assert folded_line("  score over the tasks  44.4 ± 25.5 %", 30) == "  score over the tasks  44.4 ±\n    25.5 %"
    assert folded_line("ok   engine  two cpus, much memory", 26) == f"ok   engine  two cpus,\n{' ' * 13}much memory"
    assert folded_line("short", 30) == "short"
    assert folded_line("a " + "b" * 40 + " c", 30) == "a\n  " + "b" * 40 + "\n  c"
    assert folded_line(f"\x1b[1m{'w' * 20}\x1b[0m {'x' * 9}", 30) == f"\x1b[1m{'w' * 20}\x1b[0m {'x' * 9}"


def test_a_command_stays_on_one_line_to_be_copied() -> None:
    command = "  tbench why runs/night-13/csv-to-parquet-migration/0 --confirm"
    assert folded_line(command, 30) == command


def test_only_a_terminal_has_its_lines_broken() -> None:
    script = "from tbench.cli.printing import print_line; print_line('eleven letters and more of them')"
    piped = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert piped.stdout == "eleven letters and more of them\n"
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    subprocess.run([sys.executable, "-c", script], stdout=its, timeout=60, check=True)
    assert os.read(ours, 1000).decode().splitlines() == ["eleven letters and", "  more of them"]
    os.close(ours)
    os.close(its)


def test_the_live_table_shows_what_it_quotes_and_obeys_nothing_of_it() -> None:
    view, out = LiveView(), io.StringIO()
    view(TrialPhase(trial="t", attempt=1, task=f"task{HOSTILE}", seed=0, phase="agent"))
    view(TrialStep(trial="t", attempt=1, step=1, line=f"[red]{HOSTILE}"))
    view(Note(text=f"[/note]{HOSTILE}"))
    Console(file=out, force_terminal=True, color_system=None, width=200).print(view.render(200, 40))
    said = out.getvalue()
    assert not set(said) & set("\x1b\x9b\r\u202e")
    assert "[red]\\u001b[2J" in said and "[/note]\\u001b[2J" in said
    assert not [line for line in said.splitlines() if line.startswith("12:00:00")]


def test_every_command_prints_that_way() -> None:
    """Only tables of rich, progress lines, and cursor movements bypass these functions."""
    others = {
        path.relative_to(CLI).as_posix(): len(found)
        for path in CLI.rglob("*.py")
        if (found := re.findall(r"\b(?:click\.echo|(?<!\.)print|sys\.std\w+\.write)\(", path.read_text()))
    }
    assert others == {
        "__init__.py": 5,  # before anything else is imported
        "recording.py": 3,  # full-screen drawing
        "show.py": 1,  # a question at a terminal
        "interruption.py": 1,
        "printing.py": 2,
        "proxies/generation.py": 1,
    }


def test_a_bug_is_shown_with_its_traceback_and_steers_nothing(tmp_path: Path) -> None:
    script = "import sys, tbench.cli as c; c._code = lambda: int('\\x1b[2J\\u202e'); c.main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and "ValueError" in done.stderr
    assert not set(done.stderr) & set("\x1b\u202e")
