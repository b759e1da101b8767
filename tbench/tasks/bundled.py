"""Directories of the bundled data: inside an installed wheel, else at the top of the checkout."""

from __future__ import annotations

from pathlib import Path


def tasks_dir() -> Path:
    """Directory of the bundled tasks."""
    return _data("tasks")


def images_dir() -> Path:
    """Directory of the recipes for base images and the tools volume."""
    return _data("images")


def _data(name: str) -> Path:
    inside = Path(__file__).parents[1] / "bundled" / name
    return inside if inside.is_dir() else Path(__file__).parents[2] / name
