"""Builds images with BuildKit or the engine's classic builder, and tags them with a hash of their build context."""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import re
import tarfile
import tempfile
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from tbench.compose.project import ImageBuild
from tbench.errors import TrialError
from tbench.sandbox.archive import add_path
from tbench.sandbox.container_proxy import Masks
from tbench.sandbox.docker.dockerfile import directive, without_syntax
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.sdk import with_parameters
from tbench.tasks.dockerfile import copied_paths, takes
from tbench.tasks.environment import Environment
from tbench.tasks.files import mode_of
from tbench.text import one_line

_IGNORE = ".dockerignore"
_MATCHES_NOTHING = re.compile(r"(?!)")
_NAME = ".tbench.Dockerfile"
"""Name in the archive of a Dockerfile that is not a file of the context."""


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
    """Whether `text` differs from the file."""

    @classmethod
    def of(cls, environment: Environment) -> BuildContext:
        """Read the context of a task's folder. Raises OSError, and TrialError if the hash excludes the Dockerfile."""
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
    def of_folder(cls, folder: Path) -> BuildContext:
        """Return all of a folder of tbench's own as context."""
        paths = tuple(sorted(folder.rglob("*")))
        return cls(folder, paths, "Dockerfile", _text(folder / "Dockerfile"), is_visible=True)

    @property
    def may_copy_dockerfile(self) -> bool:
        """Whether a COPY could include the Dockerfile although it is excluded from the context."""
        takes_any = "--mount" in self.text or any("$" in each for each in copied_paths(self.text))
        return not self.is_visible and (takes_any or takes(self.text, self.dockerfile))

    def without_syntax(self) -> BuildContext:
        """Return this context without the Dockerfile's `syntax` directive."""
        return replace(self, text=without_syntax(self.text), is_edited=True)

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


_ATTEMPTS = 3
"""Attempts at a build whose cached images are removed meanwhile."""
_TRACE = "moby.buildkit.trace"
_VERTEX, _LOG = 1, 3
_STEP = re.compile(rb"\[(?!internal\])")
_MIN_SECRET_LENGTH = 8
"""Minimum length of a build argument's value to be hidden; a shorter one is not a secret, and may occur in any word."""
_IMAGE_GONE = re.compile(r"(?<!@)sha256:[0-9a-f]{64}|layer does not exist")
"""Matches an error about an image id, which no Dockerfile contains, so the builder took it from its cache."""


class BuildFailed(Exception):
    """A build ended without an image; the message is the builder's."""


class BuildLog(list[str]):
    """Output of a builder in pieces, with passwords masked."""

    def __init__(self, masks: Masks) -> None:
        super().__init__()
        self._masks = masks

    def append(self, text: str) -> None:
        super().append(self._masks.masked_text(text))


class CacheGone(BuildFailed):
    """A cached image that a build needed was removed meanwhile, for example by another run."""


def has_buildkit(engine: Engine) -> bool:
    """Whether the engine has BuildKit, as Docker does; Podman has its own builder."""
    return not engine.info.is_podman and tuple(map(int, engine.api.api_version.split("."))) >= (1, 39)


def build(
    api: Any,
    context: BuildContext,
    tag: str,
    *,
    limit_sec: float,
    labels: dict[str, str],
    log: list[str],
    args: Mapping[str, str] | None = None,
    target: str | None = None,
    network: str | None = None,
    no_cache: bool = False,
    uses_buildkit: bool = False,
) -> None:
    """Build an image with BuildKit or the engine's classic builder. Raises BuildFailed, TimeoutError.

    Output is appended to `log`. Steps use `network` (default: the engine's own bridge); `no_cache` runs all of them.
    If cached images vanish during the build, it is repeated within the same time limit.
    """
    ends = time.monotonic() + limit_sec
    client = with_parameters(api, version="2") if uses_buildkit else api
    options = {"tag": tag, "labels": labels, "network_mode": network, "nocache": no_cache, "target": target}

    def attempt(context: BuildContext) -> None:
        retrying = Retrying(retry=retry_if_exception_type(CacheGone), stop=stop_after_attempt(_ATTEMPTS), reraise=True)
        with tempfile.TemporaryFile() as packed:
            context.pack(packed, uses_buildkit=uses_buildkit)
            named = {**options, "dockerfile": context.dockerfile, "buildargs": dict(args or {})}
            retrying(_build, client, packed, limit_sec, ends, log, **named)

    try:
        attempt(context)
    except BuildFailed as error:
        if not uses_buildkit or not _lacks_frontend(context.text, str(error)):
            raise
        log.append(f"{error}; building with the engine's own frontend instead\n")
        attempt(context.without_syntax())


