"""Combination of the verdicts with and without files that tamper with the tests."""

from __future__ import annotations

import pytest

from tbench.results import Integrity, is_weak
from tbench.tasks.artifacts import Artifact
from tbench.verify.changes.facts import Sign
from tbench.verify.changes.facts import Tests as TaskTests
from tbench.verify.report import Facts
from tbench.verify.separate.grading import combine, tampering_paths
from tbench.verify.verifier import Verdict

HOOK = "planted-pytest: /app/conftest.py is read by pytest"
WRITES = ("+/tests/test.sh:3 echo 1",)


def verdict(reward: float, *signs: str, **facts: tuple[str, ...]) -> Verdict:
    return Verdict(reward, {"verifier/stdout.txt": b"x"}, Integrity(tamper=signs), Facts(**facts))  # type: ignore[arg-type]


def kinds(found: Verdict) -> list[str]:
    return [sign.partition(":")[0] for sign in found.integrity.tamper]


@pytest.mark.parametrize(
    ("kind", "artifact", "is_left_out"),
    [
        ("planted-pytest", "/app", True),
        ("planted-pytest", "/app/x", False),
        ("module-shadowed", "/app/x", False),
        ("module-shadowed", "/app", True),
        ("tests-touched", "/app", False),
        ("hosts", "/app", False),
    ],
)
def test_paths_of_strong_signs_are_left_out_except_artifacts(kind: str, artifact: str, is_left_out: bool) -> None:
    found = tampering_paths([Sign(kind, "/app/x", "is so")] * 2, [Artifact(source=artifact)], lambda _: False)
    assert found == (("/app/x",) if is_left_out else ())


@pytest.mark.parametrize(
    ("asked", "is_left_out"), [("/app/pytest.ini", False), ("pytest.ini", False), ("pytest", True), ("/app", True)]
)
def test_a_file_that_the_instruction_names_is_kept(asked: str, is_left_out: bool) -> None:
    tests = TaskTests("", instruction=f"Write {asked} as it should be.", workdir="/app")
    found = tampering_paths([Sign("planted-pytest", "/app/pytest.ini", "is read")], [], tests.asks_for)
    assert found == (("/app/pytest.ini",) if is_left_out else ())


def test_a_pass_that_depends_on_tampering_files_gets_the_lower_reward() -> None:
    found = combine(verdict(1.0, HOOK), verdict(0.0))
    assert (found.reward, kinds(found)) == (0.0, ["planted-pytest", "disagreement"])
    assert found.integrity.rewards == {"separate": 1.0, "without": 0.0}
    assert set(found.files) == {"verifier/stdout.txt", "without/verifier/stdout.txt"}


def test_a_pass_without_the_tampering_files_clears_the_signs() -> None:
    found = combine(verdict(1.0, HOOK, "tests-touched: x"), verdict(1.0))
    assert (found.reward, kinds(found)) == (1.0, ["cleared", "tests-touched"])
    assert all(map(is_weak, found.integrity.tamper))
