"""Control tests: tests that must fail with the agent's work. If they pass, the work has disarmed or copied the tests.

They are the task's own tests with other expected values or, if no comparison with a value is found, with an additional
test that always fails. Correct work fails them, as calibrations show for the oracle's.
"""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from tbench.results import UNCONFIRMED
from tbench.reward import is_solved
from tbench.tasks.task import Task
from tbench.verify.calibration import CONTROL
from tbench.verify.changes.facts import OracleSystem
from tbench.verify.tests_shown import NOT_FAILED, Status, tests_shown
from tbench.verify.verifier import Verdict, VerifierFailed

_PYTEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")
_CODE = re.compile(r".*\.(?:py|c|cc|cpp|h|hpp|rs|go|js|mjs|cjs|ts|java|rb|pl|pm|php|lua|jl|r|sh|bats)", re.IGNORECASE)
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n(.*?)\n\s*\2\b", re.DOTALL)
_COMPARISON = re.compile(
    r"((?:[=!]=|\b(?:toBe|toEqual|assertEqual|assert_eq!)\b[^\n]*?[(,])\s*)(-?\d+(?:\.\d+)?\b|\"(?:[^\"\\\n]|\\.)+\"|'(?:[^'\\\n]|\\.)+')"
)
_NO_VERDICT = f"{UNCONFIRMED} tests that must fail give no verdict with the work in place"
_ASSERTS = ("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertAlmostEqual")


async def try_control(
    verdict: Verdict, task: Task, run: Callable[[Task], Awaitable[Verdict]], oracle: OracleSystem
) -> Verdict:
    """Return a pass, with a sign against it if the control tests pass with the same work. Raises TrialError.

    `run` verifies the work with the tests of another task. For the oracle's own work, only the reward of the control
    tests is recorded. If the oracle is known to fail them, a pass for which they give no verdict is unconfirmed, and
    the failing test is tried. If it is not, only that test is used, and the sign requires pytest's report of it.
    """
    if not is_solved(verdict.reward):
        return verdict
    is_known, failing = oracle.fails_control or oracle.is_own, with_failing_test(task)
    altered = with_other_expectations(task) if is_known else None
    for control in filter(None, (altered, failing and failing[0])):
        try:
            tried = await run(control)
        except VerifierFailed as failure:
            if oracle.is_own:
                return verdict  # the reward of a failing test would not say that the others can fail
            if control is altered:
                verdict = verdict.with_signs(f"{_NO_VERDICT}: {failure.type}")
            continue
        if is_known and (altered is None or control is altered):
            verdict = verdict.with_integrity(rewards={**verdict.integrity.rewards, CONTROL: tried.reward})
        break
    else:
        return verdict
    if is_known:
        is_disarmed = not oracle.is_own
    else:
        assert failing is not None
        is_disarmed = did_not_fail(tests_shown(verdict.logs), tests_shown(tried.logs), failing[1])
    if not is_disarmed or not is_solved(tried.reward):
        return verdict
    return verdict.with_signs("tests-disarmed: tests that must fail pass with the work in place")


# -- other expected values -----------------------------------------------------------------------


def with_other_expectations(task: Task) -> Task | None:
    """Return the task with other values in its tests' assertions, or else in all comparisons; None without either."""
    return _altered_task(task, asserted=True) or _altered_task(task, asserted=False)


def _altered_task(task: Task, *, asserted: bool) -> Task | None:
    tests = dict(task.tests)
    for path, entry in tests.items():
        if entry.data is None or not (path == "test.sh" or _CODE.fullmatch(path)):
            continue
        text = entry.data.decode("utf-8", "surrogateescape")
        if path == "test.sh":
            changed = _altered_script(text, asserted)
        else:
            changed = _altered_python(text, asserted) if path.endswith(".py") else _COMPARISON.sub(_altered_match, text)
        tests[path] = dataclasses.replace(entry, data=changed.encode("utf-8", "surrogateescape"))
    return task.with_tests(tests) if tests != task.tests else None


