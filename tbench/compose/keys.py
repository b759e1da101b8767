"""Keys of compose files: which are supported, parsers of their values, and notices about the other keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tbench.compose.yaml_tree import YamlNode

FILE = {"services", "networks", "volumes", "version", "name"}
FILE_UNSUPPORTED = {"configs", "secrets", "include", "models"}

SERVICE = {
    *("image", "build", "command", "entrypoint", "environment", "env_file", "working_dir", "user", "group_add"),
    *("hostname", "depends_on", "links", "healthcheck", "expose", "ports", "volumes", "tmpfs", "networks"),
    *("network_mode", "deploy", "cpus", "mem_limit", "pids_limit", "gpus", "platform", "restart", "init", "tty"),
    *("stdin_open", "read_only", "privileged", "cap_add", "cap_drop", "security_opt", "devices", "pid", "ipc"),
    *("userns_mode", "shm_size", "ulimits", "sysctls", "extra_hosts", "dns", "stop_signal", "labels", "profiles"),
    *("container_name", "scale"),
}
SERVICE_IGNORED: Mapping[str, str] = {
    "annotations": "they are not used",
    "attach": "the output of services is kept in files",
    "blkio_config": "the disk is not limited",
    "cpu_shares": "cpus are limited, not weighted",
    "develop": "files are not watched",
    "label_file": "labels are not used",
    "logging": "the output of services is kept in files",
    "mem_reservation": "memory is limited, not reserved",
    "memswap_limit": "no container has swap",
    "mem_swappiness": "no container has swap",
    "oom_kill_disable": "processes that run out of memory are killed",
    "oom_score_adj": "processes that run out of memory are killed",
    "pull_policy": "images are found, pulled and built like those of all tasks",
    "stop_grace_period": "containers are removed by force",
    "storage_opt": "the disk is not limited",
}
SERVICE_UNSUPPORTED = {
    *("cgroup", "cgroup_parent", "configs", "cpu_count", "cpu_percent", "cpu_period", "cpu_quota", "cpu_rt_period"),
    *("cpu_rt_runtime", "cpuset", "credential_spec", "device_cgroup_rules", "dns_opt", "dns_search", "domainname"),
    *("extends", "external_links", "isolation", "mac_address", "models", "post_start", "pre_stop", "provider"),
    *("runtime", "secrets", "use_api_socket", "uts", "volumes_from"),
}

BUILD = {"context", "dockerfile", "dockerfile_inline", "args", "target"}
BUILD_IGNORED: Mapping[str, str] = {
    "cache_from": "the engine's own cache is used",
    "cache_to": "the engine's own cache is used",
    "labels": "they are not used",
    "no_cache": "--no-build-cache applies to all images",
    "platforms": "images are built for the engine's own platform",
    "provenance": "it is not used",
    "pull": "base images are pulled if the engine does not have them",
    "sbom": "it is not used",
    "tags": "tbench chooses the names of images",
}
BUILD_UNSUPPORTED = {
    *("additional_contexts", "entitlements", "extra_hosts", "isolation", "network", "privileged", "secrets"),
    *("shm_size", "ssh", "ulimits"),
}

DEPLOY = {"resources", "replicas", "restart_policy"}
DEPLOY_IGNORED: Mapping[str, str] = dict.fromkeys(
    ("endpoint_mode", "labels", "mode", "placement", "rollback_config", "update_config"), "Swarm is not used"
)
NETWORK = {"driver", "internal", "external", "name"}
NETWORK_IGNORED: Mapping[str, str] = {
    "attachable": "Swarm is not used",
    "driver_opts": "networks of all trials have the same options",
    "enable_ipv4": "networks only have IPv4",
    "enable_ipv6": "networks only have IPv4",
    "labels": "they are not used",
}
NETWORK_UNSUPPORTED = {"ipam"}
VOLUME = {"driver", "external", "name"}
VOLUME_IGNORED: Mapping[str, str] = {"labels": "they are not used"}
VOLUME_UNSUPPORTED = {"driver_opts"}

SAFE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "MKNOD"),
    *("NET_BIND_SERVICE", "NET_BROADCAST", "SETFCAP", "SETGID", "SETPCAP", "SETUID"),
    *("SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE", "SYS_TTY_CONFIG"),
}
"""Capabilities that have no effect outside of the container."""


@dataclass
class Notices:
    """Dotted keys of a compose file that need attention, in the order of the file."""

    ignored: dict[str, str] = field(default_factory=dict)
    """Reasons why keys have no effect, by key."""
    unsupported: list[str] = field(default_factory=list)
    host_access: list[str] = field(default_factory=list)
    """Settings that give access to the engine's machine, as `KEY: value`."""

    def table(
        self,
        node: YamlNode | None,
        known: Collection[str],
        ignored: Mapping[str, str] | None = None,
        unsupported: Collection[str] = (),
    ) -> dict[str, YamlNode]:
        """Return the supported entries of a mapping, and record the others; empty for a missing one.

        Raises TaskInvalid for unknown keys.
        """
        ignored = ignored or {}
        found = {} if node is None else node.table({*known, *ignored, *unsupported})
        for key, value in found.items():
            if key in ignored:
                self.ignored[value.key] = ignored[key]
            elif key in unsupported:
                self.unsupported.append(value.key)
        return {key: value for key, value in found.items() if key in known}

    def add_unsupported(self, node: YamlNode, what: str = "") -> None:
        """Record that a value is not supported."""
        self.unsupported.append(f"{node.key}{f': {what}' if what else ''}")

    def add_host_access(self, node: YamlNode, what: str = "") -> None:
        """Record that a value gives access to the host."""
        self.host_access.append(f"{node.key}{f': {what}' if what else ''}")


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s|us|ns|µs)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_LONGEST_SEC = 7 * 24 * 3600.0
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib|t|tb|tib)?", re.IGNORECASE)
_BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def duration_sec(node: YamlNode) -> float:
    """Parse a duration such as `1m30s` into seconds. Raises TaskInvalid."""
    text = node.text().strip()
    parts = _DURATION.findall(text)
    if text == "0":
        return 0.0
    if not parts or "".join(number + unit for number, unit in parts) != text:
        node.fail(f"has to be a duration such as 2s or 1m30s (got {text!r})")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return seconds if seconds <= _LONGEST_SEC else node.fail(f"is longer than a week (got {text!r})")


def size_bytes(node: YamlNode) -> int:
    """Parse a size such as `512m`, or a bare number of bytes. Raises TaskInvalid."""
    match = _SIZE.fullmatch(node.text().strip())
    if match is None:
        node.fail(f"has to be a size such as 512m or 2gb (got {node.text()!r})")
    size = int(float(match[1]) * _BYTES[(match[2] or "b")[0].lower()])
    return size if size < 1 << 50 else node.fail(f"is larger than any machine (got {node.text()!r})")


def command_words(node: YamlNode) -> tuple[str, ...] | None:
    """Parse a command, a list or a text to be split as by a shell; None if it is empty. Raises TaskInvalid."""
    if node.is_null:
        return None
    if node.is_list:
        return node.texts()
    try:
        return tuple(shlex.split(node.text()))
    except ValueError as error:
        node.fail(f"cannot be split into words: {error}")
