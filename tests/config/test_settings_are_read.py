"""Every setting is read by something other than its definition, as mypy finds where attributes are read."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module, util
from pathlib import Path

import pytest
from conftest import ROOT
from pydantic import BaseModel

from tbench.config import layers, settings
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.nightly.configuration import NightlyConfig
from tbench.proxies.extraction.settings import ExtractConfig
from tbench.proxies.replay.generation.settings import ReplayConfig

CONFIGURATIONS = [RunConfig, ExtractConfig, ReplayConfig, NightlyConfig]
PLUGIN = ROOT / "tests" / "read_settings.py"
pytest.importorskip("mypy")
READS, WHOLE = (getattr(import_module("read_settings"), name) for name in ("READS", "WHOLE"))
Reads = Mapping[str, set[tuple[str, int]]]
"""By class and attribute, the modules and lines where it is read."""

PLANTED = '''
from pydantic import BaseModel

class Part(BaseModel):
    """Part"""
    used: int = 1
    by_property: int = 1
    forgotten: int = 1
    by_unused: int = 1

    @property
    def doubled(self) -> int:
        return 2 * self.by_property

    @property
    def unused(self) -> int:
        return self.by_unused

class Planted(BaseModel):
    part: Part = Part()
'''
READER = "from planted import Part\ndef run(part: Part) -> int:\n    return part.used + part.doubled\n"


def reads_of(folder: Path, cwd: Path, *arguments: str) -> Reads:
    """Where mypy sees attributes being read."""
    settings = folder / "mypy.ini"
    settings.write_text(f"[mypy]\nplugins = {PLUGIN}\nignore_missing_imports = True\ncheck_untyped_defs = True\n")
    file = folder / "reads"
    words = [sys.executable, "-m", "mypy", "--config-file", str(settings), "--cache-dir", os.devnull, *arguments]
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, READS: str(file)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
    for line in file.read_text(encoding="utf-8").splitlines():
        name, module, number = line.split()
        found[name].add((module, int(number)))
    return found


@cache
def functions(module: str) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a module, inner ones last, each with its name after that of the class that holds it."""
    spec = util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return [*_functions(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), module)]


def _functions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}.{each.name}", each
        yield from _functions(each, f"{name}.{each.name}" if isinstance(each, ast.ClassDef) else name)


def reader(module: str, line: int) -> str | None:
    """The function around a line; None for a line in the body of a class or a module."""
    around = [name for name, each in functions(module) if each.lineno <= line <= (each.end_lineno or line)]
    return around[-1] if around else None


def is_used(name: str, reads: Reads, defining: set[str], seen: frozenset[str] = frozenset()) -> bool:
    """Whether an attribute is read outside of the defining modules, or in a property there that is itself used."""
    owner, _, _ = name.rpartition(".")
    for module, line in reads.get(name, set()) | reads.get(f"{owner}.{WHOLE}", set()):
        by = reader(module, line)
        is_defining = module in defining or module.startswith("tbench.config.")
        if by is not None and not is_defining and WHOLE not in name:
            return True
        if by is not None and is_defining and by not in {*seen, name} and is_used(by, reads, defining, seen | {name}):
            return True
    return False


@cache
def raw_keys() -> set[str]:
    """The names of settings that are read from a file's values before they are a configuration, such as the preset."""
    calls = [each for each in ast.walk(ast.parse(inspect.getsource(layers))) if isinstance(each, ast.Call)]
    read = [
        call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and call.args
    ]
    return {str(key.value) for key in read if isinstance(key, ast.Constant)}


def unread(configuration: type[BaseModel], reads: Reads) -> list[str]:
    """The settings of a configuration that nothing reads."""
    found = []
    for setting in iter_settings(configuration):
        owners = [f"{each.__module__}.{each.__qualname__}" for each in setting.part.__mro__]
        defining = {configuration.__module__, setting.part.__module__}
        is_raw = setting.part.__module__ == settings.__name__ and setting.name in raw_keys()
        if not is_raw and not any(is_used(f"{owner}.{setting.name}", reads, defining) for owner in owners):
            found.append(setting.path)
    return found


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Reads:
    packages = [word for name in ("tbench", "harness", "reports") for word in ("-p", name)]
    return reads_of(tmp_path_factory.mktemp("mypy"), ROOT, *packages)


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda each: each.__name__)
def test_every_setting_is_read_by_something(configuration: type[BaseModel], reads: Reads) -> None:
    assert unread(configuration, reads) == []


@pytest.mark.slow
def test_a_setting_that_nothing_reads_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "planted_reader.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = reads_of(tmp_path, tmp_path, "planted.py", "planted_reader.py")
    assert unread(import_module("planted").Planted, found) == ["part.forgotten", "part.by_unused"]
