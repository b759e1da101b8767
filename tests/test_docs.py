"""The documentation keeps up with the code: links, commands, options, error types, outcomes, stored fields."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import command_tables
import pytest
from click.testing import CliRunner
from nightly_bench import PROXIES
from pydantic import BaseModel
from settings_tables import NIGHTLY, nightly_tables, tables, written

from harness.limits import Limits
from harness.protocols import PROTOCOLS
from harness.trajectory import Compaction, Outcome, Reply, Step, Trajectory, Usage
from tbench import errors
from tbench.cli import SETTINGS, app
from tbench.config.document import Locked, PlannedTask, RunDocument
from tbench.config.layers import Layers
from tbench.config.settings import RunConfig
from tbench.errors import KINDS
from tbench.events import EndpointPresence, RunEnded, RunStarted, TrialFinished, TrialPhase, TrialTaskStep, TrialVerdict
from tbench.history.database import make_tables
from tbench.nightly.reading import read_benchmark
from tbench.origin import DatasetOrigin
from tbench.results import ErrorInfo, HostSample, TaskStepResult, Timings, TrialResult
from tbench.sandbox.docker import labels
from tbench.scores.pressure import Pressure
from tbench.scores.summary import Cell, Counts, ErrorGroup, Score, Summary, TaskRow, TimeSplit, UnreachedSteps
from tbench.tasks.sources import read_tasks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))] + [
    ROOT / folder / "README.md" for folder in ("images", "tasks", "reports")
]
ERRORS, RESULTS = ROOT / "docs" / "errors.md", ROOT / "docs" / "results.md"
HISTORY = ROOT / "docs" / "history.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
COMMANDS = command_tables.PAGE
FROM_HARBOR = ROOT / "docs" / "from-harbor.md"
HARBOR = (ROOT / "tests" / "data" / "harbor-options.txt").read_text().splitlines()
"""Commands of Harbor 0.25.0 with the names of their options, and its Terminus-2 with those of its arguments."""
STORED = [
    TrialResult,
    Timings,
    HostSample,
    Usage,
    ErrorInfo,
    RunDocument,
    Locked,
    PlannedTask,
    DatasetOrigin,
    Limits,
    Trajectory,
    Step,
    Reply,
    Compaction,
    TaskStepResult,
]
EVENTS = [RunStarted, TrialPhase, TrialTaskStep, TrialVerdict, TrialFinished, EndpointPresence, RunEnded]
SUMMARISED = [Summary, Counts, Score, TaskRow, Cell, ErrorGroup, TimeSplit, Pressure, UnreachedSteps]

_FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
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
    lines = help_of(command).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    return {line.split()[0] for line in lines if re.match(r" {2}\S", line)}


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


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    pages = {page.name for page in index.parent.glob("*.md")} - {index.name}
    assert set(_LINK.findall(text(index))) == pages


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


def test_every_option_of_run_is_in_some_page() -> None:
    documented = {option for page in set(PAGES) - {COMMANDS} for option in _OPTION.findall(text(page))}
    long_options = {option for option in options_of(("run",), with_off=False) if option.startswith("--")} - {"--help"}
    assert len(long_options) > 20
    assert long_options - documented == set()


def test_configuration_md_has_the_settings_of_the_configuration() -> None:
    assert written(text(CONFIGURATION)) == tables(), "make docs writes them"


def test_nightly_md_has_the_settings_of_a_nightly_benchmark() -> None:
    assert written(text(NIGHTLY)) == nightly_tables(), "make docs writes them"


def test_the_file_in_nightly_md_is_valid(tmp_path: Path) -> None:
    (file,) = [body for _, language, body in _FENCE.findall(text(NIGHTLY)) if language == "toml"]
    (tmp_path / "bench.toml").write_text(file)
    found = read_benchmark(tmp_path / "bench.toml", {}, PROXIES)
    assert (found.config.nightly.keep, found.run.output.min_coverage, found.proxies[0].kind) == (30, 0.95, "replay")


def test_the_file_in_configuration_md_is_valid(tmp_path: Path) -> None:
    (file,) = [body for _, language, body in _FENCE.findall(text(CONFIGURATION)) if language == "toml"]
    (tmp_path / "nightly.toml").write_text(file)
    layers = Layers(RunConfig)
    config = layers.resolve(layers.file(tmp_path / "nightly.toml")).config
    assert (config.tasks.seeds, config.limits.steps, config.agent.protocol) == (10, None, "bash-tool")


def test_commands_md_has_the_commands_of_the_command_line() -> None:
    assert text(COMMANDS) == command_tables.page(), "make docs writes it"
    assert {f"tbench {' '.join(words)}".rstrip() for words in every_command()} >= set(command_tables.MORE)


def test_every_option_can_be_looked_up_under_its_command() -> None:
    of_run = code_words(section(COMMANDS, "tbench run"))
    for words in every_command():
        shown = section(COMMANDS, f"tbench {' '.join(words)}".rstrip())
        assert shown, words
        known = code_words(shown)
        if "Its options are those of [`tbench run`]" in shown:
            assert known & options_of(words) == set(), words
            known = of_run - known
        assert {option for option in options_of(words) if option not in known} == {"-h", "--help"}, words


def test_every_command_is_in_some_page() -> None:
    everything = " ".join(text(page) for page in set(PAGES) - {COMMANDS})
    assert {words for words in every_command() if f"tbench {' '.join(words)}" not in everything} == set()


def test_options_in_prose_exist() -> None:
    known = {"--help", "--version", "--mount"}  # the last is Docker's, the next are vLLM's
    known |= {"--logprobs-mode", "--served-model-name"}
    known |= {"--address", "--num-cpus", "--head"}  # of ray start
    known |= {"--max-model-len", "--enable-auto-tool-choice", "--tool-call-parser", "--enable-prompt-tokens-details"}
    known |= {"--reasoning-parser"}
    known |= {option for words in every_command() for option in options_of(words)}
    of_servers = {"--reasoning-parser", "--generation-config"}  # vLLM's; then SGLang's, llama.cpp's
    of_servers |= {"--context-length", "--allow-auto-truncate", "--enable-deterministic-inference"}
    of_servers |= {"--sampling-defaults", "--enable-cache-report", "--jinja", "--reasoning", "--reasoning-format"}
    for page in PAGES:
        said = re.sub(r"^\|[^|]*\|", "", prose(page), flags=re.MULTILINE) if page == FROM_HARBOR else prose(page)
        used = {option for option in _OPTION.findall(said) if option.startswith("--")}
        assert used - known - (of_servers if page.name == "servers.md" else set()) == set(), page


def said_of_harbor() -> Iterator[str]:
    """What the page has in the tables' columns and in the blocks about Harbor, as one types it there."""
    for body in re.findall(r"^\| Harbor \|.*?\n\n", text(FROM_HARBOR) + "\n", re.MULTILINE | re.DOTALL):
        for line in body.splitlines()[2:]:
            yield from code_words(line.split("|")[1]) if line else ()
    for page in (FROM_HARBOR, ROOT / "README.md"):
        yield from re.findall(r"^harbor .+$", text(page), re.MULTILINE)


