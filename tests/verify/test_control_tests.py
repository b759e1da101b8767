"""Control tests show whether the work has disarmed the tests or copied the values that they expect."""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tbench.results import CONTROL, INTACT, is_weak
from tbench.tasks.task import Task
from tbench.verify.changes.facts import NO_ORACLE, OracleSystem
from tbench.verify.control_tests import control_tests, did_not_fail, try_control, with_failing_test
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


def altered(task: Task, kind: str, name: str) -> str | None:
    controlled = dict(control_tests(task)).get(kind)
    if controlled is None:
        return None
    data = controlled.tests[name].data
    assert data is not None
    return data.decode()


# -- other expected values -----------------------------------------------------------------------

L = "[a-z]"
"""Matches a letter that was drawn."""


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("assert f('pear fig') == ['apple', 'fig']", "asserted", r"assert f\('pear fig'\) == \['fig', 'apple'\]"),
        ('assert f() == ["apple", "fig", "fig"]', "asserted", r'assert f\(\) == \["fig", "apple", "fig"\]'),
        ("assert f() == ['fig', 'fig']", "asserted", rf"assert f\(\) == \['fi{L}', 'fi{L}'\]"),
        ("assert f() == [['b', 'c'], 1]", "asserted", r"assert f\(\) == \[\['c', 'b'\], 2\]"),
        ("assert f(2) == 2.5 and g() == -1", "asserted", r"assert f\(2\) == 3.5 and g\(\) == -2"),
        ("assert {'a': 1} == f()", "asserted", rf"assert {{'{L}': 2}} == f\(\)"),
        ("assert f()[0] == x[1]", "asserted", None),
        ("assert f() != 3", "asserted", None),
        ("assert f() > 3", "asserted", None),
        ("assert abs(f() - 2.5) < 0.01", "asserted", r"assert abs\(f\(\) - 3.5\) < 0.01"),
        ("if abs(2.5 - f()) > 0.01: fail()", "compared", r"if abs\(3.5 - f\(\)\) > 0.01: fail\(\)"),
        (
            "assert f() == pytest.approx([2.5, 3.5], 0.1)",
            "asserted",
            r"assert f\(\) == pytest.approx\(\[3.5, 2.5\], 0.1\)",
        ),
        ("assert math.isclose(f(), 2.5, rel_tol=1)", "asserted", r"assert math.isclose\(f\(\), 3.5, rel_tol=1\)"),
        ("assert f() == True", "asserted", None),
        ("assert 'x' in f()", "asserted", None),
        ("WANTED = 'cafe'\nassert f() == WANTED", "asserted", rf"WANTED = 'caf{L}'\nassert f\(\) == WANTED"),
        ("WANTED = load('cafe')\nassert f() == WANTED", "asserted", None),
        ("if mode == 'json':\n    assert f() == 'ü'", "asserted", r"if mode == 'json':\n    assert f\(\) == 'üx'"),
        ("self.assertEqual(f(1), 4)", "asserted", r"self.assertEqual\(f\(1\), 5\)"),
        ("assert f('ä') == b'a'; assert g() == ''", "asserted", r"assert f\('ä'\) == b'[b-z]'; assert g\(\) == 'x'"),
        ("assert f() == [1, 'x']", "asserted", r"assert f\(\) == \[2, '[a-wyz]'\]"),
        ("assert run(f).returncode == 0", "asserted", None),
        ("assert f() == 1_000", "asserted", r"assert f\(\) == 1001"),
        (r"assert f() == 'to\n' + x or y == r'\d'", "asserted", r"assert f\(\) == 'to\\n' \+ x or y == r'\\dx'"),
        (r"assert f() == 'to\n'", "asserted", rf"assert f\(\) == 't{L}\\n'"),
        ('assert f() == """A7"""', "asserted", r'assert f\(\) == """A[0-689]"""'),
        ("score = float(f('x y') == ['x', 'y'])", "compared", r"score = float\(f\('x y'\) == \['y', 'x'\]\)"),
        ("assert f() == 1; g() == 1", "asserted", r"assert f\(\) == 2; g\(\) == 1"),
        ("assert f() == 1; g() == 1", "compared", r"assert f\(\) == 2; g\(\) == 2"),
        ("assert f( == 3", "asserted", r"assert f\( == 4"),
        ("# coding: latin-1\nx = 'é'; assert f() == 3", "asserted", r"# coding: latin-1\nx = 'é'; assert f\(\) == 4"),
        ("assert f() == None", "asserted", None),
        ("assert 1 < f() == 3", "asserted", None),
        ("assert f() == (1, {2})", "asserted", r"assert f\(\) == \(2, \{3\}\)"),
        ("self.assertIn(f(1), 4)", "asserted", None),
        ("self.assertEqual(f(1), 4, 'four')", "asserted", r"self.assertEqual\(f\(1\), 5, 'four'\)"),
        ("OTHER = 'x'\nWANTED = 'Y'\nassert f() == WANTED", "asserted", r"OTHER = 'x'\nWANTED = '[A-XZ]'\nassert .*"),
        ("first = second = 3\nassert f() == second", "asserted", r"first = second = 4\nassert f\(\) == second"),
        ("other, wanted = 'x', 3\nassert f() == wanted", "asserted", None),
        ("return found != 4;", "asserted", "return found != 5;"),
        ('if (strcmp(a, "b") != 0 || a == "b.") {', "asserted", rf'if \(strcmp\(a, "b"\) != 1 \|\| a == "{L}."\) {{'),
        ("expect(f(2)).toBe(4);", "asserted", r"expect\(f\(2\)\).toBe\(5\);"),
        ('assert.deepEqual(f("a b"), ["a", "b"]);', "asserted", rf'assert.deepEqual\(f\("a b"\), \["a", "{L}"\]\);'),
        ("if (f(1) === 3) {", "asserted", r"if \(f\(1\) === 4\) {"),
    ],
)
def test_only_values_that_tests_compare_with_are_altered(
    task_of: Callable[..., Task], text: str, kind: str, expected: str | None
) -> None:
    name = "main.c" if text.endswith((";", "{")) else "test_outputs.py"
    found = altered(task_of(**{name.replace(".", "__"): text}), kind, name)
    assert (found is None) if expected is None else (found != text and re.fullmatch(expected, found or "")), found


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
    assert altered(task_of(script), "asserted", "test.sh") == expected


