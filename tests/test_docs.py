"""The documentation keeps up with the code: links, commands with their options, files, and names to look up."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest
import settings_tables
from click.testing import CliRunner
from nightly_bench import PROXIES
from pydantic import BaseModel
from settings_tables import nightly_tables, tables, written

from harness.limits import Limits
from harness.protocols import PROTOCOLS
from harness.trajectory import Compaction, Outcome, Reply, Step, Trajectory, Usage
from tbench.cli import SETTINGS, app
from tbench.compose import keys
from tbench.config.document import Locked, PlannedTask, RunDocument
from tbench.config.layers import Layers
from tbench.config.settings import RunConfig
from tbench.errors import KINDS
from tbench.events import EndpointPresence, RunEnded, RunStarted, TrialFinished, TrialPhase, TrialTaskStep, TrialVerdict
from tbench.history.database import make_tables
from tbench.nightly.configuration import read_benchmark
from tbench.origin import DatasetOrigin
from tbench.results import WEAK_SIGNALS, ErrorInfo, HostSample, Integrity, TaskStepResult, Timings, TrialResult
from tbench.sandbox import owner
from tbench.scores.final_results import Pressure
from tbench.scores.summary import Cell, Counts, ErrorGroup, Score, Summary, TaskRow, TimeSplit, UnreachedSteps
from tbench.tasks.sources import read_tasks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))] + [
    ROOT / folder / "README.md" for folder in ("images", "tasks", "reports", "tests/bench")
]
CONFIGURATION = ROOT / "docs" / "configuration.md"
NIGHTLY = ROOT / "docs" / "nightly.md"
STORED: list[type[BaseModel]] = [
    *(TrialResult, Timings, HostSample, Usage, ErrorInfo, RunDocument, Locked, PlannedTask, DatasetOrigin, Limits),
    *(Trajectory, Step, Reply, Compaction, TaskStepResult),
    *(Summary, Counts, Score, TaskRow, ErrorGroup, TimeSplit, Pressure, UnreachedSteps),
]
EVENTS = [RunStarted, TrialPhase, TrialTaskStep, TrialVerdict, TrialFinished, EndpointPresence, RunEnded]


def words_of_the_protocols() -> Iterator[str]:
    """The kinds of warnings and of errors in replies."""
    for path in (ROOT / "harness" / "protocols").glob("*.py"):
        yield from re.findall(r"FormatError\(\s*\"(\w+)\"|f?\"([a-z_]+): [A-Z{]", path.read_text(encoding="utf-8"))


NAMES = {
    "docs/reference/errors.md": [*KINDS],
    "docs/reliability.md": [*Outcome],
    "docs/integrity.md": [*Integrity.model_fields, *WEAK_SIGNALS],
    "docs/results.md": [
        *(name for model in STORED for name, field in model.model_fields.items() if not field.exclude),
        *(field.name for field in dataclasses.fields(Cell)),
        *(event.model_fields["kind"].default for event in EVENTS),
    ],
    "docs/terminal.md": [*PROTOCOLS, *(word for found in words_of_the_protocols() for word in found if word)],
    "docs/sandboxes.md": [owner.LABEL_RUN, owner.LABEL_SHARED, owner.LABEL_IMAGE, owner.LABEL_SNAPSHOT],
    "docs/reference/task-keys.md": [
        name
        for table, found in vars(keys).items()
        if table.isupper() and table[0] != "_" and table != "SAFE_CAPABILITIES"
        for name in found
    ],
    "tasks/README.md": read_tasks("bundled").names,
}
"""Terms that a reader looks up on a page, which shows them as code."""

_FENCE = re.compile(r"^(`{3,})(\w*)[^\n`]*\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


def name(value: object) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    return _FENCE.sub("", text(page))


def section(page: Path, heading: str) -> str:
    return text(page).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def table(markdown: str) -> dict[str, list[str]]:
    """Rows of the tables by their first cell's code word, cells stripped."""
    lines = (line.strip("|") for line in markdown.splitlines() if line[:1] == "|")
    rows = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines)
    return {match[1]: cells for cells in rows if (match := re.fullmatch(r"`([^`]+)`", cells[0]))}


