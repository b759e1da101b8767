"""Features of the format that tbench lacks: each is named where a task needs it, and documented by that name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_origin

import pytest
from pydantic import BaseModel

from tbench.errors import TaskInvalid
from tbench.tasks.format import FEATURES, TaskFile, section_of
from tbench.tasks.task import Task

MakeTask = Any
PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "task-keys.md").read_text(encoding="utf-8")
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
IMAGE = '[environment]\ndocker_image = "org/image:1"\n'

# task.toml, files beside it, and what is named.
NEEDS: list[tuple[str, dict[str, str | None], list[str]]] = [
    ("[[steps]]\nname = 'one'", {"steps/one/trajectory.json": "{}"}, ["steps/*/trajectory.json"]),
    (
        "[[steps]]\nname = 'one'\n[steps.verifier.environment]\nos = 'windows'",
        {"steps/one/instruction.md": "Do."},
        ["environment.os = windows (step one)"],
    ),
    ("", {"trajectory.json": "{}"}, ["trajectory.json"]),
    ("[environment]\nos = 'Windows'", {"tests/test.sh": None}, ["environment.os = windows"]),
    (
        f"{SEPARATE}service = 'db'",
        {"environment/docker-compose.yaml": "services: {db: {image: x}}"},
        ["verifier.service beside a verifier in its own container"],
    ),
    ("[environment]\ntpu = { type = 'v4', topology = '2x2x1' }", {}, ["environment.tpu"]),
    ("[verifier.environment]\nos = 'windows'", {}, ["environment.os = windows"]),
]
HARMLESS: list[tuple[str, dict[str, str | None]]] = [
    ("", {}),
    ("[agent]\nnetwork_mode = 'public'\n[verifier]\nnetwork_mode = 'public'", {}),
    ("[agent]\nnetwork_mode = 'no-network'\n[environment]\nnetwork_mode = 'no-network'", {}),
    ("[verifier]\nnetwork_mode = 'no-network'\n[environment]\nallow_internet = false", {}),
    ("", {"environment/Dockerfile": 'FROM x\nENTRYPOINT ["/run"]\n'}),
    ("[environment]\ngpus = 2\ngpu_types = ['H100']\nmcp_servers = []\nskills_dir = ''\nos = 'linux'", {}),
    ("multi_step_reward_strategy = 'mean'\nsteps = []", {"steps/one/instruction.md": "Do."}),
    (
        "multi_step_reward_strategy = 'final'\n[[steps]]\nname = 'one'",
        {"steps/one/instruction.md": "Do.", "instruction.md": None},
    ),
    (
        "[agent]\nuser = 'a'\n[[steps]]\nname = 'one'\n[steps.agent]\nuser = 'b'",
        {"steps/one/instruction.md": "Do."},
    ),
    ("artifacts = ['/app/out', { source = '/app/log', exclude = ['*.tmp'] }]", {}),
    ("[environment]\nallowed_hosts = []", {}),
    ("[agent]\nnetwork_mode = 'no-network'", {"environment/docker-compose.yaml": "services: {main: {}}"}),
    (
        "[verifier.environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['h']",
        {"tests/docker-compose.yaml": "services: {main: {image: x}}"},
    ),
    ("[agent]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['h']", {}),
    (SEPARATE, {}),
    (SEPARATE + "network_mode = 'no-network'", {}),
    (SEPARATE, {"tests/Dockerfile": "FROM x", "tests/test.sh": None}),
    (
        "[verifier.environment]\ndocker_image = 'i'",
        {"tests/test.sh": None, "tests/docker-compose.yaml": "services: {main: {}}"},
    ),
    ("[verifier]\nenvironment_mode = 'shared'", {"tests/Dockerfile": "FROM x", "tests/docker-compose.yaml": "x"}),
    ("[[verifier.collect]]\ncommand = 'dump'", {}),
    ("[verifier.environment]\ngpus = 1\ngpu_types = ['H100']", {}),
    ("[verifier.environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['h']", {}),
    (SEPARATE, {"tests/docker-compose.yaml": "services: {main: {}}", "tests/Dockerfile": "FROM x"}),
    (IMAGE, {"environment/data": "d"}),
    (IMAGE, {"environment/Dockerfile": None, "environment/.gitkeep": ""}),
    (IMAGE, {"environment/Dockerfile": None, "environment/data": "d"}),
    ("[environment]\nskills_dir = '/skills'", {}),
    ("[[environment.mcp_servers]]\nname = 'm'\nurl = 'http://m/mcp'\nheaders = { A = 'b' }", {}),
    ("", {"environment/docker-compose.yml": "data of the task"}),
]


def with_files(path: Path, files: dict[str, str | None]) -> Task:
    for name, content in files.items():
        if content is None:
            (path / name).unlink()
        else:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(content)
    return Task.read(path)


@pytest.mark.parametrize(("toml", "files", "named"), NEEDS)
def test_what_a_task_needs_and_tbench_lacks_is_named(
    make_task: MakeTask, toml: str, files: dict[str, str | None], named: list[str]
) -> None:
    task = with_files(make_task(toml=toml + "\n"), files)
    assert (task.unsupported, task.unknown_keys) == (named, [])


@pytest.mark.parametrize(("toml", "files"), HARMLESS)
def test_what_changes_nothing_is_no_reason_to_refuse_a_task(
    make_task: MakeTask, toml: str, files: dict[str, str | None]
) -> None:
    task = with_files(make_task(toml=toml + "\n"), files)
    assert (task.unsupported, task.unknown_keys) == ([], [])


def test_a_task_of_another_form_may_have_no_instruction(make_task: MakeTask) -> None:
    path = make_task(toml="[[steps]]\nname = 'one'\n", instruction=None)
    task = with_files(path, {"steps/one/instruction.md": "Do."})
    with pytest.raises(TaskInvalid, match=r"instruction\.md: missing"):
        assert task.instruction


# -- the documentation ---------------------------------------------------------------------------


def first_cells(heading: str) -> set[str]:
    """Code words in the first column of a section's tables."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def keys(model: type[BaseModel] = TaskFile, prefix: str = "") -> Iterator[str]:
    """Dotted keys of the schema; a verifier's own environment is one key, and so is each table of a step or a list."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        is_list = get_origin(field.annotation) in (list, tuple) and name != "steps"
        if section is None or is_list or (name == "environment" and prefix) or prefix == "steps.":
            yield prefix + name
        else:
            yield from keys(section, f"{prefix}{name}.")


def test_every_feature_has_a_case_here_and_a_row_in_the_documentation() -> None:
    assert {name.partition(" (step ")[0] for _, _, named in NEEDS for name in named} == set(FEATURES)
    assert first_cells("Unsupported") == set(FEATURES)


def test_every_key_is_documented_as_obeyed_ignored_or_unsupported() -> None:
    obeyed, ignored, unsupported = map(first_cells, ("Keys of task.toml", "Ignored", "Unsupported"))
    assert not obeyed & ignored
    apart = {key for key in keys() if key in unsupported or key.rpartition(".")[2] in unsupported}
    assert set(keys()) - apart == {word for word in obeyed | ignored if "/" not in word}


def test_what_is_documented_as_ignored_is_known_and_keeps_no_task_from_running(make_task: MakeTask) -> None:
    values = {"metadata": "{}"}
    lists = {"task.authors": "[]", "task.keywords": "[]", "environment.gpu_types": "[]"}
    words = first_cells("Ignored")
    ignored = sorted(word for word in words if "/" not in word and not word.startswith("steps."))
    toml = "".join(f"{key} = {(values | lists).get(key, repr('text'))}\n" for key in ignored)
    task = Task.read(make_task(toml=toml))
    assert (task.unsupported, task.unknown_keys) == ([], [])
