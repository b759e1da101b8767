"""Which test scripts call pytest, and which only speak of it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.verify.pytest_calls import calls_pytest

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
def test_a_call_is_seen(script: str) -> None:
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
def test_what_nobody_knows_counts_as_a_call_so_that_no_silent_zero_comes_of_it(script: str) -> None:
    assert calls_pytest(script)


@pytest.mark.parametrize(
    ("script", "heard", "calls"),
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
def test_what_bash_was_heard_to_run_is_a_call_where_the_text_does_not_show_it(
    script: str, heard: str, calls: bool
) -> None:
    assert not calls_pytest(script, {"run.sh": "true\n$1\n$1 >log\n"})
    assert calls_pytest(script, {"run.sh": "true\n$1\n$1 >log\n"}, [heard]) is calls


@pytest.mark.parametrize("script", NO_CALLS, ids=lambda script: script[:40])
def test_what_only_speaks_of_pytest_is_no_call(script: str) -> None:
    assert not calls_pytest(script)
    assert not calls_pytest(f'#!/bin/bash\nset -euo pipefail\necho "it\'s" $#\n{script}')


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_read_to_its_end(script: str) -> None:
    assert calls_pytest(script) in (True, False)


def test_the_time_for_a_long_script_grows_with_its_length() -> None:
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
