"""Task directories: what is a task, what is said of one that is none, and that its hash holds for all it hands out."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tbench.errors import TaskInvalid, TrialError
from tbench.tasks.task import Task

MakeTask = Any


def complaint(path: Path) -> str:
    with pytest.raises(TaskInvalid) as caught:
        Task.read(path)
    return str(caught.value)


def test_a_file_that_is_no_toml_is_named(make_task: MakeTask) -> None:
    path = make_task(toml="[agent\n")
    assert complaint(path).startswith(f"{path / 'task.toml'}: not valid TOML")


def test_a_file_that_is_no_utf8_is_named(make_task: MakeTask) -> None:
    path = make_task()
    (path / "task.toml").write_bytes(b'version = "\xff"')
    assert complaint(path).startswith(f"{path / 'task.toml'}: ")


@pytest.mark.parametrize(
    ("part", "file"),
    [
        ("toml", "task.toml"),
        ("instruction", "instruction.md"),
        ("test", "tests/test.sh"),
        ("dockerfile", "environment/Dockerfile"),
    ],
)
def test_a_missing_part_is_named(make_task: MakeTask, part: str, file: str) -> None:
    path = make_task(**{part: None})
    assert str(path / file) in complaint(path)


def test_an_image_can_stand_for_the_dockerfile(make_task: MakeTask) -> None:
    path = make_task(toml='[environment]\ndocker_image = "org/image:1"\n', dockerfile=None)
    assert Task.read(path).file.environment.docker_image == "org/image:1"


def test_the_oracle_is_optional(make_task: MakeTask) -> None:
    assert Task.read(make_task(solve=None)).name == "small-task"


def test_a_symlink_that_leaves_the_task_is_refused(make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    path = make_task()
    (path / "environment" / "data").symlink_to(tmp_path / "secret")
    assert complaint(path).startswith(f"{path / 'environment' / 'data'}: symlink leaves the task")


def test_a_directory_symlink_and_a_dangling_one_that_leave_the_task_are_refused(
    make_task: MakeTask, tmp_path: Path
) -> None:
    for target in (tmp_path, Path("../../../nowhere")):
        path = make_task()
        link = path / "tests" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert "symlink leaves the task" in complaint(path)


def test_a_linked_folder_whose_files_are_not_hashed_is_refused(make_task: MakeTask) -> None:
    path = make_task()
    (path / "shared").mkdir()
    (path / "tests" / "data").symlink_to("../shared")
    assert complaint(path).startswith(f"{path / 'tests' / 'data'}: symlink leads to a folder outside of the task")
    (path / "tests" / "data").unlink()
    (path / "tests" / "data").symlink_to("../solution")
    assert "data/solve.sh" in Task.read(path).tests


def test_a_symlink_inside_the_task_is_fine(make_task: MakeTask) -> None:
    path = make_task()
    (path / "tests" / "again.sh").symlink_to("test.sh")
    assert Task.read(path).name == "small-task"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Do it.\n", "Do it.\n"),
        ("<!-- harbor-canary GUID 1234 -->\nDo it.\n", "Do it.\n"),
        ("# CANARY GUID 1234\n\n\nDo it.\n", "Do it.\n"),
        ("<!-- a canary -->\n# a Canary too\n\nDo it.\n", "Do it.\n"),
        ("# Title\n\nDo it.\n", "# Title\n\nDo it.\n"),
        ("Do it.\n# canary\nmore\n", "Do it.\n# canary\nmore\n"),
        ("Mind the canary.\n", "Mind the canary.\n"),
        ("<!-- canary --> Do it.\n", "<!-- canary --> Do it.\n"),
    ],
)
def test_leading_canary_lines_are_not_shown(make_task: MakeTask, written: str, shown: str) -> None:
    assert Task.read(make_task(instruction=written)).instruction == shown


def test_an_instruction_with_broken_bytes_can_still_be_sent(make_task: MakeTask) -> None:
    path = make_task()
    (path / "instruction.md").write_bytes(b"caf\xe9\n")
    assert Task.read(path).instruction == "caf\ufffd\n"


TAKES = '[verifier]\nenv = { KEY = "${HOST_KEY:-default}" }\n'


def test_a_task_takes_what_its_copy_with_consent_is_allowed_and_nothing_before(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_KEY", "real")
    task = Task.read(make_task(toml=TAKES))
    env = task.file.verifier.env
    allowed = task.with_access(["HOST_KEY"])
    assert [each.resolve_env(env) for each in (task, allowed)] == [{"KEY": "default"}, {"KEY": "real"}]
    assert allowed.with_access(["OTHER"]).resolve_env(env) == {"KEY": "default"}
    assert task.with_access(()) is task


def test_consent_changes_nothing_of_the_content(make_task: MakeTask) -> None:
    task = Task.read(make_task())
    allowed = task.with_access(["HOST_KEY"])
    (task.path / "tests" / "test.sh").write_text("changed")
    assert allowed.hash == task.hash
    for each in (task, allowed):
        assert "changed" in changed(lambda each=each: each.tests)  # type: ignore[misc]


def test_the_digest_ignores_modes_and_sees_bytes(make_task: MakeTask) -> None:
    path = make_task()
    before = Task.read(path).hash
    (path / "tests" / "test.sh").chmod(0o755)
    assert Task.read(path).hash == before
    (path / "tests" / "test.sh").write_bytes(b"\n")
    assert Task.read(path).hash != before


# -- one hash, one content -----------------------------------------------------------------------


def test_a_task_without_ignore_files_has_the_published_digest(make_task: MakeTask) -> None:
    """Computed apart, as the official datasets describe it."""
    path = make_task()
    (path / "environment" / "a").mkdir()
    (path / "environment" / "a" / "b.bin").write_bytes(bytes(range(256)))
    names = ["environment/Dockerfile", "environment/a/b.bin", "instruction.md", "solution/solve.sh", "task.toml"]
    digests = [(name, hashlib.sha256((path / name).read_bytes()).hexdigest()) for name in [*names, "tests/test.sh"]]
    lines = b"".join(f"{name}\0{digest}\n".encode() for name, digest in digests)
    assert Task.read(path).hash == hashlib.sha256(lines).hexdigest()


def test_the_hash_is_of_the_task_toml_that_was_read(make_task: MakeTask) -> None:
    path = make_task()
    first, second = Task.read(path), Task.read(path)
    before = first.hash
    (path / "task.toml").write_text("[agent]\ntimeout_sec = 1\n")
    assert second.hash == before
    assert Task.read(path).hash != before


def change(path: Path) -> None:
    path.write_text("changed")


def remove(path: Path) -> None:
    path.unlink()


def make_unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def changed(act: Callable[[], object]) -> str:
    with pytest.raises(TrialError) as caught:
        act()
    assert caught.value.type == "task_changed"
    return str(caught.value)


PARTS: dict[str, Callable[[Task], object]] = {
    "instruction.md": lambda task: task.instruction,
    "tests/test.sh": lambda task: task.tests,
    "tests/data/a": lambda task: task.tests,
    "solution/solve.sh": lambda task: task.solution,
    "environment/Dockerfile": lambda task: task.require_unchanged("environment"),
}


@pytest.fixture
def path(make_task: MakeTask) -> Path:
    made = Path(make_task())
    (made / "tests" / "data").mkdir()
    (made / "tests" / "data" / "a").write_text("a")
    return made


@pytest.mark.parametrize("do", [change, remove, make_unreadable])
@pytest.mark.parametrize("name", PARTS)
def test_what_is_no_longer_what_the_hash_says_is_refused_and_named(
    path: Path, name: str, do: Callable[[Path], None]
) -> None:
    task = Task.read(path)
    assert task.hash
    do(path / name)
    words = changed(lambda: PARTS[name](task))
    assert words.startswith(f"{path / name} ")
    assert words.endswith("restore it, or start a new run")


@pytest.mark.parametrize("name", ["tests/new", "solution/sub/new", "environment/new"])
def test_a_file_that_came_new_is_refused_and_named(path: Path, name: str) -> None:
    task = Task.read(path)
    assert task.hash
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_text("new")
    folder = name.partition("/")[0]
    read = {"tests": lambda: task.tests, "solution": lambda: task.solution}
    assert f"{path / name} was added" in changed(read.get(folder, lambda: task.require_unchanged(folder)))


def test_a_folder_that_is_gone_is_named_by_its_files(path: Path) -> None:
    task = Task.read(path)
    assert task.hash
    shutil.rmtree(path / "solution")
    assert f"{path / 'solution' / 'solve.sh'} was removed" in changed(lambda: task.solution)


def test_files_that_the_hash_does_not_name_may_change(path: Path) -> None:
    task = Task.read(path)
    assert task.hash
    for name in ("tests/x.pyc", "NOTES", "environment/a.swp"):
        (path / name).write_text("new")
    task.require_unchanged("environment")
    assert set(task.tests) == {"test.sh", "data", "data/a"}


def test_what_was_read_stays(path: Path) -> None:
    task = Task.read(path)
    before = (task.instruction, dict(task.tests), dict(task.solution), task.test_script, task.hash)
    shutil.rmtree(path)
    assert (task.instruction, task.tests, task.solution, task.test_script, task.hash) == before


def test_what_is_put_back_is_fine_again(path: Path) -> None:
    task = Task.read(path)
    assert task.hash
    content = (path / "tests" / "test.sh").read_text()
    change(path / "tests" / "test.sh")
    changed(lambda: task.test_script)
    (path / "tests" / "test.sh").write_text(content)
    assert task.test_script == content.encode()


def test_the_hash_is_taken_before_the_first_file_is_handed_out(path: Path) -> None:
    task = Task.read(path)
    before = Task.read(path).hash
    assert task.instruction
    change(path / "tests" / "test.sh")
    changed(lambda: task.tests)
    assert task.hash == before


def test_a_test_script_outside_of_the_hash_that_vanished_is_named(path: Path) -> None:
    (path / ".gitignore").write_text("*.sh\n")
    task = Task.read(path)
    assert task.hash
    remove(path / "tests" / "test.sh")
    assert f"{path / 'tests' / 'test.sh'} was removed" in changed(lambda: task.test_script)


def test_line_ends_are_those_of_a_text(path: Path) -> None:
    (path / "instruction.md").write_bytes(b"# canary\r\n\r\nDo\rit.\r\n")
    assert Task.read(path).instruction == "Do\nit.\n"
