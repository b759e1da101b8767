"""README.md and docs/: the commands of every `sh` block are executed, and end as the page says.

A block that cannot run everywhere says in its fence what it needs: a program (`sh needs: jq`), or something that is not
here (`sh needs: internet`). A comment says if the command ends otherwise than with 0 (`# exits 5`), or runs until
Ctrl-C; then the lines below it run meanwhile.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT

from tbench.demo.server import DemoEndpoint
from tbench.tasks.sources import BUNDLED, read_tasks

pytestmark = pytest.mark.engine
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TASKS = ("tidy-notes", "broken-makefile")
"""The tasks of the reader's runs; the script fails the second one at seed 1."""
LIMIT_SEC = 300
_BLOCK = re.compile(r"^```sh(?: needs: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TOML = re.compile(r"This is `(\S+)`:\n\n```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHORTER = {"tbench demo$": "tbench demo -k 1", "-k 5$": "-k 1"}
_PLACEHOLDERS = {"MODEL": "scripted-demo", "TASK": TASKS[1], "SEED2": "0", "SEED": "1", "DIR": "my-tasks"}
_WRONG = re.compile(r"^(?:Usage:|(?:tbench|[Ee]rror)\b[^:\n]*: )", re.MULTILINE)
"""How a command complains: not if it ends with 0."""


class Shown(NamedTuple):
    """One command of a page."""

    line: str
    code: int
    is_server: bool


def shown_blocks(page: Path) -> list[list[Shown]]:
    """The blocks of a page that can run here: those that need nothing, or a program that is installed."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [[shown(line) for line in block.splitlines() if line.strip()] for needs, block in found if can_run(needs)]


def can_run(needs: str) -> bool:
    return not needs or shutil.which(needs) is not None


def shown(line: str) -> Shown:
    command, _, comment = line.partition("  #")
    code = re.search(r"exits (\d+)", comment)
    return Shown(command.strip(), int(code[1]) if code else 0, "until Ctrl-C" in comment)


class Reader:
    """Somebody who types the commands of a page, in a directory with the things that the page takes as given."""

    done: set[str] = set()  # noqa: RUF012
    """The commands that have been tried, on any page."""

    def __init__(self, home: Path, given: Path, base_url: str) -> None:
        self.home, self._given = home, given
        ports = {port: str(free_port()) for port in ("8123", "8124", "8712")}
        self._put = {
            r"https?://(?!127)[\w.]+(:8000)?/v1": base_url,
            **{rf"\b{old}\b": new for old, new in ports.items()},
        }
        self._put |= _SHORTER | {rf"\b{name}\b": value for name, value in _PLACEHOLDERS.items()}
        limits = {
            "TBENCH_VERIFY_MODE": "shared",
            "TBENCH_SCHEDULE_CALIBRATE": "off",
            "TBENCH_TASKS_INCLUDE": "[tm]*y-*",
        }
        limits["OPENAI_BASE_URL"] = base_url
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._environ = {**os.environ, **limits, "PATH": path, "PYTHONPATH": str(home), "COLUMNS": "100"}

    def reads(self, block: list[Shown]) -> None:
        """Type the commands of a block. Raises AssertionError for one that does not end as it should."""
        with_servers: list[tuple[Shown, subprocess.Popen[str]]] = []
        try:
            for each in block:
                if each.is_server:
                    with_servers.append((each, self._start(each)))
                elif each.line not in self.done:
                    self._check(each, self._start(each))
                self.done.add(each.line)
        finally:
            for each, process in reversed(with_servers):
                process.send_signal(signal.SIGINT)
                self._check(each, process)

    def fills_in(self, text: str) -> str:
        """The text with what is there in the places of its examples."""
        for example, instead in self._put.items():
            text = re.sub(example, instead, text)
        return text

    def _start(self, each: Shown) -> subprocess.Popen[str]:
        line = self.fills_in(each.line)
        self._lay_out(line)
        process = subprocess.Popen(
            ["env", "--default-signal=INT", "bash", "-c", f"exec {line}" if each.is_server else line],
            cwd=self.home, env=self._environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if each.is_server:  # it prints its address when it is ready
            assert process.stdout is not None
            assert re.search(r"https?://", first := process.stdout.readline()), f"{line}: {first}"
        return process

    def _check(self, each: Shown, process: subprocess.Popen[str]) -> None:
        try:
            said, _ = process.communicate(timeout=LIMIT_SEC)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{each.line}: still runs: {process.communicate()[0]}") from None
        codes = (0, 130) if each.is_server else (each.code,)
        assert process.returncode in codes, f"{each.line}: exits {process.returncode}, not {codes}: {said}"
        assert "Traceback (most recent call last)" not in said, f"{each.line}: {said}"
        assert process.returncode or "--help" in each.line or not _WRONG.search(said), (
            f"{each.line}: exits 0, but complains: {said}"
        )

    def _lay_out(self, line: str) -> None:
        """Put the runs there that the line reads and nobody has made so far."""
        words = shlex.split(line)
        made = {words[place + 1] for place, word in enumerate(words[:-1]) if word in ("-o", "--output")}
        for word in words:
            for name in re.findall(r"^(runs/(?:steps/)?[\w.-]+)", word):
                if name not in made and not (self.home / name).exists():
                    self._copy_run(self.home / name)

    def _copy_run(self, directory: Path) -> None:
        """Write the given run under another name."""
        shutil.copytree(self._given / "runs" / "given", directory)
        for file in [*directory.rglob("*.json"), *directory.rglob("*.jsonl")]:
            file.write_text(
                file.read_text(encoding="utf-8").replace('"given"', f'"{directory.name}"'), encoding="utf-8"
            )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as endpoint:
        yield endpoint.base_url


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tools_volume: str, base_url: str) -> Path:
    """A directory with a finished run, the same as another program's job, datasets, results, tasks and settings."""
    folder = tmp_path_factory.mktemp("given")
    for name in ("my-tasks/my-task", f"path/to/tasks/{TASKS[0]}", f"tasks/{TASKS[0]}"):
        shutil.copytree(ROOT / "tasks" / TASKS[0], folder / name)
    for name in ("lab.toml", "run.toml"):
        (folder / name).write_text(f'[model]\nbase_url = "{base_url}"\n')
    results = "".join(f'{{"task": "{task}", "seed": {seed}, "reward": {seed}}}\n' for task in TASKS for seed in (0, 1))
    for name in ("results-of-others.jsonl", "mine.jsonl", "import.jsonl"):
        (folder / name).write_text(results)
    for line in (
        f"run -t {TASKS[0]} -t {TASKS[1]} --base-url {base_url} -k 2 --verify shared -o runs/given",
        "export harbor runs/given -o jobs/NAME",
        "replay build runs/given -o steps.jsonl",
    ):
        words = [sys.executable, "-m", "tbench", *line.split()]
        subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=LIMIT_SEC)
    return folder


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.name == "README.md" else pytest.mark.slow) for page in PAGES],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_each_command_of_a_page_ends_as_the_page_says(page: Path, given: Path, base_url: str, tmp_path: Path) -> None:
    shutil.copytree(given, tmp_path, dirs_exist_ok=True)
    reader = Reader(tmp_path, given, base_url)
    for name, text in _TOML.findall(page.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(reader.fills_in(text), encoding="utf-8")
    for block in shown_blocks(page):
        reader.reads(block)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tbench nonsense", "exits 2, not (0,)"),
        ("tbench --version  # exits 2", "exits 0, not (2,)"),
        ("echo 'Usage: x'", "exits 0, but complains"),
        ("echo 'tbench run: broken'", "exits 0, but complains"),
        ("python -c 'raise KeyError' || true", "Traceback"),
    ],
)
def test_a_command_that_does_otherwise_is_noticed(line: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=re.escape(problem)):
        Reader(tmp_path, tmp_path, "http://127.0.0.1:1/v1").reads([shown(line)])


def test_what_cannot_run_here_says_so_in_its_fence(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```sh needs: internet\na\n```\n\n```sh\nb  # exits 5\nc  # until Ctrl-C\n```\n")
    assert shown_blocks(tmp_path / "page.md") == [[Shown("b", 5, False), Shown("c", 0, True)]]