def test_what_is_said_of_harbor_exists_there() -> None:
    known = {name: set(options.split()) for name, _, options in (line.partition(": ") for line in HARBOR)}
    said = sorted(said_of_harbor())
    assert len(said) > 80
    for words in map(shlex.split, said):
        split = next((at for at, word in enumerate(words) if _OPTION.match(word)), len(words))
        named = [name for name in known if words[:split][: len(name.split())] == name.split()]
        assert named or words[0] != "harbor", words
        used = {word for word in words if _OPTION.match(word)}
        assert used <= known[named[0] if named else "harbor run"], words
    arguments = table(section(FROM_HARBOR, "What to type").partition("| Harbor: `--ak` |")[2].partition("\n\n")[0])
    assert {name.partition("=")[0] for name in arguments} <= known["terminus-2"] and len(arguments) > 8


def test_every_shown_score_has_its_coverage_and_the_other_convention_below_it() -> None:
    shown = 0
    for page in PAGES:
        for _, _, body in _FENCE.findall(text(page)):
            for line, below in pairwise([*body.splitlines(), ""]):
                if re.match(r"score [\d.]+ ", line):
                    shown += 1
                    assert re.search(r"; coverage \d+/\d+", line), f"{page}: {line}"
                    assert below.startswith("score over scored trials only "), f"{page}: {line}"
    assert shown >= 4


def test_errors_md_has_every_error_type_as_the_code_has_it() -> None:
    rows = table(section(ERRORS, "Error types"))
    assert {type_: row[1:4] for type_, row in rows.items()} == {
        type_: [kind.stage, kind.blame, "yes" if kind.retryable else "no"] for type_, kind in KINDS.items()
    }


def test_the_tree_in_the_code_has_every_error_type_under_its_stage() -> None:
    drawn = {}
    stage = ""
    for line in (errors.__doc__ or "").partition("\nTrialError\n")[2].splitlines():
        if branch := re.fullmatch(r"[├└]── (\w+)", line):
            stage = branch[1]
        elif leaf := re.fullmatch(r"[│ ]   [├└]── (\w+) +(\w+) +(again|stands)", line):
            assert leaf[1] not in drawn
            drawn[leaf[1]] = (stage, leaf[2], leaf[3] == "again")
    assert drawn == {type_: (kind.stage, kind.blame, kind.retryable) for type_, kind in KINDS.items()}


def test_errors_md_has_the_meaning_of_every_error_type() -> None:
    rows = table(section(ERRORS, "Error types"))
    for type_, kind in KINDS.items():
        shown = rows[type_][4].replace("`", "")
        assert shown.startswith(kind.meaning.partition(";")[0]), type_
        assert rows[type_][5], f"{type_}: nothing to do?"


def test_errors_md_has_every_outcome() -> None:
    assert set(table(section(ERRORS, "Outcomes"))) == set(Outcome)