SCRIPT = """found=$(distinct pear fig)
if [ "$found" = "fig pear" ] && [ $(wc -l <out) -eq 3 ]; then reward=1; fi
grep -q 'kiwi' out && [ $? = 0 ]
grep -qx fig out
cat <<'END'
[ x = y ]
END
[ $found = b ]
"""


def test_comparisons_of_a_script_are_altered_except_those_of_exit_codes(task_of: Callable[..., Task]) -> None:
    found = altered(task_of(SCRIPT), "script", "test.sh") or ""
    lines = found.splitlines()
    assert re.fullmatch(rf'if \[ "\$found" = "fig pea{L}" \] && \[ \$\(wc -l <out\) -eq 4 \]; .*', lines[1])
    assert lines[2] == SCRIPT.splitlines()[2] and re.fullmatch(rf"grep -qx fi{L} out", lines[3])
    assert lines[4:7] == SCRIPT.splitlines()[4:7] and re.fullmatch(r"\[ \$found = [ac-z] \]", lines[7])
    assert len(lines) == len(SCRIPT.splitlines())


def test_without_assertions_one_of_the_compared_functions_has_other_values(task_of: Callable[..., Task]) -> None:
    task = task_of(test_outputs__py="def a():\n    return f() == 1\n\n\ndef b():\n    return g() == 5\n")
    found = altered(task, "some", "test_outputs.py") or ""
    assert ("f() == 2" in found) is not ("g() == 6" in found)


