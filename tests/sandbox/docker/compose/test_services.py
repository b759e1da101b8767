"""Services of compose files on a real engine: names, order, health, files, networks; and that nothing is left."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from filled_copies import filled_copy
from run_plans import a_config, sandboxes_of
from seen_changes import changes_of

from tbench.errors import TrialError
from tbench.runs.plan import as_configured
from tbench.sandbox.backend import (
    BUSYBOX,
    Compares,
    Copies,
    HasLogs,
    HasServices,
    Keeps,
    SandboxSettings,
    Snapshots,
    open_backend,
)
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.compose.service_starter import ComposeContainer
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
BASE = "debian:bookworm-slim"
TOML = '[environment]\nmemory_mb = 256\ndocker_image = "debian:bookworm-slim"\nallow_internet = false\n'
SERVE = """$server = IO::Socket::INET->new(LocalPort => {port}, Listen => 9, ReuseAddr => 1) or die; $| = 1;
print "serving\n"; while ($client = $server->accept) {{ print $client "{word}\n"; close $client }}"""
CHECK = json.dumps(["CMD", "perl", "-MIO::Socket::INET", "-e", "exit !IO::Socket::INET->new(q(localhost:9000))"])
SHARED_GATEWAY = "172.17.0.1"
"""An address of the engine's host, on its own bridge."""
ASK = "exec /bin/bash -c 'exec 3<>/dev/tcp/{name}/{port}; cat <&3'"
Start = Callable[..., Any]


def server(word: str = "tangerine", port: int = 9000) -> str:
    """A command, as a list in JSON, which says a word to everyone who connects."""
    program = SERVE.format(port=port, word=word).replace("$", "$$")
    return json.dumps(["perl", "-MIO::Socket::INET", "-e", program])


@pytest.fixture
async def start(engine: Engine, tools_volume: str, make_task: Any) -> AsyncIterator[Start]:
    """Starts the services of a compose file; removes them, and checks that nothing of them is left."""
    run = f"tests-compose-{time.time_ns()}"
    started: list[ComposeContainer] = []

    async def start_them(
        compose: str, files: dict[str, str] | None = None, toml: str = TOML, trust: bool = False, **settings: Any
    ) -> ComposeContainer:
        path = make_task("composed", toml=toml)
        for name, text in {"docker-compose.yaml": textwrap.dedent(compose), **(files or {})}.items():
            (path / "environment" / name).parent.mkdir(parents=True, exist_ok=True)
            (path / "environment" / name).write_text(text)
        async with open_backend(DockerBackend(engine, sandboxes_of(run, **settings))) as backend:
            task = Task.read(path).with_access((), host=trust)
            started.append(await backend.sandbox(agent_environment(task), "composed.0"))
        return started[-1]

    yield start_them
    await asyncio.gather(*(each.remove() for each in started))
    assert left_of(engine, run) == []


def left_of(engine: Engine, run: str) -> list[str]:
    """Everything on the engine that belongs to a run."""
    of_run = {"label": f"{LABEL_RUN}={run}"}
    containers = [each["Id"] for each in engine.api.containers(all=True, filters=of_run)]
    networks = [each["Name"] for each in engine.api.networks(filters=of_run)]
    return [*containers, *networks, *(each["Name"] for each in engine.api.volumes(filters=of_run)["Volumes"] or [])]


async def said(sandbox: Any, script: str, user: str | None = "root") -> str:
    ended = await sandbox.shell(script, timeout_sec=20, user=user)
    return str(ended.output.decode().strip())


async def written(sandbox: Any, name: str, lines: int = 1) -> list[bytes]:
    """So many lines that a service has written, sorted: it may not have come to it yet."""
    for _ in range(100):
        found = (await sandbox.logs())[f"services/{name}.log"].splitlines()
        if len(found) >= lines:
            break
        await asyncio.sleep(0.05)
    return sorted(found)


async def has_raw_sockets(sandbox: Any) -> bool:
    """Whether its processes have CAP_NET_RAW, which is number 13."""
    return bool(int((await said(sandbox, "grep CapPrm /proc/self/status")).split()[1], 16) >> 13 & 1)


