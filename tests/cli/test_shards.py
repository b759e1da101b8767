"""`tbench run --shard` and `tbench merge` as commands, in real containers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import in_process
import pytest

pytestmark = pytest.mark.engine


def test_shards_are_run_named_and_put_together(tmp_path: Path, tools_volume: str, make_task: Any) -> None:
    tasks = str(make_task("alpha").parent)
    make_task("beta")
    parts = [tmp_path / f"part-{index}" for index in (0, 1)]
    for index, part in enumerate(parts):
        words = ("-a", "nop", "-k", "2", "--verify", "shared", "--shard", f"{index}/2", "-o", str(part))
        done = in_process.tbench("run", tasks, *words)
        assert done.returncode == 0, done.stderr
        assert f"2 tasks × 2 seeds = 4 trials, of which shard {index}/2 has 2, 4 at once" in done.stdout + done.stderr
        assert f"no score of its own: shard {index}/2 has 2 of 4 trials, 0 solved (coverage 2/2)" in done.stdout
    merged = in_process.tbench("merge", *map(str, parts), "-o", str(tmp_path / "whole"), "--json")
    assert merged.returncode == 0, merged.stderr
    summary = json.loads(merged.stdout)
    assert summary["coverage"] == 1.0 and summary["counts"]["planned"] == 4 and summary["shard"] is None
    assert in_process.tbench("summary", str(tmp_path / "whole"), "--json").stdout == merged.stdout
    refused = in_process.tbench("merge", str(parts[0]), "-o", str(tmp_path / "half"))
    assert refused.returncode == 2 and refused.stderr.startswith("tbench: shard 1/2 is missing; give the directories")


@pytest.mark.parametrize("shard", ["2/2", "x"])
def test_a_number_out_of_range_is_refused_before_anything_starts(shard: str, tmp_path: Path) -> None:
    done = in_process.tbench("run", "-a", "nop", "--shard", shard, "-o", str(tmp_path / "run"))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "--shard: must be I/N with I from 0 to N-1" in done.stderr and not (tmp_path / "run").exists()
