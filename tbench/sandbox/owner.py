"""Labels and names of tbench's containers, networks, volumes and images on an engine, and the processes that own them.

Whether a process still runs can only be seen within the same boot and pid namespace. Processes of this machine's
earlier boots are gone. All others may be alive, and are left to their own machine.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import astuple, dataclass
from enum import StrEnum
from pathlib import Path

_PROC = Path("/proc")
_NO_BOOT = "unknown"


class OwnerState(StrEnum):
    """Whether an owner still runs, as far as this process can see."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """The owner cannot be seen from this process."""


@dataclass(frozen=True)
class Owner:
    """A process, identified by pid, start time, pid namespace, boot and machine."""

    pid: str
    start: str
    """Start time in clock ticks since boot."""
    boot: str
    namespace: str
    """Number of its pid namespace, from /proc/PID/ns/pid."""
    machine: str
    """Hash of the machine's id; empty if it has none."""
    host: str
    kind: str = ""
    """Kind of a process that is not a run: `actor` on a node of a Ray cluster; empty for a run."""

    @classmethod
    def of_this_process(cls, proc: Path = _PROC, kind: str = "") -> Owner:
        return cls(
            pid=str(os.getpid()),
            start=(read_process(proc / "self") or ("", ""))[1],
            boot=_read(proc / "sys/kernel/random/boot_id") or _NO_BOOT,
            namespace=_namespace(proc),
            machine=_machine(),
            host=socket.gethostname().replace(":", "-"),
            kind=kind,
        )

    @classmethod
    def parse(cls, label: str) -> Owner | None:
        """Parse an owner label; None if it is invalid."""
        parts = label.split(":")
        return cls(*parts) if len(parts) in (6, 7) and parts[0].isdigit() else None

    def label(self) -> str:
        return ":".join(astuple(self)).removesuffix(":")

    def seen_from(self, here: Owner, proc: Path = _PROC) -> tuple[OwnerState, str]:
        """Return whether this owner still runs, and the reason as a text."""
        same_machine = bool(here.machine) and (self.machine, self.host) == (here.machine, here.host)
        same_boot = self.boot == here.boot and (self.boot != _NO_BOOT or same_machine)
        if same_boot and self.namespace == here.namespace:
            return self._state(proc)
        if same_boot:
            return (
                OwnerState.UNKNOWN,
                f"its process {self.pid} is in another container or pid namespace ({self.host})",
            )
        if same_machine and self.namespace == here.namespace:
            return OwnerState.GONE, "this machine has been rebooted since"
        return OwnerState.UNKNOWN, f"its process {self.pid} belongs to another machine ({self.host})"

    def _state(self, proc: Path) -> tuple[OwnerState, str]:
        found = read_process(proc / self.pid)
        if found is None and _exists(int(self.pid)):
            return OwnerState.UNKNOWN, f"process {self.pid} runs, but cannot be inspected"  # hidepid
        # A zombie has ended, even if its parent has not waited for it.
        if found is not None and found[1] == self.start and found[0] not in "ZX":
            return OwnerState.ALIVE, f"its process {self.pid} still runs"
        return OwnerState.GONE, f"its process {self.pid} is gone"


def owner() -> str:
    """Return the owner label of this process."""
    return Owner.of_this_process().label()


def owner_state(label: str) -> tuple[OwnerState, str]:
    """Return whether the process of an owner label still runs, and the reason as a text."""
    named = Owner.parse(label)
    if named is None:
        return OwnerState.UNKNOWN, "its label names no owner"
    return named.seen_from(Owner.of_this_process())


def read_process(directory: Path) -> tuple[str, str] | None:
    """Read a process's state letter and start time (clock ticks since boot) from its directory of /proc."""
    stat = _read(directory / "stat")
    if not stat:
        return None
    # The command's name may contain spaces and parentheses: count from its end.
    fields = stat.rpartition(")")[2].split()
    return fields[0], fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process exists, but belongs to another user
    return True


def _namespace(proc: Path) -> str:
    try:
        # pid:[4026531836]
        return (proc / "self/ns/pid").readlink().name.partition("[")[2].rstrip("]")
    except OSError:
        return ""


def _machine() -> str:
    """Return a hash of this machine's id; machine-id(5) asks not to publish the id itself."""
    for path in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
        if text := _read(path):
            return hashlib.sha256(f"tbench:{text}".encode()).hexdigest()[:12]
    return ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


LABEL_RUN, LABEL_TRIAL, LABEL_OWNER = "tbench.run", "tbench.trial", "tbench.owner"
LABEL_PROJECT, LABEL_SERVICE = "tbench.project", "tbench.service"
"""Labels of one trial's services: an id that they share, and the service's name."""
LABEL_HOLDS = "tbench.holds"
"""Label of a container that only holds the network namespace of a service."""
LABEL_DIRECTORY = "tbench.directory"
"""Label of a trial's sandbox: the directory of its run, where a note may keep it after an interruption."""
LABEL_MEMORY = "tbench.memory_mb"
"""Label of each container with LABEL_DIRECTORY: the memory that it may use."""
LABEL_SHARED, LABEL_IMAGE = "tbench.shared", "tbench.image"
LABEL_SNAPSHOT = "tbench.snapshot"
"""Label of snapshots, with the value SNAPSHOT_KEPT."""
SNAPSHOT_KEPT = "kept"
LABEL_ORIGINAL = "tbench.original"
"""Label of a snapshot: id of the sandbox's image."""
LABEL_BEGAN = "tbench.began"
"""Label of a snapshot: creation time of the sandbox."""
KEPT_PREFIX = "tbench-kept-"
"""Prefix of the names of kept containers, since labels cannot be changed after creation."""
NETWORK = "tbench"
"""Name of the bridge that all trials share."""
LABEL_ROUTER = "tbench.router"
"""Label with an id that a container and its router share."""
