"""The files of a task directory: bytes, modes, links, and the digests over them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from digest_cases import CASES, PLAIN, write_task

from tbench.tasks.files import TaskFiles, TreeEntry


def test_a_folder_keeps_bytes_and_empty_directories_and_modes_as_git_has_them(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    (tests / "sub" / "empty").mkdir(parents=True)
    (tests / "run.sh").write_bytes(b"#!\xff\0")
    (tests / "run.sh").chmod(0o750)
    (tests / "sub" / "data").write_bytes(b"")
    (tests / "sub" / "data").chmod(0o600)
    tree = TaskFiles(tmp_path).tree("tests")
    assert list(tree) == ["run.sh", "sub", "sub/data", "sub/empty"]
    assert tree["run.sh"] == TreeEntry(b"#!\xff\0", 0o755)
    assert tree["sub/empty"].data is None
    assert tree["sub/data"] == TreeEntry(b"", 0o644)


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert (TaskFiles(tmp_path).tree("solution"), TaskFiles(tmp_path).digests()) == ({}, {})


def test_links_are_followed_to_files_and_to_directories_but_not_in_the_digest(tmp_path: Path) -> None:
    (tmp_path / "tests" / "real").mkdir(parents=True)
    (tmp_path / "tests" / "real" / "file").write_bytes(b"x")
    (tmp_path / "tests" / "alias").symlink_to("real")
    (tmp_path / "tests" / "again").symlink_to("real/file")
    files = TaskFiles(tmp_path)
    tree = files.tree("tests")
    assert (tree["again"].data, tree["alias/file"].data) == (b"x", b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    assert files.digests("tests") == {"tests/again": digest, "tests/real/file": digest}
    assert [name for name in tree if files.is_hashed(f"tests/{name}")] == ["again", "real/file"]


def test_links_that_go_round_in_circles_or_nowhere_end(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    for name, other in (("a", "b"), ("b", "a")):
        (tests / name).mkdir(parents=True)
        (tests / name / "file").write_bytes(name.encode())
        (tests / name / "link").symlink_to(f"../{other}")
    (tests / "self").symlink_to(".")
    (tests / "loop").symlink_to("loop")
    (tests / "gone").symlink_to("nowhere")
    (tests / "odd").symlink_to("a/file/below")
    files = TaskFiles(tmp_path)
    tree = files.tree("tests")
    assert tree["a/link/file"].data == b"b"
    assert len(tree) < 50
    assert not {"loop", "gone", "odd"} & set(tree)
    assert set(files.digests()) == {"tests/a/file", "tests/b/file"}
    assert list(files.links_outside()) == []


def test_digests_can_be_had_of_one_folder(tmp_path: Path) -> None:
    for name in ("task.toml", "environment/Dockerfile", "environment/sub/data", "tests/test.sh", "other/file"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    files = TaskFiles(tmp_path)
    assert list(files.digests("environment")) == ["environment/Dockerfile", "environment/sub/data"]
    assert list(files.digests()) == ["environment/Dockerfile", "environment/sub/data", "task.toml", "tests/test.sh"]


STRAY = {
    "tests/sub/__pycache__/x.cpython-311.pyc": "",
    "tests/test.sh~": "",
    "tests/.swp": "",
    "tests/odd\nname": "o",
    "tests/-rf": "o",
    "tests/.git/HEAD": "ref",
    "tests/node_modules/a/b.js": "",
    "environment/__pycache__/x.pyc": "",
    "environment/sub/.Dockerfile.swp": "",
    "environment/sub/alias": "-> ..",
    "solution/__pycache__/x.pyc": "",
}


@pytest.mark.parametrize("files", [*CASES.values(), PLAIN | STRAY, PLAIN | STRAY | {".gitignore": "*\n!*.pyc\n"}])
def test_exactly_what_is_hashed_goes_into_containers(tmp_path: Path, files: dict[str, str]) -> None:
    root = write_task(tmp_path / "task", files)
    task_files = TaskFiles(root)
    for folder in ("tests", "solution", "environment"):
        hashed = set(task_files.digests(folder))
        packed = (path for path in task_files.context(folder) if path.is_file())
        assert {path.relative_to(root).as_posix() for path in packed} == hashed
        entries = {f"{folder}/{name}": entry for name, entry in task_files.tree(folder).items()}
        assert {task_files.real_name(name) for name, entry in entries.items() if entry.data is not None} == hashed
        assert not any("__pycache__" in name for name in entries if ".gitignore" not in files)
