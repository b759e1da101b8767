"""Who may import whom: docs/architecture.md and docs/reference/code.md say it, and the code keeps to it."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "architecture.md", ROOT / "docs" / "reference" / "code.md"]
PAGE = "".join(page.read_text(encoding="utf-8") for page in PAGES)
FILES = sorted(path for folder in ("tbench", "harness", "reports") for path in (ROOT / folder).rglob("*.py"))
WORDS = "words"
FULL_ROOM = 30
"""Modules side by side that one can still see at a glance: a guide, so that a folder stays one subject."""
LEAST_LINES = 60
"""A smaller module has to have two importers."""
MAY_PRINT = "tbench.cli"


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """A million objects, which each collection of garbage would go through, are not kept for the tests that follow."""
    yield
    tree.cache_clear()


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


def section(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table of a section, without its head."""
    found = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", section(heading), re.MULTILINE)
    assert found, heading
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[1].splitlines()]


def named(cell: str) -> list[str]:
    words = re.findall(r"`[^`]+`|words", cell)
    return [WORDS if word == "words" else word.strip("`").rstrip("/").removesuffix(".py") for word in words]


@cache
def allowed() -> dict[str, set[str]]:
    """Rooms by path, top floor first, and which others each may import."""
    table = rows("Rooms")
    rooms = [named(cells[0])[0] for cells in table]
    return {
        room: set(rooms) - {room} if cells[2] == "all" else set(named(cells[2]))
        for room, cells in zip(rooms, table, strict=True)
    }


@cache
def room_of(name: str) -> str | None:
    """The room of a module; None for what is not ours. `python -m tbench` is the command line, `tbench` the api."""
    if name == "tbench.__main__":
        return "tbench/cli"
    if name in ("tbench", "tbench.agent"):
        return "tbench/api"
    fitting = [room for room in allowed() if room != WORDS and within(name, room.replace("/", "."))]
    if fitting:
        return max(fitting, key=len)
    return WORDS if within(name, "tbench") else None


