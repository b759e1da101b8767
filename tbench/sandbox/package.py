"""An agent's package as sandboxes get it: one archive, unpacked once on each engine and mounted read-only."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "/opt/tbench/agent"
"""Mount point of the package in a sandbox: a folder of the tools."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class AgentPackage:
    """The package of an agent, in the cache of this machine."""

    title: str
    """Name and version, for messages."""
    archive: Path
    """A tar file of everything below `PACKAGE`."""
    sha256: str
    """Hash of the content."""
    architecture: str
    """Architecture of its programs, by Docker's name for it."""


def content_digest(archive: Path) -> str:
    """Return the sha256 of an archive's paths, kinds, modes and contents, whatever their times and order.

    Compiled Python code is left out: it follows from its source. Raises OSError and tarfile.TarError.
    """
    with tarfile.open(archive, "r:") as tar:
        lines = sorted(_line(tar, member) for member in tar if not member.name.endswith(".pyc"))
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _line(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    content = ""
    if member.isreg():
        digest = hashlib.sha256()
        for piece in _pieces(tar, member):
            digest.update(piece)
        content = digest.hexdigest()
    return f"{member.name}\t{member.type!r}\t{member.mode:o}\t{member.linkname}\t{content}"


def _pieces(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    if (file := tar.extractfile(member)) is not None:
        while piece := file.read(_CHUNK):
            yield piece
