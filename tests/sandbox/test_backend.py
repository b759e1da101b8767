"""The contract of every backend: the fake, several machines, Docker, Podman and no engine, by the same tests."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy
from fleet_machines import DescribedBackend, FakeMachine
from own_podman import own_podman
from seen_changes import walk

from tbench.errors import TrialError, UsageError
from tbench.fleet.fleet import Fleet
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import (
    BUSYBOX,
    Backend,
    Compares,
    Copies,
    ExecResult,
    HasTty,
    Keeps,
    MakesRoom,
    Sandbox,
    SandboxSettings,
    Snapshots,
    SwitchesNetwork,
    open_backend,
    require,
)
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.sandbox.oci.backend import OciBackend
from tbench.sandbox.oci.store import Store, missing_programs
from tbench.tasks.environment import agent_environment
from tbench.tasks.network import NetworkPolicy
from tbench.tasks.task import Task
from tbench.verify.changes.facts import ImageTree

OPTIONAL = [Compares, Copies, Snapshots, Keeps, MakesRoom, SwitchesNetwork, HasTty]


def will_say(sandbox: Sandbox, answer: ExecResult | Exception) -> None:
    """Tell a fake what the next command comes to; a real one finds out by itself."""
    if isinstance(sandbox, FakeSandbox):
        sandbox.answers.append(answer)


@pytest.fixture(
    params=[
        "fake",
        "fleet",
        pytest.param("docker", marks=pytest.mark.engine),
        pytest.param(
            "oci",
            marks=[
                pytest.mark.engine,
                pytest.mark.skipif(
                    bool(missing_programs("runc", "skopeo", "umoci")), reason="its programs are missing"
                ),
            ],
        ),
        *(
            pytest.param(
                name,
                marks=[
                    pytest.mark.podman,
                    pytest.mark.slow,
                    pytest.mark.skipif(shutil.which("podman") is None, reason="podman is not installed"),
                ],
            )
            for name in ("podman", "rootless_podman")
        ),
    ]
)
async def backend(request: pytest.FixtureRequest) -> Backend:
    """Not opened yet."""
    if request.param == "fake":
        return FakeBackend(lambda _: FakeSandbox({}))
    if request.param == "fleet":
        machines = [FakeMachine("a"), FakeMachine("b")]
        for machine in machines:
            machine.backend = DescribedBackend(lambda _: FakeSandbox({}))
        return Fleet(machines)
    if request.param == "oci":
        return OciBackend(Store.at("oci:"), SandboxSettings(f"test-{uuid.uuid4().hex[:12]}"))
    engine: Engine = request.getfixturevalue("engine" if request.param == "docker" else request.param)
    return DockerBackend(engine, SandboxSettings(f"test-{uuid.uuid4().hex[:12]}"))


@pytest.fixture(scope="session")
def podman() -> Iterator[Engine]:
    with own_podman() as engine:
        yield engine


@pytest.fixture(scope="session")
def rootless_podman() -> Iterator[Engine]:
    with own_podman(is_rootless=True) as engine:
        yield engine


@pytest.fixture
async def sandbox(backend: Backend, make_task: Any) -> AsyncIterator[Sandbox]:
    async with open_backend(backend):
        made = await backend.sandbox(agent_environment(Task.read(make_task())), "t.s0.x")
        yield made
        await made.remove()


async def test_a_backend_says_what_it_has_and_what_it_is(backend: Backend) -> None:
    async with open_backend(backend):
        capacity = backend.capacity()
        assert capacity.cpus > 0
        assert capacity.memory_mb > 0
        told = backend.describe()
        assert json.loads(json.dumps(told)) == told
        assert {"backend", "cpus", "memory_mb"} <= told.keys()
        assert backend.name


async def test_a_backend_can_be_closed_before_it_was_opened_and_twice(backend: Backend) -> None:
    await backend.close()
    async with open_backend(backend):
        pass
    await backend.close()


async def test_phases_and_the_image_are_told_of_a_new_sandbox(backend: Backend, make_task: Any) -> None:
    phases: list[str] = []
    task = Task.read(make_task())
    async with open_backend(backend):
        made = await backend.sandbox(agent_environment(task), "t.s0.x", phases.append)
        await made.remove()
    assert phases[-1] == "sandbox"
    assert backend.image_ids[task.name]
    assert backend.image_origins[task.name].how in ("built", "present")


async def test_a_command_s_output_and_exit_code_come_back(sandbox: Sandbox) -> None:
    will_say(sandbox, ExecResult(3, b"given"))
    ended = await sandbox.shell("cat; exit 3", timeout_sec=30, stdin=b"given")
    assert (ended.exit_code, ended.output, ended.timed_out) == (3, b"given", False)


async def test_a_command_gets_its_environment(sandbox: Sandbox) -> None:
    will_say(sandbox, ExecResult(0, b"some words"))
    ended = await sandbox.shell('printf %s "$SAID"', timeout_sec=30, environment={"SAID": "some words"})
    assert ended.output == b"some words"


async def test_a_command_that_takes_too_long_is_cut(sandbox: Sandbox) -> None:
    will_say(sandbox, ExecResult(None, b"", timed_out=True))
    assert (await sandbox.shell("sleep 60", timeout_sec=1)).timed_out


async def test_a_command_ends_although_a_process_that_it_left_holds_its_output(sandbox: Sandbox) -> None:
    will_say(sandbox, ExecResult(3, b"done\n"))
    assert await sandbox.shell("sleep 600 & echo done; exit 3", timeout_sec=60) == ExecResult(3, b"done\n")


async def test_what_is_put_can_be_fetched_and_is_cut_at_the_limit(sandbox: Sandbox) -> None:
    await sandbox.put({"/some": FileEntry(None, 0o755), "/some/a.txt": FileEntry(b"first"), "/some/b": FileEntry(b"2")})
    assert await sandbox.fetch("/some", 100) == {"a.txt": b"first", "b": b"2"}
    assert (await sandbox.fetch("/some", 3))["a.txt"] == b"fir"
    assert await sandbox.fetch("/nowhere", 100) == {}


async def test_a_sandbox_knows_where_agents_work(sandbox: Sandbox) -> None:
    assert sandbox.workdir == "/app"
    assert sandbox.runs_as_root
    assert not sandbox.ran_out_of_memory


async def test_a_removed_sandbox_is_lost_and_may_be_removed_again(sandbox: Sandbox) -> None:
    await sandbox.remove()
    await sandbox.remove()
    with pytest.raises(TrialError) as lost:
        await sandbox.shell("true", timeout_sec=30)
    assert lost.value.type == "sandbox_lost"


async def test_a_copy_has_the_files_and_a_life_of_its_own(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Copies)
    await sandbox.put({"/note": FileEntry(b"here")})
    await sandbox.put({"/other": FileEntry(b"there")})
    copy = await filled_copy(sandbox, ["/note"], ["/app"])
    will_say(copy, ExecResult(0, b"here"))
    told = await copy.shell("cat /note; [ ! -e /other ] || cat /other; [ ! -e /app ] || echo app", timeout_sec=30)
    assert told.output == b"here"
    await copy.remove()
    assert (await sandbox.shell("true", timeout_sec=30)).exit_code == 0


async def test_a_sandbox_made_again_has_nothing_of_the_first(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Copies)
    await sandbox.put({"/note": FileEntry(b"here")})
    anew = await sandbox.make_fresh()
    will_say(anew, ExecResult(0, b"gone"))
    assert (await anew.shell("[ -e /note ] || printf gone", timeout_sec=30)).output == b"gone"
    await anew.remove()


async def test_what_differs_from_the_image_is_known_from_outside(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Compares)
    await sandbox.put({"/note": FileEntry(b"here"), "/etc/hostname-of-ours": FileEntry(b"x")})
    now = await walk(sandbox, (await sandbox.backend_facts()).began_at)
    original = await sandbox.original()
    will_say(original, ExecResult(0, b"0/\0"))
    changes = now.beyond(ImageTree((await walk(original)).paths, ()).by_directory)
    assert (changes["/note"], changes["/etc/hostname-of-ours"]) == ("added", "added")
    assert "/etc/passwd" not in changes
    assert original is await sandbox.original()
    will_say(original, ExecResult(0, b"gone"))
    assert (await original.shell("[ -e /note ] || printf gone", timeout_sec=30)).output == b"gone"


async def test_an_original_that_was_lost_is_made_again(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, Compares)
    if isinstance(sandbox, FakeSandbox):
        pytest.skip("this one has none of its own")
    await (await sandbox.original()).remove()
    assert (await (await sandbox.original()).shell("true", timeout_sec=30)).exit_code == 0


async def test_a_sandbox_with_room_is_left_as_it_is(sandbox: Sandbox) -> None:
    assert isinstance(sandbox, MakesRoom)
    assert await sandbox.make_room() == ()


async def test_a_sandbox_with_one_network_for_life_keeps_it(sandbox: Sandbox) -> None:
    if isinstance(sandbox, SwitchesNetwork):
        await sandbox.use_network(NetworkPolicy())
    will_say(sandbox, ExecResult(0, b"lo\n"))
    assert (await sandbox.shell("ls /sys/class/net", timeout_sec=30)).output == b"lo\n"


async def test_a_backend_s_sandboxes_have_what_their_class_says(backend: Backend, sandbox: Sandbox) -> None:
    assert type(sandbox) is backend.sandbox_type
    for capability in OPTIONAL:
        if not issubclass(backend.sandbox_type, capability):
            with pytest.raises(UsageError, match=f"--some-mode: {backend.name} (cannot|has no)"):
                require(backend, capability, "--some-mode")
        else:
            require(backend, capability, "--some-mode")


async def test_a_terminal_for_a_human_shows_what_is_typed(sandbox: Sandbox) -> None:
    if not isinstance(sandbox, HasTty):
        pytest.skip("this one has none")
    stream = await sandbox.open_tty([BUSYBOX, "sh"], {}, 30, 100)
    await stream.write(b"stty size; exit\n")
    shown = b""
    while data := await stream.read():
        shown += data
    await stream.close()
    assert b"30 100" in shown


def test_a_machine_among_several_has_logs_of_its_own_in_the_run_s_directory() -> None:
    settings = SandboxSettings("run", image_logs=Path("/runs/a/images"), machine_folder="ssh-gpu")
    assert (settings.directory, settings.own_logs) == (Path("/runs/a"), Path("/runs/a/images/ssh-gpu"))
