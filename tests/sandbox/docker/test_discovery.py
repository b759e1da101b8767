"""The engine of a machine where no address is given, on real sockets: which one is taken, and what helps without."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_relay import own_relay

from tbench.doctor import CheckStatus
from tbench.doctor.connection import ProcessContext, check_address
from tbench.errors import EngineUnavailable
from tbench.sandbox.docker.cleaning import remove_in_child
from tbench.sandbox.docker.discovery import DEFAULT, Machine, Place, Search, find_engine, start_commands
from tbench.sandbox.docker.engine import Engine, no_engine

PONG = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
TBENCH = str(Path(sys.executable).with_name("tbench"))


@pytest.fixture
def root() -> Iterator[Path]:
    """A machine without an engine; its path is short, since that of a socket is bounded."""
    with tempfile.TemporaryDirectory(prefix="tbd-") as name:
        yield Path(name)


@contextlib.contextmanager
def listening(path: Path, answer: bytes | None = PONG) -> Iterator[str]:
    """A socket that answers every connection with the same bytes; with None, never."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        held = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = listener.accept()[0]
                    held.append(connection)
                    if answer is not None:
                        connection.recv(4096)
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"unix://{path}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(20)
            for connection in held:
                connection.close()


def search(root: Path, patience_sec: float = 5.0, **variables: str) -> Search:
    variables = {"HOME": str(root / "home"), "XDG_RUNTIME_DIR": str(root / "user"), **variables}
    return find_engine(variables, root, patience_sec)


def add_context(folder: Path, name: str, host: str, *, is_current: bool = True) -> None:
    meta = folder / "contexts/meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}}))
    if is_current:
        (folder / "config.json").write_text(json.dumps({"currentContext": name}))


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("user/docker.sock", "rootless Docker"),
        ("home/.docker/run/docker.sock", "Docker Desktop"),
        ("home/.docker/desktop/docker.sock", "Docker Desktop"),
        ("home/.colima/work/docker.sock", "colima"),
        ("run/podman/podman.sock", "Podman"),
        ("user/podman/podman.sock", "rootless Podman"),
    ],
)
def test_an_engine_is_found_at_each_usual_socket_and_the_line_names_it(root: Path, path: str, kind: str) -> None:
    with listening(root / path) as host:
        found = search(root)
    assert found.notice == f"engine: {kind} at {host}"


def test_dockers_default_socket_comes_first_and_needs_no_line(root: Path) -> None:
    with listening(root / "var/run/docker.sock") as host, listening(root / "user/podman/podman.sock"):
        found = search(root).found
    assert found == Place("Docker", host)
    assert Search(Place("Docker", DEFAULT), {}).notice == ""


@pytest.mark.parametrize("chosen_by", ["config.json", "DOCKER_CONTEXT"])
def test_dockers_current_context_comes_before_the_default_socket(root: Path, chosen_by: str) -> None:
    with listening(root / "desk.sock") as host, listening(root / "var/run/docker.sock"):
        add_context(root / "home/.docker", "desk", host, is_current=chosen_by == "config.json")
        found = search(root, **({} if chosen_by == "config.json" else {"DOCKER_CONTEXT": "desk"}))
        assert search(root, DOCKER_CONTEXT="default").found == Place("Docker", f"unix://{root}/var/run/docker.sock")
    assert found.found == Place("Docker's context desk", host)


def test_another_engine_than_that_of_a_silent_context_is_never_taken_without_a_line(root: Path) -> None:
    add_context(root / "home/.docker", "gpu", "ssh://me@gpu-1")
    with listening(root / "var/run/docker.sock") as host:
        found = search(root)
    assert found.notice == f"engine: Docker at {host}; Docker's context gpu does not answer"
    assert list(found.silent.values()) == ["not tried; give it as --engine ssh://me@gpu-1"]


def test_a_context_with_tls_leads_to_its_own_certificates(root: Path) -> None:
    folder = root / "home/.docker"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        add_context(folder, "far", host)
        certificates = folder / "contexts/tls" / hashlib.sha256(b"far").hexdigest() / "docker"
        certificates.mkdir(parents=True)
        found = search(root).found
    assert found is not None
    assert found.variables == {"DOCKER_HOST": host, "DOCKER_CERT_PATH": str(certificates), "DOCKER_TLS_VERIFY": "1"}


@pytest.mark.parametrize("config", ["{", '{"currentContext": 7}', '{"currentContext": "none-such"}', "[]"])
def test_a_context_that_cannot_be_read_does_not_hide_the_engines(root: Path, config: str) -> None:
    (root / "home/.docker").mkdir(parents=True)
    (root / "home/.docker/config.json").write_text(config)
    with listening(root / "var/run/docker.sock") as host:
        assert search(root).found == Place("Docker", host)


