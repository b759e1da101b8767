"""What is removed of old nights, and what never is."""

from __future__ import annotations

from pathlib import Path

import pytest
from nightly_bench import NightlyBench

from tbench.nightly.journal import NightRecord, Nights
from tbench.nightly.pruning import prune_night
from tbench.storage.record_directory import RecordDirectory
from tbench.storage.run_files import RUN


@pytest.fixture
def night(bench: NightlyBench) -> NightRecord:
    bench.write()
    return bench.night("n1")


def recordings(bench: NightlyBench) -> list[Path]:
    return sorted(bench.directory.rglob("session.cast"))


def test_a_night_loses_its_large_files_once(bench: NightlyBench, night: NightRecord) -> None:
    nights = Nights(bench.directory)
    assert prune_night(nights, night) == (8 * 3 * 1000, [])
    assert prune_night(nights, night) == (0, [])


def test_a_run_that_is_being_written_is_left_alone(bench: NightlyBench, night: NightRecord) -> None:
    records = RecordDirectory.go_on(bench.directory / "runs" / "n1_m", RUN)
    freed, problems = prune_night(Nights(bench.directory), night)
    records.close()
    assert freed == 0 and problems[0].endswith("not pruned: it is being written") and len(recordings(bench)) == 8


def test_what_is_not_ours_is_left_alone(bench: NightlyBench, night: NightRecord, tmp_path: Path) -> None:
    run = bench.directory / "runs" / "n1_m"
    (tmp_path / "elsewhere").mkdir()
    for name in ("session.cast", "notes.txt"):
        (tmp_path / "elsewhere" / name).write_text("mine")
    (run / "trials" / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (run / "trials" / "alpha" / "trajectory.json").symlink_to(tmp_path / "elsewhere" / "notes.txt")
    (run / "trials" / "alpha" / "mine.txt").write_text("mine")
    prune_night(Nights(bench.directory), night)
    assert (tmp_path / "elsewhere" / "session.cast").exists() and (run / "trials" / "alpha" / "mine.txt").exists()
    assert (run / "trials" / "alpha" / "trajectory.json").is_symlink()


@pytest.mark.parametrize(
    "how", ["a link", *(pytest.param(how, marks=pytest.mark.slow) for how in ("another run", "no run"))]
)
def test_a_directory_that_the_night_has_not_made_is_left_alone(
    bench: NightlyBench, night: NightRecord, how: str
) -> None:
    run = bench.directory / "runs" / "n1_m"
    if how == "another run":
        (run / "run.json").write_text('{"run": "other"}')
    elif how == "no run":
        (run / "run.json").unlink()
    else:
        run.rename(bench.folder / "moved")
        run.symlink_to(bench.folder / "moved")
    freed, problems = prune_night(Nights(bench.directory), night)
    assert freed == 0 and problems == [f"{run}: not pruned: it is not the run that this night has made"]