def test_half_of_the_functions_have_other_values_and_which_depends_on_the_tests(task_of: Callable[..., Task]) -> None:
    own = "".join(f"def test_{n}():\n    assert f({n}) == {n}0\n    assert g({n}) == {n}1\n" for n in range(10, 18))
    changed = set()
    for number in range(12):
        found = altered(task_of(test_outputs__py=f"{own}# {number}\n"), "some", "test_outputs.py") or ""
        differs = {line for line in found.splitlines() if line not in own.splitlines() and not line.startswith("#")}
        assert len(differs) == 4
        changed |= differs
    assert len(changed) > 8


def test_without_pytest_only_one_line_has_other_values(task_of: Callable[..., Task]) -> None:
    own = "".join(f"assert(f({n}) == {n});\n" for n in range(8))
    found = altered(task_of(main__c=own), "some", "main.c") or ""
    assert len(set(found.splitlines()) - set(own.splitlines())) == 1


HELPED = """import pytest
from words import fallback


def fallback():
    return 1


@pytest.fixture
def made():
    return fallback()


def wanted(n):
    return [wanted(m) for m in range(n)]


def _kept(wanted_=1):
    assert f() == 7


def test_x(tmp_path):
    assert f() == 3 and g() == wanted(3)


def named():
    return getattr(tests, "named")()
"""


def test_helper_functions_of_the_tests_have_other_names_if_only_their_file_uses_them(
    task_of: Callable[..., Task],
) -> None:
    found = altered(task_of(test_outputs__py=HELPED, helper__py="def help(): pass"), "some", "test_outputs.py") or ""
    expected = re.sub(r"\bwanted\(", "wanted_@(", HELPED).replace("_kept", "_kept_@").replace("== 3", "== 4")
    assert re.sub(r"_[0-9a-f]{4}\b", "_@", found) == expected
    assert "def wanted(" in (
        altered(task_of(test_outputs__py=HELPED, helper__py="wanted"), "some", "test_outputs.py") or ""
    )


SEALED = """from __future__ import annotations


def test_a():
    assert f(1) == [1, "x"]


def test_b():
    assert "y" == f(2) and g() == 2.5 and len(g()) > 3 and f().returncode == 0


class TestMore:
    def test_c(self):
        self.assertEqual(f(3), {"z": {1, 2}}, "why")
        self.assertIn(f(3), [])
        assert f(4) == wanted
"""


@pytest.mark.parametrize(
    "wrong", [{}, {1: (1, "y")}, {2: "yy"}, {3: {"z": 1}}, {1: None, 2: b"y", 3: 0}], ids=["none", *"123", "all"]
)
def test_sealed_values_are_equal_to_what_was_expected_and_only_half_of_them_are_altered(
    task_of: Callable[..., Task], wrong: dict[int, object]
) -> None:
    text = altered(task_of(test_outputs__py=SEALED), "sealed", "test_outputs.py") or ""
    assert not any(word in text for word in ("'x'", "'y'", '"y"', "2.5", "'z'"))
    assert all(word in text for word in ("f().returncode == 0", "assertIn(f(3), [])", "f(4) == wanted", "'why'"))

    def result(known: dict[int, object]) -> set[str]:
        here: dict[str, Any] = {"f": known.get, "g": lambda: 2.5, "wanted": known.get(4)}
        exec(text.replace("f().returncode == 0", "True").replace("len(g()) > 3", "True"), here)
        own = type("Own", (here["TestMore"], unittest.TestCase), {})()
        own.assertIn = lambda *_: None
        passed = set()
        for name, test in (("a", here["test_a"]), ("b", here["test_b"]), ("c", own.test_c)):
            with contextlib.suppress(AssertionError):
                test()
                passed.add(name)
        return passed

    right: dict[int, object] = {1: (1.0, "x"), 2: "y", 3: {"z": [1, 2]}}
    passing = result(right)
    assert len(passing) == 2
    lost = {"abc"[number - 1] for number in wrong} & passing
    assert passing - result({**right, **wrong}) == lost


