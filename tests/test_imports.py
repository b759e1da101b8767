"""Who may import whom: the arrows of the design, checked on the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("tbench", "harness", "reports") for path in (ROOT / folder).rglob("*.py"))
STARTS_THINGS = {
    "admission", "agents", "cleaning", "cli", "container", "creating", "demo", "doctor", "engine", "exec_stream",
    "helper", "image", "memory_watch", "network", "place", "pool", "regrade", "rewards.executed", "run", "sandbox",
    "sandboxes", "tools", "trial", "verdict", "verifier",
}  # fmt: skip
ONLY_IN = {
    "docker": {"tbench.sandbox.docker.engine", "tbench.sandbox.docker.image"},
    "openai": {"harness.chat"},
    "asyncio_pool": {"tbench.runs.pool"},
}
MAY_PRINT = "tbench.cli"


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, anywhere in it; a name out of a package counts as a module."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def arrows() -> Iterator[tuple[str, str]]:
    for path in FILES:
        for target in imports(path):
            yield module(path), target


def bad(source: str, targets: set[str]) -> list[str]:
    return sorted(
        f"{here} imports {there}"
        for here, there in arrows()
        if within(here, source) and any(within(there, target) for target in targets)
    )


def test_there_is_something_to_check() -> None:
    assert {"tbench.runs.run", "harness.agent", "reports.page"} <= {module(path) for path in FILES}
    assert ("tbench.runs.run", "tbench.sandbox.docker.engine") in set(arrows())


def test_the_harness_knows_neither_tasks_nor_reports() -> None:
    assert bad("harness", {"tbench", "reports"}) == []


def test_reports_start_nothing() -> None:
    assert bad("reports", {f"tbench.{name}" for name in STARTS_THINGS}) == []


def test_only_the_command_line_makes_reports() -> None:
    others = [arrow for arrow in bad("tbench", {"reports"}) if not arrow.startswith(MAY_PRINT)]
    assert others == []


def test_nothing_but_the_command_line_imports_the_command_line() -> None:
    assert [arrow for arrow in bad("tbench", {"tbench.cli"}) if not arrow.startswith(MAY_PRINT)] == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_has_its_own_place(library: str) -> None:
    users = {here for here, there in arrows() if within(there, library)}
    assert users <= ONLY_IN[library]
    assert users, "the rule is about nothing"


def test_nothing_imports_the_tests() -> None:
    assert bad("tbench", {"tests"}) + bad("harness", {"tests"}) + bad("reports", {"tests"}) == []


def test_fakes_are_for_tests_only() -> None:
    assert bad("tbench", {"tbench.sandbox.fake"}) == []


@cache
def calls(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("call", ["print", "input", "exit", "quit", "sys.exit", "sys.stdout.write", "typer.echo"])
def test_only_the_command_line_prints_and_exits(call: str) -> None:
    users = [module(path) for path in FILES if call in calls(path)]
    assert [name for name in users if not within(name, MAY_PRINT)] == []


@pytest.mark.parametrize("call", ["time.sleep"])
def test_nothing_blocks_the_event_loop(call: str) -> None:
    assert [module(path) for path in FILES if call in calls(path)] == []


def test_no_module_cleans_up_in_a_finalizer() -> None:
    names = {
        (module(path), node.name)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert [where for where, name in names if name == "__del__"] == []