async def answer(sandbox: Any, name: str, port: int = 9000) -> str:
    return await said(sandbox, ASK.format(name=name, port=port))


async def test_the_agent_reads_from_a_service_by_its_names_once_that_is_healthy(start: Start) -> None:
    sandbox = await start(f"""
        services:
          main: {{depends_on: {{server: {{condition: service_healthy}}}}}}
          server:
            image: {BASE}
            container_name: fruit-box
            command: {server()}
            networks: {{default: {{aliases: [fruits]}}}}
            healthcheck: {{test: {CHECK}, interval: 30s, timeout: 5s, retries: 3}}
        """)
    assert [await answer(sandbox, name) for name in ("server", "fruits", "fruit-box")] == ["tangerine"] * 3
    assert await written(sandbox, "server") == [b"serving"]
    protocols = (HasServices, HasLogs, Keeps, Copies, Compares, Snapshots)
    assert [each for each in protocols if not isinstance(sandbox, each)] == []
    copy = await filled_copy(sandbox, (), ())
    try:
        assert await answer(copy, "server") == "tangerine"
    finally:
        await copy.remove()
    anew = await sandbox.make_fresh()
    try:
        assert await answer(anew, "server") == "tangerine"
    finally:
        await anew.remove()


async def test_services_without_internet_cannot_reach_the_host_either(start: Start, host_port: int) -> None:
    sandbox = await start(f"services: {{side: {{image: {BASE}, command: sleep 99}}}}")
    # The bridge's own address, the shared bridge's, and none where a route would be needed.
    reach = f"""for address in $({BUSYBOX} ip route | {BUSYBOX} awk '/^default/ {{print $3}}') {SHARED_GATEWAY}; do
        timeout 1 /bin/bash -c "echo >/dev/tcp/$address/{host_port}" && echo reached $address; done 2>/dev/null; true"""
    assert await asyncio.gather(said(sandbox, reach), said(sandbox.service("side"), reach)) == ["", ""]
    assert await said(sandbox, "getent hosts side") != ""


SHARING = f"""
    services:
      main: {{depends_on: [server, apart]}}
      server: {{image: {BASE}, command: {server("pear")}, container_name: fruit-box}}
      beside: {{image: {BASE}, command: {server("plum", 9001)}, network_mode: "service:server"}}
      apart: {{image: {BASE}, command: {server("fig")}, networks: [default, back]}}
      store: {{image: {BASE}, command: {server("kiwi")}, networks: [back]}}
    networks: {{back: }}
    """


async def answers_as_one(place: Any, host_port: int) -> None:
    asked = [("localhost", 9000), ("server", 9000), ("fruit-box", 9000), ("main", 9001), ("apart", 9000)]
    assert [await answer(place, *each) for each in asked] == ["pear", "pear", "pear", "plum", "fig"]
    assert await said(place, "getent hosts store example.com || echo unknown") == "unknown"
    to_host = f"timeout 1 /bin/bash -c 'echo >/dev/tcp/{SHARED_GATEWAY}/{host_port}' 2>/dev/null || echo no"
    assert await said(place, to_host) == "no"


async def test_services_of_a_task_without_a_network_answer_on_localhost_and_by_name(
    start: Start, host_port: int
) -> None:
    sandbox = await start(SHARING)
    copy = await sandbox.make_fresh()
    # All at once: a name that nobody knows may take the resolver five seconds.
    places = (sandbox, sandbox.service("server"), sandbox.service("beside"), copy)
    await asyncio.gather(*(answers_as_one(place, host_port) for place in places))
    await copy.remove()
    assert [await answer(sandbox.service("apart"), name) for name in ("server", "store")] == ["pear", "kiwi"]


@pytest.mark.parametrize("is_asked", [True, False], ids=["of the task", "of the command line"])
async def test_a_network_that_the_task_did_not_give_up_is_none_that_services_share(
    start: Start, is_asked: bool
) -> None:
    compose = f"services: {{side: {{image: {BASE}, command: {server()}, healthcheck: {{test: {CHECK}}}}}}}"
    toml = TOML if is_asked else TOML.replace("allow_internet = false\n", "")
    sandbox = await start(compose, toml=toml, network="none")
    assert await answer(sandbox, "side") == "tangerine"
    assert await answer(sandbox, "localhost") == ("tangerine" if is_asked else "")


