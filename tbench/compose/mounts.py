"""Reads the volumes of a service: named volumes, files of the task, paths of the host, and tmpfs."""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from pathlib import Path

from tbench.compose.keys import Notices, size_bytes
from tbench.compose.project import MAIN, MAIN_LOGS_PLACEHOLDER, SHARED_LOGS, ServiceMount
from tbench.compose.yaml_tree import YamlNode

_OPTIONS = {"ro", "rw", "z", "Z", "nocopy", "cached", "delegated", "consistent"}
_LONG = {"type", "source", "target", "read_only", "bind", "volume", "tmpfs"}
_LONG_IGNORED = {"consistency": "volumes are on the engine's machine"}
_SOCKETS = ("docker.sock", "podman.sock", "containerd.sock")


@dataclass(frozen=True)
class TaskFolder:
    """The folder of a compose file, and the task's directory, whose files need no access to the host."""

    path: Path
    root: Path

    def relative(self, path: str) -> str | None:
        """Return a path relative to the folder after following links; None if it is outside of the task."""
        root, wanted = self.root.resolve(), (self.path / path).resolve()
        return Path(os.path.relpath(wanted, self.path.resolve())).as_posix() if wanted.is_relative_to(root) else None


@dataclass(frozen=True)
class VolumeReader:
    """Reads the volumes of one service. Methods raise TaskInvalid."""

    service: str
    folder: TaskFolder
    notices: Notices
    mounts: list[ServiceMount] = field(default_factory=list)
    tmpfs: dict[str, str] = field(default_factory=dict)
    """Options by path."""

    def read(self, node: YamlNode) -> None:
        """Add the mounts of the key `volumes`."""
        for item in node.items():
            mount = self._read_long(item) if item.is_mapping else self._read_short(item)
            if mount is not None:
                self.mounts.append(mount)
        targets = [*(mount.target for mount in self.mounts), *self.tmpfs]
        if twice := next((target for target in targets if targets.count(target) > 1), None):
            node.fail(f"mounts two volumes at {twice}")

    def _read_short(self, node: YamlNode) -> ServiceMount | None:
        parts = node.text().split(":")
        if len(parts) == 1:
            return ServiceMount("anonymous", "", _target(node, parts[0]))
        if len(parts) > 3:
            node.fail(f"has to be SOURCE:TARGET[:OPTIONS] (got {node.text()!r})")
        options = set(parts[2].split(",")) if len(parts) == 3 else set[str]()
        if unknown := sorted(options - _OPTIONS):
            node.fail(f"unknown option {unknown[0]!r}; known options: {', '.join(sorted(_OPTIONS))}")
        target = _target(node, parts[1])
        if not parts[0].startswith((".", "/", "~", f"{MAIN_LOGS_PLACEHOLDER}/")):
            return ServiceMount("volume", parts[0], target, "ro" in options, "nocopy" in options)
        return self._path(node, parts[0], target, read_only="ro" in options)

    def _read_long(self, node: YamlNode) -> ServiceMount | None:
        folder, notices = self.folder, self.notices
        entries = notices.table(node, _LONG, _LONG_IGNORED)
        if "type" not in entries or "target" not in entries:
            node.fail("needs type and target")
        kind = entries["type"].one_of(("volume", "bind", "tmpfs", "npipe", "cluster", "image"))
        target = _target(entries["target"], entries["target"].text())
        read_only = "read_only" in entries and entries["read_only"].boolean()
        source = entries["source"].text() if "source" in entries else ""
        if kind == "tmpfs":
            self.tmpfs[target] = _tmpfs_options(entries["tmpfs"], notices) if "tmpfs" in entries else ""
            return None
        if kind == "volume":
            options = notices.table(entries.get("volume"), {"nocopy"}, unsupported={"subpath"})
            no_copy = "nocopy" in options and options["nocopy"].boolean()
            return ServiceMount("volume" if source else "anonymous", source, target, read_only, no_copy)
        if kind != "bind":
            notices.add_unsupported(entries["type"], kind)
            return None
        if "bind" in entries:
            ignored = dict.fromkeys(("selinux", "propagation", "recursive"), "files are copied, not bound")
            options = notices.table(entries["bind"], {"create_host_path"}, ignored)
            makes_source = "create_host_path" not in options or options["create_host_path"].boolean()
            if source and not makes_source and folder.relative(source) and not (folder.path / source).exists():
                node.fail(f"{source}: no such file or folder in the task, and create_host_path is false")
        return self._path(node, source or node.fail("needs a source"), target, read_only=read_only)

    def _path(self, node: YamlNode, source: str, target: str, *, read_only: bool) -> ServiceMount | None:
        """Return the mount of a path: a copy if it is in the task, otherwise a path of the host.

        As in Compose, a path that does not exist is an empty folder.
        """
        folder, notices = self.folder, self.notices
        top, _, below = source.partition("/")
        if top == MAIN_LOGS_PLACEHOLDER:
            if self.service == MAIN:
                notices.ignored[node.key] = "tbench collects the logs of main itself"
                return None
            if below not in SHARED_LOGS:
                notices.add_unsupported(node, f"only the folders {' and '.join(SHARED_LOGS)} of logs can be shared")
                return None
            return ServiceMount("volume", f"{MAIN_LOGS_PLACEHOLDER}-{below}", target, read_only)
        if source.startswith("~"):
            notices.add_host_access(node, source)
            return ServiceMount("host", str(Path(source).expanduser()), target, read_only)
        inside = folder.relative(source)
        if inside is None or source.endswith(_SOCKETS):
            notices.add_host_access(node, source)
            return ServiceMount("host", posixpath.normpath(folder.path / source), target, read_only)
        return ServiceMount("copy", inside, target, read_only)


def read_tmpfs(node: YamlNode) -> dict[str, str]:
    """Parse the key `tmpfs` into options by path. Raises TaskInvalid."""
    found = {}
    for text in node.texts():
        path, _, options = text.partition(":")
        found[_target(node, path)] = options
    return found


def _tmpfs_options(node: YamlNode, notices: Notices) -> str:
    entries = notices.table(node, {"size", "mode"})
    options = [f"size={size_bytes(entries['size'])}"] if "size" in entries else []
    if "mode" in entries:
        mode = entries["mode"]
        text = mode.text().removeprefix("0o")
        if not text.isdigit() or set(text) & {"8", "9"}:
            mode.fail(f"has to be an octal mode (got {mode.text()!r})")
        options.append(f"mode={text}")
    return ",".join(options)


def _target(node: YamlNode, path: str) -> str:
    if not path.startswith("/"):
        node.fail(f"the path in the container has to be absolute (got {path!r})")
    normal = posixpath.normpath(path)
    if normal == "/" or normal == "/opt/tbench" or normal.startswith("/opt/tbench/"):
        node.fail(f"nothing can be mounted at {path}")
    return normal
