"""Which models a night runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tbench.errors import UsageError
from tbench.nightly.checkpoints import Checkpoint, due, natural, slugs


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    for number in (1000, 900, 20):
        (tmp_path / f"step-{number}").mkdir()
    return tmp_path


def test_the_matches_of_a_glob_come_in_natural_order(steps: Path) -> None:
    found = due([f"{steps}/step-*"], set(), repeat=False)
    assert [each.name for each in found] == ["step-20", "step-900", "step-1000"]
    assert {each.lane for each in found} == {f"{steps}/step-*"}


def test_a_match_is_run_once_and_an_entry_without_wildcards_every_night(steps: Path) -> None:
    glob = f"{steps}/step-*"
    done = {(glob, f"{steps}/step-20"), ("latest", "latest")}
    assert [each.name for each in due(["latest", glob], done, repeat=False)] == ["latest", "step-900", "step-1000"]
    assert len(due(["latest", glob], done, repeat=True)) == 4


def test_a_glob_that_matches_nothing_is_told(steps: Path) -> None:
    with pytest.raises(UsageError, match=r"checkpoint-\*: matches nothing; check the path"):
        due([f"{steps}/checkpoint-*"], set(), repeat=False)


def test_checkpoints_that_are_called_alike_have_files_of_their_own() -> None:
    listed = [Checkpoint("a", "/x/run1/step-5"), Checkpoint("a", "/x/run2/step-5"), Checkpoint("b", "org/Model v2")]
    assert slugs(listed) == ["x-run1-step-5", "x-run2-step-5", "Model-v2"]
    assert slugs([Checkpoint("a", "??"), Checkpoint("a", "!!"), Checkpoint("a", "../..")])[:2] == ["model", "model-2"]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=70), max_size=4))
def test_names_of_files_are_safe_and_differ(paths: list[str]) -> None:
    found = slugs(Checkpoint("lane", path) for path in paths)
    assert len(set(found)) == len(found) == len(paths)
    assert all(name and "/" not in name and not name.startswith((".", "-")) for name in found)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=9), max_size=9))
def test_all_names_can_be_put_in_order(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural, reverse=True), key=natural) == sorted(names, key=natural)