def code_words(markdown: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", markdown))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for _, language, body in _FENCE.findall(text(page)):
            if language == "sh":
                yield from ((name(page), line) for line in body.splitlines() if line.startswith("tbench"))


@cache
def help_of(command: tuple[str, ...]) -> str:
    """Empty where there is no such command."""
    done = CliRunner().invoke(app, [*command, "--help"], prog_name="tbench")
    return done.output if done.exit_code == 0 else ""


def options_of(command: tuple[str, ...], *, with_off: bool = True) -> set[str]:
    """The names of a command's options; `with_off` also the forms that only switch off."""
    found: click.Command = app
    for word in command:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None
        found = inner
    options = [each for each in found.get_params(click.Context(found, **SETTINGS)) if isinstance(each, click.Option)]
    off = {name for option in options for name in option.secondary_opts} if with_off else set()
    return {name for option in options for name in option.opts} | off | {"-h", "--help"}


def subcommands(command: tuple[str, ...]) -> set[str]:
    found: click.Command | None = app
    for word in command:
        found = found.get_command(click.Context(found), word) if isinstance(found, click.Group) else None
    return set(found.list_commands(click.Context(found))) if isinstance(found, click.Group) else set()


def every_command(words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command and group, the outermost first."""
    yield words
    for word in sorted(subcommands(words)):
        yield from every_command((*words, word))


def split_command(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """The command's own words (`task check`), and what follows them."""
    length = 0
    while length < len(words) and words[length] in subcommands(tuple(words[:length])):
        length += 1
    return tuple(words[:length]), words[length:]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in _LINK.findall(prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT) and target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_lists_every_page() -> None:
    pages = {name(page) for page in (ROOT / "docs").glob("*.md")}
    assert pages - set(_LINK.findall(text(ROOT / "README.md"))) == set()


def test_there_are_commands_to_check() -> None:
    assert len(set(commands())) > 15
    assert split_command(["task", "check", "tasks"]) == (("task", "check"), ["tasks"])
    assert "--base-url" in options_of(("run",)) and "-k" in options_of(("run",))


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_shown_command_exists_with_its_options(page: str, line: str) -> None:
    command, arguments = split_command(shlex.split(line, comments=True)[1:])
    assert command, f"{page}: no such command: {line}"
    used = {word.partition("=")[0] for word in arguments if _OPTION.match(word)}
    assert used <= options_of(command), f"{page}: {line}"


def test_the_page_of_settings_has_those_of_the_configuration() -> None:
    assert written(text(settings_tables.PAGE)) == tables(), "make docs writes them"


def test_the_page_of_nightly_settings_has_those_of_a_nightly_benchmark() -> None:
    assert written(text(settings_tables.NIGHTLY)) == nightly_tables(), "make docs writes them"


def test_the_file_in_nightly_md_is_valid(tmp_path: Path) -> None:
    (file,) = [body for _, language, body in _FENCE.findall(text(NIGHTLY)) if language == "toml"]
    (tmp_path / "bench.toml").write_text(file)
    found = read_benchmark(tmp_path / "bench.toml", {}, PROXIES)
    assert (found.config.nightly.keep, found.run.output.min_coverage, found.proxies[0].kind) == (30, 0.95, "replay")


def test_the_files_in_configuration_md_are_valid(tmp_path: Path) -> None:
    file, prices = [body for _, language, body in _FENCE.findall(text(CONFIGURATION)) if language == "toml"]
    (tmp_path / "nightly.toml").write_text(f"{file}{prices}")
    layers = Layers(RunConfig)
    config = layers.resolve(layers.file(tmp_path / "nightly.toml")).config
    assert (config.tasks.seeds, config.limits.steps, config.agent.protocol) == (10, None, "bash-tool")
    assert None not in dict(config.cost).values()


def test_every_protocol_has_a_row_and_a_paragraph() -> None:
    page = text(ROOT / "docs" / "terminal.md")
    described = set(re.findall(r"^\*\*([\w-]+)\*\* ", page, re.MULTILINE))
    assert set(PROTOCOLS) - (described & table(page).keys()) == set()


def test_every_command_is_in_some_page() -> None:
    everything = " ".join(map(text, PAGES))
    assert {words for words in every_command() if f"tbench {' '.join(words)}" not in everything} == set()


def test_errors_md_has_every_error_type_as_the_code_has_it() -> None:
    rows = table((ROOT / "docs/reference/errors.md").read_text())
    assert {type_: row[1:4] for type_, row in rows.items()} == {
        type_: [kind.stage, kind.blame, "yes" if kind.retryable else "no"] for type_, kind in KINDS.items()
    }


def test_a_history_explains_each_of_its_columns() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        make_tables(database)
        tables = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        for name, made in tables:
            explained = re.findall(r'^    "?(\w+)"? [A-Z].*  -- \w', made, re.MULTILINE)
            assert explained == [row[1] for row in database.execute(f"PRAGMA table_info({name})")]


@pytest.mark.parametrize("page", NAMES)
def test_a_page_has_every_name_that_can_be_looked_up_there(page: str) -> None:
    assert set(NAMES[page]) - set(re.findall(r"[\w.*/-]+", " ".join(code_words(text(ROOT / page))))) == set()


def test_each_function_on_a_walk_is_there_and_has_to_do_with_what_it_hands_on() -> None:
    page = text(ROOT / "docs" / "reference" / "code.md").partition("\n## Three walks\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\| `([\w.]+): ([\w.]+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert len(steps) == len(re.findall(r"^\| `", page, re.MULTILINE)) > 20
    sources = {step: inspect.getsource(resolve_name(f"{step[0]}:{step[1]}")) for step in steps}
    assert [step for step, source in sources.items() if not re.search(rf"\b{step[2]}\b", source)] == []


def test_the_tests_that_pages_name_are_there() -> None:
    there = {test for path in (ROOT / "tests").rglob("test_*.py") for test in re.findall(r"def (test_\w+)", text(path))}
    named = {test for page in PAGES for test in re.findall(r"`(?:[\w/]+\.py::)?(test_\w+)`", text(page))}
    assert named - there == set()
