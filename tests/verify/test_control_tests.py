"""Control tests show whether the work has disarmed the tests or copied the values that they expect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tbench.results import is_weak
from tbench.tasks.task import Task
from tbench.verify.calibration import CONTROL
from tbench.verify.changes.facts import NO_ORACLE, OracleSystem
from tbench.verify.control_tests import (
    did_not_fail,
    try_control,
    with_failing_test,
    with_other_expectations,
)
from tbench.verify.verifier import Verdict, VerifierFailed

BEFORE = b"== 1 passed in 0.1s =="
Run = Callable[[Task], Awaitable[Verdict]]


def passed(output: bytes, reward: float = 1.0) -> Verdict:
    return Verdict(reward, {"verifier/stdout.txt": output})


@pytest.fixture
def task_of(make_task: Any) -> Callable[..., Task]:
    def make(script: str = "true\n", **tests: str) -> Task:
        path = make_task(test=script)
        for name, text in tests.items():
            (path / "tests" / name.replace("__", ".")).write_text(text)
        return Task.read(path)

    return make


def altered(task: Task, name: str) -> str:
    changed = with_other_expectations(task)
    data = (changed or task).tests[name].data
    assert data is not None
    return data.decode()


# -- other expected values -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("assert f('pear fig') == ['apple', 'fig']", "assert f('pear fig') == ['appla', 'fia']"),
        ("assert f(2) == 2.5 and g() == -1", "assert f(2) == 3.5 and g() == -2"),
        ("assert {'a': 1} == f()", "assert {'b': 2} == f()"),
        ("assert f()[0] == x[1]", None),
        ("assert f() != 3", None),
        ("assert f() > 3", None),
        ("assert f() == True", None),
        ("assert 'x' in f()", None),
        ("WANTED = 'cafe'\nassert f() == WANTED", "WANTED = 'cafa'\nassert f() == WANTED"),
        ("WANTED = load('cafe')\nassert f() == WANTED", None),
        ("if mode == 'json':\n    assert f() == 'ü'", "if mode == 'json':\n    assert f() == 'üx'"),
        ("self.assertEqual(f(1), 4)", "self.assertEqual(f(1), 5)"),
        ("assert f('ä') == b'a'; assert g() == ''", "assert f('ä') == b'b'; assert g() == 'x'"),
        ("score = float(f('x y') == ['x', 'y'])", "score = float(f('x y') == ['a', 'a'])"),
        ("assert f() == 1; g() == 1", "assert f() == 2; g() == 1"),
        ("assert f( == 3", "assert f( == 4"),
        ("assert f() == None", None),
        ("assert 1 < f() == 3", None),
        ("assert f() == (1, {2})", "assert f() == (2, {3})"),
        ("self.assertIn(f(1), 4)", None),
        ("self.assertEqual(f(1), 4, 'four')", "self.assertEqual(f(1), 5, 'four')"),
        ("OTHER = 'x'\nWANTED = 'y'\nassert f() == WANTED", "OTHER = 'x'\nWANTED = 'a'\nassert f() == WANTED"),
        ("first = second = 3\nassert f() == second", "first = second = 4\nassert f() == second"),
        ("other, wanted = 'x', 3\nassert f() == wanted", None),
        ("return found != 4;", "return found != 5;"),
        ('if (strcmp(a, "b") != 0 || a == "b.") {', 'if (strcmp(a, "b") != 1 || a == "a.") {'),
        ("expect(f(2)).toBe(4);", "expect(f(2)).toBe(5);"),
    ],
)
def test_only_values_that_tests_compare_with_are_altered(
    task_of: Callable[..., Task], text: str, expected: str | None
) -> None:
    name = "main.c" if text.endswith((";", "{")) else "test_outputs.py"
    task = task_of(**{name.replace(".", "__"): text})
    assert altered(task, name) == (text if expected is None else expected)
    assert (with_other_expectations(task) is None) is (expected is None)


def test_only_here_documents_of_a_script_and_added_lines_of_a_patch_are_altered(task_of: Callable[..., Task]) -> None:
    script = """[ $? == 0 ] && x=1
git apply - <<'EOF_1'
@@ -7,3 +7,5 @@
 assert mode([1, 1]) == 1
