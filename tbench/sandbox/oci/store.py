"""The directory of images and containers without an engine, and the programs of the distribution that work on it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.config.settings import NO_ENGINE
from tbench.errors import UsageError
from tbench.sandbox.owner import read_process
from tbench.text import one_line

PACKAGES = {
    "runc": "runc",
    "skopeo": "skopeo",
    "umoci": "umoci",
    "buildah": "buildah",
    "slirp4netns": "slirp4netns",
    "newuidmap": "uidmap",
}
"""Programs with the packages of Debian and Ubuntu that contain them."""
_RUN_SEC = 60.0
_NAMESPACE_REMEDY = (
    "if this user has no ids: 'sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER'; "
    "otherwise the machine allows namespaces only to root"
)
_SYSTEM_DIRECTORY = Path("/var/lib/tbench/oci")


class OciError(Exception):
    """A program failed; the message is its last output."""


def how_to_install(programs: list[str]) -> str:
    """Return the command that installs missing programs."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install --no-install-recommends {' '.join(PACKAGES.get(each, each) for each in programs)}"


def runtime_name() -> str:
    """Return the name of the program that starts containers."""
    return "runc" if shutil.which("runc") else "crun"


def missing_programs(*names: str) -> list[str]:
    """Return the programs that are not installed; crun counts as runc."""
    return [name for name in names if not shutil.which(name) and not (name == "runc" and shutil.which("crun"))]


@dataclass(frozen=True)
class Store:
    """The directory `root`, and how its programs are run: as root, or as root of a user namespace."""

    root: Path
    is_rootless: bool = field(default_factory=lambda: os.geteuid() != 0)

    @classmethod
    def at(cls, address: str) -> Store:
        """Return the store of an address such as `oci:` or `oci:/path`. Raises UsageError."""
        path = address.removeprefix(NO_ENGINE)
        if path and not Path(path).is_absolute():
            raise UsageError(f"{address}: not an absolute path; use {NO_ENGINE} or {NO_ENGINE}/path")
        store = cls(Path(path) if path else _default_directory())
        try:
            for folder in (store.images, store.names, store.containers):
                folder.mkdir(parents=True, exist_ok=True)
            store.containers.chmod(0o711)
        except OSError as error:
            raise UsageError(f"{address}: {error}; use {NO_ENGINE}/path with a directory that you may write") from None
        return store

    @property
    def option(self) -> str:
        """The option with which other commands use this store."""
        return f"--engine {NO_ENGINE}{'' if self.root == _default_directory() else self.root}"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def names(self) -> Path:
        """Directory of links from the names of images to their directories."""
        return self.root / "names"

    @property
    def containers(self) -> Path:
        return self.root / "containers"

    def require_programs(self) -> None:
        """Check that the programs for containers are installed and permitted. Raises UsageError with the remedy."""
        wanted = ["runc", "skopeo", "umoci", *(["newuidmap"] if self.is_rootless else [])]
        if missing := missing_programs(*wanted):
            raise UsageError(f"{NO_ENGINE} needs {', '.join(missing)}: {how_to_install(missing)}")
        try:
            subprocess.run([*self.as_root(), "true"], capture_output=True, text=True, check=True, timeout=_RUN_SEC)
        except (subprocess.SubprocessError, OSError) as error:
            why = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
            raise UsageError(f"{NO_ENGINE} needs a user namespace: {one_line(why, 200)}; {_NAMESPACE_REMEDY}") from None

    def as_root(self, pid: int | None = None) -> list[str]:
        """Return the words that, before a command, make it root in a new user namespace, or in process `pid`'s. Empty
        if it is root already.
        """
        if not self.is_rootless:
            return []
        if pid is None:
            return ["unshare", "--user", "--map-auto", "--map-root-user", "--"]
        return ["nsenter", "--target", str(pid), "--user", "--preserve-credentials", "--"]

    def runtime(self, *words: str) -> list[str]:
        """Return a command of the container runtime."""
        return [runtime_name(), "--root", str(self.root / "runtime"), *words]

    def remove_tree(self, path: Path) -> list[str]:
        """Return the command that removes a directory whose files may belong to other users."""
        return [*self.as_root(), "rm", "-rf", str(path)]


def _default_directory() -> Path:
    own = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser() / "tbench/oci"
    return own if os.geteuid() else _SYSTEM_DIRECTORY


async def run(argv: list[str], *, limit_sec: float = _RUN_SEC, log: list[str] | None = None) -> str:
    """Run a program and return its output, which is also appended to `log`. Raises OciError, TimeoutError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if log is not None else asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_sec):
            out, errors = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    output = out.decode("utf-8", "replace")
    if log is not None:
        log.append(output)
    if process.returncode:
        message = one_line((errors or out).decode("utf-8", "replace").strip()[-400:], 400)
        raise OciError(f"{argv[0] if argv[0] not in ('unshare', 'nsenter') else argv[argv.index('--') + 1]}: {message}")
    return output


@dataclass(frozen=True)
class State:
    """The stored facts of a container: who made it, and from which image."""

    labels: Mapping[str, str]
    image: str
    began_at: float
    pid: int = 0
    """Id of its first process; 0 before the start."""
    starttime: str = ""
    """Start time of that process, since process numbers are used again."""
    is_kept: bool = False
    reaches_internet: bool = False

    def write(self, directory: Path) -> None:
        """Write the state to the directory, atomically."""
        new = directory / "state.new"
        new.write_text(json.dumps(vars(self)))
        new.replace(directory / "state.json")

    @classmethod
    def read(cls, directory: Path) -> State | None:
        """Return a container's state; None if there is none."""
        try:
            return cls(**json.loads((directory / "state.json").read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    @property
    def is_running(self) -> bool:
        """Whether its first process still runs."""
        return bool(self.pid) and start_of(self.pid) == self.starttime != ""


def is_full(message: str) -> bool:
    """Whether a program failed because a disk is full."""
    return "no space left" in message.lower()


@contextlib.contextmanager
def held(directory: Path) -> Iterator[int]:
    """Lock a directory until the block and all programs that got the yielded file have ended. Raises OSError."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def is_held(directory: Path) -> bool:
    """Whether a process still holds the lock of a directory, because it writes there. Raises OSError."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def start_of(pid: int) -> str:
    """Return the start time of a process in clock ticks; empty if it has ended."""
    state, start = read_process(Path(f"/proc/{pid}")) or ("Z", "")
    return "" if state in "ZX" else start


def read_states(store: Store) -> Iterator[tuple[Path, State | None]]:
    """Yield the directories of all containers with their states."""
    for directory in sorted(store.containers.iterdir()):
        yield directory, State.read(directory)


def image_facts(directory: Path) -> dict[str, Any]:
    """Return the stored facts about an image, in the form of `docker inspect`. Raises OSError, ValueError."""
    facts: dict[str, Any] = json.loads((directory / "image.json").read_bytes())
    return facts
