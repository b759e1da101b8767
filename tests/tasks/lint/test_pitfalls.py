"""Pitfalls: each planted fault is named once, and the healthy form of the same task is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbench.tasks.pitfalls import hints_about
from tbench.tasks.sources import BUNDLED, read_tasks
from tbench.tasks.task import Task

MakeTask = Any
BASE = "FROM python:3.12-slim\nWORKDIR /app\n"
GRADE = "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
LIMIT = "[agent]\ntimeout_sec = 600\n[environment]\ncpus = 1\n"
ONLINE = "[environment]\nallow_internet = true\n"
OFFLINE = "[environment]\nallow_internet = false\n"
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
DOCKERFILE, TEST, PYTHON = "environment/Dockerfile", "tests/test.sh", "tests/test_outputs.py"
TOML, INSTRUCTION, SOLUTION = "task.toml", "instruction.md", "solution/solve.sh"
COMPARES = "def test_a():\n    assert result() == open('{}').read()\n"
SEEDED = "random.seed(3)\n"
HAS_PYTEST = {DOCKERFILE: f"{BASE}RUN pip install pytest==8.4.1\n"}

Files = dict[str, str]
# The kind of the hint, the faulty files, and what makes them healthy.
FAULTS: list[tuple[str, Files, Files]] = [
    ("missing file", {DOCKERFILE: f"{BASE}COPY data.csv /app/\n"}, {"environment/data.csv": "1\n"}),
    ("missing file", {DOCKERFILE: f"{BASE}ADD src/*.c /app/\n"}, {"environment/src/a.c": "x"}),
    ("missing file", {DOCKERFILE: f'{BASE}COPY ["a b", "/app/"]\n'}, {"environment/a b": "1\n"}),
    ("secret", {DOCKERFILE: f"{BASE}ENV API_KEY=sk-0123456789abcdefXYZ\n"}, {DOCKERFILE: f"{BASE}ENV API_KEY=$KEY\n"}),
    (
        "secret",
        {DOCKERFILE: f"{BASE}RUN curl -H 'Authorization: Bearer abcdef0123456789' https://example.com/x\n"},
        {DOCKERFILE: f"{BASE}RUN curl https://example.com/x\n"},
    ),
    (
        "secret",
        {DOCKERFILE: f"{BASE}COPY .env /app/\n", "environment/.env": "A=1"},
        {DOCKERFILE: f"{BASE}COPY env.txt /app/\n", "environment/env.txt": "A=1"},
    ),
    ("not pinned", {DOCKERFILE: "FROM python\nWORKDIR /app\n"}, {DOCKERFILE: BASE}),
    ("not pinned", {DOCKERFILE: "FROM org.example/x:latest\n"}, {DOCKERFILE: "FROM org.example/x@sha256:0\n"}),
    (
        "not pinned",
        {TOML: ONLINE, TEST: f"pip install -q requests\n{GRADE}"},
        {TEST: f"pip install -q requests==2.32.0 -r /tests/r.txt\n{GRADE}"},
    ),
    ("not installed", {DOCKERFILE: BASE, TEST: f"pytest /tests\n{GRADE}"}, HAS_PYTEST),
    (
        "not installed",
        {TOML: ONLINE, DOCKERFILE: BASE, TEST: f"python3 -m pytest -q /tests\n{GRADE}"},
        {TEST: f"uvx -w pytest==8.4.1 \\\n  pytest -q /tests\n{GRADE}"},
    ),
    ("needs network", {TOML: OFFLINE, TEST: f"curl -LO https://example.com/x\n{GRADE}"}, {TOML: ONLINE}),
    (
        "needs network",
        {TOML: OFFLINE, SOLUTION: "apt-get install -y jq\n"},
        {SOLUTION: "curl http://localhost:80/x\npip install --no-index -f /wheels jq\n"},
    ),
    ("machine's cpus", {TEST: f"make -j$(nproc) check\n{GRADE}"}, {TEST: f"make -j1 check  # not nproc\n{GRADE}"}),
    (
        "not repeatable",
        {PYTHON: "import random\n\ndef test_a():\n    assert random.randint(0, 9) < 9\n"},
        {PYTHON: f"import random\n{SEEDED}\ndef test_a():\n    assert random.randint(0, 9) < 9\n"},
    ),
    (
        "not repeatable",
        {PYTHON: "def test_a():\n    assert year == datetime.now().year\n"},
        {PYTHON: "def test_a():\n    began = datetime.now()\n    assert year == 2024\n"},
    ),
    ("always passes", {TEST: "ls /app\necho 1 > /logs/verifier/reward.txt\n"}, {TEST: f"ls /app/done\n{GRADE}"}),
    ("always passes", {PYTHON: "def test_a():\n    pass\n"}, {PYTHON: "def test_a():\n    check()\n"}),
    ("always passes", {PYTHON: "def test_a():\n    assert True\n"}, {PYTHON: "def test_a():\n    assert f()\n"}),
    (
        "always passes",
        {PYTHON: "def test_a():\n    if out.exists():\n        assert out.read_text() == '1'\n"},
        {PYTHON: "def test_a():\n    assert out.exists()\n    assert out.read_text() == '1'\n"},
    ),
    (
        "always passes",
        {PYTHON: "def test_a():\n    for each in os.listdir('/app/out'):\n        assert each.endswith('.ok')\n"},
        {PYTHON: "def test_a():\n    assert [each for each in os.listdir('/app/out') if each.endswith('.ok')]\n"},
    ),
    (
        "always passes",
        {TEST: "ls /app || true\nif [ -e /x ]; then rm /x; fi\necho 1 > /logs/verifier/reward.txt\n"},
        {TEST: "if [ -e /app/x ]; then\n  echo 1 > /logs/verifier/reward.txt\nfi\n"},
    ),
    (
        "always passes",
        {TEST: "echo fine; echo 1 > /logs/verifier/reward.txt\n"},
        {TEST: "if grep -q x /app/a; then echo 1 > /logs/verifier/reward.txt; fi\n"},
    ),
    (
        "not repeatable",
        {PYTHON: "def test_a():\n    took = time.monotonic() - begun()\n    assert took < 2\n"},
        {PYTHON: "def test_a():\n    took = time.monotonic() - begun()\n    assert took < 60\n"},
    ),
    (
        "answer in reach",
        {DOCKERFILE: f"{BASE}RUN echo 4 > /app/expected.txt\n", PYTHON: COMPARES.format("/app/expected.txt")},
        {PYTHON: COMPARES.format("/tests/expected.txt")},
    ),
    (
        "answer in reach",
        {DOCKERFILE: f"{BASE}RUN sha256sum /app/a > /app/sums\n", TEST: f"sha256sum --quiet -c /app/sums\n{GRADE}"},
        {TEST: f"sha256sum --quiet -c /tests/sums\n{GRADE}"},
    ),
    (
        "agent can change",
        {"environment/grade.py": "print(1)\n", TEST: f"python3 -I /app/grade.py\n{GRADE}"},
        {TEST: f"cp /tests/grade.py /app/grade.py\npython3 -I /app/grade.py\n{GRADE}"},
    ),
    (
        "unclear",
        {TOML: LIMIT, INSTRUCTION: "You have 1 hour to finish.\n"},
        {INSTRUCTION: "You have 10 minutes.\n"},
    ),
    ("unclear", {INSTRUCTION: "Write the sum to `sum.txt`.\n"}, {INSTRUCTION: "Write the sum to `/app/sum.txt`.\n"}),
    (
        "not handed over",
        {TOML: SEPARATE, PYTHON: 'def test_a():\n    assert open("/app/answer.json").read()\n'},
        {TOML: f'artifacts = ["/app"]\n{SEPARATE}'},
    ),
]


def test_compiled_files_beside_the_dockerfile_are_named(make_task: MakeTask) -> None:
    path = make_task()
    assert kinds(path) == []
    (path / "environment/__pycache__").mkdir()
    assert kinds(path) == ["left over"]


def kinds(path: Path) -> list[str]:
    return [hint.kind for hint in hints_about(Task.read(path)) if hint.kind != "looks wrong"]


@pytest.mark.parametrize(("kind", "faulty", "healed"), FAULTS)
def test_a_planted_fault_is_named_once_and_not_where_it_is_healed(
    make_task: MakeTask, kind: str, faulty: Files, healed: Files
) -> None:
    path = make_task()
    for files, expected in ((faulty, [kind]), (healed, [])):
        for name, text in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        assert kinds(path) == expected


@pytest.mark.parametrize("task", read_tasks(BUNDLED).tasks, ids=lambda task: task.name)
def test_no_bundled_task_has_one(task: Task) -> None:
    assert kinds(task.path) == []


def test_a_test_that_is_no_python_is_no_fault_of_the_check(make_task: MakeTask) -> None:
    path = make_task()
    (path / PYTHON).write_text("def test_(:\n" + "(" * 5000)
    assert kinds(path) == []
