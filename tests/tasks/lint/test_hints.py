"""Hints about tasks: mistakes are found, and what good tasks do is not reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from step_tasks import step_task

from tbench.tasks.pitfalls import hints_about
from tbench.tasks.sources import BUNDLED, read_tasks
from tbench.tasks.task import Task

MakeTask = Any
PASSES = "echo 1 > /logs/verifier/reward.txt\n"


def told(path: Path) -> list[str]:
    """The hints of the oldest kind about the task at `path`, with their files."""
    task = Task.read(path)
    hints = (hint for hint in hints_about(task) if hint.kind == "looks wrong")
    return [f"{hint.where.relative_to(task.path)}: {hint.words}" for hint in hints]


def with_files(path: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize("task", read_tasks(BUNDLED).tasks, ids=lambda task: task.name)
def test_there_is_none_about_a_bundled_task(task: Task) -> None:
    assert list(hints_about(task)) == []


@pytest.mark.parametrize(
    "python",
    [
        'open("/app/result.csv")\n',
        'from pathlib import Path\nAPP = Path("/app")\n\ndef test():\n    assert (APP / "result.csv").exists()\n',
        'import os\nassert os.path.exists(os.path.join("/app", "result.csv"))\n',
        'import subprocess\nsubprocess.run(["cat", "/app/result.csv"])\n',
        'import os, pytest\nif not os.path.exists("/app/result.csv"):\n    pytest.fail("no result")\n',
    ],
)
def test_a_path_that_the_tests_want_and_no_one_names(make_task: MakeTask, python: str) -> None:
    path = with_files(make_task(), {"tests/test_outputs.py": python})
    line = next(number for number, text in enumerate(python.splitlines(), 1) if "result.csv" in text)
    expected = f"line {line}: /app/result.csv: not in the instruction, and not in the environment"
    assert told(path) == [f"tests/test_outputs.py: {expected}"]
    for named in ("`result.csv`", "{kind of number}sult.csv", "<kind>sult.csv"):
        (path / "instruction.md").write_text(f"Write {named}.\n")
        assert told(path) == []
    (path / "instruction.md").write_text("Do it for {kind}sets.csv.\n")
    assert told(path) != []
    (path / "instruction.md").write_text("Do it.\n")
    (path / "environment" / "result.csv").touch()
    assert told(path) == []


@pytest.mark.parametrize(
    "python",
    [
        'OUT = "/app/own.txt"\nopen(OUT, "w").write("x")\nopen("/app/own.txt")\n',
        'from pathlib import Path\nout = Path("/app") / "own.txt"\nout.write_text("")\n',
        'from pathlib import Path\np = Path("/app/own.txt")\nrun(f"echo > {p}")\nassert p.exists()\n',
        'run(["tool", "-o", "own.txt"])\nopen("/app/own.txt")\n',
        'import shutil\nshutil.copy("/tests/x", "/app/own.txt")\nopen("/app/own.txt")\n',
        'get("/api/notes")\nget("/tests/data.txt")\nopen("/etc/passwd")\nopen("/usr/bin/tool")\n',
        'import os, run\nif not os.path.exists("/app/own.txt"):\n    run.make("x", check=True)\n',
        'from pathlib import Path\nout = Path("/app/own.png")\nrun(["tool", "x", str(out)])\nassert out.exists()\n',
        '"""Looks at /app/own.txt."""\n',
        "def broken(:\n",
        "x = " + "a / " * 5000 + "b\n",
    ],
)
def test_paths_that_the_tests_make_themselves_or_that_are_everywhere_are_none(make_task: MakeTask, python: str) -> None:
    assert told(with_files(make_task(), {"tests/test_outputs.py": python})) == []


def test_what_a_script_of_the_tests_speaks_of_may_be_made_by_it(make_task: MakeTask) -> None:
    files = {"tests/test_outputs.py": 'open("/app/build.log")\n', "tests/build.sh": "make > /app/build.log\n"}
    assert told(with_files(make_task(), files)) == []


def test_files_of_a_repository_that_the_image_fetches_are_not_known(make_task: MakeTask) -> None:
    dockerfile = "FROM debian:bookworm-slim\nRUN git clone https://host/x /app/x\nWORKDIR /app\n"
    path = with_files(make_task(dockerfile=dockerfile), {"tests/test_outputs.py": 'open("/app/x/setup.py")\n'})
    assert told(path) == []


@pytest.mark.parametrize(
    "python", ['URL = "http://localhost:8123/"\n', 'connect(("127.0.0.1", 8123))\n', "f(port=8123)\n"]
)
def test_a_port_that_the_tests_want_and_no_one_names(make_task: MakeTask, python: str) -> None:
    path = with_files(make_task(), {"tests/test_outputs.py": python})
    assert told(path) == ["tests/test_outputs.py: line 1: port 8123: not in the instruction or the environment"]
    (path / "instruction.md").write_text("Listen on port 8123.\n")
    assert told(path) == []
    with_files(path, {"instruction.md": "Do.\n", "tests/test_outputs.py": f"{python}HTTPServer()\n"})
    assert told(path) == []


def test_a_file_that_the_instruction_names_and_no_one_knows(make_task: MakeTask) -> None:
    text = "Turn `/app/in.txt` around.\nE.g. /app/no.txt. See http://host/a/b.html and\n/path/to/x.md, /app/*.md.\n"
    path = make_task(instruction=text)
    words = "/app/in.txt: no such file in environment, tests or solution"
    assert told(path) == [f"instruction.md: {words}"]
    (path / "environment" / "in.txt").touch()
    assert told(path) == []


def test_a_part_of_tests_or_solution_in_the_image(make_task: MakeTask) -> None:
    secret = "the answer to everything is\nforty-two and not forty-one\n"
    path = make_task(dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\nCOPY in/ ./\n")
    files = {"solution/fix.patch": secret, "environment/in/a.patch": secret, "environment/in/solve.sh": "x" * 50}
    with_files(path, {**files, "tests/data.txt": "y" * 50, "environment/in/data.txt": "y" * 50})
    assert told(path) == [
        "environment/in/a.patch: is a copy of solution/fix.patch, which the agent can read in the image",
        "environment/in/solve.sh: is named like a solution or tests, and the agent can read it in the image",
    ]
    (path / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nCOPY in/data.txt ./\n")
    assert told(path) == []


def test_files_of_the_solution_that_the_agent_is_meant_to_have(make_task: MakeTask) -> None:
    tree = {
        "src/main.c": "int main(void) { return run_the_program(); }\n",
        "src/run.c": "int run() { return 1; }\n" * 3,
    }
    files = {**tree, "script.txt": "line\n" * 20}
    path = make_task(instruction="Parse `script.txt`.\n", dockerfile="FROM debian:bookworm-slim\nCOPY . /app\n")
    with_files(path, {f"{folder}/{name}": files[name] for folder in ("environment", "solution") for name in files})
    assert told(path) == [
        f"environment/{name}: is a copy of solution/{name}, which the agent can read in the image" for name in tree
    ]
    with_files(path, {"solution/src/run.c": "int run() { return 0; }\n" * 3})
    assert told(path) == []


def test_a_comment_of_a_script_is_no_command(make_task: MakeTask) -> None:
    assert told(make_task(test=f"set -e\n# no $? and no exit here\nif pytest; then {PASSES}fi\n")) == []


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("pytest /tests\n", "no file in tests/ writes /logs/verifier/reward.txt, so there is no verdict"),
        (
            f"[ -e /app/done ] || exit 1\n{PASSES}",
            "line 1: exits before a reward is written, so there is no verdict",
        ),
        (
            f"set -euo pipefail\npytest\nif [ $? -eq 0 ]; then\n{PASSES}fi\n",
            "reads $? under `set -e`: a failing test ends the script before a reward is written",
        ),
    ],
)
def test_a_script_that_can_end_without_a_reward(make_task: MakeTask, script: str, words: str) -> None:
    assert told(make_task(test=script)) == [f"tests/test.sh: {words}"]


@pytest.mark.parametrize(
    "script",
    [
        f"set -e\nset +e\npytest\nif [ $? -eq 0 ]; then\n{PASSES}fi\n",
        f"set -e\nif pytest; then\n{PASSES}fi\n",
        f"trap 'echo 0 > /logs/verifier/reward.txt' EXIT\nset -e\nfalse\n[ $? = 0 ] || exit 1\n{PASSES}",
        f"echo 0 > /logs/verifier/reward.txt\n[ -e /app/done ] || exit\n{PASSES}",
        f'if [ "$PWD" = "/" ]; then\n    echo "no WORKDIR"\n    exit 1\nfi\n{PASSES}',
        "python3 /tests/judge.py\n",
    ],
)
def test_a_script_that_writes_one_on_every_path(make_task: MakeTask, script: str) -> None:
    path = with_files(make_task(test=script), {"tests/judge.py": 'open("/logs/verifier/reward.txt", "w")\n'})
    assert told(path) == []


def test_each_step_needs_a_reward_of_its_own_tests_or_of_those_of_the_task(make_task: MakeTask) -> None:
    assert told(step_task(make_task, "one", "two")) == []
    silent = {"steps/two/tests/test.sh": "pytest /tests\n", "steps/two/solution/solve.sh": f"# {'long ' * 10}\n"}
    path = with_files(step_task(make_task, "one", "two"), silent)
    words = "no file in tests/ writes /logs/verifier/reward.txt, so there is no verdict"
    assert told(path) == [f"steps/two/tests/test.sh: {words}"]
    assert told(with_files(path, {"tests/common.sh": PASSES})) == []
    seen = {"environment/do": silent["steps/two/solution/solve.sh"], "environment/Dockerfile": "COPY do /app\n"}
    leaked = with_files(path, seen)
    assert told(leaked) == [
        "environment/do: is a copy of steps/two/solution/solve.sh, which the agent can read in the image"
    ]


def test_shared_tests_are_told_of_once(make_task: MakeTask) -> None:
    shared = {"tests/test.sh": "curl https://example.com/x | sh\n" + PASSES}
    own = {f"steps/{name}/tests/test.sh": None for name in ("one", "two")}
    path = step_task(make_task, "one", "two", files={**own, **shared})
    assert told(path) == [
        "tests/test.sh: `curl https://example.com/x | sh` runs whatever is published at the time; pin a version"
    ]


def test_a_program_from_the_network_without_a_version(make_task: MakeTask) -> None:
    curl = "curl -LsSf https://host/install.sh | sh"
    path = make_task(test=f"{curl}\n{PASSES}", solve="curl -LsSf https://host/0.9.5/install.sh | sh\n")
    assert told(path) == [f"tests/test.sh: `{curl}` runs whatever is published at the time; pin a version"]
    (path / "environment" / "Dockerfile").write_text("FROM debian\nRUN wget -qO- https://host/x \\\n  | bash\n")
    assert told(path)[0].startswith(
        "environment/Dockerfile: `wget -qO- https://host/x | bash` runs whatever is published"
    )


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("from words import count\n", "imports `words`"),
        ("import json\ndef test():\n    import words\n", "imports `words`"),
        ("import importlib.util\nspec = importlib.util.spec_from_file_location('w', '/app/w')\n", "loads code by"),
        ("import json, helper\n", ""),
        ("import subprocess\nsubprocess.run(['python3', '-c', 'import words'])\n", ""),
    ],
)
def test_tests_that_let_the_work_into_their_own_process(make_task: MakeTask, python: str, words: str) -> None:
    path = with_files(make_task(), {"tests/test_outputs.py": python, "tests/helper.py": ""})
    (path / "instruction.md").write_text("Write /app/words.py and /app/w with helper.py.\n")
    found = [line for line in told(path) if "same process" in line]
    assert len(found) == bool(words) and all(words in line for line in found)
