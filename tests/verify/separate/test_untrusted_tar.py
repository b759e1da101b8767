"""Untrusted archives: those of ordinary programs are read, anything else is refused, within limits."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.verify.separate.untrusted_tar import (
    END,
    BrokenArchive,
    Copied,
    CopyBudget,
    TooManyEntries,
    copy_safe_entries,
    members,
)

LONG = "a" * 90 + "/" + "b" * 90 + "/" + "c" * 200
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=120)


def packed(*entries: tarfile.TarInfo | tuple[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive with these entries; a name with content is a plain file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for entry in entries:
            info, data = (entry, b"") if isinstance(entry, tarfile.TarInfo) else (tarfile.TarInfo(entry[0]), entry[1])
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        end = archive.offset
    return buffer.getvalue()[:end] + END


def entry(name: str, kind: bytes, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def copied(
    raw: bytes, show_at: Path | None = None, budget: CopyBudget | None = None
) -> tuple[Copied, dict[str, tarfile.TarInfo]]:
    """Copy an archive to /app/out; return the result and the entries that were written."""
    out = io.BytesIO()
    found = copy_safe_entries(io.BytesIO(raw + END), out, "/app/out", budget or CopyBudget(1000, 1 << 20), show_at)
    out.write(END)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        return found, {member.name: member for member in archive}


ROOT = entry(".", tarfile.DIRTYPE)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=2000)), min_size=1, max_size=8))
def test_what_tarfile_writes_is_read_back(files: list[tuple[str, bytes]]) -> None:
    raw = io.BytesIO(packed(*files) + packed())
    found = [(member.name, raw.read(member.size)) for member in members(raw)]
    assert found == [(name, data) for name, data in files]
    assert not raw.read()


def test_long_names_of_several_formats_are_read() -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        name = LONG[:181] if form == tarfile.USTAR_FORMAT else LONG
        assert [member.name for member in members(io.BytesIO(packed((name, b"x"), form=form) + END))] == [name]


def test_archives_follow_each_other_up_to_an_empty_one() -> None:
    raw = io.BytesIO(packed(("a", b"1")) + packed(("b", b"2")) + packed() + packed(("c", b"3")) + packed())
    assert [member.name for member in members(raw)] == ["a", "b"]
    assert [member.name for member in members(raw)] == ["c"]


@given(st.binary(max_size=3000))
def test_what_is_no_archive_is_broken_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(BrokenArchive):
        list(members(io.BytesIO(raw)))


@given(st.data())
def test_a_damaged_archive_is_read_in_part_or_broken(data: st.DataObject) -> None:
    raw = bytearray(packed(ROOT, ("a/b", b"x" * 700), entry("a/c", tarfile.SYMTYPE, "b"), (LONG, b"y")))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    out = io.BytesIO()
    try:
        copy_safe_entries(io.BytesIO(cut + 2 * END), out, "/app/out", CopyBudget(1000, 0), None)
    except BrokenArchive:
        return
    out.write(END)
    assert all(each.name.startswith("app/out") for each in members(io.BytesIO(out.getvalue() + END)))


def test_a_name_that_is_longer_than_any_file_system_has_is_broken() -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 20
    with pytest.raises(BrokenArchive, match="a header of 1048576 bytes"):
        list(members(io.BytesIO(header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20) + END)))


def test_no_header_leads_back_or_asks_for_itself_again() -> None:
    back = tarfile.TarInfo("x")
    back.size = -1 << 20
    nested = tarfile.TarInfo("././@LongLink")
    nested.type = tarfile.GNUTYPE_LONGNAME
    for raw in (back.tobuf(tarfile.GNU_FORMAT), nested.tobuf(tarfile.GNU_FORMAT) * 5000):
        with pytest.raises(BrokenArchive):
            list(members(io.BytesIO(raw + END)))


# -- what is copied --------------------------------------------------------------------------


def test_files_folders_and_links_within_are_copied_for_root() -> None:
    raw = packed(
        ROOT,
        entry("./d", tarfile.DIRTYPE, mode=0o700),
        ("./d/f", b"one"),
        entry("./link", tarfile.SYMTYPE, "d/../d/f"),
        entry("./same", tarfile.LNKTYPE, "./d/f"),
    )
    found, entries = copied(raw)
    assert (found.kind, found.files, found.skipped) == ("directory", 1, [])
    assert list(entries) == ["app/out", "app/out/d", "app/out/d/f", "app/out/link", "app/out/same"]
    assert (entries["app/out"].mode, entries["app/out/d"].mode) == (0o777, 0o755)
    assert entries["app/out/same"].linkname == "app/out/d/f"
    assert {(each.uid, each.gid, each.uname) for each in entries.values()} == {(0, 0, "")}


def test_a_file_in_the_place_of_an_earlier_artifacts_hard_link_is_left_to_the_link() -> None:
    budget, out = CopyBudget(1000, 0), io.BytesIO()
    first = packed(ROOT, ("./a", b"one"), entry("./sub", tarfile.DIRTYPE), entry("./sub/b", tarfile.LNKTYPE, "./a"))
    second = packed(ROOT, ("./b", b"one"), ("./c", b"two"))
    for raw, path in ((first, "/app/out"), (second, "/app/out/sub")):
        found = copy_safe_entries(io.BytesIO(raw + END), out, path, budget, None)
    out.write(END)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        entries = [(member.name, member.type) for member in archive]
    assert entries[-2:] == [("app/out/sub", tarfile.DIRTYPE), ("app/out/sub/c", tarfile.REGTYPE)]
    assert entries.count(("app/out/sub/b", tarfile.LNKTYPE)) == 1 and found.files == 2


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (entry("./x", tarfile.SYMTYPE, "/logs/verifier"), "a link that leads out of the artifact, to /logs/verifier"),
        (entry("./x", tarfile.SYMTYPE, "../../tests"), "a link that leads out of the artifact, to ../../tests"),
        (entry("./x", tarfile.SYMTYPE, ""), "a link that leads out of the artifact, to "),
        (entry("./x", tarfile.LNKTYPE, "../../tests/test.sh"), "not a file, folder or valid link"),
        (entry("./x", tarfile.LNKTYPE, "gone"), "not a file, folder or valid link"),
        (entry("./x", tarfile.CHRTYPE), "not a file, folder or valid link"),
        (entry("./x", tarfile.FIFOTYPE), "not a file, folder or valid link"),
        (entry("./x", tarfile.GNUTYPE_SPARSE), "not a file, folder or valid link"),
        (entry("../x", tarfile.REGTYPE), "its name leads out of the artifact"),
        (entry("/x", tarfile.REGTYPE), "its name leads out of the artifact"),
        (entry("a/../../x", tarfile.DIRTYPE), "its name leads out of the artifact"),
    ],
)
def test_entries_that_lead_out_or_are_no_files_are_skipped_and_listed(bad: tarfile.TarInfo, why: str) -> None:
    found, entries = copied(packed(ROOT, bad, ("./after", b"x")))
    assert list(entries) == ["app/out", "app/out/after"]
    assert found.skipped == [f"{bad.name.removeprefix('./')}: {why}"]


def test_nothing_is_written_through_a_link_or_over_another_entry(tmp_path: Path) -> None:
    raw = packed(
        ROOT,
        entry("./d", tarfile.DIRTYPE),
        entry("./l", tarfile.SYMTYPE, "d"),
        ("./l/x", b"through"),
        ("./f", b"first"),
        ("./f", b"second"),
        ("./f/x", b"below a file"),
        entry("./d", tarfile.SYMTYPE, "f"),
    )
    found, entries = copied(raw, tmp_path / "shown")
    assert sorted(entries) == ["app/out", "app/out/d", "app/out/f", "app/out/l"]
    assert entries["app/out/d"].isdir()
    assert [words.partition(":")[0] for words in found.skipped] == ["l/x", "f/x"]
    assert (tmp_path / "shown" / "f").read_bytes() == b"first"


@pytest.mark.parametrize(
    ("mode", "kept"), [(0o4755, 0o755), (0o2777, 0o755), (0o666, 0o644), (0o000, 0o600), (0o611, 0o600)]
)
def test_no_file_is_setuid_or_written_by_others_and_its_owner_reads_it(mode: int, kept: int) -> None:
    file = entry("./f", tarfile.REGTYPE, mode=mode)
    assert copied(packed(ROOT, file))[1]["app/out/f"].mode == kept


def test_a_single_file_is_at_its_path(tmp_path: Path) -> None:
    found, entries = copied(packed(("./out", b"42")), tmp_path / "out")
    assert (found.kind, list(entries), (tmp_path / "out").read_bytes()) == ("file", ["app/out"], b"42")


def test_a_link_in_place_of_a_file_is_nothing() -> None:
    assert copied(packed(entry("./out", tarfile.SYMTYPE, "other")))[0].kind == "nothing"


def test_files_are_shown_within_the_budget(tmp_path: Path) -> None:
    raw = packed(ROOT, ("./a", b"x" * 600), ("./b", b"x" * 600), ("./c", b"x" * 300))
    copied(raw, tmp_path, CopyBudget(1000, 1000))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]


def test_names_that_the_host_cannot_have_are_in_the_archive_alone(tmp_path: Path) -> None:
    name = "./" + "/".join(["n" * 250] * 20)
    found, entries = copied(packed(ROOT, (name, b"x"), ("./\x1b[2J", b"y")), tmp_path)
    assert found.files == 2 and len(entries) == 3
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"?[2J"}


def test_too_many_entries_are_refused() -> None:
    with pytest.raises(TooManyEntries):
        copied(packed(ROOT, *((f"./{number}", b"") for number in range(20))), budget=CopyBudget(10, 0))
