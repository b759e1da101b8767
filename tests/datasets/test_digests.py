"""Published digests: dataset.toml, the digest of the whole, and what differs."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from digest_cases import CASES, DIGESTS, write_task

from tbench.datasets.digests import compare, is_digest, read_publication, read_publication_in, verify_directory
from tbench.errors import UsageError
from tbench.tasks.sources import read_tasks

MakeTask = Any
A, B, F = "a" * 64, "b" * 64, "f" * 64


def manifest(directory: Path, text: str) -> Path:
    path = directory / "dataset.toml"
    path.write_text(f'[dataset]\nname = "org/set"\n{text}')
    return path


def test_the_digest_of_a_dataset_is_that_of_harbor(tmp_path: Path) -> None:
    two = f'[[tasks]]\nname = "org/two"\ndigest = "sha256:{B}"\n[[tasks]]\nname = "org/one"\ndigest = "sha256:{A}"\n'
    found = read_publication(manifest(tmp_path, two))
    assert found.digests == {"one": A, "two": B}
    assert found.digest == hashlib.sha256(f"{A},{B}".encode()).hexdigest()
    with_file = read_publication(manifest(tmp_path, f'{two}[[files]]\npath = "metric.py"\ndigest = "sha256:{F}"\n'))
    assert with_file.digest == hashlib.sha256(f"{A},{B};metric.py:{F}".encode()).hexdigest()
    assert read_publication(manifest(tmp_path, f'{two}[[tasks]]\nname = "org/three"\n')).digest is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[tasks", "is not valid TOML"),
        ('[[tasks]]\nname = "x"\ndigest = "md5:1"\n', r"tasks\.0\.digest: .*; give a dataset.toml of Harbor"),
        ("[[tasks]]\n", r"tasks\.0\.name: Field required"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = manifest(tmp_path, text)
    with pytest.raises(UsageError, match=words) as raised:
        read_publication(path)
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)
    with pytest.raises(UsageError, match="nowhere: cannot be read: No such file"):
        read_publication(tmp_path / "nowhere")


def test_digests_are_those_of_harbors_packager_also_with_files_of_ignores(tmp_path: Path) -> None:
    """The task's own .gitignore replaces the usual ignores; what a .harborignore excludes is not hashed."""
    for number, files in enumerate(CASES.values()):
        write_task(tmp_path / f"case-{number:02}", files | {"environment/Dockerfile": "FROM scratch\n"})
    tasks = read_tasks(str(tmp_path))
    published = {f"case-{number:02}": DIGESTS[name] for number, name in enumerate(CASES)}
    found = compare({task.name: task.hash for task in tasks.tasks}, published)
    assert found.differing == () and found.compared == len(tasks.tasks) >= 15


def test_what_differs_is_missing_or_was_never_published_is_distinguished(make_task: MakeTask, tmp_path: Path) -> None:
    for name in ("changed", "new", "same"):
        make_task(name)
    make_task("broken", test=None)
    hashes = {task.name: task.hash for task in read_tasks(str(tmp_path / "tasks")).tasks}
    rows = {"changed": A, "gone": B, "same": hashes["same"], "broken": F}
    text = "".join(f'[[tasks]]\nname = "o/{name}"\ndigest = "{digest}"\n' for name, digest in rows.items())
    against = manifest(tmp_path, text)
    found = verify_directory(tmp_path / "tasks", against)
    assert found.lines[0] == f"differs: changed: has {hashes['changed'][:12]}, published is {A[:12]}"
    assert found.lines[1].startswith("unreadable: broken: ")
    assert found.lines[2:] == ("missing: gone",)
    assert found.words == "1 of 4 tasks match the published digests; without a digest: new"


def test_a_directory_brings_its_own_digests_or_they_are_named(make_task: MakeTask, tmp_path: Path) -> None:
    make_task("alone")
    directory = tmp_path / "tasks"
    with pytest.raises(UsageError, match=r"dataset\.toml: missing; give the digests to compare with as --against"):
        verify_directory(directory, None)
    assert read_publication_in(directory) is None
    manifest(directory, "")
    assert verify_directory(directory, None).words == "1 task; no digests are published"


def test_a_digest_of_a_reference_has_its_algorithm_in_front() -> None:
    assert is_digest(f"sha256:{A}") and not is_digest(A) and not is_digest("sha256:abc")
