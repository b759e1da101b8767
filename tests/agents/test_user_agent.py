"""user_agent: a user's class is found by module:Class; what is wrong with it is said in one line, before a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tbench.agents.user_agent import load_agent_class
from tbench.errors import UsageError

GOOD = "class Agent:\n    async def run(self, assignment):\n        pass\n"
Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into the current directory; the import path is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "nothing-here"))

    def file(name: str, code: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)

    return file


def test_a_class_in_the_current_directory_is_found_with_the_hash_of_its_file(write: Write) -> None:
    write("ua_good.py", GOOD)
    found = load_agent_class("ua_good:Agent")
    assert found.name == "ua_good:Agent"
    assert found.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    assert type(found.make()).__name__ == "Agent"


def test_a_class_in_a_package_is_found(write: Write) -> None:
    write("ua_package/__init__.py", "")
    write("ua_package/inner.py", GOOD)
    assert load_agent_class("ua_package.inner:Agent").name == "ua_package.inner:Agent"


@pytest.mark.parametrize("name", [":Agent", "a:", "a b:Agent", "a/b.py:Agent", "a:B:C", "a..b:C"])
def test_a_name_that_is_none_says_how_it_must_look(name: str) -> None:
    with pytest.raises(UsageError, match="must look like package"):
        load_agent_class(name)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import surely_missing_module\n", "importing it failed: ModuleNotFoundError: .*ua_case.*:1"),
        ("1 / 0\n", r"importing it failed: ZeroDivisionError: division by zero \(.*ua_case_\d+.py:1\)"),
        ("def f(:\n", r"importing it failed: SyntaxError: .*ua_case_\d+.py:1"),
        ("raise SystemExit(3)\n", "importing it failed: SystemExit: 3"),
        ("x = 1\n", r"ua_case_\d+.py has no Agent"),
        ("Agent = 5\n", "is not a class"),
        ("class Agent:\n    pass\n", r"has no `async def run\(self, assignment\)`"),
        ("class Agent:\n    def run(self, assignment): pass\n", "has no `async def run"),
        ("class Agent:\n    async def run(self): pass\n", r"run\(\) cannot be called with one assignment"),
        (
            "class Agent:\n    def __init__(self, key): pass\n    async def run(self, assignment): pass\n",
            "cannot be made without arguments",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write: Write, code: str, said: str) -> None:
    module = f"ua_case_{abs(hash(code))}"
    write(f"{module}.py", code)
    with pytest.raises(UsageError, match=said) as caught:
        load_agent_class(f"{module}:Agent")
    assert "\n" not in str(caught.value)


def test_a_missing_module_is_told_with_where_it_was_looked_for(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no module 'ua_nowhere' in {tmp_path}"):
        load_agent_class("ua_nowhere:Agent")
    write("ua_half/__init__.py", "")
    with pytest.raises(UsageError, match=r"there is no module 'ua_half\.missing'"):
        load_agent_class("ua_half.missing:Agent")
