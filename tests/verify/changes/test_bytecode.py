"""Bytecode and its source, in a python of our own."""

from __future__ import annotations

import ast
import importlib.util
import marshal
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import rewrite_asserts

from tbench.verify.changes.bytecode import _PROGRAM, source_of

SOURCE = "def passed(name):\n    assert name\n    return name in {'a', 'b', 'c'}\n"
HEAD = importlib.util.MAGIC_NUMBER + bytes(12)


def answer(directory: Path, compiled: bytes, name: str = "words.cpython-312.pyc") -> str:
    (directory / "check.py").write_text(_PROGRAM)
    (directory / "sites").write_text("")
    (directory / "0.pyc").write_bytes(compiled)
    (directory / "0.py").write_text(SOURCE)
    (directory / "0.name").write_text(name)
    return subprocess.run(
        [sys.executable, "check.py"], cwd=directory, capture_output=True, text=True, check=True
    ).stdout


def compiled(source: str, optimize: int = 0) -> bytes:
    return HEAD + marshal.dumps(compile(source, "/elsewhere/words.py", "exec", dont_inherit=True, optimize=optimize))


def test_bytecode_of_the_source_is_known_wherever_it_was_compiled(tmp_path: Path) -> None:
    assert answer(tmp_path, compiled(SOURCE)) == "0 1\n"


def test_bytecode_of_another_source_is_not(tmp_path: Path) -> None:
    assert answer(tmp_path, compiled(SOURCE.replace("'c'", "'d'"))) == "0 0\n"


def test_bytecode_that_python_cannot_read_is_not(tmp_path: Path) -> None:
    assert answer(tmp_path, HEAD + b"nothing") == "0 0\n"


def test_of_another_python_s_bytecode_nothing_is_said(tmp_path: Path) -> None:
    assert answer(tmp_path, bytes(4) + compiled(SOURCE)[4:]) == ""


def test_rewritten_assertions_are_compared_with_rewritten_ones(tmp_path: Path) -> None:
    name = "words.cpython-312-pytest-8.4.1.pyc"
    tree = ast.parse(SOURCE)
    rewrite_asserts(tree, SOURCE.encode())
    rewritten = HEAD + marshal.dumps(compile(tree, "/elsewhere/words.py", "exec", dont_inherit=True))
    assert answer(tmp_path, rewritten, name) == "0 1\n"
    assert answer(tmp_path, compiled(SOURCE), name) == "0 0\n"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("/a/__pycache__/b.cpython-312.pyc", "/a/b.py"),
        ("/a/__pycache__/b.cpython-312.opt-1.pyc", "/a/b.py"),
        ("/a/__pycache__/b.cpython-312-pytest-8.4.1.pyc", "/a/b.py"),
        ("/a/b.pyc", ""),
    ],
)
def test_bytecode_has_a_source_beside_its_directory(path: str, source: str) -> None:
    assert source_of(path) == source
