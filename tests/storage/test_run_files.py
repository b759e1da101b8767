"""Where the attempts at a trial keep their files."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tbench.storage.record_directory import RecordDirectory
from tbench.storage.run_files import RUN, attempts, is_abandoned, trial_directory


def test_a_trial_has_its_own_directory_and_later_attempts_lie_inside(tmp_path: Path) -> None:
    assert trial_directory(tmp_path, "t", 3) == tmp_path / "trials" / "t" / "seed-3"
    assert trial_directory(tmp_path, "t", 3, 2) == tmp_path / "trials" / "t" / "seed-3" / "attempt-2"


def test_attempts_are_known_by_what_they_left(tmp_path: Path) -> None:
    assert attempts(tmp_path, "t", 0) == {}
    second = trial_directory(tmp_path, "t", 0, 2)
    second.mkdir(parents=True)
    assert attempts(tmp_path, "t", 0) == {2: second}
    (trial_directory(tmp_path, "t", 0) / "steps.jsonl").touch()
    assert attempts(tmp_path, "t", 0) == {1: trial_directory(tmp_path, "t", 0), 2: second}


def test_a_run_is_abandoned_when_no_process_holds_its_journal(tmp_path: Path) -> None:
    with closing(RecordDirectory.create(tmp_path / "run", RUN, {})):
        assert not is_abandoned(tmp_path / "run")
    assert is_abandoned(tmp_path / "run")
    (tmp_path / "bare").mkdir()
    assert not is_abandoned(tmp_path / "bare")
