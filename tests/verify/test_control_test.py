"""A test that must fail shows whether the work has disarmed the tests that import it."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.results import is_weak
from tbench.tasks.task import Task
from tbench.verify.control_test import is_disarmed, try_control_test, with_control_test
from tbench.verify.verifier import Verdict, VerifierFailed

BEFORE = b"== 1 passed in 0.1s =="


def passed(output: bytes, reward: float = 1.0) -> Verdict:
    return Verdict(reward, {"verifier/stdout.txt": output})


@pytest.fixture
def task(make_task: Any) -> Task:
    path = make_task()
    (path / "tests/deep").mkdir()
    for name in ("test_outputs.py", "deep/words_test.py", "helper.py"):
        (path / "tests" / name).write_text("def test_x():\n    assert True")
    return Task.read(path)


def test_each_file_of_tests_gets_a_test_that_fails_whatever_the_work_is(task: Task) -> None:
    controlled = with_control_test(task)
    assert controlled is not None
    changed, name = controlled
    assert changed.test_script == task.test_script and changed.hash == task.hash
    for path, entry in changed.tests.items():
        is_changed = path in ("test_outputs.py", "deep/words_test.py")
        assert (entry != task.tests[path]) is is_changed, path
        if is_changed and entry.data is not None:
            found: dict[str, Any] = {}
            exec(entry.data, found)
            found["test_x"]()
            with pytest.raises(AssertionError):
                found[name]()


def test_a_task_without_files_for_pytest_has_no_control_test(make_task: Any) -> None:
    assert with_control_test(Task.read(make_task())) is None


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
async def test_a_pass_is_flagged_where_the_control_test_passes_too(
    task: Task, output: str, reward: float, expected: bool
) -> None:
    async def run(changed: Task) -> Verdict:
        data = changed.tests["test_outputs.py"].data
        assert data is not None
        name = data.decode().rpartition("def ")[2].partition("(")[0]
        return passed(output.replace("{name}", name).encode(), reward)

    found = await try_control_test(passed(BEFORE), task, run)
    strong = [sign.partition(":")[0] for sign in found.integrity.tamper if not is_weak(sign)]
    assert (found.reward, strong) == (1.0, ["tests-disarmed"] * expected)


async def test_what_does_not_pass_is_not_tried_and_no_verdict_says_nothing(task: Task) -> None:
    async def fails(_: Task) -> Verdict:
        raise VerifierFailed("verifier_no_reward", "none", {})

    before = passed(BEFORE)
    assert await try_control_test(before, task, fails) is before
    failing = passed(BEFORE, 0.5)
    assert await try_control_test(failing, task, None) is failing  # type: ignore[arg-type]


def test_the_last_word_about_a_name_counts_before_any_number() -> None:
    assert not is_disarmed({}, {"a::test_c": "failed", "unnamed passed 1": "passed"}, "test_c")
    assert is_disarmed({}, {"a::test_c": "xfailed"}, "test_c")
