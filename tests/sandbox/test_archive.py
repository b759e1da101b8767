"""Files in and out of sandboxes as tar archives."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from digest_cases import write_task
from hypothesis import given
from hypothesis import strategies as st

from tbench.sandbox.archive import ChunkReader, FileEntry, loose_files, pack, place_tree, unpack
from tbench.tasks.environment import agent_environment
from tbench.tasks.files import TreeEntry
from tbench.tasks.task import Task

PLENTY = 1 << 30
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=120).filter(
    lambda name: name not in (".", "..")
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(PATHS, st.binary(max_size=3000), max_size=8)


def packed(tree: dict[str, bytes]) -> bytes:
    return pack({f"/root/{path}": FileEntry(data) for path, data in tree.items()})


@given(TREES)
def test_what_is_packed_comes_out_again(tree: dict[str, bytes]) -> None:
    assert unpack(io.BytesIO(packed(tree)), PLENTY) == tree


@given(TREES, st.data())
def test_an_archive_that_breaks_off_gives_whole_files_before_the_break(
    tree: dict[str, bytes], data: st.DataObject
) -> None:
    archive = packed(tree)
    cut = data.draw(st.integers(0, len(archive)))
    found = unpack(io.BytesIO(archive[:cut]), PLENTY)
    assert list(found) == list(tree)[: len(found)]
    assert all(tree[path] == content for path, content in found.items())


@given(st.binary(max_size=2000))
def test_bytes_that_are_no_archive_give_no_files(garbage: bytes) -> None:
    assert unpack(io.BytesIO(garbage), PLENTY) == {} or tarfile.is_tarfile(io.BytesIO(garbage))


def test_the_limit_cuts_but_keeps_the_names() -> None:
    archive = packed({"a": b"12345", "b": b"67890", "c": b"x"})
    assert unpack(io.BytesIO(archive), 8) == {"a": b"12345", "b": b"678", "c": b""}


def test_of_a_file_that_comes_twice_the_first_counts() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for content in (b"1", b"0"):
            member = tarfile.TarInfo("./logs/reward.txt")
            member.size = 1
            archive.addfile(member, io.BytesIO(content))
    assert unpack(io.BytesIO(buffer.getvalue()), PLENTY) == {"reward.txt": b"1"}


def test_links_and_devices_are_left_out() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo(f"logs/{kind!r}")
            member.type = kind
            member.linkname = "/etc/passwd"
            archive.addfile(member)
    assert unpack(io.BytesIO(buffer.getvalue()), PLENTY) == {}


def test_a_folder_of_a_task_is_put_where_it_is_wanted_the_directory_first() -> None:
    entries = place_tree("/t", {"sub": TreeEntry(None, 0o755), "sub/run": TreeEntry(b"x", 0o750)})
    assert list(entries.items()) == [
        ("/t", FileEntry(None, 0o755)),
        ("/t/sub", FileEntry(None, 0o755)),
        ("/t/sub/run", FileEntry(b"x", 0o750)),
    ]
    assert place_tree("/t", {}) == {"/t": FileEntry(None, 0o755)}


def test_packed_files_belong_to_root() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack({"/t": FileEntry(None), "/t/file": FileEntry(b"")}))) as archive:
        assert {(member.uid, member.gid) for member in archive} == {(0, 0)}


@given(st.lists(st.binary(max_size=50)))
def test_chunks_read_like_one_stream(chunks: list[bytes]) -> None:
    assert io.BufferedReader(ChunkReader(iter(chunks)), 16).read() == b"".join(chunks)


# Files of environment/ of which no image is built: those that the task's hash names.

TOML = '[environment]\ndocker_image = "debian:bookworm-slim"\n'
STRAY = {"environment/__pycache__/x.pyc": "", "environment/.DS_Store": "", "environment/data~": ""}


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (STRAY, None),
        (STRAY | {"environment/.gitkeep": ""}, None),
        (STRAY | {"environment/Dockerfile": "FROM a\n", "environment/a": ""}, None),
        (STRAY | {"environment/a": "x", "environment/d/b": "", "environment/l": "-> a"}, ["a", "d", "d/b", "l"]),
    ],
)
def test_only_what_is_hashed_is_copied(make_task: Any, files: dict[str, str], names: list[str] | None) -> None:
    task = Task.read(write_task(make_task(toml=TOML, dockerfile=None), files))
    found, file = loose_files(agent_environment(task)), io.BytesIO()
    assert (found is None) == (names is None)
    if found is not None:
        found.pack(file)
        file.seek(0)
        with tarfile.open(fileobj=file) as archive:
            assert archive.getnames() == names
