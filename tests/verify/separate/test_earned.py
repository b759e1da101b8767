"""What two verdicts about the same work come to."""

from __future__ import annotations

import pytest

from tbench.results import Integrity, is_weak
from tbench.tasks.artifacts import Artifact
from tbench.verify.changes.facts import Tests as TaskTests
from tbench.verify.changes.signs import Sign
from tbench.verify.report import Facts
from tbench.verify.separate.earned import joined, turned_within, turning_paths, zero
from tbench.verify.verifier import Verdict

HOOK = "planted-pytest: /app/conftest.py is read by pytest"
TOLD = ("+/tests/test.sh:3 echo 1",)


def verdict(reward: float, *signs: str, **facts: tuple[str, ...]) -> Verdict:
    return Verdict(reward, {"verifier/stdout.txt": b"x"}, Integrity(tamper=signs), Facts(**facts))  # type: ignore[arg-type]


def kinds(found: Verdict) -> list[str]:
    return [sign.partition(":")[0] for sign in found.integrity.tamper]


@pytest.mark.parametrize(
    ("kind", "artifact", "is_left_out"),
    [
        ("planted-pytest", "/app", True),
        ("planted-pytest", "/app/x", False),
        ("module-patched", "/app/x", False),
        ("module-patched", "/app", True),
        ("git-hook-added", "/app", False),
        ("hosts", "/app", False),
    ],
)
def test_what_strong_signs_are_about_is_left_out_but_a_file_that_the_task_asks_for_may_lie_there(
    kind: str, artifact: str, is_left_out: bool
) -> None:
    found = turning_paths([Sign(kind, "/app/x", "is so")] * 2, [Artifact(source=artifact)], lambda _: False)
    assert found == (("/app/x",) if is_left_out else ())


@pytest.mark.parametrize(
    ("asked", "is_left_out"), [("/app/pytest.ini", False), ("pytest.ini", False), ("pytest", True), ("/app", True)]
)
def test_a_file_that_the_instruction_names_may_lie_there(asked: str, is_left_out: bool) -> None:
    tests = TaskTests("", instruction=f"Write {asked} as it should be.", workdir="/app")
    found = turning_paths([Sign("planted-pytest", "/app/pytest.ini", "is read")], [], tests.asks_for)
    assert found == (("/app/pytest.ini",) if is_left_out else ())


def test_a_pass_that_needs_what_turns_the_tests_is_what_the_tests_say_without_it() -> None:
    found = joined(verdict(1.0, HOOK), verdict(0.0))
    assert (found.reward, kinds(found)) == (0.0, ["planted-pytest", "disagreement"])
    assert found.integrity.rewards == {"separate": 1.0, "without": 0.0}
    assert set(found.files) == {"verifier/stdout.txt", "without/verifier/stdout.txt"}


def test_a_pass_without_it_was_earned() -> None:
    found = joined(verdict(1.0, HOOK, "git-hook-added: x"), verdict(1.0))
    assert (found.reward, kinds(found)) == (1.0, ["cleared", "git-hook-added"])
    assert all(map(is_weak, found.integrity.tamper))


@pytest.mark.parametrize(
    ("sign", "facts", "in_control"),
    [
        ("no-test-ran: nothing shows it", {}, {}),
        ("unwitnessed: it was not heard", {}, {"told": TOLD}),
        ("tests-changed: /tests/expected changed", {"changed_tests": ("/tests/expected",)}, {}),
    ],
)
def test_work_that_turns_the_tests_from_within_is_told_by_a_run_without_it(
    sign: str, facts: dict[str, tuple[str, ...]], in_control: dict[str, tuple[str, ...]]
) -> None:
    seen, control = verdict(1.0, sign, **facts), verdict(0.0, **in_control)
    assert [each.partition(":")[0] for each in turned_within(seen, control)] == [sign.partition(":")[0]]
    assert zero(seen, "x: y").reward == 0.0


@pytest.mark.parametrize(
    ("sign", "facts", "control"),
    [
        ("no-test-ran: so it is here", {}, verdict(1.0, "no-test-ran: here, too")),
        ("unwitnessed: processes outlived them", {}, verdict(0.0)),
        ("tests-changed: x", {"changed_tests": ("/tests/x",)}, verdict(0.0, changed_tests=("/tests/x",))),
        ("contradiction: of another kind", {}, verdict(0.0, told=TOLD)),
    ],
)
def test_what_the_tests_do_without_it_too_is_not_the_works_doing(
    sign: str, facts: dict[str, tuple[str, ...]], control: Verdict
) -> None:
    assert turned_within(verdict(1.0, sign, **facts), control) == ()
