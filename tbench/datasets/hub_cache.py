"""Packages of Harbor's hub that Harbor has downloaded to this machine. The hub itself is not asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tbench.datasets.digests import MANIFEST, Publication, is_digest, read_publication
from tbench.datasets.known import HubPackage, KnownDataset
from tbench.datasets.reference import Named
from tbench.errors import UsageError

HARBOR = "harbor"
_HEX = re.compile(r"[0-9a-f]{64}")


def harbor_cache() -> Path:
    """Harbor's cache directory."""
    return Path.home() / ".cache" / "harbor"


def find_package(wanted: Named, root: Path) -> KnownDataset | None:
    """The dataset or the task ORG/NAME in the cache at `root`; None where it has neither.

    Raises UsageError where it is there in several contents, and where tasks of the dataset are missing.
    """
    organisation, _, name = wanted.name.partition("/")
    if not name:
        return None
    reference = wanted.version if wanted.version and is_digest(wanted.version) else None
    if (found := _one(root / "datasets" / organisation / name, reference, wanted)) is not None:
        manifest = found / MANIFEST
        if manifest.is_file():
            return _dataset(wanted, tuple(_packages(read_publication(manifest), root, manifest)))
    if (found := _one(root / "tasks" / "packages" / organisation / name, reference, wanted)) is not None:
        return _dataset(wanted, (HubPackage(name, found.name, found),))
    return None


def _dataset(wanted: Named, packages: tuple[HubPackage, ...]) -> KnownDataset:
    return KnownDataset(wanted.name, wanted.version, source=HARBOR, packages=packages, tasks=len(packages))


def _one(directory: Path, reference: str | None, wanted: Named) -> Path | None:
    """The only content of a package, or that which the reference names."""
    contents = sorted(path for path in directory.glob("*") if path.is_dir() and _HEX.fullmatch(path.name))
    if reference is not None:
        contents = [path for path in contents if f"sha256:{path.name}" == reference]
    if len(contents) > 1:
        known = ", ".join(f"sha256:{path.name}" for path in contents[:3])
        raise UsageError(f"{wanted}: {directory} holds {len(contents)} contents; write @ and one of {known}")
    return contents[0] if contents else None


def _packages(publication: Publication, root: Path, manifest: Path) -> Iterator[HubPackage]:
    for task in publication.tasks:
        organisation, _, name = task.name.rpartition("/")
        path = root / "tasks" / "packages" / organisation / name / task.hex
        if not path.is_dir():
            raise UsageError(
                f"{manifest}: {task.name} is not in Harbor's cache; fetch it with: harbor download {task.name}"
            )
        yield HubPackage(name, task.hex, path)
