"""What a builder gets: the files of a build context that the task's hash names, as an archive with the Dockerfile."""

from __future__ import annotations

import io
import os
import posixpath
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from tbench.compose.project import ImageBuild
from tbench.errors import TrialError
from tbench.sandbox.docker.dockerfile import without_syntax
from tbench.sandbox.loose_files import add_path
from tbench.tasks.dockerfile import copied_paths, takes
from tbench.tasks.environment import Environment

_IGNORE = ".dockerignore"
_NOTHING = re.compile(r"(?!)")
_NAME = ".tbench.Dockerfile"
"""Name in the archive of a Dockerfile that is not among the files of the context."""


@dataclass(frozen=True)
class BuildContext:
    """A build context. What its .dockerignore leaves out is not among its paths."""

    root: Path
    paths: tuple[Path, ...]
    dockerfile: str
    """Path of the Dockerfile in the archive."""
    text: str
    """Content of the Dockerfile; bytes that are no UTF-8 are surrogates."""
    is_visible: bool
    """Whether COPY sees the Dockerfile, as one file of the context."""
    ignored: str = ""
    """Content of the .dockerignore."""
    is_edited: bool = False
    """Whether the Dockerfile is other than its file."""

    @classmethod
    def of(cls, environment: Environment) -> BuildContext:
        """The context of a task's folder. Raises OSError, and TrialError where the hash leaves the Dockerfile out."""
        build, root = environment.build or ImageBuild("."), environment.path
        listed = environment.context_paths()
        within = {path.relative_to(root).as_posix(): path for path in listed}
        name = posixpath.normpath(build.dockerfile or "Dockerfile")
        if build.dockerfile and posixpath.isabs(name):
            name = os.path.relpath(name, root)
        is_own = build.inline is None and not name.startswith("../")
        if is_own and name not in within and (root / name).exists():
            why = f"{environment.dockerfile}: an ignore file keeps it out of the task's hash, so nothing is built of it"
            raise TrialError("image_build_failed", why)
        ignore = next((each for each in (f"{name}{_IGNORE}" if is_own else _IGNORE, _IGNORE) if each in within), None)
        ignored = "" if ignore is None else _text(within[ignore])
        try:
            leaves_out = _matcher(ignored)
        except re.error as error:
            raise TrialError("image_build_failed", f"{root / str(ignore)}: {error}") from None
        return cls(
            root,
            tuple(path for each, path in within.items() if not leaves_out(each)),
            name if is_own else _NAME,
            _text(environment.dockerfile) if build.inline is None else build.inline,
            is_own and not leaves_out(name),
            ignored,
        )

    @classmethod
    def of_folder(cls, folder: Path) -> BuildContext:
        """The context of a folder of tbench's own, whole."""
        paths = tuple(sorted(folder.rglob("*")))
        return cls(folder, paths, "Dockerfile", _text(folder / "Dockerfile"), is_visible=True)

    @property
    def may_show_dockerfile(self) -> bool:
        """Whether a COPY of it could take the Dockerfile along, though it is none of the context's files."""
        takes_any = "--mount" in self.text or any("$" in each for each in copied_paths(self.text))
        return not self.is_visible and (takes_any or takes(self.text, self.dockerfile))

    def without_syntax(self) -> BuildContext:
        """The same context, but for the line of the Dockerfile that names a frontend."""
        return replace(self, text=without_syntax(self.text), is_edited=True)

    def pack(self, file: IO[bytes], *, uses_buildkit: bool) -> None:
        """Write the archive. Owners are root, modes those of git."""
        added = {self.dockerfile: self.text} if self.is_edited or not self.is_visible else {}
        if not self.is_visible and not uses_buildkit:
            # What is said here, other builders take out of what COPY sees.
            added[_IGNORE] = f"{self.ignored or _IGNORE}\n{_NAME}\n" if self.dockerfile == _NAME else self.ignored
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in self.paths:
                if (name := path.relative_to(self.root).as_posix()) not in added:
                    add_path(archive, name, path)
            for name, content in added.items():
                data = content.encode("utf-8", "surrogateescape")
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _matcher(ignored: str) -> Callable[[str], bool]:
    """Whether a .dockerignore leaves a path out: the last line that matches it, or a folder above it, decides."""
    lines = [line.strip() for line in ignored.removeprefix("\ufeff").splitlines() if not line.startswith("#")]
    rules = [(line.startswith("!"), _pattern(line.removeprefix("!").strip())) for line in lines]

    def leaves_out(path: str) -> bool:
        parts = path.split("/")
        heads = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
        is_out = False
        for takes_back, pattern in rules:
            if takes_back == is_out and any(map(pattern.fullmatch, heads)):
                is_out = not takes_back
        return is_out

    return leaves_out


def _pattern(line: str) -> re.Pattern[str]:
    """What a line of a .dockerignore matches, by Docker's own rules. Raises re.error."""
    if not line or (cleaned := posixpath.normpath(line).lstrip("/")) in ("", "."):
        return _NOTHING

    def part(found: re.Match[str]) -> str:
        token = found[0]
        if token.startswith("**"):
            return ".*" if found.end() == len(cleaned) else "(?:.*/)?"
        return {"*": "[^/]*", "?": "[^/]"}.get(token) or (token if token in "[]^-" else re.escape(token[-1]))

    return re.compile(re.sub(r"\*\*/?|\\.|.", part, cleaned), re.DOTALL)