async def test_blocking_the_host_closes_it_to_all_services_and_leaves_them_the_rest(
    start: Start, host_port: int
) -> None:
    sandbox = await start(
        f"""
        services:
          main: {{depends_on: [server]}}
          server: {{image: {BASE}, command: {server()}}}
          shares: {{image: {BASE}, command: sleep 99, network_mode: "service:server"}}
        """,
        toml=TOML.replace("allow_internet = false\n", ""),
        block_host=True,
    )
    reach = f"timeout 1 /bin/bash -c 'echo >/dev/tcp/{SHARED_GATEWAY}/{host_port}' 2>/dev/null && echo reached; true"
    routes = f"{BUSYBOX} ip route"
    for place in (sandbox, sandbox.service("server"), sandbox.service("shares")):
        assert await said(place, reach) == ""
        found = await said(place, routes)
        assert "default via" in found and f"prohibit {SHARED_GATEWAY}" in found
        # Packets of one's own making would go past the routes.
        assert not await has_raw_sockets(place)
    assert await answer(sandbox, "server") == "tangerine"


async def test_what_services_are_made_with_is_what_the_file_says(start: Start, engine: Engine) -> None:
    sandbox = await start(
        f"""
        services:
          main:
            environment: {{COLOUR: blue, SIZE: small}}
            volumes: ["shared:/shared", "./config.txt:/etc/config.txt:ro", "./data:/data"]
            tmpfs: /scratch:size=1m
            cap_add: [SYS_PTRACE]
            shm_size: 32m
            sysctls: {{net.ipv4.ip_unprivileged_port_start: "0"}}
            extra_hosts: ["far:10.9.8.7"]
            hostname: desk
          side:
            image: {BASE}
            entrypoint: [sh, -c]
            command: ["echo $$WORD from side; echo shared > /shared/word; exec sleep 99"]
            environment: [WORD=hello]
            working_dir: /tmp
            user: "1:1"
            init: true
            mem_limit: 64m
            cpus: 0.5
            pids_limit: 50
            ulimits: {{nofile: 100}}
            cap_drop: [ALL]
            volumes: ["shared:/shared", "./data:/data:ro", "${{HOST_ARTIFACTS_PATH}}:${{ENV_ARTIFACTS_PATH}}"]
            labels: {{fruit: pear, tbench.run: forged}}
            deploy: {{resources: {{limits: {{memory: 64m}}}}}}
        volumes: {{shared: }}
        """,
        {"config.txt": "configured", "data/one.txt": "one", "data/sub/two.txt": "two"},
        toml=TOML + 'env = { SIZE = "large" }\n',
    )
    side = sandbox.service("side")
    assert await written(sandbox, "side", 2) == [
        b"hello from side",
        b"sh: 1: cannot create /shared/word: Permission denied",
    ]
    assert (
        await said(sandbox, "echo $COLOUR $SIZE; cat /etc/config.txt /data/sub/two.txt; hostname")
        == "blue large\nconfiguredtwodesk"
    )
    assert "10.9.8.7" in await said(sandbox, "getent hosts far")
    # A copy of the task's files is the trial's own; services share it.
    assert await said(sandbox, "echo new > /data/one.txt; echo x > /logs/artifacts/x") == ""
    assert await said(side, "cat /data/one.txt /logs/artifacts/x") == "new\nx"
    assert await said(side, "(echo y > /data/one.txt) 2>/dev/null || echo kept") == "kept"
    assert await said(side, "echo z > /logs/artifacts/z && ulimit -n && pwd; id -u", user="1") == "100\n/\n1"
    found = engine.api.inspect_container(side.container_id)
    host, config = found["HostConfig"], found["Config"]
    assert (host["Memory"], host["NanoCpus"], host["PidsLimit"], host["Init"]) == (64 << 20, 5 * 10**8, 50, True)
    assert (config["WorkingDir"], config["Labels"]["fruit"]) == ("/tmp", "pear")
    assert config["Labels"][LABEL_RUN].startswith("tests-compose")
    main = engine.api.inspect_container(sandbox.container_id)["HostConfig"]
    assert (main["ShmSize"], main["CapAdd"], main["Memory"]) == (32 << 20, ["SYS_PTRACE"], 256 << 20)


