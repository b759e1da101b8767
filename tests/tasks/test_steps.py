"""Tasks of several steps: what is malformed, what a step says in place of its task, and what its view hands out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import a_config
from step_tasks import step_task

from tbench.errors import TaskInvalid, TrialError
from tbench.runs.plan import as_configured
from tbench.runs.preflight import why_not_runnable
from tbench.tasks.files import FOLDER_BYTES
from tbench.tasks.format import TaskFile, step_file
from tbench.tasks.task import Task


def complaint(path: Path) -> str:
    with pytest.raises(TaskInvalid) as caught:
        Task.read(path)
    return str(caught.value)


# -- bad input -----------------------------------------------------------------------------------


def test_a_step_directory_that_is_missing_is_named(make_task: MakeTask) -> None:
    path = step_task(make_task, "one", "two")
    shutil.rmtree(path / "steps" / "two")
    assert complaint(path) == f"{path}/steps/two: missing, although [[steps]] in task.toml refers to it"


@pytest.mark.parametrize("part", ["instruction.md", "tests/test.sh"])
def test_a_missing_part_of_a_step_is_named(make_task: MakeTask, part: str) -> None:
    path = step_task(make_task, "one", "two", files={f"steps/two/{part}": None})
    assert complaint(path) == f"{path}/steps/two/{part}: missing"


def test_a_step_may_have_its_test_script_from_the_task(make_task: MakeTask) -> None:
    files = {"steps/two/tests/test.sh": None, "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n"}
    one, two = Task.read(step_task(make_task, "one", "two", files=files)).steps
    assert (b"/app/one" in one.test_script, b"/app" in two.test_script) == (True, False)


@pytest.mark.parametrize(
    "name",
    ["", " ", ".", "..", "a/b", "a\\\\b", "a:b", "a\\tb", "\\u202eb", "con", "LPT1.txt", "end.", "end ", "x" * 101],
)
def test_a_step_has_a_name_that_a_directory_can_have_everywhere(make_task: MakeTask, name: str) -> None:
    path = make_task(toml=f'[[steps]]\nname = "{name}"\n')
    assert "steps.0.name: must be the name of a directory in steps/" in complaint(path)


@pytest.mark.parametrize("other", ["build", "Build", "BUILD"])
def test_two_steps_of_one_name_are_refused(make_task: MakeTask, other: str) -> None:
    path = make_task(toml=f"[[steps]]\nname = 'build'\n[[steps]]\nname = '{other}'\n")
    assert f"steps: two steps are named {other!r}; give each step its own name and directory" in complaint(path)


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[[steps]]", "steps.0.name: Field required"),
        ("[steps]\nname = 'one'", "steps: Input should be a valid list"),
        ("steps = ['one']", "steps.0: Input should be a valid dictionary"),
        ("[[steps]]\nname = 'one'\nmin_reward = 'high'", "steps.0.min_reward"),
        ("[[steps]]\nname = 'one'\nmin_reward = true", "steps.0.min_reward"),
        ("[[steps]]\nname = 'one'\nmin_reward = nan", "steps.0.min_reward"),
        ("[[steps]]\nname = 'one'\nmin_reward = { reward = 'x' }", "steps.0.min_reward"),
        ("multi_step_reward_strategy = 'median'", "multi_step_reward_strategy: Input should be 'mean' or 'final'"),
        ("[[steps]]\nname = 'one'\n[steps.agent]\ntimeout_sec = 0", "steps.0.agent.timeout_sec"),
        ("[[steps]]\nname = 'one'\n[steps.healthcheck]\nretries = 1", "steps.0.healthcheck.command: Field required"),
    ],
)
def test_a_malformed_step_is_named_by_file_and_key(make_task: MakeTask, toml: str, named: str) -> None:
    message = complaint(make_task(toml=toml + "\n"))
    assert "task.toml: " in message and named in message


def test_unknown_keys_of_a_step_are_reported(make_task: MakeTask) -> None:
    task = Task.read(step_task(make_task, "one", one="min_rewrd = 1\n[steps.agent]\ntimeout = 3\n"))
    assert task.unknown_keys == ["steps.0.agent.timeout", "steps.0.min_rewrd"]


def test_the_steps_are_bounded_together(make_task: MakeTask) -> None:
    path = step_task(make_task, "one", "two")
    for name in ("one", "two"):
        (path / "steps" / name / "workdir").mkdir()
        with (path / "steps" / name / "workdir" / "data").open("wb") as file:
            file.truncate(FOLDER_BYTES // 2)  # takes no room on the disk
    assert f"{path}/steps: has 256.0 MB of files, more than the maximum of 256.0 MB" in complaint(path)


def test_a_link_out_of_a_step_is_refused(make_task: MakeTask, tmp_path: Path) -> None:
    path = step_task(make_task, "one")
    (path / "steps" / "one" / "workdir").symlink_to(tmp_path)
    assert "steps/one/workdir: symlink leaves the task directory" in complaint(path)


def test_a_folder_of_steps_means_nothing_where_no_step_is_named(make_task: MakeTask) -> None:
    path = make_task()
    (path / "steps" / "one").mkdir(parents=True)
    task = Task.read(path)
    assert (task.steps, task.parts, task.unsupported) == ((), (task,), [])


# -- views ---------------------------------------------------------------------------------------


@pytest.fixture
def task(make_task: MakeTask) -> Task:
    files = {
        "tests/helpers.sh": "shared",
        "tests/data.txt": "of the task",
        "steps/two/tests/data.txt": "of the step",
        "steps/two/workdir/input/a.csv": "1",
        "instruction.md": "Not used.",
    }
    return Task.read(step_task(make_task, "one", "two", files=files))


def test_a_view_has_the_steps_own_texts_and_the_hash_of_the_task(task: Task) -> None:
    one, two = task.steps
    assert [step.step.name for step in task.parts if step.step] == ["one", "two"]
    assert (one.instruction, two.instruction) == ("Make /app/one.\n", "Make /app/two.\n")
    assert (two.name, two.hash, two.path) == (task.name, task.hash, task.path)


def test_tests_are_those_of_the_task_and_the_steps_go_before(task: Task) -> None:
    one, two = task.steps
    assert {name: entry.data for name, entry in one.tests.items() if name != "test.sh"} == {
        "data.txt": b"of the task",
        "helpers.sh": b"shared",
    }
    assert two.tests["data.txt"].data == b"of the step"
    assert one.tests["helpers.sh"] is two.tests["helpers.sh"], "read once"


def test_files_for_the_working_directory_are_the_steps(task: Task) -> None:
    assert [sorted(each.workdir) for each in (task, *task.steps)] == [[], [], ["input", "input/a.csv"]]


def test_what_changed_in_a_step_since_the_hash_was_taken_is_named(task: Task) -> None:
    two = task.steps[1]
    (task.path / "steps" / "two" / "workdir" / "input" / "a.csv").write_text("2")
    with pytest.raises(TrialError, match=r"steps/two/workdir/input/a\.csv changed after the task's hash") as caught:
        _ = two.workdir
    assert caught.value.type == "task_changed"


def test_a_step_without_a_solution_has_that_of_the_task(make_task: MakeTask) -> None:
    files = {"steps/two/solution/solve.sh": None, "solution/solve.sh": "touch /app/two\n"}
    task = Task.read(step_task(make_task, "one", "two", files=files))
    assert [step.solution["solve.sh"].data for step in task.steps] == [b"touch /app/one\n", b"touch /app/two\n"]
    assert task.has_oracle


def test_a_step_without_any_solution_is_known_before_anything_starts(make_task: MakeTask) -> None:
    path = step_task(make_task, "one", "two", files={"steps/two/solution/solve.sh": None})
    error = why_not_runnable(Task.read(path), "", "oracle")
    assert error is not None
    assert (error.type, str(error)) == ("oracle_missing", f"{path}/solution/solve.sh: missing, so there is no oracle")
    assert why_not_runnable(Task.read(path), "", "nop") is None


def test_the_image_of_a_verifier_is_built_of_the_step_that_has_one(make_task: MakeTask) -> None:
    separate = "[steps.verifier]\nenvironment_mode = 'separate'\n"
    files = {"steps/two/tests/Dockerfile": "FROM x\n", "tests/Dockerfile": "FROM y\n"}
    task = Task.read(step_task(make_task, "one", "two", files=files, two=separate))
    assert [each.tests_folder for each in (task, *task.steps)] == ["tests", "tests", "steps/two/tests"]


# -- what holds for a step -----------------------------------------------------------------------


def merged(task: dict[str, Any], step: dict[str, Any], **how: bool) -> TaskFile:
    file = TaskFile.model_validate({**task, "steps": [{"name": "one", **step}]})
    return step_file(file, file.steps[0], **how)


def test_what_a_step_does_not_say_is_as_the_task_has_it() -> None:
    file = merged({"agent": {"timeout_sec": 9, "user": "a"}, "verifier": {"timeout_sec": 8}}, {"agent": {}})
    assert (file.agent.timeout_sec, file.agent.user, file.verifier.timeout_sec, file.steps) == (9, "a", 8, [])


def test_what_a_step_says_holds_in_place_of_the_task() -> None:
    task = {"agent": {"timeout_sec": 9}, "verifier": {"timeout_sec": 8, "env": {"A": "1", "B": "1"}}}
    step = {"agent": {"timeout_sec": 3}, "verifier": {"timeout_sec": 600, "env": {"B": "2"}, "user": "v"}}
    file = merged(task, step)
    assert (file.agent.timeout_sec, file.verifier.timeout_sec, file.verifier.user) == (3, 600, "v")
    assert file.verifier.env == {"A": "1", "B": "2"}


def test_artifacts_and_hooks_of_a_step_are_added_to_those_of_the_task() -> None:
    task = {"artifacts": ["/a"], "verifier": {"collect": [{"command": "x"}]}}
    file = merged(task, {"artifacts": ["/b"], "verifier": {"collect": [{"command": "y"}]}})
    assert [each.source for each in file.artifacts] == ["/a", "/b"]
    assert [each.command for each in file.verifier.collect] == ["x", "y"]


def test_a_network_of_a_step_takes_no_hosts_from_the_task() -> None:
    task = {"agent": {"network_mode": "allowlist", "allowed_hosts": ["h"]}}
    assert merged(task, {"agent": {"network_mode": "public"}}).agent.allowed_hosts in ([], None)
    assert merged(task, {"agent": {"timeout_sec": 3}}).agent.allowed_hosts == ["h"]


TASK_S, STEP_S = {"docker_image": "task"}, {"docker_image": "step"}


@pytest.mark.parametrize(
    ("task", "step", "mode", "image"),
    [
        ({}, {}, None, None),
        ({"environment": TASK_S}, {}, None, "task"),
        ({"environment": TASK_S}, {"environment_mode": "shared"}, "shared", None),
        ({"environment_mode": "separate"}, {"environment_mode": "shared"}, "shared", None),
        ({"environment_mode": "shared"}, {"environment": STEP_S}, "separate", "step"),
        ({"environment": TASK_S}, {"environment": STEP_S}, "separate", "step"),
        ({"environment": TASK_S}, {"environment": {"cpus": 2}}, "separate", "task"),
        ({"environment_mode": "separate", "environment": TASK_S}, {}, "separate", "task"),
    ],
)
def test_where_the_verifier_of_a_step_runs(
    task: dict[str, Any], step: dict[str, Any], mode: str | None, image: str | None
) -> None:
    verifier = merged({"verifier": task}, {"verifier": step}).verifier
    found = None if verifier.environment is None else verifier.environment.docker_image
    assert (verifier.environment_mode, found) == (mode, image)


def test_an_image_of_the_steps_own_tests_goes_before_that_of_the_task() -> None:
    verifier = merged({"verifier": {"environment": TASK_S}}, {"verifier": {"environment": {}}}, has_image=True).verifier
    assert verifier.environment is not None and verifier.environment.docker_image is None


# -- what a run says -----------------------------------------------------------------------------


def limits(task: Task) -> Sequence[tuple[float | None, float, float | None]]:
    checks = [step.step.healthcheck if step.step else None for step in task.steps]
    return [
        (step.file.agent.timeout_sec, step.file.verifier.timeout_sec, check.timeout_sec if check else None)
        for step, check in zip(task.steps, checks, strict=True)
    ]


def test_timeouts_of_steps_are_overridden_like_those_of_the_task(make_task: MakeTask) -> None:
    own = "[steps.agent]\ntimeout_sec = 10\n[steps.verifier]\ntimeout_sec = 20\n"
    own += "[steps.healthcheck]\ncommand = 'true'\ntimeout_sec = 2\n"
    top = "[agent]\ntimeout_sec = 100\n[verifier]\ntimeout_sec = 200\n"
    task = Task.read(step_task(make_task, "one", "two", top=top, two=own))
    assert limits(task) == [(100, 200, None), (10, 20, 2)]
    assert limits(as_configured(task, a_config(timeout_multiplier=3.0))) == [(300, 600, None), (30, 60, 6)]
    assert limits(task) == [(100, 200, None), (10, 20, 2)]


def test_a_step_asks_for_variables_by_name_and_gets_them_with_consent(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_TOKEN", "t")
    task = Task.read(step_task(make_task, "one", one='[steps.verifier]\nenv = { T = "${STEP_TOKEN}" }\n'))
    error = why_not_runnable(task, "", "nop")
    assert error is not None and "verifier.env.T (step one) = ${STEP_TOKEN}: " in str(error)
    allowed = as_configured(task, a_config(allow_env=("STEP_TOKEN",)))
    assert why_not_runnable(allowed, "", "nop") is None
    assert allowed.steps[0].resolve_env(allowed.steps[0].file.verifier.env) == {"T": "t"}