def _altered_script(text: str, asserted: bool) -> str:
    """Alter only the here-documents: other comparisons of test.sh may determine its reward."""
    return _HEREDOC.sub(lambda found: found[0].replace(found[3], _altered_document(found[3], asserted)), text)


def _altered_document(text: str, asserted: bool) -> str:
    if re.search(r"^@@ ", text, re.MULTILINE) is None:
        return _altered_python(text, asserted)
    # In a patch, only added lines: the others have to match the file.
    return re.sub(r"^\+[^\n]*", lambda line: _COMPARISON.sub(_altered_match, line[0]), text, flags=re.MULTILINE)


def _altered_python(text: str, asserted: bool) -> str:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return _COMPARISON.sub(_altered_match, text)
    data = bytearray(text.encode("utf-8", "surrogateescape"))
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
    for node in sorted(_expected(tree, asserted), key=lambda each: (each.lineno, each.col_offset), reverse=True):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        data[start:end] = repr(_altered(node.value)).encode("utf-8", "backslashreplace")
    return data.decode("utf-8", "surrogateescape")


def _expected(tree: ast.Module, asserted: bool) -> set[ast.Constant]:
    """Return the constants that tests compare with, directly or by a name that they are assigned to."""
    sides: list[ast.expr] = []
    searched = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)] if asserted else [tree]
    for node in itertools.chain.from_iterable(map(ast.walk, searched)):
        if isinstance(node, ast.Compare) and all(isinstance(op, ast.Eq) for op in node.ops):
            sides += [node.left, *node.comparators]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ASSERTS:
            sides += node.args[:2]
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id in names for each in node.targets
        ):
            sides.append(node.value)
    return {constant for side in sides for constant in _literals(side)}


def _literals(node: ast.AST) -> Iterator[ast.Constant]:
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str | bytes | int | float) and not isinstance(node.value, bool):
            yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.UnaryOp):
        for child in ast.iter_child_nodes(node):
            yield from _literals(child)


def _altered(value: Any) -> Any:
    if isinstance(value, str):
        return _altered_text(value)
    if isinstance(value, bytes):
        return _altered_text(value.decode("latin-1")).encode("latin-1")
    return value + 1


def _altered_text(text: str) -> str:
    """Return the text with its last letter or digit changed."""
    found = re.search(r"[A-Za-z0-9](?=[^A-Za-z0-9]*\Z)", text)
    if found is None:
        return f"{text}x"
    return text[: found.start()] + ("b" if found[0] == "a" else "a") + text[found.end() :]


def _altered_match(found: re.Match[str]) -> str:
    return found[1] + _altered_literal(found[2])


def _altered_literal(literal: str) -> str:
    if literal[0] in "\"'":
        return literal[0] + _altered_text(literal[1:-1]) + literal[0]
    return str(float(literal) + 1 if "." in literal else int(literal) + 1)


# -- a test that always fails --------------------------------------------------------------------


def with_failing_test(task: Task) -> tuple[Task, str] | None:
    """Return the task with a failing test in each pytest file, and that test's name; None without such files."""
    name, wrong, right = (uuid.uuid4().hex[:12] for _ in range(3))
    text = f"\n\n\ndef test_{name}():\n    found = {wrong!r}\n    assert found == {right!r}\n".encode()
    tests = {
        path: dataclasses.replace(entry, data=entry.data + text)
        for path, entry in task.tests.items()
        if entry.data is not None and _PYTEST_FILE.fullmatch(path)
    }
    return (task.with_tests({**task.tests, **tests}), f"test_{name}") if tests else None


def did_not_fail(before: Mapping[str, Status], shown: Mapping[str, Status], name: str) -> bool:
    """Whether the added test passed: by its name or, if passed tests have no names, by one more that passed."""
    named = [status for identity, status in shown.items() if identity.endswith(f"::{name}")]
    if named:
        return all(status in NOT_FAILED for status in named)
    return _unnamed(shown) > _unnamed(before)


def _unnamed(shown: Mapping[str, Status]) -> int:
    return sum(identity.startswith("unnamed passed ") for identity in shown)