@pytest.mark.parametrize("model", [*STORED, *SUMMARISED], ids=lambda model: model.__name__)
def test_results_md_has_every_field(model: type[BaseModel] | type[Cell]) -> None:
    fields = {each.name: each for each in dataclasses.fields(model)} if model is Cell else model.model_fields
    stored = {name for name, field in fields.items() if not getattr(field, "exclude", False)}
    assert stored - code_words(text(RESULTS)) == set()


@pytest.mark.parametrize("field", [*TrialResult.model_fields, *Timings.model_fields])
def test_results_md_has_a_row_for_every_field_of_a_result(field: str) -> None:
    rows = [line for line in section(RESULTS, "results.jsonl").splitlines() if line[:1] == "|"]
    assert any(f"`{field}`" in row.split("|")[1] for row in rows)


def test_results_md_has_every_kind_of_journal_event() -> None:
    kinds = {event.model_fields["kind"].default for event in EVENTS}
    assert kinds <= code_words(section(RESULTS, "journal.jsonl"))


def test_history_md_has_every_column_of_every_table() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        make_tables(database)
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {name: {row[1] for row in database.execute(f"PRAGMA table_info({name})")} for name in names}
    told = {}
    for part in section(HISTORY, "The tables").split("\n### ")[1:]:
        cells = [line.split("|")[1] for line in part.splitlines() if line[:1] == "|"]
        told[part.partition("\n")[0]] = {word for cell in cells for word in code_words(cell)}
    assert told == columns


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_md_has_a_section_for_every_protocol_with_its_warnings_and_errors(protocol: str) -> None:
    assert protocol in table(text(ROOT / "docs" / "protocols.md").partition("\n## ")[0])
    tables = [line for line in section(ROOT / "docs" / "protocols.md", protocol).splitlines() if line[:1] == "|"]
    assert {"| warning | when |", "| error | when |"} <= set(tables)


def test_protocols_md_has_every_kind_of_warning_and_error() -> None:
    sources = "".join(text(path) for path in (ROOT / "harness" / "protocols").glob("*.py"))
    kinds = set(re.findall(r"FormatError\(\s*\"(\w+)\"", sources)) | set(re.findall(r"f?\"([a-z_]+): [A-Z{]", sources))
    assert len(kinds) > 30
    assert kinds - code_words(text(ROOT / "docs" / "protocols.md")) == set()


def test_the_readme_lists_the_bundled_tasks() -> None:
    assert sorted(table(section(ROOT / "README.md", "Bundled tasks"))) == read_tasks("bundled").names


def test_every_terminal_case_names_tests_that_are_there_and_every_test_of_a_case_is_named() -> None:
    """Slow ones are told apart: italics in the table, the mark in the code."""
    named = re.findall(r"(\*?)`(test_\w+)`", section(ROOT / "docs" / "terminal.md", "Cases"))
    assert len(named) == len({test for _, test in named})
    marked = re.compile(r"(@pytest\.mark\.slow\n)?async def (test_\w+)")
    tests = {path.stem: marked.findall(text(path)) for path in (ROOT / "tests/harness/terminal").glob("test_*.py")}
    there = {(("*" if slow else ""), test) for found in tests.values() for slow, test in found}
    assert set(named) <= there
    for file in (
        *("floods", "images", "lost", "programs", "never_early", "screen"),
        *("delivery", "unattended", "typing", "inner_shells", "same_as_bash"),
    ):  # whole files about cases
        cases = {test for _, test in tests[f"test_{file}"]}
        assert cases - {test for _, test in named} <= {"test_where_tmux_cannot_start_the_terminal_is_lost"}, file


def all_tests() -> dict[str, bool]:
    """Every test, and whether it is slow."""
    there = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        module = ast.parse(text(path))
        whole_file = any(
            isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node) and "slow" in ast.unparse(node)
            for node in module.body
        )
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                marks = {ast.unparse(decorator) for decorator in node.decorator_list}
                there[node.name] = whole_file or "pytest.mark.slow" in marks
    return there


def test_every_fault_names_tests_that_are_there() -> None:
    """Slow ones are told apart: italics in the table, the mark in the code."""
    there = all_tests()
    rows = [line for line in text(ROOT / "docs" / "reliability.md").splitlines() if line.startswith("| ")]
    named = [(bool(stars), test) for row in rows for stars, test in re.findall(r"(\*?)`(test_\w+)`", row)]
    assert len(named) > 10
    assert {test for _, test in named} - there.keys() == set()
    assert {test for slow, test in named if slow != there[test]} == set()


def test_the_labels_on_the_page_about_cleaning_are_those_of_the_code() -> None:
    named = set(re.findall(r"`(tbench\.[a-z.]+)`", (ROOT / "docs" / "cleaning.md").read_text()))
    known = {value for name, value in vars(labels).items() if name.startswith("LABEL_")}
    assert named <= known
    assert {labels.LABEL_RUN, labels.LABEL_SHARED, labels.LABEL_IMAGE, labels.LABEL_SNAPSHOT} <= named
