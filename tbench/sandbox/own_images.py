"""Images of tbench's own, whose recipes are in images/: those of bundled tasks' bases, and the tools."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tbench.tasks.sources import images_dir


def base_images() -> list[tuple[str, str]]:
    """Return the base images, each with the Debian suite to build it from if it cannot be pulled."""
    lines = (images_dir() / "base-images.txt").read_text().splitlines()
    rows = (line.split() for line in lines if line.strip() and not line.startswith("#"))
    return [(image, suite) for image, suite in rows]


def tools_volume_name(recipe: Path | None = None) -> str:
    return f"tbench-tools-{recipe_hash(recipe or images_dir() / 'tools')}"


def recipe_hash(recipe: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in recipe.rglob("*") if path.is_file()):
        digest.update(path.relative_to(recipe).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def tools_tag(recipe: Path | None = None) -> str:
    """Return the name of the tools' image."""
    return f"tbench/tools:{recipe_hash(recipe or images_dir() / 'tools')}"
