"""Checks of a reward against bash's trace and the reports of pytest."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.results import is_weak
from tbench.verify.proof import (
    CheckedReward,
    calls_pytest,
    check_reward,
    is_only_reward_writer,
    reward_lines,
    starts_no_subshell,
    traced_reward,
)
from tbench.verify.report import Facts

WROTE_0 = ("+/tests/test.sh:3 echo 0",)
WROTE_1 = ("+/tests/test.sh:3 echo 1",)


def logs(reward: str = "1", **files: str) -> dict[str, bytes]:
    return {"reward.txt": reward.encode()} | {name.replace("_", "."): text.encode() for name, text in files.items()}


def ctrf(failed: int) -> str:
    return json.dumps({"results": {"summary": {"tests": 2, "failed": failed}}})


@pytest.mark.parametrize(
    ("facts", "files", "reward", "kind"),
    [
        (Facts(traced_writes=WROTE_0, wrote_last=True), logs(), 0.0, "contradiction"),
        (Facts(exit_code=137, has_watcher=True), logs(), 0.0, "verifier-killed"),
        (Facts(is_cut=True), logs(), 0.0, "trace-cut"),
        (Facts(touched_tests=("/tests/data.json",)), logs(), 1.0, "tests-touched"),
        (Facts(touched_tests=("/tests/test.sh",)), logs(), 1.0, "tests-changed"),
        (Facts(was_halted=True), logs(), 1.0, "unwitnessed"),
        (Facts(), logs(reward_json='{"reward": 1}', reward_txt="0.5"), 1.0, "other-reward"),
        (Facts(traced_writes=WROTE_0), logs(), 1.0, "other-reward"),
        (Facts(), logs(ctrf_json=ctrf(1)), 1.0, "failed-tests"),
        (Facts(), logs(stdout_txt="== 61 failed, 6 passed, 2 errors in 0.1s =="), 1.0, "failed-tests"),
        (Facts(exit_code=137), logs(), 1.0, "verifier-ended"),
        (Facts(outlived=1), logs(), 1.0, "unwitnessed"),
        (Facts(changed_tests=("/tests/x",)), logs(), 1.0, "tests-changed"),
        (Facts(new_tests=("/tests/conftest.py",)), logs(), 1.0, "tests-changed"),
        (Facts(forged=("it was",)), logs(), 1.0, "forgery"),
        (Facts(evidence=("/logs/verifier/reward.txt",)), logs(), 1.0, "planted-reward"),
        (Facts(evidence=("/tests/test.sh",)), logs(), 1.0, "planted-tests"),
    ],
)
def test_contradicting_evidence_is_flagged_and_lowers_the_reward_only_if_it_is_proven(
    facts: Facts, files: dict[str, bytes], reward: float, kind: str
) -> None:
    checked = check_reward(facts, files, 1.0)
    assert checked.reward == reward
    assert [sign.partition(":")[0] for sign in checked.signs] == [kind]


@pytest.mark.parametrize(
    ("facts", "kinds"),
    [
        (Facts(exit_code=137, has_watcher=True, leftovers=1), ["verifier-killed"]),
        (Facts(exit_code=137, has_watcher=True), ["verifier-ended"]),
        (Facts(exit_code=137, has_watcher=True, leftovers=1, out_of_memory=True), []),
    ],
    ids=["beside the agent's processes", "without them", "by the kernel"],
)
def test_a_killed_script_without_a_reward_has_a_strong_sign_only_beside_processes_of_the_agent(
    facts: Facts, kinds: list[str]
) -> None:
    assert [sign.partition(":")[0] for sign in check_reward(facts, {}, None).signs] == kinds


@pytest.mark.parametrize(
    ("facts", "files"),
    [
        (Facts(traced_writes=WROTE_1, outlived=2), logs()),
        (Facts(exit_code=137, has_watcher=True, has_ended=True), logs()),
        (Facts(), logs(stdout_txt="== 2 failed in 0.1s ==\n== 3 passed in 1s ==\n")),
        (Facts(), logs(ctrf_json=ctrf(0), stdout_txt="== 2 passed in 0.1s ==")),
    ],
)
def test_an_honest_reward_has_no_sign(facts: Facts, files: dict[str, bytes]) -> None:
    assert check_reward(facts, files, 1.0) == check_reward(Facts(), logs(), 1.0)


def test_a_partial_reward_may_come_with_failed_tests() -> None:
    assert check_reward(Facts(), logs("0.5", ctrf_json=ctrf(1)), 0.5).signs == ()


def test_a_pass_without_a_report_of_tests_is_flagged() -> None:
    (sign,) = check_reward(Facts(), logs(), 1.0, calls_pytest=True).signs
    assert sign.startswith("no-test-ran:") and not is_weak(sign)
    assert check_reward(Facts(), logs(stdout_txt="= 1 passed in 0.1s ="), 1.0, calls_pytest=True).signs == ()


def test_the_traced_reward_counts_if_only_test_sh_writes_one_whatever_it_runs_later() -> None:
    lowered = CheckedReward(0.0, ("contradiction: test.sh wrote 0, but the file says 1",))
    assert check_reward(Facts(traced_writes=WROTE_0), logs(), 1.0, is_only_writer=True) == lowered
    beside = logs("0", reward_json='{"reward": 1}')
    assert check_reward(Facts(traced_writes=WROTE_0), beside, 1.0, is_only_writer=True).reward == 0.0
    assert check_reward(Facts(traced_writes=WROTE_0, wrote_last=True), beside, 1.0).reward == 1.0


def test_a_sign_stays_on_one_line_whatever_files_are_named() -> None:
    (sign,) = check_reward(Facts(changed_tests=("/tests/a\x1b\nforged: b",)), logs(), 1.0).signs
    assert sign.isprintable()


def test_signs_are_found_without_a_reward() -> None:
    checked = check_reward(Facts(exit_code=137, has_watcher=True), {}, None)
    assert (checked.reward, len(checked.signs)) == (None, 1)


def test_a_reward_without_a_traced_write_is_flagged() -> None:
    assert check_reward(Facts(has_watcher=True, traced_writes=WROTE_1), logs(), 1.0, is_only_writer=True).signs == ()
    (sign,) = check_reward(Facts(has_watcher=True), logs(), 1.0, is_only_writer=True).signs
    assert sign.startswith("unwitnessed:")
    halted = check_reward(Facts(has_watcher=True, was_halted=True), logs(), 1.0, is_only_writer=True)
    assert (halted.reward, halted.signs[0].partition(":")[0]) == (0.0, "trace-cut")
    # Without a trace there is no sign.
    assert check_reward(Facts(), logs(), 1.0, is_only_writer=True).signs == ()


# -- the rewards that test.sh writes -------------------------------------------------------------

AT = "+/tests/test.sh:7 "


@pytest.mark.parametrize(
    "line",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "  echo 1 >/logs/verifier/reward.txt",
        'if [ $? -eq 0 ]; then echo 1 > "$LOGS/reward.txt"; fi',
        "[ $ok ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt",
        "  0) echo 1 > /logs/verifier/reward.txt ;;",
        "printf '%s\\n' \"$score\" > $REWARD_FILE",
        "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt",
        "if true; then echo 1; fi > /logs/verifier/reward.txt",
        "{ echo '{\"reward\": 1}' > /logs/verifier/reward.json; }",
    ],
)
def test_lines_that_write_a_reward_are_recognised(line: str) -> None:
    assert reward_lines(f"#!/bin/bash\n{line}\n".encode()) == (2,)


@pytest.mark.parametrize(
    "script",
    [
        "python3 /tests/score.py > /logs/verifier/reward.txt",
        "if true; then score; fi > /logs/verifier/reward.txt",
        "cat > x <<END\necho 1 > /logs/verifier/reward.txt\nEND",
        "echo 1 >> /logs/verifier/reward.txt",
        "set +x\necho 1 > /logs/verifier/reward.txt",
        "# echo 1 > /logs/verifier/reward.txt",
    ],
)
def test_other_writes_of_a_reward_are_not_recognised(script: str) -> None:
    assert reward_lines(script.encode()) == ()


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("echo 1", 1.0),
        ("echo -n 0.5", 0.5),
        ("echo '{\"reward\": 0.25}'", 0.25),
        ("printf '%s\\n' 0.75", 0.75),
        ("printf '1\\n'", 1.0),
        ("echo nothing", None),
        ("'[' 0 -eq 0 ']'", None),
        ("echo 'unfinished", None),
    ],
)
def test_the_reward_is_parsed_from_the_traced_command(command: str, reward: float | None) -> None:
    assert traced_reward([AT + command]) == reward


def test_the_last_traced_write_counts() -> None:
    assert traced_reward([f"{AT}echo 0", f"{AT}'[' 0 -eq 0 ']'", f"{AT}echo 1", f"{AT}'[' x ']'"]) == 1.0
    # Other commands on the line, and the end that the verifier's own trap prints.
    assert traced_reward([f"{AT}echo 0", f"{AT}echo done", f"{AT}echo ended"]) == 0.0
    assert traced_reward([]) is None


def test_test_sh_is_the_only_writer_if_no_other_text_mentions_a_reward() -> None:
    script = b"# writes the reward\npytest\necho 1 > /logs/verifier/reward.txt\n"
    assert is_only_reward_writer(script, [b"def test(): pass\n"])
    assert not is_only_reward_writer(script, [b'open("/logs/verifier/reward.txt", "w")'])
    assert not is_only_reward_writer(script + b"python3 score.py > /logs/verifier/reward.txt\n", [])
    assert not is_only_reward_writer(b"pytest\n", [])


IF = "if [ $? -eq 0 ]; then\n  echo 1 > $LOGS/reward.txt\nelse\n  echo 0 > $LOGS/reward.txt # (no)\nfi\n"


@pytest.mark.parametrize(
    ("script", "line", "is_plain"),
    [
        (f"pytest\n{IF}exit 0\n", 3, True),
        (f"pytest\n{IF}", 5, True),
        ("pytest && echo 1 > reward.txt || echo 0 > reward.txt; x=$((1 + 1)); exit $x", 1, False),
        ("case $x in\n 0) echo 1 > reward.txt ;;\n *) echo 0 > reward.txt ;;\nesac\ncd /", 2, True),
        ("echo 0 > reward.txt\npython3 score.py\n", 1, True),
        ("echo 0 > reward.txt\n(cd /logs; echo 1 > reward.txt)\n", 1, False),
        ("echo 0 > reward.txt; (echo 1 > reward.json)", 1, False),
        ("echo 0 > reward.txt\nx | exit 0\n", 1, False),
        ("for x in 1 2; do\n  echo 0 > reward.txt\ndone\n", 2, False),
        ("echo done\n", 1, False),
    ],
)
def test_whether_a_subshell_can_follow_the_last_write(script: str, line: int, is_plain: bool) -> None:
    assert (
        starts_no_subshell(script.encode(), [f"+/tests/test.sh:{line} echo 0", "+/tests/test.sh:99 '[' ]"]) is is_plain
    )


def test_without_a_traced_write_a_subshell_is_possible() -> None:
    assert not starts_no_subshell(IF.encode(), [])
    assert not starts_no_subshell(IF.encode(), ["+/tests/test.sh:99 echo 1"])


# -- calls of pytest -----------------------------------------------------------------------------

CALLS = [
    "pytest",
    "pytest /tests/test_outputs.py -rA",
    "pytest-3 -v",
    "pytest -k add tests/import",
    "py.test /tests",
    "cd /tests && pytest -q",
    "python3 -m pytest -p no:cacheprovider -rA /tests/test_outputs.py",
    "python3.12 -I -W error -m pytest",
    "python -um pytest",
    "python -mpytest",
    "python3 /usr/bin/pytest /tests",
    "python3 -m coverage run -m pytest",
    "python3 -c 'import pytest; raise SystemExit(pytest.main([\"/tests\"]))'",
    "python3 - <<'EOF'\nimport pytest\npytest.main()\nEOF",
    "$PYTHON -m pytest",
    '"${VENV}/bin/python" -m pytest',
    "/root/.venv/bin/pytest --ctrf /logs/verifier/ctrf.json",
    "uvx pytest",
    "uvx -w pytest==8.4.1 pytest --ctrf /logs/verifier/ctrf.json",
    "uvx \\\n  -p 3.13 \\\n  -w pytest==8.4.1 \\\n  -w pytest-json-ctrf==0.3.5 \\\n  pytest --ctrf /x.json -rA\n",
    "uvx --from pytest-html pytest",
    "uvx pytest@8.4.1",
    "uvx --with=numpy python -m pytest",
    "uv run pytest",
    "uv --quiet run --with pytest==8.4.1 -- pytest /tests",
    "uv run -m pytest",
    "uv tool run pytest",
    "pipx run pytest==8.4.1",
    "poetry run pytest",
    "conda run -n tests --no-capture-output pytest",
    "coverage run --source src -m pytest",
    "timeout 60 pytest",
    "timeout -k 5 --signal=KILL 60 python -m pytest",
    "sudo -E -u agent pytest",
    "env -u HOME CI=1 pytest",
    "CI=1 PYTHONPATH='/a b' pytest",
    "X=$(date) pytest",
    "nice -n 10 ionice -c 3 nohup pytest &",
    "time -p pytest",
    "exec pytest",
    "xvfb-run -s '-screen 0 1x1x8' pytest",
    "ls /tests/test_*.py | xargs -n 1 pytest",
    "su - agent -c 'cd /app && pytest'",
    "runuser -u agent -- pytest",
    'bash -c "pytest /tests"',
    "bash -lc 'source /venv/bin/activate; pytest'",
    "sudo -u agent bash -ec 'set -x; timeout 5 pytest'",
    "eval 'pytest' /tests",
    "bash <<'EOF'\npytest /tests\nEOF",
    "sh <<< 'pytest /tests'",
    "su agent <<-EOF && echo done\n\tpytest\n\tEOF\n",
    "if pytest; then echo 1; fi",
    "if ! pytest; then echo 0; fi",
    "if [ -e /tests ] && ! python3 -m pytest; then :; fi",
    "until pytest; do sleep 1; done",
    "for t in a b; do pytest $t; done",
    "while read -r t; do pytest $t; done < list",
    "case $1 in\n  quick|fast) pytest -x ;;\nesac",
    "case $1 in (quick) pytest -x ;; esac",
    "run() { pytest \"$@\"; }\nrun /tests",
    "function run {\n  pytest\n}",
    "( cd /tests; pytest )",
    "{ pytest; } || true",
    "pip install pytest && pytest",
    "apt-get install -y python3-pytest; pytest-3 /tests",
    "echo it\\'s # that's all\npytest",
    "echo 'a\n# b'; pytest",
    "echo \"$(basename \"it's\")\"; pytest",
    "x=${y#\"it's\"}; pytest",
    "cat <<'EOF' > /x\nit's\nEOF\npytest",
    "cat <<A <<B\nx\nA\ny\nB\npytest",
    "echo $((1 << 2)); (( x = 1 << 3 ))\npytest",
    "pytest --host localhost:1 2>&1 | tee log",
    "pytest 2>/dev/null",
    "pytest > >(tee /logs/verifier/log) 2>&1",
    "pytest >&2",
    "pytest &>/dev/stdout",
    "pytest --ctrf /logs/verifier/ctrf.json >/dev/null 2>&1",
    "pytest\r\n",
]  # fmt: skip
NO_CALLS = [
    "",
    "# pytest",
    "echo 0 # pytest",
    "pip install pytest",
    "pip3 install --quiet 'pytest==8.4.1' pytest-json-ctrf",
    "python3 -m pip install pytest",
    "apt-get update && apt-get install -y python3-pytest",
    "apt-get install -y \\\n  python3 \\\n  pytest",
    "uv add pytest",
    "uv pip install --system pytest",
    "uv tool install pytest",
    "uv venv pytest",
    "uvx --with pytest python /tests/run.py",
    "uv run --with pytest --with numpy /tests/run.py",
    "pipx install pytest",
    "poetry add pytest",
    "conda install -n x pytest",
    "python3 /tests/test_outputs.py",
    "python3 -m unittest pytest",
    "python3 -c 'import pytest'",
    "python3 -m pytest --version || pip install pytest",
    "pytest --help",
    "command -v pytest",
    "if ! command -v pytest >/dev/null; then pip install pytest; fi",
    "which pytest || exit 1",
    "echo pytest",
    "echo \"now pytest; pytest\"",
    "echo 'pytest\npytest'",
    "echo \\\n  pytest",
    "timeout 60 echo pytest",
    "sudo echo pytest",
    "bash -c 'echo pytest'",
    "grep -q pytest /app/requirements.txt",
    "[ -x /usr/bin/pytest ]",
    "[[ $1 == pytest ]]",
    "for t in pytest nose; do echo $t; done",
    "case $1 in\n  pytest) echo no ;;\nesac",
    "case pytest in *) ;; esac",
    "RUNNER=pytest",
    "tools=(pytest uv)",
    "rm -rf .pytest_cache pytest.ini",
    "touch pytest",
    "cp x pytest; mv pytest y",
    "cat > run.sh <<EOF\npytest /tests\nEOF",
    "cat <<-'END OF IT'\n\tpytest\n\tEND OF IT\necho",
    "echo < pytest",
    "echo > pytest",
    "pytest() { echo no; }",
    "export PYTEST_ADDOPTS=-q",
    "make test",
    "pytest -q >/logs/verifier/pytest.log 2>&1",
    "if python -m pytest tests -q &>>log; then echo 1; fi",
    "found=$(pytest -q | grep -c passed)",
    "found=`pytest -q`",
    "\"$@\" # pytest",
]  # fmt: skip


PIECES = [*"\"'\\`$(){}<>|&;#\n\t -x!=\x0b", "pytest", "<<A", "$((", "case x in"]


@pytest.mark.parametrize("script", CALLS)
def test_a_call_of_pytest_is_recognised(script: str) -> None:
    assert calls_pytest(script)
    assert calls_pytest(f'#!/bin/bash\nset -euo pipefail\necho "it\'s" $#\n{script}')


UNKNOWN = [
    "chronic pytest",
    "bash /tests/run.sh pytest",
    "'unfinished pytest",
    "$(" * 5000 + "pytest",
    "python3 - <<'EOF'\nimport subprocess\nsubprocess.run(['pytest'])\nEOF",
]


@pytest.mark.parametrize("script", UNKNOWN, ids=lambda script: script[:40])
def test_an_unknown_use_of_pytest_counts_as_a_call_so_that_a_zero_without_tests_is_an_error(script: str) -> None:
    assert calls_pytest(script)


@pytest.mark.parametrize(
    ("script", "traced", "calls"),
    [
        ("run() {\n  $TOOL \\\n    -q\n}\nrun\n", "+/tests/test.sh:3 uvx -w pytest==8.4.1 pytest -q", True),
        ("$TOOL\n", "+/tests/test.sh:1 python3 -m pytest -q", True),
        ("$TOOL > log\n", "+/tests/test.sh:1 pytest -q", False),
        ("$TOOL --ctrf /logs/verifier/ctrf.json > log\n", "+/tests/test.sh:1 pytest --ctrf /x", True),
        ("$TOOL\n", "+/tests/test.sh:1 pip install pytest", False),
        ("$TOOL\n", "+/tests/test.sh:99 pytest", True),
        (". /tests/run.sh\n", "+/tests/run.sh:2 pytest", True),
        (". /tests/run.sh\n", "+/tests/run.sh:3 pytest", False),
        ("curl x | sh\n", "no trace at all", False),
    ],
)
def test_a_call_in_the_trace_counts_if_the_text_does_not_show_it(script: str, traced: str, calls: bool) -> None:
    assert not calls_pytest(script, {"run.sh": "true\n$1\n$1 >log\n"})
    assert calls_pytest(script, {"run.sh": "true\n$1\n$1 >log\n"}, [traced]) is calls


@pytest.mark.parametrize("script", NO_CALLS, ids=lambda script: script[:40])
def test_a_mention_of_pytest_is_no_call(script: str) -> None:
    assert not calls_pytest(script)
    assert not calls_pytest(f'#!/bin/bash\nset -euo pipefail\necho "it\'s" $#\n{script}')


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_parsed(script: str) -> None:
    assert calls_pytest(script) in (True, False)


def test_the_time_for_a_script_grows_linearly() -> None:
    lines = "echo \"$(date)\" 'x' >> log\ncat <<EOF\n" + "it's a line\n" * 50 + "EOF\n"
    began = time.monotonic()
    assert not calls_pytest(lines * 1000)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("script", "other", "calls"),
    [
        ("bash /tests/run.sh", "pytest -rA", True),
        ("exec 3>&1 >log\nbash /tests/run.sh 3>&-", "pytest", True),
        ("source ${TEST_DIR}/run.sh", "uvx pytest", True),
        ("bash /tests/run.sh >log", "pytest", False),
        ("bash /tests/run.sh", "bash /tests/run.sh; bash /tests/more/last.sh", True),
        ("bash /tests/run.sh", "echo pytest", False),
        ("cat /tests/run.sh", "pytest", False),
        ("bash /elsewhere/run.sh", "pytest", False),
        ("bash", "pytest", False),
    ],
)
def test_other_scripts_of_the_tests_are_followed(script: str, other: str, calls: bool) -> None:
    assert calls_pytest(script, {"run.sh": other, "more/last.sh": "py.test"}) == calls