+assert median([1, 2]) == 1.5
EOF_1
python3 - <<END
assert f() == 3
END
"""
    expected = script.replace("== 1.5", "== 2.5").replace("== 3", "== 4")
    assert altered(task_of(script), "test.sh") == expected


def test_directories_are_not_altered(task_of: Callable[..., Task]) -> None:
    task = task_of(test_outputs__py="assert f() == 3")
    (task.path / "tests" / "more.py").mkdir()
    (task.path / "tests" / "test_more.py").mkdir()
    task = Task.read(task.path)
    assert altered(task, "test_outputs.py") == "assert f() == 4"
    controlled = with_failing_test(task)
    assert controlled is not None and controlled[0].tests["test_more.py"] == task.tests["test_more.py"]


def test_data_files_are_not_altered(task_of: Callable[..., Task]) -> None:
    task = task_of(expected__json='{"a == 1": "b"}', notes__txt="a == 1")
    assert with_other_expectations(task) is None


# -- a test that always fails --------------------------------------------------------------------


def test_each_pytest_file_gets_a_test_that_always_fails(task_of: Callable[..., Task]) -> None:
    own = "def test_x():\n    assert True"
    task = task_of(test_outputs__py=own, words_test__py=own, helper__py=own)
    controlled = with_failing_test(task)
    assert controlled is not None
    changed, name = controlled
    assert changed.test_script == task.test_script and changed.hash == task.hash
    for path, entry in changed.tests.items():
        is_changed = path in ("test_outputs.py", "words_test.py")
        assert (entry != task.tests[path]) is is_changed, path
        if is_changed and entry.data is not None:
            found: dict[str, Any] = {}
            exec(entry.data, found)
            found["test_x"]()
            with pytest.raises(AssertionError):
                found[name]()


def test_a_task_without_pytest_files_gets_no_failing_test(task_of: Callable[..., Task]) -> None:
    assert with_failing_test(task_of()) is None


@pytest.mark.parametrize(
    ("output", "reward", "expected"),
    [
        ("test_outputs.py::{name} PASSED\n== 2 passed in 0.1s ==", 1.0, True),
        ("test_outputs.py::{name} SKIPPED\n== 1 passed, 1 skipped in 0.1s ==", 1.0, True),
        ("== 2 passed in 0.1s ==", 1.0, True),
        ("== 2 passed in 0.1s ==", 0.0, False),
        ("== 1 failed, 1 passed in 0.1s ==", 1.0, False),
        ("test_outputs.py::{name} FAILED\n== 1 failed, 2 passed in 0.1s ==", 1.0, False),
        ("== 1 passed in 0.1s ==", 1.0, False),
        ("nothing", 1.0, False),
    ],
)
async def test_without_an_oracle_a_pass_is_flagged_if_pytest_reports_that_the_failing_test_passed(
    task_of: Callable[..., Task], output: str, reward: float, expected: bool
) -> None:
    async def run(changed: Task) -> Verdict:
        data = changed.tests["test_outputs.py"].data
        assert data is not None and b"== 1" in data
        name = data.decode().rpartition("def ")[2].partition("(")[0]
        return passed(output.replace("{name}", name).encode(), reward)

    task = task_of(test_outputs__py="def test_x():\n    assert f() == 1\n")
    found = await try_control(passed(BEFORE), task, run, NO_ORACLE)
    strong = [sign.partition(":")[0] for sign in found.integrity.tamper if not is_weak(sign)]
    assert (found.reward, strong, found.integrity.rewards) == (1.0, ["tests-disarmed"] * expected, {})


# -- both ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["def test_x():\n    assert f() == 1\n", "def test_x():\n    assert f()\n"])
@pytest.mark.parametrize(("is_oracle", "oracle_fails"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("reward", [1.0, 0.0])
async def test_with_an_oracle_any_pass_of_the_control_tests_is_a_sign_except_for_the_oracles_own(
    task_of: Callable[..., Task], text: str, is_oracle: bool, oracle_fails: bool, reward: float
) -> None:
    async def run(changed: Task) -> Verdict:
        data = changed.tests["test_outputs.py"].data
        assert data is not None and (b"== 2" in data) is ("==" in text)
        return passed(b"1 failed", reward)

    oracle = OracleSystem(is_own=is_oracle, fails_control=oracle_fails)
    found = await try_control(passed(BEFORE), task_of(test_outputs__py=text), run, oracle)
    assert found.integrity.rewards == {CONTROL: reward}
    assert len(found.integrity.tamper) == (reward == 1.0 and not is_oracle)


@pytest.mark.parametrize("of_failing_test", [1.0, 0.0, None])
@pytest.mark.parametrize("is_oracle", [False, True])
async def test_control_tests_without_a_verdict_leave_a_pass_unconfirmed_and_a_failing_test_is_tried(
    task_of: Callable[..., Task], of_failing_test: float | None, is_oracle: bool
) -> None:
    tried = []

    async def run(changed: Task) -> Verdict:
        tried.append(b"== 2" in (changed.tests["test_outputs.py"].data or b""))
        if tried[-1] or of_failing_test is None:
            raise VerifierFailed("verifier_no_reward", "none", {})
        return passed(b"1 failed", of_failing_test)

    task = task_of(test_outputs__py="def test_x():\n    assert f() == 1\n")
    found = await try_control(passed(BEFORE), task, run, OracleSystem(is_own=is_oracle, fails_control=True))
    assert tried == [True, False][: 1 if is_oracle else 2] and found.integrity.rewards == {}
    signs = [] if is_oracle else ["unconfirmed", *["tests-disarmed"] * (of_failing_test == 1.0)]
    assert [sign.partition(":")[0] for sign in found.integrity.tamper] == signs


@pytest.mark.parametrize("reward", [0.5, 0.0])
async def test_a_verdict_below_a_full_pass_is_returned_as_it_is(task_of: Callable[..., Task], reward: float) -> None:
    solved = passed(BEFORE)
    assert await try_control(solved, task_of(), None, OracleSystem(is_own=True)) is solved  # type: ignore[arg-type]
    found, task = passed(BEFORE, reward), task_of(test_outputs__py="assert f() == 1")
    assert await try_control(found, task, None, OracleSystem(fails_control=True)) is found  # type: ignore[arg-type]


def test_the_name_of_the_added_test_takes_precedence_over_numbers() -> None:
    assert not did_not_fail({}, {"a::test_c": "failed", "unnamed passed 1": "passed"}, "test_c")
    assert did_not_fail({}, {"a::test_c": "xfailed"}, "test_c")