def _lacks_frontend(dockerfile: str, error: str) -> bool:
    """Whether a build failed because Docker's frontend, named in the Dockerfile, cannot be pulled."""
    name = (directive(dockerfile, "syntax") or "").partition("@")[0].partition(":")[0]
    is_docker = name in ("docker/dockerfile", "docker.io/docker/dockerfile")
    return is_docker and "docker/dockerfile" in error and "parse error" not in error


def _build(client: Any, packed: IO[bytes], limit_sec: float, ends: float, log: list[str], **options: Any) -> None:
    packed.seek(0)
    # The request's timeout limits a silent step; the engine stops when the client disconnects.
    left_sec = max(int(ends - time.monotonic()), 0) + 1
    stream = client.build(
        fileobj=packed, custom_context=True, rm=True, forcerm=True, decode=True, timeout=left_sec, **options
    )
    trace = _Trace([value for value in options["buildargs"].values() if len(value) >= _MIN_SECRET_LENGTH])
    try:
        for message in stream:
            if message.get("id") == _TRACE:
                with suppress(IndexError, KeyError, ValueError):  # unreadable messages are skipped
                    for line in trace.lines(b64decode(message["aux"])):
                        log.append(line)
            else:
                log.append(message.get("stream") or f"{message.get('status', '')}\n")
            # If the build does not even start, there is only a message.
            if (failed := message.get("error") or message.get("message")) is not None:
                raise (CacheGone if _IMAGE_GONE.search(failed) else BuildFailed)(failed)
            if time.monotonic() > ends:
                raise TimeoutError(f"longer than {limit_sec:.0f} s")
    finally:
        stream.close()


class _Trace:
    """Parses BuildKit's trace messages into lines: the steps that begin, and their output."""

    def __init__(self, secrets: list[str]) -> None:
        """`secrets` are values to be hidden in the names of steps."""
        self._begun: set[bytes] = set()
        self._secrets = secrets

    def lines(self, message: bytes) -> Iterator[str]:
        for kind, data in _fields(message):
            fields = dict(_fields(data)) if kind in (_VERTEX, _LOG) else {}
            if kind == _LOG:
                yield fields.get(4, b"").decode("utf-8", "replace")
            elif _STEP.match(fields.get(3, b"")) and 5 in fields and fields[1] not in self._begun:
                self._begun.add(fields[1])
                yield f"{self._shown(fields[3].decode('utf-8', 'replace'))}\n"

    def _shown(self, name: str) -> str:
        for secret in self._secrets:
            name = name.replace(secret, "...")
        return name


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Parse a Protocol Buffers message; yields number and bytes of each field except plain integers."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if message[at - 1] < 0x80:
                return value

    while at < len(message):
        key = number()
        if key & 7 == 0:
            number()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or number()
            yield key >> 3, message[at : at + length]
            at += length


def last_lines(log: list[str]) -> str:
    """Return the builder's last lines as the end of a message; empty if there are none."""
    chatter = (" --->", "Removing intermediate container")
    last = [line for line in "".join(log).splitlines() if line.strip() and not line.startswith(chatter)][-2:]
    return f"; last lines: {one_line(' | '.join(last), 200)}" if last else ""


def tag_of_unchanged(environment: Environment) -> str:
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
            with path.open("rb") as file:  # of any size: only its digest is held
                digest.update(hashlib.file_digest(file, "sha256").digest())
    if environment.build is not None and environment.build != ImageBuild(environment.build.context):
        digest.update(repr(environment.build).encode())
    slug = re.sub(r"[^a-z0-9]+", "-", environment.image_name.lower()).strip("-") or "task"
    return f"tbench/{slug}:{digest.hexdigest()[:16]}"
