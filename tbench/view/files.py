"""Files that a viewer serves: those of one folder, by URL path."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".xml": "application/atom+xml; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".cast": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
    ".png": "image/png",
}
_UNKNOWN = "application/octet-stream"
_LONGEST = 1024


@dataclass(frozen=True, slots=True)
class ServedFile:
    """File that may be served."""

    path: Path
    size: int
    mark: str
    """ETag, which changes with the content."""

    @property
    def content_type(self) -> str:
        return _TYPES.get(self.path.suffix, _UNKNOWN)


@dataclass(frozen=True, slots=True)
class ServedFolder:
    """Folder whose files are served, except links, hidden files, and anything below a linked or hidden folder."""

    root: Path

    def file(self, url_path: str) -> ServedFile | None:
        """Return the file for a URL path, or the index page of a folder; None if nothing may be served."""
        parts = _parts(url_path)
        if parts is None:
            return None
        found = self.root
        try:
            for part in parts:
                found = found / part
                if stat.S_ISLNK(found.lstat().st_mode):
                    return None
            if found.is_dir():
                found = found / "index.html"
            status = found.lstat()
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return ServedFile(found, status.st_size, f'"{status.st_mtime_ns:x}-{status.st_size:x}"')

    def is_folder(self, url_path: str) -> bool:
        """Whether a path names a folder but lacks the final slash that its relative links need."""
        parts = _parts(url_path)
        return parts is not None and not url_path.endswith("/") and self.root.joinpath(*parts).is_dir()


def _parts(url_path: str) -> list[str] | None:
    """Return the names in a path; None if it could leave the folder."""
    if len(url_path) > _LONGEST:
        return None
    names = [unquote(name) for name in url_path.split("/") if name]
    if any(name.startswith(".") or "/" in name or "\\" in name or "\0" in name for name in names):
        return None
    return names
