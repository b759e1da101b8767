"""Files of environment/ of which no image is built: as in Harbor they are copied into the working directory."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import IO

from tbench.tasks.environment import Environment
from tbench.tasks.task import IMAGE_FILES

_NO_FILES = {".gitkeep"}


def loose_files(environment: Environment) -> Path | None:
    """The folder beside a published image whose files belong into the sandbox; None without any."""
    folder = environment.path
    if environment.folder != "environment" or not environment.settings.docker_image or not folder.is_dir():
        return None
    names = {entry.name for entry in folder.iterdir()}
    return folder if names - _NO_FILES and names.isdisjoint(IMAGE_FILES) else None


def pack_folder(folder: Path, file: IO[bytes]) -> None:
    """Write an archive of what lies in a folder, owned by root, to a file. Raises OSError."""
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_owned_by_root)


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
