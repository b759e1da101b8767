"""Names and versions: which dataset is meant, and what is said where none is."""

from __future__ import annotations

import re

import pytest

from tbench.datasets.known_dataset import Access, KnownDataset, choose
from tbench.datasets.reference import DatasetName, GitSource, is_commit, usable_folder, usable_url
from tbench.datasets.resolve import find_dataset, known_datasets
from tbench.errors import UsageError


def versions(*names: str | None) -> list[KnownDataset]:
    return [KnownDataset("made-up", name, "test", (GitSource("https://host/x", str(name)),)) for name in names]


def chosen(wanted: str | None, *names: str | None) -> str | None:
    found = choose(DatasetName("made-up", wanted), versions(*names), "the test")
    return found.version if found else "none"


def test_without_a_version_head_is_meant_or_else_the_highest_one() -> None:
    assert chosen(None, "2.0", "10.0", "9.5") == "10.0"
    assert chosen(None, "2.0", "head", "9.5") == "head"
    assert chosen("latest", "2.0", "2.1") == "2.1"
    assert chosen(None, "alpha", "beta") == "beta"
    assert chosen(None, None) is None


def test_a_version_may_leave_out_zeros_at_its_end_and_a_v_in_front() -> None:
    assert chosen("3.0", "2.0", "3.0.0") == "3.0.0"
    assert chosen("v3", "2.0", "3.0.0") == "3.0.0"
    assert chosen("3.0.0", "3.0", "3.0.1") == "3.0"
    assert chosen("3.1", "3.0", "3.0.1") == "none"


def test_an_unknown_version_is_answered_with_those_that_there_are() -> None:
    words = r"terminal-bench@2\.2: no such version in tbench's own list; there are 2\.0, 2\.1, 3\.0\.0, 4\.0\.0"
    with pytest.raises(UsageError, match=words):
        find_dataset(DatasetName("terminal-bench", "2.2"), Access())


def test_two_datasets_of_one_name_and_version_that_differ_are_refused() -> None:
    one = KnownDataset("made-up", "1", "test", (GitSource("https://host/x", "a"),))
    other = KnownDataset("made-up", "1", "test", (GitSource("https://host/x", "b"),))
    with pytest.raises(UsageError, match="made-up@1: the test has 2 different entries; remove all but one"):
        choose(DatasetName("made-up", "1"), [one, other], "the test")
    assert choose(DatasetName("made-up", "1"), [one, one], "the test") == one
    assert choose(DatasetName("another", "1"), [one], "the test") is None


def test_the_packaged_list_is_sound() -> None:
    titles = [dataset.title for dataset in known_datasets()]
    assert len(titles) == len(set(titles)) == 17
    for dataset in known_datasets():
        (piece,) = dataset.pieces
        assert usable_url(piece.url, "index") == piece.url
        assert piece.is_fixed and (is_commit(piece.revision) or piece.revision == "refs/tags/v3.0.0")
        assert piece.folder is None or usable_folder(piece.folder, "index") == piece.folder
        assert dataset.description and not re.search(r"[^ -~]", dataset.description)


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("terminal-bench@2.1", "terminal-bench@2.1"),
        ("terminal-bench@3.0", "terminal-bench@3.0.0"),
        ("terminal-bench", "terminal-bench@4.0.0"),
        ("terminal-bench/terminal-bench@4.0.0", "terminal-bench@4.0.0"),
        ("terminal-bench/terminal-bench-2-1@latest", "terminal-bench@2.1"),
        ("tblite", "openthoughts-tblite@2.0"),
        ("swebench-verified@1.0", "swebench-verified@1.0"),
    ],
)
def test_the_named_benchmarks_are_known(said: str, title: str) -> None:
    name, _, version = said.partition("@")
    assert find_dataset(DatasetName(name, version or None), Access()).title == title


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(UsageError) as raised:
        find_dataset(DatasetName("terminl-bench", "2.1"), Access())
    assert str(raised.value) == (
        "terminl-bench@2.1: no such directory, and no dataset of this name in tbench's own list; "
        "did you mean terminal-bench@2.1?"
    )
    with pytest.raises(UsageError, match=r"did you mean terminal-bench@2\.0 or terminal-bench@2\.1 or"):
        find_dataset(DatasetName("terminl-bench", None), Access())
    with pytest.raises(UsageError, match="see tbench dataset list"):
        find_dataset(DatasetName("qqqq", None), Access())
    with pytest.raises(UsageError, match="harbor download some/package@1"):
        find_dataset(DatasetName("some/package", "1"), Access())
