"""The datasets that tbench knows by itself: index.json beside this file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tbench.datasets.known import KnownDataset, Piece, tag

OWN = "tbench"
WHERE = "tbench's own list"


@cache
def known_datasets() -> tuple[KnownDataset, ...]:
    """All of them, in the order of the file."""
    rows = json.loads((Path(__file__).parent / "index.json").read_text(encoding="utf-8"))
    return tuple(map(_dataset, rows))


def _dataset(row: dict[str, Any]) -> KnownDataset:
    revision = row.get("commit") or tag(row["tag"])
    return KnownDataset(
        name=row["name"],
        version=row["version"],
        source=OWN,
        pieces=(Piece(row["url"], revision, row.get("folder")),),
        aliases=tuple(row["aliases"]),
        description=row["description"],
        tasks=row.get("tasks"),
        trials_per_task=row.get("trials_per_task"),
        listed_commit=row.get("commit"),
    )