async def test_main_begins_with_what_the_file_says_and_others_wait_until_it_is_healthy(start: Start) -> None:
    sandbox = await start(f"""
        services:
          main:
            entrypoint: [sh, -c, 'echo begun > /begun; exec "$$@"', sh]
            command: [sleep, "321"]
            healthcheck: {{test: test -e /begun, interval: 30s}}
          late: {{image: {BASE}, command: sleep 99, depends_on: {{main: {{condition: service_healthy}}}}}}
        """)
    running = r"for each in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$each; echo; done 2>/dev/null | grep '^sleep 321'"
    assert await said(sandbox, f"cat /begun; {running}") == "begun\nsleep 321"


async def test_networks_of_its_own_part_services_and_one_network_may_be_shared(start: Start) -> None:
    sandbox = await start(f"""
        services:
          main: {{networks: [front]}}
          web: {{image: {BASE}, command: {server("web")}, networks: [front, back]}}
          store: {{image: {BASE}, command: {server("store", 9001)}, networks: [back]}}
          beside: {{image: {BASE}, command: {server("beside", 9002)}, network_mode: "service:web"}}
          alone: {{image: {BASE}, command: sleep 99, network_mode: none}}
        networks: {{front: , back: {{internal: true}}}}
        """)
    assert await answer(sandbox, "web") == "web"
    assert await answer(sandbox, "web", 9002) == "beside"
    assert await said(sandbox, "getent hosts store || echo unknown") == "unknown"
    assert await answer(sandbox.service("web"), "store", 9001) == "store"
    assert await said(sandbox.service("alone"), "ls /sys/class/net") == "lo"


async def test_services_start_in_the_order_of_their_conditions(start: Start) -> None:
    sandbox = await start(f"""
        services:
          main:
            depends_on: {{prepare: {{condition: service_completed_successfully}}}}
            healthcheck: {{test: "true", interval: 1s}}
          prepare: {{image: {BASE}, command: sh -c 'sleep 0.3; echo ready > /work/state', volumes: ["work:/work"]}}
          last:
            image: {BASE}
            command: sh -c 'cat /work/state; exec sleep 99'
            volumes: ["work:/work"]
            depends_on: {{main: {{condition: service_healthy}}}}
        volumes: {{work: {{}}}}
        """)
    assert await written(sandbox, "last") == [b"ready"]


@pytest.mark.parametrize(
    ("compose", "kind", "words"),
    [
        (
            "services: {main: {depends_on: {sick: {condition: service_healthy}}}, "
            f"sick: {{image: {BASE}, command: sleep 99, "
            "healthcheck: {test: 'echo broken; exit 3', interval: 200ms, retries: 2}}}",
            "healthcheck_failed",
            "sick: never became healthy: 'CMD-SHELL echo broken; exit 3' ended with 3: broken",
        ),
        (
            # The pause, which main waits for, gives the other time to end on a busy machine.
            f"services: {{crash: {{image: {BASE}, command: sh -c 'echo cannot open it; exit 4'}}, "
            f"pause: {{image: {BASE}, command: sleep 1, depends_on: [crash]}}, "
            "main: {depends_on: {pause: {condition: service_completed_successfully}}}}",
            "service_failed",
            "crash: ended with 4 before the agent began; its last output: cannot open it",
        ),
        (
            f"services: {{main: {{depends_on: {{job: {{condition: service_completed_successfully}}}}}}, "
            f"job: {{image: {BASE}, command: sh -c 'exit 5'}}}}",
            "service_failed",
            "job: ended with 5 before the agent began",
        ),
        (
            f"services: {{lost: {{image: {BASE}, command: no-such-program}}}}",
            "sandbox_failed",
            "no-such-program",
        ),
    ],
)
async def test_a_service_that_does_not_get_ready_is_named_and_nothing_is_left(
    start: Start, compose: str, kind: str, words: str
) -> None:
    with pytest.raises(TrialError) as caught:
        await start(compose)
    assert (caught.value.type, words in str(caught.value)) == (kind, True), caught.value
    if "crash" in compose:
        assert caught.value.files == {"services/crash.log": b"cannot open it\n", "services/pause.log": b""}


