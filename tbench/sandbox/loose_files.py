"""Files of environment/ of which no image is built: as in Harbor they are copied into the working directory."""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tbench.tasks.environment import Environment
from tbench.tasks.files import mode_of
from tbench.tasks.task import IMAGE_FILES

_NO_FILES = {".gitkeep"}


@dataclass(frozen=True)
class LooseFiles:
    """The files beside a published image that belong into the sandbox."""

    root: Path
    paths: tuple[Path, ...]

    def pack(self, file: IO[bytes]) -> None:
        """Write an archive of them to a file. Raises OSError."""
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in self.paths:
                add_path(archive, path.relative_to(self.root).as_posix(), path)


def loose_files(environment: Environment) -> LooseFiles | None:
    """What belongs into the sandbox beside a published image; None without any."""
    folder = environment.path
    if environment.folder != "environment" or not environment.settings.docker_image or not folder.is_dir():
        return None
    paths = tuple(environment.context_paths())
    names = {path.name for path in paths if path.parent == folder}
    return LooseFiles(folder, paths) if names - _NO_FILES and names.isdisjoint(IMAGE_FILES) else None


def add_path(archive: tarfile.TarFile, name: str, path: Path) -> None:
    """Add a file, folder or link to an archive: owned by root, with a mode as git has it. Others are left out."""
    member = tarfile.TarInfo(name)
    member.mtime = int(path.lstat().st_mtime)
    if path.is_symlink():
        member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
        archive.addfile(member)
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(member)
    elif path.is_file():
        with path.open("rb") as content:
            member.mode, member.size = mode_of(path), os.fstat(content.fileno()).st_size
            archive.addfile(member, content)
