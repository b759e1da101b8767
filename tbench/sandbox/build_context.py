"""Contexts of image builds, packed as archives, and tags with a hash of their content."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tbench.compose.project import ImageBuild
from tbench.errors import TrialError
from tbench.sandbox.archive import add_path
from tbench.tasks.dockerfile import copied_paths, takes
from tbench.tasks.environment import Environment
from tbench.tasks.files import mode_of

_IGNORE = ".dockerignore"
_MATCHES_NOTHING = re.compile(r"(?!)")
_NAME = ".tbench.Dockerfile"
"""Name that a Dockerfile from outside the context has in the archive."""


@dataclass(frozen=True)
class BuildContext:
    """A build context: the files covered by the task's hash, without those that its .dockerignore excludes."""

    root: Path
    paths: tuple[Path, ...]
    dockerfile: str
    """Path of the Dockerfile in the archive."""
    text: str
    """Content of the Dockerfile; invalid UTF-8 is kept as surrogates."""
    is_visible: bool
    """Whether the Dockerfile is a file of the context that COPY can see."""
    ignored: str = ""
    """Content of the .dockerignore."""
    is_edited: bool = False
    """Whether `text` differs from the Dockerfile on disk."""

    @classmethod
    def for_environment(cls, environment: Environment) -> BuildContext:
        """Read the context of a task's folder. Raises OSError, and TrialError for a bad Dockerfile or .dockerignore."""
        build, root = environment.build or ImageBuild("."), environment.path
        listed = environment.context_paths()
        within = {path.relative_to(root).as_posix(): path for path in listed}
        name = posixpath.normpath(build.dockerfile or "Dockerfile")
        if build.dockerfile and posixpath.isabs(name):
            name = os.path.relpath(name, root)
        is_own = build.inline is None and not name.startswith("../")
        if is_own and name not in within and (root / name).exists():
            why = f"{environment.dockerfile}: excluded from the task's hash by an ignore file, so it cannot be built"
            raise TrialError("image_build_failed", why)
        ignore = next((each for each in (f"{name}{_IGNORE}" if is_own else _IGNORE, _IGNORE) if each in within), None)
        ignored = "" if ignore is None else _text(within[ignore])
        try:
            is_ignored = _matcher(ignored)
        except re.error as error:
            raise TrialError("image_build_failed", f"{root / str(ignore)}: {error}") from None
        return cls(
            root,
            tuple(path for each, path in within.items() if not is_ignored(each)),
            name if is_own else _NAME,
            _text(environment.dockerfile) if build.inline is None else build.inline,
            is_own and not is_ignored(name),
            ignored,
        )

    @classmethod
    def for_folder(cls, folder: Path) -> BuildContext:
        """Return a whole folder of tbench's own as a context."""
        paths = tuple(sorted(folder.rglob("*")))
        return cls(folder, paths, "Dockerfile", _text(folder / "Dockerfile"), is_visible=True)

    @property
    def may_copy_dockerfile(self) -> bool:
        """Whether a COPY could include the Dockerfile although it is excluded from the context."""
        takes_any = "--mount" in self.text or any("$" in each for each in copied_paths(self.text))
        return not self.is_visible and (takes_any or takes(self.text, self.dockerfile))

    def pack(self, file: IO[bytes], *, uses_buildkit: bool) -> None:
        """Write the context as a tar archive, owned by root and with git's modes."""
        added = {self.dockerfile: self.text} if self.is_edited or not self.is_visible else {}
        if not self.is_visible and not uses_buildkit:
            # The classic builders hide from COPY what this file excludes.
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


def _matcher(dockerignore: str) -> Callable[[str], bool]:
    """Return a predicate for paths excluded by a .dockerignore: the last line that matches a path or parent decides."""
    lines = [line.strip() for line in dockerignore.removeprefix("\ufeff").splitlines() if not line.startswith("#")]
    rules = [(line.startswith("!"), _pattern(line.removeprefix("!").strip())) for line in lines]

    def is_ignored(path: str) -> bool:
        parts = path.split("/")
        heads = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
        ignored = False
        for is_exception, pattern in rules:
            if is_exception == ignored and any(map(pattern.fullmatch, heads)):
                ignored = not is_exception
        return ignored

    return is_ignored


def _pattern(line: str) -> re.Pattern[str]:
    """Translate a line of a .dockerignore into a regular expression, by Docker's rules. Raises re.error."""
    if not line or (cleaned := posixpath.normpath(line).lstrip("/")) in ("", "."):
        return _MATCHES_NOTHING

    def part(found: re.Match[str]) -> str:
        token = found[0]
        if token.startswith("**"):
            return ".*" if found.end() == len(cleaned) else "(?:.*/)?"
        return {"*": "[^/]*", "?": "[^/]"}.get(token) or (token if token in "[]^-" else re.escape(token[-1]))

    return re.compile(re.sub(r"\*\*/?|\\.|.", part, cleaned), re.DOTALL)


def build_tag_if_unchanged(environment: Environment) -> str:
    """Return the build tag, after a check that the files match the task's hash. Raises TrialError(task_changed)."""
    tag = build_tag(environment)
    environment.require_unchanged()
    return tag


def build_tag(environment: Environment) -> str:
    """Return the tag `tbench/<task>:<hash>`, with a hash of paths, modes and bytes of environment/."""
    digest = hashlib.sha256()
    root = environment.path
    for path in environment.context_paths():
        relative = path.relative_to(root).as_posix()
        executable = path.is_file() and mode_of(path) & 0o100
        digest.update(f"{relative}\0{'x' if executable else '-'}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            digest.update(str(path.readlink()).encode("utf-8", "surrogateescape"))
        elif path.is_file():
            with path.open("rb") as file:  # may be large, so keep only the digest
                digest.update(hashlib.file_digest(file, "sha256").digest())
    if environment.build is not None and environment.build != ImageBuild(environment.build.context):
        digest.update(repr(environment.build).encode())
    slug = re.sub(r"[^a-z0-9]+", "-", environment.image_name.lower()).strip("-") or "task"
    return f"tbench/{slug}:{digest.hexdigest()[:16]}"
