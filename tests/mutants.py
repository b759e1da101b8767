"""Changes the code that verdicts rest on, one place at a time, and lists the changes that no test notices.

    python tests/mutants.py [FILE ...] [--every N]

The fast tests of the file run with each change, in a process of their own. Exit code 1 where a change survives. Files
are named as in `SUBJECTS`; `--every 5` tries each fifth change.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SUBJECTS = {
    "policy": "tests/verify/test_weighing.py",
    "proof": "tests/verify/test_proof.py",
    "reward": "tests/verify/test_reward.py",
    "report": "tests/verify/test_report.py",
    "calibration": "tests/verify/test_calibration.py",
    "tests_shown": "tests/verify/test_tests_shown.py",
    "judging": "tests/verify/test_judging.py",
    "control_tests": "tests/verify/test_control_tests.py",
}
"""Tests of each file of tbench/verify."""
_LIMIT_SEC = 60
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "all": "any", "any": "all"}
_ATTRIBUTES = {"intersection": "union", "union": "intersection"}
Mutant = tuple[int, str, str]
"""The line that is changed, the words for the change, and the whole text with it."""


def mutants(text: str) -> Iterator[Mutant]:
    """All changes of a module's text."""
    tree = ast.parse(text)
    for number, node in enumerate(ast.walk(tree)):
        for at in range(len(list(_changed(node)))):
            twin = copy.deepcopy(tree)
            place = list(ast.walk(twin))[number]
            words, new = list(_changed(place))[at]
            if _put(twin, place, new):
                yield getattr(node, "lineno", 0), words, ast.unparse(ast.fix_missing_locations(twin))


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    """The changes of one node, by what stands in its place; None drops it."""
    match node:
        case ast.Compare(ops=[op, *rest]) if type(op) in _SWAPPED:
            yield "comparison", ast.Compare(node.left, [_SWAPPED[type(op)](), *rest], node.comparators)
        case ast.BoolOp(op=op, values=values):
            yield "and/or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for value in values:
                others = [each for each in values if each is not value]
                yield f"without `{ast.unparse(value)}`", others[0] if len(others) == 1 else ast.BoolOp(op, others)
        case ast.UnaryOp(op=ast.Not()):
            yield "without not", node.operand
        case ast.Constant(value=bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Name(id=name) if name in _NAMES:
            yield f"{name} for {_NAMES[name]}", ast.Name(_NAMES[name], ast.Load())
        case ast.Attribute(attr=name) if name in _ATTRIBUTES:
            yield name, ast.Attribute(node.value, _ATTRIBUTES[name], ast.Load())
        case ast.If() | ast.IfExp():
            for value in (True, False):
                yield f"if {value}", type(node)(**{**dict(ast.iter_fields(node)), "test": ast.Constant(value)})
        case ast.Raise():
            yield "without raise", ast.Pass()
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield "returns None", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "dropped", ast.Expr(ast.Tuple([], ast.Load()))
        case ast.BinOp(op=ast.BitOr() | ast.Add() | ast.Sub(), left=left, right=right):
            yield "left alone", left
            yield "right alone", right


def _put(tree: ast.AST, place: ast.AST, new: ast.AST | None) -> bool:
    """Put `new` in its place; False where that is none that runs: annotations."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns"):
                continue
            if value is place:
                setattr(parent, name, new)
                return True
            if isinstance(value, list) and any(each is place for each in value):
                value[:] = [new if each is place else each for each in value]
                return True
    return False


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Gives a module another text."""

    def __init__(self, module: str, text: str) -> None:
        self._module = module
        self._text = text

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._module else None

    def get_source(self, fullname: str) -> str:
        return self._text


def _arguments(subject: str) -> list[str]:
    return ["-q", "-x", "-n0", "-p", "no:cacheprovider", "-m", "not engine and not slow", SUBJECTS[subject]]


def _begin(subject: str, text: str) -> int:
    """The number of a process that runs the tests of a file with another text of it."""
    if pid := os.fork():
        return pid
    signal.alarm(_LIMIT_SEC)
    sys.meta_path.insert(0, _Instead(f"tbench.verify.{subject}", text))
    os._exit(int(pytest.main(_arguments(subject))))


def survive(subject: str, texts: Sequence[str]) -> list[bool]:
    """Whether the tests of a file pass with each of some other texts of it."""
    running: dict[int, int] = {}
    lives = [False] * len(texts)
    for at, text in enumerate(texts):
        if len(running) == os.cpu_count():
            _reap(running, lives)
        running[_begin(subject, text)] = at
    while running:
        _reap(running, lives)
    return lives


def _reap(running: dict[int, int], lives: list[bool]) -> None:
    pid, status = os.wait()
    lives[running.pop(pid)] = status == 0


def _warm_up() -> None:
    """Import all that the tests need but our own modules, so that each process has it."""
    pytest.main(["--collect-only", "-qq", "-n0", "-p", "no:cacheprovider", *SUBJECTS.values()])
    for name in [name for name in sys.modules if name.startswith(("tbench", "conftest", "test"))]:
        del sys.modules[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", default=list(SUBJECTS), help=" ".join(SUBJECTS))
    parser.add_argument("--every", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    survived = 0
    os.chdir(ROOT)
    shown, quiet = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    _warm_up()
    for subject in arguments.files:
        text = Path(f"tbench/verify/{subject}.py").read_text()
        found = list(mutants(text))[:: arguments.every]
        unchanged, *lives = survive(subject, [text, *(each for _, _, each in found)])
        words = [
            f"tbench/verify/{subject}.py:{line}: {words}"
            for (line, words, _), alive in zip(found, lives, strict=True)
            if alive
        ]
        survived += len(words) if unchanged else 1
        last = (
            f"{subject}: {len(words)} of {len(found)} changes survive"
            if unchanged
            else f"{subject}: its tests fail as it is"
        )
        os.write(shown, "\n".join([*words, last, ""]).encode())
    sys.exit(survived > 0)


if __name__ == "__main__":
    main()
