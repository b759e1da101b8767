"""Limits of containers: which are enforced, as seen from inside.

An engine's own answers are no help: rootless engines with cgroup version 1 accept limits that they cannot set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tbench.config.limits_in_force import LimitState
from tbench.sandbox.recipe import ContainerLimits

PROBE_LIMITS = ContainerLimits(cpus=1.0, memory_mb=64.0, pids=64)
"""Limits of a container that only checks whether limits are enforced."""
READ_LIMITS = r"""
own() {  # prints the path of this process in the hierarchy of a controller; an empty name stands for version 2
    while IFS=: read -r _ names path; do
        case ",$names," in *",$1,"*) echo "$path"; return ;; esac
    done </proc/self/cgroup
}
place() {  # sets here to the directory of this process for a controller, and point to the hierarchy's mount point
    names=$1 here='' path=$(own "$1")
    [ -n "$path" ] || { names='' path=$(own ''); }
    [ -n "$path" ] || return
    while read -r _ _ _ root point rest; do
        case "$names:${rest##* - }" in
            :cgroup2\ *) ;;
            ?*:cgroup\ *) case ",${rest##* }," in *",$names,"*) ;; *) continue ;; esac ;;
            *) continue ;;
        esac
        root=${root%/} path=${path%/}
        case "$path/" in */../*) continue ;; "$root"/*) ;; *) continue ;; esac
        [ -d "$point${path#"$root"}" ] && here=$point${path#"$root"} && return
    done </proc/self/mountinfo
}
limit() {  # prints a name with max and with the values of files, from its own cgroup upwards; nothing without a cgroup
    place "$2"
    [ -n "$here" ] || return
    echo "$1 max"
    while :; do
        for file in $3; do
            [ -r "$here/$file" ] && read -r value <"$here/$file" || continue
            [ "$file" != cpu.cfs_quota_us ] || { read -r period <"$here/cpu.cfs_period_us"; value="$value $period"; }
            echo "$1 $value"
        done
        [ "$here" != "$point" ] || break
        here=${here%/*}
    done
}
limit memory memory 'memory.max memory.limit_in_bytes'
limit swap memory memory.swap.max
limit memsw memory memory.memsw.limit_in_bytes
limit pids pids pids.max
limit cpu cpu 'cpu.max cpu.cfs_quota_us'
while read -r name value _; do [ "$name" != SwapTotal: ] || echo "swap_total $value"; done </proc/meminfo
while read -r name value; do [ "$name" != Cpus_allowed_list: ] || echo "cpuset $value"; done </proc/self/status
"""
"""Script that prints the limits a container sees. It needs nothing but a POSIX shell."""


def read_limits(printed: str) -> dict[str, str]:
    """Parse the output of READ_LIMITS by name; of several levels the smallest value counts, since it is effective."""
    seen: dict[str, str] = {}
    for name, _, value in (line.partition(" ") for line in printed.splitlines()):
        value = value.strip()
        if name not in seen or _number(value) < _number(seen[name]):
            seen[name] = value
    return seen


def limit_states(seen: Mapping[str, str], requested: ContainerLimits) -> dict[str, LimitState]:
    """Return which requested limits are enforced, by what a container has seen."""
    bytes_ = requested.memory_mb * (1 << 20)
    memory = _state(seen.get("memory"), bytes_)
    # Cgroup version 1 limits memory and swap together, version 2 swap alone.
    swap = _state(seen.get("memsw"), bytes_)
    if _state(seen.get("swap"), 0) == LimitState.IN_FORCE or seen.get("swap_total") == "0":
        swap = memory
    return {
        "memory": memory,
        "swap": swap,
        "cpus": _state(seen.get("cpu"), requested.cpus),
        "pids": _state(seen.get("pids"), requested.pids),
    }


def _state(seen: str | None, requested: float) -> LimitState:
    if not seen:
        return LimitState.UNSEEN
    # Kernels round memory to pages, and quotas to microseconds.
    return LimitState.IN_FORCE if _number(seen) <= requested * 1.01 else LimitState.NOT_IN_FORCE


def _number(value: str) -> float:
    """Parse a limit: `quota period` becomes CPUs, and any form of no limit infinity."""
    try:
        first, *rest = map(int, value.split())
    except ValueError:
        return math.inf
    if first < 0:
        return math.inf
    return first / rest[0] if rest and rest[0] > 0 else first
