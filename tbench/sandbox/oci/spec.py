"""Descriptions of containers and commands for the runtime, with Docker's defaults."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.sandbox.backend import TOOLS
from tbench.sandbox.oci.accounts import User
from tbench.sandbox.oci.store import Store
from tbench.sandbox.recipe import SandboxRecipe

SECCOMP = Path("/usr/share/containers/seccomp.json")
"""The distribution's profile of system calls."""
_CAPABILITIES = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
]
_MASKED = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
]
_READ_ONLY = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger")]
_FOR_ADMINS = frozenset(
    [
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "mount",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "pivot_root",
        "reboot",
        "setns",
        "syslog",
        "umount",
        "umount2",
        "unshare",
        "keyctl",
        "pidfd_getfd",
        "get_mempolicy",
        "mbind",
        "set_mempolicy",
    ]
)
"""System calls that the distribution's profile allows, but Docker's only with a capability."""
_NEW_NAMESPACES = 0x7E020000
"""Flags of clone(2) that make namespaces."""
_NOSYS = 38
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PERIOD = 100_000
_TMPFS = ["nosuid", "noexec", "nodev"]


def capabilities(recipe: SandboxRecipe) -> list[str]:
    """Return the container's capabilities: Docker's, without raw sockets if it has a network."""
    dropped = {"NET_RAW"} if recipe.has_internet else set()
    added = {each.upper().removeprefix("CAP_") for each in recipe.cap_add}
    return [f"CAP_{each}" for each in sorted((set(_CAPABILITIES) - dropped) | added)]


def process_spec(
    recipe: SandboxRecipe, argv: Sequence[str], user: User, workdir: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Describe a command in a container."""
    bounds = capabilities(recipe)
    own = bounds if user.uid == 0 else []  # as in Docker, only root has them from the start
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    variables = {"PATH": _PATH, "HOME": user.home, **environment}
    return {
        "args": list(argv),
        "cwd": workdir,
        "env": [f"{name}={value}" for name, value in variables.items()],
        "user": {"uid": user.uid, "gid": user.gid, "additionalGids": list(user.groups)},
        "capabilities": {"bounding": bounds, "effective": own, "permitted": own},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": most_files, "soft": most_files}],
        "noNewPrivileges": recipe.no_new_privileges,
    }


def container_spec(
    store: Store, recipe: SandboxRecipe, directory: Path, process: Mapping[str, Any], *, limits: bool, network: str
) -> dict[str, Any]:
    """Describe a container. `network` is the path of a network namespace to share, or empty for a new one.

    `limits` is false where cgroups cannot be written: then the container has no limits.
    """
    namespaces = [{"type": each} for each in ("pid", "ipc", "uts", "mount")]
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():  # version 2
        namespaces.append({"type": "cgroup"})
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(directory / "merged")},
        "hostname": recipe.hostname or directory.name[-12:],
        "process": dict(process),
        "mounts": _mounts(recipe, directory, has_cgroup=limits),
        "linux": {
            "namespaces": [*namespaces, {"type": "network", **({"path": network} if network else {})}],
            "maskedPaths": _MASKED,
            "readonlyPaths": _READ_ONLY,
            **({"resources": _resources(recipe), "cgroupsPath": f"/tbench/{directory.name}"} if limits else {}),
            "seccomp": _seccomp(frozenset(capabilities(recipe))),
        },
    }


def _resources(recipe: SandboxRecipe) -> dict[str, Any]:
    memory = int(recipe.limits.memory_mb * (1 << 20))
    cpu: dict[str, Any] = {"quota": int(min(recipe.limits.cpus, os.cpu_count() or 1) * _PERIOD), "period": _PERIOD}
    if recipe.cpuset:
        cpu["cpus"] = ",".join(map(str, recipe.cpuset))
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": {"limit": memory, "swap": memory},
        "cpu": cpu,
        "pids": {"limit": recipe.limits.pids},
    }


def _mount(target: str, kind: str, options: list[str], source: str = "") -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source or kind, "options": options}


def _mounts(recipe: SandboxRecipe, directory: Path, *, has_cgroup: bool) -> list[dict[str, Any]]:
    files = [
        _mount(f"/etc/{name}", "bind", ["rbind", "rprivate"], str(directory / name))
        for name in ("hosts", "hostname", "resolv.conf")
    ]
    return [
        _mount("/proc", "proc", _TMPFS),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        _mount("/sys", "sysfs", [*_TMPFS, "ro"]),
        *([_mount("/sys/fs/cgroup", "cgroup", ["ro", *_TMPFS])] if has_cgroup else []),
        _mount("/dev/mqueue", "mqueue", _TMPFS),
        _mount("/dev/shm", "tmpfs", [*_TMPFS, "mode=1777", "size=67108864"]),
        *files,
        _mount(TOOLS, "bind", ["rbind", "rprivate", "ro", "nosuid", "nodev"], recipe.tools_volume),
        # The tmux socket must survive `rm -rf /tmp/*`, read-only roots and other users.
        _mount(f"{TOOLS}/run", "tmpfs", ["nosuid", "nodev", "mode=1777", "size=16m"]),
    ]


@cache
def _seccomp(caps: frozenset[str]) -> dict[str, Any]:
    """Return the profile of system calls for a container with these capabilities. Raises UsageError."""
    try:
        profile = json.loads(SECCOMP.read_bytes())
    except (OSError, ValueError) as error:
        remedy = "apt-get install golang-github-containers-common"
        raise UsageError(f"{SECCOMP}: the profile of system calls cannot be read ({error}): {remedy}") from None
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    rules = [rule for rule in profile["syscalls"] if _applies(rule, caps, machine)]
    is_admin = "CAP_SYS_ADMIN" in caps
    for_all = set() if is_admin else {*_FOR_ADMINS, "clone", "clone3"}
    syscalls = [
        {**{key: rule[key] for key in ("action", "args", "errnoRet") if rule.get(key)}, "names": names}
        for rule in rules
        if (names := [name for name in rule["names"] if name not in for_all or "caps" in rule["includes"]])
    ]
    if not is_admin:
        flags = {"index": 0, "value": _NEW_NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}
        syscalls.append({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [flags]})
        syscalls.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _NOSYS})
    tables = ([each["architecture"], *(each["subArchitectures"] or ())] for each in profile["archMap"])
    native = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}.get(machine)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "architectures": next((each for each in tables if each[0] == native), []),
        "syscalls": syscalls,
    }


def _applies(rule: Mapping[str, Any], caps: frozenset[str], machine: str) -> bool:
    """Whether a rule of the profile is for these capabilities and this machine."""
    wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
    return (
        caps.issuperset(wanted.get("caps") or ())
        and machine in (wanted.get("arches") or [machine])
        and caps.isdisjoint(unwanted.get("caps") or ())
        and machine not in (unwanted.get("arches") or ())
    )
