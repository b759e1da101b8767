"""The keys of compose files: those that are obeyed, those that change nothing here, and those without support."""

from __future__ import annotations

from collections.abc import Mapping

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
    "annotations": "nothing reads them",
    "attach": "the output of services is kept in files",
    "blkio_config": "the disk is not limited",
    "cpu_shares": "cpus are limited, not weighted",
    "develop": "nothing is watched",
    "label_file": "nothing reads labels",
    "logging": "the output of services is kept in files",
    "mem_reservation": "memory is limited, not reserved",
    "memswap_limit": "no container has swap",
    "mem_swappiness": "no container has swap",
    "oom_kill_disable": "what is out of memory ends",
    "oom_score_adj": "what is out of memory ends",
    "pull_policy": "images are found, pulled and built as those of all tasks",
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
    "labels": "nothing reads them",
    "no_cache": "--no-build-cache says so for all images",
    "platforms": "images are those of the engine's own platform",
    "provenance": "nothing reads it",
    "pull": "base images are pulled where the engine lacks them",
    "sbom": "nothing reads it",
    "tags": "images have names of tbench's own",
}
BUILD_UNSUPPORTED = {
    *("additional_contexts", "entitlements", "extra_hosts", "isolation", "network", "privileged", "secrets"),
    *("shm_size", "ssh", "ulimits"),
}

DEPLOY = {"resources", "replicas", "restart_policy"}
DEPLOY_IGNORED: Mapping[str, str] = dict.fromkeys(
    ("endpoint_mode", "labels", "mode", "placement", "rollback_config", "update_config"), "there is no swarm"
)
NETWORK = {"driver", "internal", "external", "name"}
NETWORK_IGNORED: Mapping[str, str] = {
    "attachable": "there is no swarm",
    "driver_opts": "trials' networks are all alike",
    "enable_ipv4": "networks have IPv4 alone",
    "enable_ipv6": "networks have IPv4 alone",
    "labels": "nothing reads them",
}
NETWORK_UNSUPPORTED = {"ipam"}
VOLUME = {"driver", "external", "name"}
VOLUME_IGNORED: Mapping[str, str] = {"labels": "nothing reads them"}
VOLUME_UNSUPPORTED = {"driver_opts"}

SAFE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE", "MKNOD"),
    *("NET_BIND_SERVICE", "NET_BROADCAST", "SETFCAP", "SETGID", "SETPCAP", "SETUID"),
    *("SYS_CHROOT", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE", "SYS_TTY_CONFIG"),
}
"""Capabilities that end at the container."""