def test_where_nothing_answers_it_is_said_of_each_place_why(root: Path) -> None:
    (root / "var/run").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(root / "var/run/docker.sock"))
    with (
        listening(root / "user/docker.sock", b"HTTP/1.1 404 Not Found\r\n\r\n"),
        listening(root / "run/podman/podman.sock", None),
    ):
        found = search(root, 0.2)
    assert found.found is None
    assert {place.kind: why for place, why in found.silent.items()} == {
        "Docker": "nothing listens there",
        "rootless Docker": "not an engine",
        "Docker Desktop": "does not exist",
        "colima": "does not exist",
        "Podman": "no answer within 0 s",
        "rootless Podman": "does not exist",
    }
    error = no_engine(found)
    assert str(error).startswith("no container engine answers; start one with '")
    assert str(error).endswith("or give --engine oci: to do without")
    assert f"unix://{root}/user/docker.sock (rootless Docker): not an engine" in error.looked_at
    assert len(error.looked_at) == len(found.silent)


LINUX = Machine(is_mac=False, is_root=False, has_systemd=True, has=lambda _: None)


@pytest.mark.parametrize(
    ("machine", "programs", "commands"),
    [
        (LINUX, "dockerd podman", ("sudo systemctl start docker", "tbench setup")),
        (
            LINUX,
            "apt-get",
            (
                'sudo "$(command -v tbench)" setup',
                "sudo apt-get install podman && tbench setup",
            ),
        ),
        (LINUX, "dnf podman", ("tbench setup",)),
        (
            Machine(is_mac=False, is_root=True, has_systemd=False, has=lambda _: None),
            "apt-get dockerd podman",
            ("tbench setup",),
        ),
        (LINUX, "", ("curl -fsSL https://get.docker.com | sudo sh",)),
        (
            Machine(is_mac=True, is_root=False, has_systemd=False, has=lambda _: None),
            "",
            ("open -a Docker", "brew install colima docker && colima start"),
        ),
    ],
)
def test_the_commands_that_start_an_engine_fit_the_machine(
    machine: Machine, programs: str, commands: tuple[str, ...]
) -> None:
    known = Machine(machine.is_mac, machine.is_root, machine.has_systemd, programs.split().__contains__)
    assert start_commands({}, known) == commands


def test_without_permission_on_dockers_socket_the_first_command_gives_it() -> None:
    first = start_commands({Place("Docker", DEFAULT): "no permission"}, LINUX)[0]
    assert first == "sudo usermod -aG docker $USER && newgrp docker"


def test_the_doctor_says_in_one_finding_what_was_looked_at(root: Path) -> None:
    seen = check_address(ProcessContext(DEFAULT, is_container=False, may_administrate=True, search=search(root)))
    assert (seen.status, seen.seen.startswith("no container engine answers: unix://")) == (CheckStatus.FAIL, True)
    assert seen.advice.startswith("start one with '")


def test_a_command_without_an_engine_prints_the_places_below_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_engine().found is None:
        with pytest.raises(EngineUnavailable):
            Engine.connect()
    script = (
        "import sys, functools; from pathlib import Path; from tbench.sandbox.docker import engine\n"
        f"engine.find_engine = functools.partial(engine.find_engine, {{'HOME': '{root}'}}, Path('{root}'))\n"
        "sys.argv = ['tbench', 'clean']; from tbench.cli import main; main()\n"
    )
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    first, *places = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert first.startswith("tbench: no container engine answers; start one with '")
    assert places[0] == f"  unix://{root}/var/run/docker.sock (Docker): does not exist"
    assert len(places) == 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody waits for the child
def test_a_child_that_cleans_up_is_led_to_the_engine_that_was_found(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "what_it_sees.py").write_text(
        "import os, pathlib, sys\npathlib.Path(sys.argv[2]).write_text(os.environ['DOCKER_HOST'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(root))
    with listening(root / "user/docker.sock") as host:
        found = search(root).found
    assert found is not None
    remove_in_child("what_it_sees", str(root / "seen"), variables=found.variables)
    ends_at = time.monotonic() + 60
    while not (root / "seen").exists() or not (root / "seen").read_text():
        assert time.monotonic() < ends_at
        time.sleep(0.05)
    assert (root / "seen").read_text() == host


@pytest.mark.engine
def test_a_run_uses_the_engine_of_the_current_context_and_says_so(root: Path) -> None:
    with own_relay() as relay:
        add_context(root, "desk", relay.host)
        environment = {**os.environ, "DOCKER_CONFIG": str(root)}
        environment.pop("DOCKER_HOST", None)
        planned = subprocess.run(
            [TBENCH, "run", "--agent", "nop", "-t", "tidy-notes", "--dry-run"],
            capture_output=True, text=True, timeout=120, env=environment, cwd=root,
        )  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    assert f"Docker's context desk at {relay.host}" in planned.stdout