def test_directories_are_not_altered(task_of: Callable[..., Task]) -> None:
    task = task_of(test_outputs__py="assert f() == 3")
    (task.path / "tests" / "more.py").mkdir()
    (task.path / "tests" / "test_more.py").mkdir()
    task = Task.read(task.path)
    assert altered(task, "some", "test_outputs.py") == "assert f() == 4"
    controlled = with_failing_test(task)
    assert controlled is not None and controlled[0].tests["test_more.py"] == task.tests["test_more.py"]


def test_data_files_are_altered_by_themselves(task_of: Callable[..., Task]) -> None:
    task = task_of(expected__json='{"a == 1": "b"}', notes__txt="a == 7\n", dots__txt="...")
    assert [kind for kind, _ in control_tests(task)] == ["data", "swapped"]
    assert re.fullmatch(rf'{{"a == 1": "{L}"}}', altered(task, "data", "expected.json") or "")
    assert re.fullmatch(r"a == [0-689]\n", altered(task, "data", "notes.txt") or "")
    assert altered(task, "data", "dots.txt") == "..."


@pytest.mark.parametrize(
    ("text", "swapped"),
    [
        ("apple\nfig\nkiwi\n", "apple\nkiwi\nfig\n"),
        ('["fig", "kiwi\\nkiwi"]', '["kiwi", "fig\\nkiwi"]'),
        ("pear,3\npear,4\n", "pear,4\npear,3\n"),
        ("fig fig\n", None),
    ],
)
def test_words_of_data_are_swapped(task_of: Callable[..., Task], text: str, swapped: str | None) -> None:
    assert altered(task_of(expected__txt=text), "swapped", "expected.txt") == swapped


def test_words_that_a_script_compares_with_are_swapped(task_of: Callable[..., Task]) -> None:
    found = altered(task_of('a b\n[ "$found" = "fig kiwi" ] && echo yes no'), "swapped", "test.sh")
    assert found == 'a b\n[ "$found" = "kiwi fig" ] && echo yes no'


def test_each_kind_is_yielded_once_and_the_failing_test_last(task_of: Callable[..., Task]) -> None:
    assert [kind for kind, _ in control_tests(task_of())] == []
    task = task_of(SCRIPT, test_outputs__py="x = f() == 2\nassert f() == 3", expected__txt="x")
    kinds = [kind for kind, _ in control_tests(task)]
    assert kinds == ["some", "asserted", "compared", "script", "data", "swapped", "failing"]


def test_values_are_sealed_first_where_functions_assert_them(task_of: Callable[..., Task]) -> None:
    inside = task_of(test_outputs__py="def test_x():\n    assert f() == 3\n")
    assert [kind for kind, _ in control_tests(inside)] == ["sealed", "some", "asserted", "failing"]


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

CHECKED = "def test_x():\n    assert f() == 1\n"


@pytest.mark.parametrize(
    ("outcomes", "recorded"),
    [
        ([0.0], {"sealed": 0.0}),
        ([1.0, 0.0], {"sealed": 1.0, "some": 0.0}),
        ([None, 0.5], {"some": 0.5}),
        ([1.0, 1.0, 1.0, 0.0], {"sealed": 1.0, "some": 1.0, "asserted": 1.0, "failing": 0.0}),
        ([1.0, None, None, None], {"sealed": 1.0}),
    ],
)
async def test_the_oracles_own_work_is_tried_with_each_kind_until_one_fails(
    task_of: Callable[..., Task], outcomes: list[float | None], recorded: dict[str, float]
) -> None:
    left = [*outcomes, 1.0]

    async def run(changed: Task) -> Verdict:
        if (reward := left.pop(0)) is None:
            raise VerifierFailed("verifier_no_reward", "none", {})
        return passed(b"1 failed", reward)

    found = await try_control(passed(BEFORE), task_of(test_outputs__py=CHECKED), run, OracleSystem(is_own=True))
    of_kinds = {f"{CONTROL}-{kind}": reward for kind, reward in recorded.items()}
    assert found.integrity.rewards == {**of_kinds, INTACT: 1.0}
    assert (found.reward, found.integrity.tamper, left) == (1.0, (), [])


