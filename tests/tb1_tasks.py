"""Tasks in the form of Terminal-Bench 1 for tests, written on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

COMPOSE = """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
      - ${T_BENCH_TASK_AGENT_LOGS_PATH}:${T_BENCH_CONTAINER_AGENT_LOGS_PATH}
"""
RUN_TESTS = """\
echo "=========== short test summary info ==========="
for number in 1 2; do
    if [ -e /app/done ]; then
        echo "PASSED $TEST_DIR/test_outputs.py::test_$number"
    else
        echo "FAILED $TEST_DIR/test_outputs.py::test_$number - AssertionError: not done"
    fi
done
true
"""
PARTS = {
    "task.yaml": "instruction: |-\n  Create the file /app/done.\ndifficulty: easy\nmax_test_timeout_sec: 90.5\n",
    "docker-compose.yaml": COMPOSE,
    "Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\nCOPY data.txt ./\n",
    "data.txt": "1\n",
    "run-tests.sh": RUN_TESTS,
    "solution.sh": "touch /app/done\n",
    "tests/test_outputs.py": "def test_1(): ...\n",
}


def write_tb1_task(path: Path, parts: Mapping[str, str | None] | None = None) -> Path:
    """Write a task; `parts` come besides or in place of the usual ones, and None leaves one out."""
    for name, text in {**PARTS, **(parts or {})}.items():
        if text is not None:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
    return path


def client(*lines: str) -> str:
    """A docker-compose.yaml whose only service is built here and has these lines besides."""
    return "\n".join(["services:", "  client:", "    build: .", *(f"    {line}" for line in lines), ""])
