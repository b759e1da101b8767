"""An agent's package as sandboxes get it: one archive, unpacked once on each engine and mounted read-only."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = "/opt/tbench/agent"
"""Mount point of the package in a sandbox: a folder of the tools."""


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
    file: Any = tar.extractfile(member) if member.isreg() else None
    content = "" if file is None else hashlib.file_digest(file, "sha256").hexdigest()
    return f"{member.name}\t{member.type!r}\t{member.mode:o}\t{member.linkname}\t{content}"