@cache
def arrows() -> dict[tuple[str, str], set[str]]:
    """By room and room: which module imports what."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for path in FILES:
        here = room_of(module(path))
        for target in imports(path):
            there = room_of(target)
            if here is not None and there is not None and here != there and target != "tbench":
                found[here, there].add(f"{module(path)} imports {target}")
    return dict(found)


def test_there_is_something_to_check() -> None:
    assert {"tbench.runs.run", "harness.agent", "reports.report"} <= {module(path) for path in FILES}
    assert room_of("tbench.sandbox.docker.engine") == "tbench/sandbox/docker"
    assert room_of("tbench.errors") == WORDS
    assert ("tbench/runs", "tbench/verify") in arrows()


def test_no_room_imports_one_that_it_may_not() -> None:
    assert [sorted(why) for (here, there), why in sorted(arrows().items()) if there not in allowed()[here]] == []


def test_every_arrow_that_is_drawn_is_there() -> None:
    drawn = {(here, there) for here, rooms in allowed().items() if here != "tbench/cli" for there in rooms}
    assert sorted(drawn - arrows().keys()) == []


def test_the_table_goes_from_the_top_floor_down() -> None:
    order = list(allowed())
    assert [f"{here} above {there}" for here, there in arrows() if order.index(here) > order.index(there)] == []


def test_every_room_is_on_the_floor_that_the_page_says() -> None:
    below: dict[str, set[str]] = {room: {there for here, there in arrows() if here == room} for room in allowed()}
    floors: dict[str, int] = {}
    for room in reversed(list(allowed())):
        floors[room] = 1 + max((floors[there] for there in below[room]), default=0)
    told = {room: int(cells[0]) for cells in rows("Floors") for room in named(cells[1])}
    assert told == floors


def test_rooms_that_need_little_of_the_harness_take_only_that() -> None:
    found = [line for line in section("Floors").splitlines() if "`harness." in line]
    for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in found):
        parts = named(cells[1])
        for room in named(cells[0]):
            targets = {why.rpartition(" imports ")[2] for why in arrows()[room, "harness"]}
            assert {target for target in targets if not any(within(target, part) for part in parts)} == set(), room
    assert len(found) == 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tbench.proxies.replay.generation", "tbench.proxies.replay.scoring"),
        ("tbench.proxies.replay.scoring", "tbench.proxies.replay.generation"),
        ("tbench.proxies.datasets", "tbench.proxies.replay"),
        ("tbench.proxies.extraction", "tbench.proxies.replay"),
        ("tbench.proxies.replay", "tbench.proxies.extraction"),
    ],
)
def test_the_proxies_are_apart_from_each_other(one: str, other: str) -> None:
    users = [path for path in FILES if within(module(path), one)]
    assert users
    assert [module(path) for path in users if any(within(target, other) for target in imports(path))] == []


def test_the_walk_through_a_trial_names_each_room_once() -> None:
    text = section("One trial, room by room")
    names = [word.rstrip("/").removesuffix(".py") for word in re.findall(r"`([^`]+)`|\*words\*", text)]
    names = [name or WORDS for name in names]
    assert {room: names.count(room) for room in allowed()} == dict.fromkeys(allowed(), 1)


def test_no_room_is_too_full() -> None:
    folders = {path.parent for path in FILES}
    crowded = {
        str(folder.relative_to(ROOT)): len(modules)
        for folder in folders
        if len(modules := [path for path in FILES if path.parent == folder and path.name != "__init__.py"]) > FULL_ROOM
    }
    assert crowded == {}


def test_a_small_module_has_two_importers() -> None:
    """Other than programs, and what the docs show to users, who import it."""
    users = Counter(target for path in FILES for target in imports(path))
    shown = " ".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    small = [path for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) < LEAST_LINES]
    small = [path for path in small if path.name not in ("__init__.py", "__main__.py")]
    assert [name for path in small if users[name := module(path)] < 2 and name not in shown] == []


@pytest.mark.parametrize(("library", "places"), [(named(cells[0])[0], named(cells[1])) for cells in rows("Libraries")])
def test_a_library_has_its_own_place(library: str, places: list[str]) -> None:
    users = {module(path) for path in FILES if any(within(target, library) for target in imports(path))}
    found = {place: {user for user in users if within(user, place.replace("/", "."))} for place in places}
    assert users - set().union(*found.values()) == set()
    assert [place for place, its in found.items() if not its] == [], "the rule is about nothing"


def test_the_whole_configuration_is_known_only_where_the_page_says() -> None:
    text = section("One configuration")
    (sentence,) = re.findall(r"^The whole configuration, `RunConfig`,(.*?)\.\s", text, re.M | re.S)
    places = set(named(sentence))
    users = {module(path) for path in FILES if "tbench.config.settings.RunConfig" in imports(path)}
    found = {place if (place := name.replace(".", "/")) in places else room_of(name) for name in users}
    assert found == places


def test_no_circle_of_modules() -> None:
    known = {module(path): path for path in FILES}
    uses = {
        name: {target for target in imports(path) if target in known and target != name} for name, path in known.items()
    }
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for target in sorted(uses[name]):
                # A package's own __init__ is imported with whatever is in it.
                if not within(name, target):
                    follow(target, (*way, name))
            done.add(name)

    for name in known:
        follow(name, ())


def test_nothing_imports_the_tests() -> None:
    assert [target for path in FILES for target in imports(path) if within(target, "tests")] == []


def test_fakes_are_for_tests_only() -> None:
    users = {module(path) for path in FILES if any(within(target, "tbench.sandbox.fake") for target in imports(path))}
    assert users == set()


@cache
def calls(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}


@pytest.mark.parametrize("call", ["print", "input", "exit", "quit", "sys.exit", "sys.stdout.write", "click.echo"])
def test_only_the_command_line_prints_and_exits(call: str) -> None:
    users = [module(path) for path in FILES if call in calls(path)]
    assert [name for name in users if not within(name, MAY_PRINT)] == []


@pytest.mark.parametrize(
    "call",
    [
        "gc.freeze",
        "gc.unfreeze",
        "gc.set_threshold",
        "logging.basicConfig",
        "signal.signal",
        "loop.add_signal_handler",
        "os._exit",
    ],
)
def test_only_the_command_line_changes_the_whole_process(call: str) -> None:
    users = [module(path) for path in FILES if call in calls(path)]
    assert [name for name in users if not within(name, MAY_PRINT)] == []


@pytest.mark.parametrize("call", ["time.sleep"])
def test_nothing_blocks_the_event_loop(call: str) -> None:
    assert [module(path) for path in FILES if call in calls(path)] == []


def names_of_classes() -> Iterator[tuple[tuple[str, str], str]]:
    """Room and name of each class, and where it is."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                yield (str(room_of(module(path))), node.name.lstrip("_")), f"{module(path)}.{node.name}"


def test_one_noun_is_one_class_within_a_room() -> None:
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for noun, where in names_of_classes():
        found[noun].append(where)
    assert [places for places in found.values() if len(places) > 1] == []


def test_no_module_cleans_up_in_a_finalizer() -> None:
    names = {
        (module(path), node.name)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert [where for where, name in names if name == "__del__"] == []
