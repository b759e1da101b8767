"""Prints how large the house is: files, lines, rooms, floors and arrows between them, commands, settings.

    python tests/house.py [ROOT]

A room is a folder of tbench/, its loose modules together, harness/ or reports/. A room stands a floor above the highest
that it imports. ROOT is another checkout; its commands are counted by its own program.
"""

from __future__ import annotations

import ast
import json
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

_COUNTS = """
import click, json
from tbench.cli import app
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
def count(command):
    if not isinstance(command, click.Group):
        return 1
    context = click.Context(command)
    return sum(count(command.get_command(context, name)) for name in command.list_commands(context))
print(json.dumps({"commands": count(app), "settings": sum(1 for _ in iter_settings(RunConfig))}))
"""
_SHORT = 60
"""Lines below which a module needs more than one importer."""


def room_of(name: str) -> str:
    """The room of a module."""
    parts = name.split(".")
    return "/".join(parts[:2]) if parts[0] == "tbench" and len(parts) > 2 else parts[0]


def imported(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the house that a module imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [name for name in names if name in known]
            yield from found or ([node.module] if node.module in known else [])


def floors(arrows: set[tuple[str, str]]) -> dict[str, int]:
    """The floor of each room; an arrow that closes a circle is left out."""
    found: dict[str, int] = {}

    def floor(room: str, above: frozenset[str]) -> int:
        if room not in found:
            below = (there for here, there in sorted(arrows) if here == room and there not in above)
            found[room] = 1 + max((floor(there, above | {room}) for there in below), default=0)
        return found[room]

    for room in sorted({room for arrow in arrows for room in arrow}):
        floor(room, frozenset({room}))
    return found


def measure(root: Path) -> dict[str, float]:
    """All figures of a checkout."""
    files = [path for folder in ("tbench", "harness", "reports") for path in sorted((root / folder).rglob("*.py"))]
    known = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    lines = {name: len(path.read_text().splitlines()) for name, path in known.items()}
    uses = {name: set(imported(ast.parse(path.read_text()), known)) - {name} for name, path in known.items()}
    importers = Counter(target for targets in uses.values() for target in targets)
    arrows = {(room_of(name), room_of(target)) for name, targets in uses.items() for target in targets}
    arrows = {(here, there) for here, there in arrows if here != there}
    modules = [name for name, path in known.items() if path.name not in ("__init__.py", "__main__.py")]
    counts = subprocess.run([sys.executable, "-c", _COUNTS], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    return {
        "files": len(files),
        "lines": sum(lines.values()),
        "mean file": round(statistics.mean(lines.values())),
        "longest file": max(lines.values()),
        f"below {_SHORT} lines with one importer": sum(importers[n] < 2 and lines[n] < _SHORT for n in modules),
        "with one importer": sum(importers[name] == 1 for name in modules),
        "rooms": len({room_of(name) for name in known}),
        "floors": max(floors(arrows).values()),
        "arrows": len(arrows),
        **json.loads(counts),
    }


if __name__ == "__main__":
    for figure, value in measure(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]).items():
        print(f"{figure:<38}{value:>8,}")
