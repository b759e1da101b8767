"""The texts of a task that the hints are about, and what can be read out of them."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import TypeGuard

from tbench.errors import TbenchError
from tbench.tasks.bounds import TEXT_BYTES
from tbench.tasks.task import Task

_MOST_FILES, _MOST_BYTES = 2_000, 32 << 20
"""Most files of a folder that are read, and most bytes of all together."""
_MAKING = {
    *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "copy", "copyfile", "copytree", "move", "rename"),
    *("save", "unlink", "remove", "rmtree"),
}
_MOST_VALUES = 8
_FETCHES = re.compile(r"\b(?:git clone|curl|wget)\b|^\s*ADD\s+\S*https?:", re.MULTILINE)
Known = Mapping[str, list[str]]
"""The paths that a name may stand for."""
Texts = Mapping[str, str]
"""Texts by path below their folder."""


class _TextConstant(ast.Constant):
    """A constant that is a text, as far as types go."""

    value: str


@dataclass(frozen=True)
class Hint:
    """Something that looks like a mistake."""

    where: Path
    words: str


@dataclass(frozen=True)
class TaskTexts:
    """The texts of a task, or of one of its steps; what is no text or large is left out."""

    task: Task
    instruction: str
    tests: Texts
    environment: Texts
    solution: Texts
    names: frozenset[str]
    """Names of all files and folders in environment/."""

    @property
    def path(self) -> Path:
        return self.task.path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where its tests and solution may lie: the task's folder, and that of the step, which goes before."""
        step = self.task.step
        return (self.path,) if step is None else (self.path, self.path / "steps" / step.name)

    def place_of_test(self, name: str) -> Path:
        """Path of a file of the tests, which need not exist."""
        places = [folder / "tests" / name for folder in reversed(self.folders)]
        return next((place for place in places if place.is_file()), places[0])

    @property
    def has_unknown_files(self) -> bool:
        """Whether the image has files of the network, whose names nobody here knows."""
        return any(_FETCHES.search(text) for text in self.environment.values())

    def is_of_the_image(self, name: str) -> bool:
        """Whether the environment has a file of this name, or speaks of it."""
        return name in self.names or any(name in text for text in self.environment.values())


def texts_of(task: Task) -> TaskTexts:
    """The texts of a task that can be read, or of the view of a step. Raises OSError.

    Of a step the instruction is left out: what it and the tests speak of may be another step's.
    """
    environment, names = task.path / "environment", set[str]()
    for _, folders, files in os.walk(environment):
        names.update(folders + files)
    texts = TaskTexts(task, _instruction(task), {}, dict(_texts(environment)), {}, frozenset(names))
    tests = {name: text for folder in texts.folders for name, text in _texts(folder / "tests")}
    return replace(texts, tests=tests, solution=dict(_texts(task.solve_script.parent)))


def _instruction(task: Task) -> str:
    try:
        return task.instruction if task.step is None else ""
    except TbenchError:
        return ""


def paths_wanted(python: str) -> list[tuple[str, int]]:
    """Absolute paths that a Python file names, also put together with `/`, and their lines; none of a bad file.

    Left out are those that it makes itself: by opening them to write, or by giving them to a command.
    """
    try:
        return list(_paths_wanted(list(ast.walk(ast.parse(python)))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _paths_wanted(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int]]:
    known: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known.setdefault(node.targets[0].id, []).extend(_paths(node.value, known))
    inside = {id(each) for node in nodes for each in _parts(node)}
    own = {path for node in nodes for path in _made(node, known)}
    given = [text for node in nodes for text in _given(node, known)]
    for node in nodes:
        if isinstance(node, ast.Constant | ast.BinOp | ast.Call) and id(node) not in inside:
            for path in _paths(node, known)[:1]:
                name = path.rpartition("/")[2]
                if path.startswith("/") and path not in own and not any(path in each or name == each for each in given):
                    yield path, node.lineno


def _made(node: ast.AST, known: Known) -> list[str]:
    """The paths that a call writes or removes."""
    if not isinstance(node, ast.Call):
        return []
    if isinstance(node.func, ast.Attribute) and node.func.attr in _MAKING:
        return _paths(node.func.value, known) + [path for each in node.args[-1:] for path in _paths(each, known)]
    words = [each.value for each in [*node.args[1:], *(key.value for key in node.keywords)] if _is_text(each)]
    is_open = ast.unparse(node.func) == "open" and any(re.fullmatch(r"[wax][bt+]*", word) for word in words)
    return _paths(node.args[0], known) if is_open and node.args else []


def _given(node: ast.AST, known: Known) -> Iterator[str]:
    """Texts of commands: all of one in a single text, and what comes behind program and script in a list."""
    if isinstance(node, ast.List):
        for each in node.elts[2:]:
            yield from _paths(each, known)
    if isinstance(node, ast.Call) and not _is_path(node):
        for each in [*node.args, *(key.value for key in node.keywords)]:
            if _is_text(each) and " " in each.value:
                yield each.value
            elif isinstance(each, ast.JoinedStr):
                yield "".join(_piece(piece, known) for piece in each.values)


def _piece(piece: ast.expr, known: Known) -> str:
    """A piece of an f-string, as far as it is known."""
    if isinstance(piece, ast.FormattedValue):
        return next(iter(_paths(piece.value, known)), "")
    return piece.value if _is_text(piece) else ""


def _is_text(node: ast.AST) -> TypeGuard[_TextConstant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What within an expression is no path of its own: pieces of a longer one, of an f-string, a text on its own."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from (node.left, node.right)
        yield from ast.walk(node.left)
    elif isinstance(node, ast.JoinedStr | ast.Expr):
        yield from ast.walk(node) if isinstance(node, ast.JoinedStr) else (node.value,)
    elif isinstance(node, ast.Call) and _is_path(node):
        yield from node.args


def _paths(node: ast.expr, known: Known) -> list[str]:
    """The paths that an expression of constants and names may stand for."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Name):
        return known.get(node.id, [])[:_MOST_VALUES]
    if isinstance(node, ast.Call) and _is_path(node):
        parts = [_paths(each, known) for each in node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        parts = [_paths(node.left, known), _paths(node.right, known)]
    else:
        return []
    return ["/".join(each) for each in islice(product(*parts), _MOST_VALUES)] if parts else []


def _is_path(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return re.fullmatch(r"(?:pathlib\.)?(?:Pure)?(?:Posix)?Path|(?:os\.)?path\.join", name) is not None


def _texts(folder: Path) -> Iterator[tuple[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    left = _MOST_BYTES
    for path in files[:_MOST_FILES]:
        size = path.stat().st_size
        if size > min(TEXT_BYTES, left):
            continue
        left -= size
        data = path.read_bytes()
        if b"\0" not in data:
            yield path.relative_to(folder).as_posix(), data.decode("utf-8", "replace")
