"""Files in and out of sandboxes as tar archives."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tbench.sandbox.archive import ChunkReader, FileEntry, pack, read_tree, unpack

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


def test_a_tree_keeps_bytes_modes_and_empty_directories(tmp_path: Path) -> None:
    (tmp_path / "sub" / "empty").mkdir(parents=True)
    (tmp_path / "run.sh").write_bytes(b"#!\xff\0")
    (tmp_path / "run.sh").chmod(0o750)
    (tmp_path / "sub" / "data").write_bytes(b"")
    entries = read_tree(tmp_path, "/tests")
    assert next(iter(entries)) == "/tests"
    assert entries["/tests/run.sh"] == FileEntry(b"#!\xff\0", 0o750)
    assert entries["/tests/sub/empty"].data is None
    assert entries["/tests/sub/data"].data == b""


def test_symlinks_are_followed_to_files_and_to_directories(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "alias").symlink_to("real")
    (tmp_path / "again").symlink_to("real/file")
    entries = read_tree(tmp_path, "/t")
    assert entries["/t/again"].data == b"x"
    assert entries["/t/alias/file"].data == b"x"


def test_symlinks_that_go_round_in_circles_end(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(name.encode())
        (tmp_path / name / "link").symlink_to(f"../{other}")
    (tmp_path / "self").symlink_to(".")
    entries = read_tree(tmp_path, "/t")
    assert entries["/t/a/link/file"].data == b"b"
    assert len(entries) < 50


def test_packed_files_belong_to_root(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with tarfile.open(fileobj=io.BytesIO(pack(read_tree(tmp_path, "/t")))) as archive:
        assert {(member.uid, member.gid) for member in archive} == {(0, 0)}


@given(st.lists(st.binary(max_size=50)))
def test_chunks_read_like_one_stream(chunks: list[bytes]) -> None:
    assert io.BufferedReader(ChunkReader(iter(chunks)), 16).read() == b"".join(chunks)
