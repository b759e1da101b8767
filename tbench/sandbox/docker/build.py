"""Builds an image of a build context, by BuildKit or the engine's own builder, and names it by what it is built of."""

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
from tbench.sandbox.docker.sdk import asking_always
from tbench.tasks.dockerfile import copied_paths, takes
from tbench.tasks.environment import Environment
from tbench.tasks.files import mode_of
from tbench.text import one_line

# What a builder gets: the files of a build context that the task's hash names, as an archive with the Dockerfile.

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


_TRIES = 3
"""How often an image is built whose cached steps are removed meanwhile."""
_TRACE = "moby.buildkit.trace"
_VERTEX, _LOG = 1, 3
_STEP = re.compile(rb"\[(?!internal\])")
_SECRET = 8
"""How long a value of a build argument is at least that is not shown: a shorter one is no secret, and may be in any
word."""
_IMAGE_GONE = re.compile(r"(?<!@)sha256:[0-9a-f]{64}|layer does not exist")
"""In an error: an id that no Dockerfile names, so one that the builder had of the engine a moment before."""


class BuildFailed(Exception):
    """A build ended without an image; the message is the builder's last word."""


class BuildLog(list[str]):
    """What a builder says, piece by piece, without passwords."""

    def __init__(self, masks: Masks) -> None:
        super().__init__()
        self._masks = masks

    def append(self, text: str) -> None:
        super().append(self._masks.masked_text(text))


class CacheGone(BuildFailed):
    """A build went on from an image of the cache that somebody else removed under it, such as another run."""


def has_buildkit(engine: Engine) -> bool:
    """Whether the engine brings BuildKit, which is Docker's own; Podman's builder knows of itself what it does."""
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
    """Build through the SDK, with BuildKit or else the engine's own builder. Raises BuildFailed, TimeoutError.

    Output goes to `log`. Steps are on `network`, by default on the engine's own bridge; with `no_cache` every one is
    done. What the builder lost of its cache under it is built again, within the same limit.
    """
    ends = time.monotonic() + limit_sec
    client = asking_always(api, version="2") if uses_buildkit else api
    options = {"tag": tag, "labels": labels, "network_mode": network, "nocache": no_cache, "target": target}

    def attempt(context: BuildContext) -> None:
        retrying = Retrying(retry=retry_if_exception_type(CacheGone), stop=stop_after_attempt(_TRIES), reraise=True)
        with tempfile.TemporaryFile() as packed:
            context.pack(packed, uses_buildkit=uses_buildkit)
            named = {**options, "dockerfile": context.dockerfile, "buildargs": dict(args or {})}
            retrying(_build, client, packed, limit_sec, ends, log, **named)

    try:
        attempt(context)
    except BuildFailed as error:
        if not uses_buildkit or not _lacks_frontend(context.text, str(error)):
            raise
        log.append(f"{error}; the engine's own frontend builds instead\n")
        attempt(context.without_syntax())


def _lacks_frontend(dockerfile: str, error: str) -> bool:
    """Whether a build failed as Docker's own frontend, which the Dockerfile names, cannot be pulled."""
    name = (directive(dockerfile, "syntax") or "").partition("@")[0].partition(":")[0]
    is_docker = name in ("docker/dockerfile", "docker.io/docker/dockerfile")
    return is_docker and "docker/dockerfile" in error and "parse error" not in error


def _build(client: Any, packed: IO[bytes], limit_sec: float, ends: float, log: list[str], **options: Any) -> None:
    packed.seek(0)
    # The request's timeout bounds a silent step; a client that goes away makes the engine stop.
    left_sec = max(int(ends - time.monotonic()), 0) + 1
    stream = client.build(
        fileobj=packed, custom_context=True, rm=True, forcerm=True, decode=True, timeout=left_sec, **options
    )
    trace = _Trace([value for value in options["buildargs"].values() if len(value) >= _SECRET])
    try:
        for message in stream:
            if message.get("id") == _TRACE:
                with suppress(IndexError, KeyError, ValueError):  # of one that cannot be read there are no words
                    for line in trace.lines(b64decode(message["aux"])):
                        log.append(line)
            else:
                log.append(message.get("stream") or f"{message.get('status', '')}\n")
            # Without a build there is but a message.
            if (failed := message.get("error") or message.get("message")) is not None:
                raise (CacheGone if _IMAGE_GONE.search(failed) else BuildFailed)(failed)
            if time.monotonic() > ends:
                raise TimeoutError(f"longer than {limit_sec:.0f} s")
    finally:
        stream.close()


class _Trace:
    """Reads what BuildKit tells of a build, messages of its protocol: the steps that begin, and what they print."""

    def __init__(self, secrets: list[str]) -> None:
        """`secrets` are values that the names of steps show, but that are not to be seen."""
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
    """The fields of a message in the encoding of Protocol Buffers, but for plain numbers: their numbers and bytes."""
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
    """The builder's last words, to go at the end of a message; empty where there are none."""
    chatter = (" --->", "Removing intermediate container")
    last = [line for line in "".join(log).splitlines() if line.strip() and not line.startswith(chatter)][-2:]
    return f"; last lines: {one_line(' | '.join(last), 200)}" if last else ""


def tag_of_unchanged(environment: Environment) -> str:
    """The build tag of the files that the task's hash names. Raises TrialError(task_changed)."""
    tag = build_tag(environment)
    environment.require_unchanged()
    return tag


def build_tag(environment: Environment) -> str:
    """The tag `tbench/<task>:<hash>` of paths, modes and bytes of environment/: the same content is built once."""
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
