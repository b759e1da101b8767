"""Builds the program in several ways and runs it."""

import re
import subprocess
import time
from pathlib import Path

PROJECT = Path("/app/tally")


def make(*arguments: str) -> str:
    """The echoed commands of one make run, which must succeed."""
    done = subprocess.run(["make", *arguments], cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compiled(output: str) -> set[str]:
    return set(re.findall(r"(\w+)\.c\b", output))


def tally(numbers: str) -> tuple[int, str]:
    program = [str(PROJECT / "bin/tally")]
    done = subprocess.run(program, input=numbers, capture_output=True, text=True, timeout=20)
    return done.returncode, done.stdout


def test_the_built_program_was_left_in_place() -> None:
    assert tally("4") == (0, "count 1\nmean 4.000\ndeviation 0.000\n")


def test_a_clean_build_compiles_each_source_with_every_warning_an_error() -> None:
    make("clean")
    assert not (PROJECT / "bin").exists() and not (PROJECT / "obj").exists()
    output = make()
    lines = [line for line in output.splitlines() if re.search(r"\w\.c\b", line)]
    assert compiled(output) == {"main", "reader", "stats"}
    for line in lines:
        assert "gcc" in line and {"-Wall", "-Wextra", "-Werror"} <= set(line.split()), line
        assert not re.search(r"-Wno-|-w\b", line.replace("-Wall", "")), line
    assert len(list((PROJECT / "obj").glob("*.o"))) == 3


def test_no_warning_is_switched_off_in_the_sources() -> None:
    texts = [path.read_text() for path in PROJECT.rglob("*.[ch]")]
    assert texts and not any(re.search(r"diagnostic|system_header", text) for text in texts)


def test_only_what_changed_is_compiled() -> None:
    make()
    assert compiled(make()) == set()
    for header, sources in {"stats.h": {"main", "stats"}, "reader.h": {"main", "reader"}}.items():
        time.sleep(0.02)
        (PROJECT / "include" / header).touch()
        assert compiled(make()) == sources
        assert compiled(make()) == set()


def test_the_program_counts_and_averages() -> None:
    make()
    assert tally("1 2 3\n") == (0, "count 3\nmean 2.000\ndeviation 0.816\n")
    assert tally("-1.5\n\n2.25\t8e2") == (0, "count 3\nmean 266.917\ndeviation 376.950\n")
    assert tally(" ".join(str(n) for n in range(1, 5001))) == (0, "count 5000\nmean 2500.500\ndeviation 1443.376\n")


def test_no_numbers_is_an_error() -> None:
    make()
    assert tally("") == (1, "")
    assert tally("\n \n") == (1, "")