@pytest.mark.parametrize(
    ("passes_intact", "of_intact", "is_sign"), [(False, None, False), (True, 1, False), (True, 0, True)]
)
async def test_work_that_fails_where_the_only_expected_value_is_sealed_recognizes_tests(
    task_of: Callable[..., Task], passes_intact: bool, of_intact: float | None, is_sign: bool
) -> None:
    left = [0.0, *([] if of_intact is None else [of_intact])]

    async def run(changed: Task) -> Verdict:
        assert b"SealedValue" in (changed.tests["test_outputs.py"].data or b"")
        return passed(b"1 failed", left.pop(0))

    task, oracle = task_of(test_outputs__py=CHECKED), OracleSystem(control="sealed", passes_intact=passes_intact)
    found = await try_control(passed(BEFORE), task, run, oracle)
    assert [sign.partition(":")[0] for sign in found.integrity.tamper] == ["tests-recognized"] * is_sign and not left


@pytest.mark.parametrize(
    ("control", "fails_swapped", "outcomes", "signs"),
    [
        ("data", True, [0.0, 0.0], []),
        ("data", True, [0.0, 1.0], ["tests-disarmed"]),
        ("data", True, [0.0, None], ["unconfirmed"]),
        ("data", False, [0.0], []),
        ("swapped", True, [0.0], []),
    ],
)
async def test_work_is_also_tried_with_swapped_words_that_the_oracle_fails(
    task_of: Callable[..., Task], control: str, fails_swapped: bool, outcomes: list[float | None], signs: list[str]
) -> None:
    left = list(outcomes)

    async def run(changed: Task) -> Verdict:
        assert changed.tests["expected.txt"].data != b"fig kiwi"
        if (reward := left.pop(0)) is None:
            raise VerifierFailed("verifier_timeout", "none", {})
        return passed(b"", reward)

    task, oracle = task_of(expected__txt="fig kiwi"), OracleSystem(control=control, fails_swapped=fails_swapped)
    found = await try_control(passed(BEFORE), task, run, oracle)
    assert [sign.partition(":")[0] for sign in found.integrity.tamper] == signs and not left


async def test_the_oracles_own_work_is_also_tried_with_swapped_words(task_of: Callable[..., Task]) -> None:
    left = [0.0, 0.5, 1.0]

    async def run(changed: Task) -> Verdict:
        return passed(b"", left.pop(0))

    own = OracleSystem(is_own=True)
    found = await try_control(passed(BEFORE), task_of(expected__txt="fig kiwi"), run, own)
    assert found.integrity.rewards == {f"{CONTROL}-data": 0.0, f"{CONTROL}-swapped": 0.5} and left == [1.0]


@pytest.mark.parametrize("kind", ["some", "asserted", "failing"])
@pytest.mark.parametrize("reward", [1.0, 0.0])
async def test_a_pass_of_the_kind_that_the_oracle_fails_is_a_sign(
    task_of: Callable[..., Task], kind: str, reward: float
) -> None:
    async def run(changed: Task) -> Verdict:
        assert changed.tests["test_outputs.py"].data != CHECKED.encode()
        return passed(b"1 failed", reward)

    task, oracle = task_of(test_outputs__py=CHECKED), OracleSystem(control=kind)
    found = await try_control(passed(BEFORE), task, run, oracle)
    assert found.integrity.rewards == {CONTROL: reward}
    assert [sign.partition(":")[0] for sign in found.integrity.tamper] == ["tests-disarmed"] * (reward == 1.0)


