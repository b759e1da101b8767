"""Records of nights: which directories have some, beside whatever else is called so."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_trees import a_result, write_run

from tbench.nightly.journal import Nights
from tbench.nightly.pages import write_pages


@pytest.mark.parametrize("content", ["", "[]", "{", '{"date": "2026-11-25"}', "\xff"])
def test_a_folder_called_nights_that_is_not_of_a_benchmark_keeps_no_pages_from_being_written(
    tmp_path: Path, content: str
) -> None:
    runs = tmp_path / "runs"
    write_run(runs / "one", [a_result("task", 0, 1.0)], {"task": "sha256:t"}, (0,))
    (runs / "nights" / "2026-11-25").mkdir(parents=True)
    (runs / "nights" / "2026-11-24.html").write_text("a page")
    (runs / "nights" / "2026-11-25" / "night.json").write_text(content, encoding="latin-1")
    assert not Nights(runs).has_nights
    written = write_pages([runs], tmp_path / "site")
    assert [each.row.path.name for each in written.site.runs] == ["one"]