async def test_a_service_is_found_by_its_name_and_lives_on_without_main(start: Start) -> None:
    sandbox = await start(f"services: {{side: {{image: {BASE}, command: {server()}}}}}")
    assert sandbox.service("main") is sandbox
    with pytest.raises(TrialError, match="no service 'nobody'; known services:"):
        sandbox.service("nobody")
    await sandbox.stop_main()
    await sandbox.stop_main()
    with pytest.raises(TrialError) as caught:
        await sandbox.shell("true", timeout_sec=5)
    assert caught.value.type == "sandbox_lost"
    assert await answer(sandbox.service("side"), "localhost") == "tangerine"


async def test_a_start_that_is_cancelled_leaves_nothing(start: Start) -> None:
    b = f"b: {{image: {BASE}, command: sleep 5}}"
    main = "main: {depends_on: {b: {condition: service_completed_successfully}}}"
    for after_sec in (0.05, 0.3, 0.6):
        starting = asyncio.create_task(start(f"services: {{a: {{image: {BASE}}}, {b}, {main}}}"))
        await asyncio.sleep(after_sec)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    # The fixture looks for what is left.


async def test_what_a_killed_process_left_is_removed_by_the_next_run(
    engine: Engine, tools_volume: str, make_task: Any
) -> None:
    path = make_task("killed", toml=TOML)
    (path / "environment" / "docker-compose.yaml").write_text(
        f"services: {{side: {{image: {BASE}, command: sleep 99, volumes: ['data:/data']}}}}\nvolumes: {{data: }}\n"
    )
    script = f"""
import asyncio, os
from pathlib import Path
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task
async def start():
    async with open_backend(DockerBackend(Engine.connect(), SandboxSettings("tests-killed"))) as backend:
        await backend.sandbox(agent_environment(Task.read(Path({str(path)!r}))), "killed.0")
        os.kill(os.getpid(), 9)
asyncio.run(start())
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True)
    assert (done.returncode, len(left_of(engine, "tests-killed"))) == (-9, 4), done.stderr
    async with open_backend(DockerBackend(engine, SandboxSettings("tests-next"))):
        assert left_of(engine, "tests-killed") == []


async def test_a_kept_sandbox_is_found_again_with_its_services(start: Start, engine: Engine, tmp_path: Path) -> None:
    sandbox = await start(
        f"services: {{side: {{image: {BASE}, command: {server()}, volumes: ['data:/data']}}}}\nvolumes: {{data: }}"
    )
    kept = await sandbox.keep()
    task = Task.read(tmp_path / "tasks" / "composed")
    async with open_backend(DockerBackend(engine, SandboxSettings("tests"))) as backend:
        again = await backend.reopen(agent_environment(task), "composed.0", kept)
        assert isinstance(again, ComposeContainer)
        assert await answer(again, "side") == "tangerine"
        assert await said(again.service("side"), "ls -d /data") == "/data"
        await again.remove()
    assert as_configured(task, a_config()).host_access == {}


@pytest.mark.slow
async def test_a_snapshot_is_of_main_and_the_services_start_fresh(start: Start, engine: Engine, tmp_path: Path) -> None:
    sandbox = await start(f"services: {{side: {{image: {BASE}, command: {server()}}}}}")
    await said(sandbox, "echo mine > /root/file")
    image = await sandbox.snapshot()
    task = Task.read(tmp_path / "tasks" / "composed")
    try:
        async with open_backend(DockerBackend(engine, SandboxSettings("tests"))) as backend:
            again = await backend.from_snapshot(agent_environment(task), "composed.0", image)
            try:
                assert await said(again, "cat /root/file") == "mine"
                assert await answer(again, "side") == "tangerine"
                assert (await changes_of(again))["/root/file"] == "added"
            finally:
                await again.remove()
    finally:
        engine.api.remove_image(image, force=True)
