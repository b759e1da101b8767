"""How Podman's service is started on a machine that has only the program, and what is advised where it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tbench.doctor.connection import ProcessContext, cannot_start
from tbench.sandbox.docker.discovery import DEFAULT
from tbench.sandbox.docker.engine import EngineInfo
from tbench.sandbox.docker.podman import PodmanMachine, overlay_remedy, podman_remedy

HYBRID, SYSTEMD = "sys/fs/cgroup/unified", "run/systemd/system"


def machine(root: Path, user: int = 1000, *, programs: str = "runc", kernel: str = "6.1.0-18-amd64") -> PodmanMachine:
    return PodmanMachine(user, {"HOME": str(root / "home")}, programs.split().__contains__, root, kernel)


@pytest.mark.parametrize(
    ("folders", "options"),
    [
        ((SYSTEMD,), []),
        ((), ["--cgroup-manager", "cgroupfs"]),
        ((HYBRID, SYSTEMD), ["--runtime", "runc"]),
    ],
)
def test_the_service_gets_options_where_podmans_defaults_do_not_suit(
    tmp_path: Path, folders: tuple[str, ...], options: list[str]
) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert machine(tmp_path).command()[1:-4] == options


def test_a_new_storage_of_a_user_gets_the_overlay_driver_where_it_works(tmp_path: Path) -> None:
    assert machine(tmp_path).new_storage_conf() == tmp_path / "home/.config/containers/storage.conf"
    assert machine(tmp_path, user=0).new_storage_conf() is None
    assert machine(tmp_path, kernel="5.10.0-28-amd64").new_storage_conf() is None
    assert machine(tmp_path, kernel="5.10.0", programs="fuse-overlayfs").new_storage_conf() is not None
    (tmp_path / "home/.local/share/containers/storage").mkdir(parents=True)
    assert machine(tmp_path).new_storage_conf() is None


def test_the_socket_is_where_podman_itself_would_listen(tmp_path: Path) -> None:
    assert machine(tmp_path, user=0).socket == tmp_path / "run/podman/podman.sock"
    assert machine(tmp_path).socket == tmp_path / "tmp/podman-run-1000/podman/podman.sock"
    (tmp_path / "run/user/1000").mkdir(parents=True)
    assert machine(tmp_path).socket == tmp_path / "run/user/1000/podman/podman.sock"
    given = PodmanMachine(1000, {"XDG_RUNTIME_DIR": "/given"})
    assert given.socket == Path("/given/podman/podman.sock")
    assert given.command()[-1] == "unix:///given/podman/podman.sock"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2", 'runtime = "runc"'),
        ("runc: error setting rlimit type 7: operation not permitted", "default_ulimits"),
        ('exec: "slirp4netns": executable file not found in $PATH', "install slirp4netns"),
        ("failed to mount runtime directory for rootless netns: no such file or directory", "install slirp4netns"),
        ("potentially insufficient UIDs or GIDs available in user namespace", "--add-subuids"),
    ],
)
def test_podmans_own_errors_have_podmans_remedies(message: str, remedy: str) -> None:
    here = ProcessContext(DEFAULT, is_container=True, may_administrate=False)
    info = EngineInfo("x", "4.3.1", 2, 1024, "overlay", "1", is_podman=True, is_rootless=True)
    found = cannot_start(message, here, info)
    assert remedy in found.advice
    assert found.advice == podman_remedy(message, is_rootless=True)
    assert podman_remedy("no such image", is_rootless=True) == ""
    assert "no such image" in cannot_start("no such image", here, info).seen


def test_files_of_root_and_of_users_differ() -> None:
    assert "~/.config/containers/storage.conf" in overlay_remedy(is_rootless=True)
    assert "/etc/containers/storage.conf" in overlay_remedy(is_rootless=False)
    assert "/etc/containers/containers.conf" in podman_remedy("cgroup", is_rootless=False)
