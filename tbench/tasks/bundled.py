"""Where the bundled data lies: inside an installed wheel, else at the top of the checkout."""

from __future__ import annotations

from pathlib import Path


def tasks_dir() -> Path:
    return _data("tasks")


def images_dir() -> Path:
    return _data("images")


def _data(name: str) -> Path:
    inside = Path(__file__).parents[1] / "bundled" / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name
