"""The names of Linux capabilities, as a setting may give them."""

from __future__ import annotations

import difflib

_PREFIX = "CAP_"
_NAMES = {
    "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN",
    "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE",
    "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST",
    "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT",
    "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG",
    "SYSLOG", "WAKE_ALARM",
}  # fmt: skip
"""Those of Linux 5.9 and later, as capabilities(7) has them."""


def checked_capabilities(given: tuple[str, ...]) -> tuple[str, ...]:
    """The capabilities without their prefix, each once and sorted. Raises ValueError for what is none."""
    names = {name.removeprefix(_PREFIX) for name in given}
    if unknown := sorted(names - _NAMES):
        near = difflib.get_close_matches(unknown[0].upper().removeprefix(_PREFIX), sorted(_NAMES), n=1)
        meant = f"did you mean {near[0]}?" if near else "capabilities(7) has their names"
        raise ValueError(f"{unknown[0]!r} is no Linux capability; {meant}")
    return tuple(sorted(names))