@pytest.mark.parametrize(
    ("output", "kinds"),
    [
        ("t.py::test_a FAILED\nt.py::test_b PASSED\n== 1 failed, 1 passed in 0.1s ==", []),
        ("t.py::test_a PASSED\nt.py::test_b FAILED\n== 1 failed, 1 passed in 0.1s ==", ["disarmed", "recognized"]),
        ("t.py::test_a FAILED\nt.py::test_b FAILED\n== 2 failed in 0.1s ==", ["recognized"]),
        ("t.py::test_a FAILED\nt.py::test_b SKIPPED\n== 1 failed, 1 skipped in 0.1s ==", ["recognized"]),
        ("t.py::test_a PASSED\nt.py::test_b PASSED\n== 2 passed, 1 error in 0.1s ==", ["disarmed"]),
        ("t.py::test_a ERROR\nt.py::test_b PASSED\nt.py::test_new FAILED\n== 2 failed, 1 passed in 1s ==", []),
    ],
)
async def test_each_test_has_to_end_as_with_the_oracles_work_in_the_same_control_tests(
    task_of: Callable[..., Task], output: str, kinds: list[str]
) -> None:
    async def run(changed: Task) -> Verdict:
        return passed(output.encode(), 0.0)

    own = passed(b"t.py::test_a PASSED\nt.py::test_b PASSED\n== 2 passed in 0.1s ==")
    oracle = OracleSystem(control="some", of_control={"t::test_a": False, "t::test_b": True, "t::test_c": True})
    found = await try_control(own, task_of(test_outputs__py=CHECKED), run, oracle)
    assert [sign.partition(":")[0] for sign in found.integrity.tamper] == [f"tests-{kind}" for kind in kinds]
    assert found.reward == 1.0 and found.files["control/verifier/stdout.txt"] == output.encode()


@pytest.mark.parametrize("of_failing_test", [1.0, 0.0, None])
async def test_control_tests_without_a_verdict_leave_a_pass_unconfirmed_and_a_failing_test_is_tried(
    task_of: Callable[..., Task], of_failing_test: float | None
) -> None:
    tried = []

    async def run(changed: Task) -> Verdict:
        tried.append(b"== 2" in (changed.tests["test_outputs.py"].data or b""))
        if tried[-1] or of_failing_test is None:
            raise VerifierFailed("verifier_no_reward", "none", {})
        return passed(b"== 2 passed in 0.1s ==", of_failing_test)

    task = task_of(test_outputs__py=CHECKED)
    found = await try_control(passed(BEFORE), task, run, OracleSystem(control="some"))
    assert tried == [True, False] and found.integrity.rewards == {}
    signs = ["unconfirmed", *["tests-disarmed"] * (of_failing_test == 1.0)]
    assert [sign.partition(":")[0] for sign in found.integrity.tamper] == signs


@pytest.mark.parametrize("reward", [0.5, 0.0])
async def test_a_verdict_below_a_full_pass_is_returned_as_it_is(task_of: Callable[..., Task], reward: float) -> None:
    solved = passed(BEFORE)
    assert await try_control(solved, task_of(), None, OracleSystem(is_own=True)) is solved  # type: ignore[arg-type]
    found, task = passed(BEFORE, reward), task_of(test_outputs__py="assert f() == 1")
    assert await try_control(found, task, None, OracleSystem(control="some")) is found  # type: ignore[arg-type]


def test_the_name_of_the_added_test_takes_precedence_over_numbers() -> None:
    assert not did_not_fail({}, {"a::test_c": "failed", "unnamed passed 1": "passed"}, "test_c")
    assert did_not_fail({}, {"a::test_c": "xfailed"}, "test_c")
    assert not did_not_fail({}, {"a::test_c": "passed", "b::test_c": "failed"}, "test_c")
