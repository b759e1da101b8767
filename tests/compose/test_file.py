"""Whole compose files: what is read, what is malformed, unsupported, ignored, or asks for the host."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tbench.compose.file import ComposeFile, read_compose
from tbench.compose.project import (
    MAIN_LOGS_PLACEHOLDER,
    ImageBuild,
    Service,
    ServiceCheck,
    ServiceMount,
    TrialNetwork,
    TrialVolume,
)
from tbench.compose.variables import Variables
from tbench.errors import TaskInvalid


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task's environment/ with some files."""
    environment = tmp_path / "task" / "environment"
    (environment / "api").mkdir(parents=True)
    (environment / "data").mkdir()
    (environment / "conf.ini").write_text("x")
    (environment / "vars.env").write_text(
        "# words\nA=1\nexport B = 'two $A'\nC=\"th\\tree\" \nD=four # rest\nE\n\nF=${GIVEN}\n"
    )
    (environment / "out").symlink_to(tmp_path)
    return environment


def read(folder: Path, text: str, **given: str) -> ComposeFile:
    own = {"CONTEXT_DIR": str(folder), "HOST_AGENT_LOGS_PATH": f"{MAIN_LOGS_PLACEHOLDER}/agent"}
    own["HOST_VERIFIER_LOGS_PATH"] = f"{MAIN_LOGS_PLACEHOLDER}/verifier"
    return read_compose(
        folder / "docker-compose.yaml", textwrap.dedent(text).encode(), Variables(own, given), folder.parent
    )


def service(folder: Path, text: str, name: str = "api") -> Service:
    """A service that is called `api`, of the lines below it."""
    body = textwrap.indent(textwrap.dedent(text), "    ")
    found = read(folder, f"services:\n  {name}:\n{body}\nvolumes: {{v: }}\nnetworks: {{back: }}\n")
    assert found.project is not None
    assert (found.unsupported, found.host_access) == ((), ())
    return found.project.services[name]


def test_all_that_a_service_can_say_is_read(folder: Path) -> None:
    found = service(
        folder,
        """
        image: nginx:1
        command: serve --port 80
        entrypoint: ["/run.sh"]
        environment: {A: 1, B: "two", C: true}
        working_dir: /srv
        user: "1000:1000"
        group_add: [10]
        hostname: box
        healthcheck: {test: curl -f localhost, interval: 2s, timeout: 1m, retries: 4, start_period: 500ms}
        expose: [80, "53/udp"]
        ports: ["8080:80", "127.0.0.1:9000-9001:9000-9001/tcp", {target: 70, published: "7000"}]
        volumes:
          - v:/data:ro
          - ./data:/copy
          - ./conf.ini:/etc/conf.ini:ro
          - /anonymous
          - {type: volume, source: v, target: /other, read_only: true, volume: {nocopy: true}}
          - {type: tmpfs, target: /ram, tmpfs: {size: 1m, mode: 0o700}}
          - {type: bind, source: ./data, target: /bound, bind: {create_host_path: true}}
        tmpfs: [/tmp, "/run:size=64k"]
        networks: {back: {aliases: [store]}, default: }
        cpus: "0.5"
        mem_limit: 64m
        pids_limit: 100
        platform: linux/amd64
        restart: on-failure:3
        init: true
        tty: true
        stdin_open: true
        read_only: yes
        cap_add: [SYS_PTRACE, CAP_SYS_NICE]
        cap_drop: [ALL]
        security_opt: ["no-new-privileges:true"]
        shm_size: 2gb
        ulimits: {nofile: 1024, nproc: {soft: 10, hard: 20}}
        sysctls: [net.core.somaxconn=1024]
        extra_hosts: ["far:10.0.0.1", "six=::1"]
        dns: 10.0.0.2
        stop_signal: SIGINT
        labels: {a: b, tbench.run: forged}
        x-anything: [1, 2]
        """,
    )
    assert found == Service(
        "api",
        image="nginx:1",
        command=("serve", "--port", "80"),
        entrypoint=("/run.sh",),
        environment={"A": "1", "B": "two", "C": "true"},
        working_dir="/srv",
        user="1000:1000",
        group_add=("10",),
        hostname="box",
        healthcheck=ServiceCheck(("CMD-SHELL", "curl -f localhost"), 2.0, 60.0, 4, 0.5),
        ports=("80/tcp", "9000/tcp", "9001/tcp", "70/tcp", "53/udp"),
        mounts=(
            ServiceMount("volume", "v", "/data", read_only=True),
            ServiceMount("copy", "data", "/copy"),
            ServiceMount("copy", "conf.ini", "/etc/conf.ini", read_only=True),
            ServiceMount("anonymous", "", "/anonymous"),
            ServiceMount("volume", "v", "/other", read_only=True, no_copy=True),
            ServiceMount("copy", "data", "/bound"),
        ),
        tmpfs={"/tmp": "", "/run": "size=64k", "/ram": "size=1048576,mode=700"},
        networks={"back": ("store",), "default": ()},
        limits={"cpus": 0.5, "memory_mb": 64.0, "pids_limit": 100},
        platform="linux/amd64",
        restart=("on-failure", 3),
        init=True,
        tty=True,
        stdin_open=True,
        read_only=True,
        cap_add=("SYS_PTRACE", "SYS_NICE"),
        cap_drop=("ALL",),
        security_opt=("no-new-privileges:true",),
        shm_size=2 << 30,
        ulimits={"nofile": (1024, 1024), "nproc": (10, 20)},
        sysctls={"net.core.somaxconn": "1024"},
        extra_hosts={"far": "10.0.0.1", "six": "::1"},
        dns=("10.0.0.2",),
        stop_signal="SIGINT",
        labels={"a": "b"},
    )


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("build: ./api", ImageBuild("api")),
        ("build: ${CONTEXT_DIR}/api", ImageBuild("api")),
        ("build: .", ImageBuild(".")),
        (
            "build: {context: api, dockerfile: Other, target: last, args: [A=1, B]}",
            ImageBuild("api", "Other", None, {"A": "1"}, "last"),
        ),
        ("build: {dockerfile_inline: FROM x, args: {V: 1.10}}", ImageBuild(".", None, "FROM x", {"V": "1.10"})),
    ],
)
def test_a_build_is_of_a_folder_beside_the_file(folder: Path, text: str, build: ImageBuild) -> None:
    assert service(folder, text).build == build


def test_variables_come_from_files_and_what_is_written_beside_them_wins(folder: Path) -> None:
    text = (
        "services: {api: {image: x, env_file: [vars.env, {path: none.env, required: false}], environment: [D=5, G, H]}}"
    )
    found = read(folder, text, GIVEN="given", G="g", E="e")
    assert found.project is not None
    assert dict(found.project.services["api"].environment) == {
        "A": "1", "B": "two $A", "C": "th\tree", "D": "5", "E": "e", "F": "given", "G": "g"
    }  # fmt: skip
    assert [(asked.name, asked.has_default, asked.is_given) for asked in found.asked] == [
        ("E", True, True), ("GIVEN", False, True), ("G", True, True), ("H", True, False)
    ]  # fmt: skip


def test_main_is_always_there_and_services_come_after_those_that_they_need(folder: Path) -> None:
    found = read(
        folder,
        """
        services:
          main: {depends_on: [web]}
          web:
            image: x
            depends_on: {store: {condition: service_healthy}, extra: {condition: service_started, required: false}}
          store: {image: x, links: ["seed:seeds"]}
          beside: {image: x, network_mode: "service:main"}
          seed: {image: x}
          extra: {image: x, profiles: [debug]}
        """,
    ).project
    assert found is not None
    assert list(found.services) == ["seed", "store", "web", "main", "beside"]
    assert found.services["web"].needs == {"store": "service_healthy"}
    assert found.services["beside"].needs == {"main": "service_started"}
    assert found.services["seed"].networks == {"default": ("seeds",)}
    empty = read(folder, "services: {}").project
    assert empty is not None
    assert list(empty.services) == ["main"]
    assert [each.name for each in found.sidecars] == ["seed", "store", "web", "beside"]


def test_networks_and_volumes_are_those_in_use(folder: Path) -> None:
    found = read(
        folder,
        """
        services:
          main: {networks: [front]}
          api:
            image: x
            volumes: ["v:/v", "${HOST_AGENT_LOGS_PATH}:/l"]
            networks: [front, back]
            container_name: the-api
        networks: {front: {name: mine}, back: {internal: true, driver: bridge}, unused: {}}
        volumes: {v: {driver: local}, unused: }
        """,
    )
    project = found.project
    assert project is not None
    assert project.networks == {"front": TrialNetwork("front"), "back": TrialNetwork("back", internal=True)}
    assert project.volumes == {
        "v": TrialVolume("v"),
        "tbench-logs-agent": TrialVolume("tbench-logs-agent", world_writable=True),
    }
    assert project.services["api"].networks == {"front": ("the-api",), "back": ("the-api",)}
    assert project.main.mounts == (ServiceMount("volume", "tbench-logs-agent", "/logs/agent"),)
    assert set(found.ignored) == {"services.api.container_name", "networks.front.name"}


MALFORMED = [
    ("services: {api: {imgae: x}}", "services.api.imgae: unknown key; did you mean image?"),
    ("service: {}", "service: unknown key; did you mean services?"),
    ("version: '3'", "has no services"),
    ("services: [a]", "services: has to be a mapping (got a list)"),
    ("services: {api: 1}", "services.api: has to be a mapping (got '1')"),
    ("services: {a b: {image: x}}", "services.a b: has to be a name"),
    ("services: {api: {image: x, healthcheck: {interval: 5}}}", "healthcheck.interval: has to be a duration"),
    ("services: {api: {image: x, healthcheck: {test: [curl, x]}}}", "test: has to begin with CMD, CMD-SHELL"),
    ("services: {api: {image: x, healthcheck: {test: [CMD-SHELL, a, b]}}}", "CMD-SHELL must be followed by one script"),
    ("services: {api: {image: x, healthcheck: {tset: x}}}", "healthcheck.tset: unknown key; did you mean test?"),
    ("services: {api: {image: x, mem_limit: lots}}", "services.api.mem_limit: has to be a size such as 512m"),
    ("services: {api: {image: x, cpus: -1}}", "services.api.cpus: has to be a number of 0 or more"),
    ("services: {api: {image: x, cpus: .inf}}", "services.api.cpus: has to be a number"),
    ("services: {api: {image: x, init: maybe}}", "services.api.init: has to be true or false"),
    ("services: {api: {image: x, restart: never}}", "services.api.restart: has to be "),
    ("services: {api: {image: x, depends_on: [a, b]}}", "services.api: depends on an unknown service a"),
    ("services: {api: {image: x, depends_on: [apj]}, apj2: {image: x}}", "did you mean apj2?"),
    (
        "services: {api: {image: x, depends_on: {db: {condition: healthy}}}, db: {image: x}}",
        "services.api.depends_on.db.condition: has to be service_started or service_healthy",
    ),
    (
        "services: {a: {image: x, depends_on: [b]}, b: {image: x, links: [c]}, "
        "c: {image: x, network_mode: 'service:a'}}",
        "depends on itself: a -> b -> c -> a",
    ),
    ("services: {a: {image: x, depends_on: [a]}}", "services.a: depends on itself: a -> a"),
    (
        "services: {a: {image: x, ports: ['80:80']}, b: {image: x, ports: ['80:8080']}}",
        "services.b: has the same port 80/tcp on the machine as a",
    ),
    (
        "services: {a: {image: x, expose: [80]}, b: {image: x, network_mode: 'service:a', expose: [80]}}",
        "services.b: has the same port 80/tcp in the network of a as a",
    ),
    ("services: {api: {image: x, ports: [99999]}}", "services.api.ports[0]: has to be a port from 1 to 65535"),
    ("services: {api: {image: x, ports: ['1-9000']}}", "a range of at most 2,000"),
    ("services: {api: {image: x, ports: [web]}}", "services.api.ports[0]: has to be [PUBLISHED:]PORT"),
    ("services: {api: {image: x, volumes: ['data:/data']}}", "services.api: uses the volume data, which"),
    ("services: {api: {image: x, volumes: ['v:data']}}\nvolumes: {v: }", "volumes[0]: the path in the container has"),
    ("services: {api: {image: x, volumes: ['v:/']}}\nvolumes: {v: }", "volumes[0]: nothing can be mounted at /"),
    ("services: {main: {volumes: ['v:/opt/tbench']}}\nvolumes: {v: }", "volumes[0]: nothing can be mounted"),
    (
        "services: {api: {image: x, volumes: [{type: bind, source: ./none, target: /x, "
        "bind: {create_host_path: false}}]}}",
        "./none: no such file or folder in",
    ),
    ("services: {api: {image: x, volumes: ['v:/a', 'v:/a/']}}\nvolumes: {v: }", "mounts two volumes at /a"),
    ("services: {api: {image: x, volumes: ['v:/a:rx']}}\nvolumes: {v: }", "unknown option 'rx'"),
    ("services: {api: {image: x, networks: [bakc]}}\nnetworks: {back: }", "uses the network bakc, which the file"),
    ("services: {api: {image: x, network_mode: nat}}", "services.api.network_mode: has to be none, bridge, host or"),
    ("services: {api: {image: x, network_mode: none, networks: [default]}}", "cannot be combined with networks"),
    ("services: {api: {build: ./none}}", "services.api.build: ./none: no such folder in"),
    ("services: {api: {build: {dockerfile: a, dockerfile_inline: b}}}", "exclude each other"),
    ("services: {api: {image: x, env_file: none.env}}", "services.api.env_file: none.env: no such file"),
    ("services: {api: {image: x, env_file: ../../x}}", "../../x is not in the task"),
    ("services: {api: {image: x, environment: ['=x']}}", "'' is not a valid variable name"),
    ("services: {api: {image: '${X'}}", "services.api.image: '${X' has an unclosed"),
    ("services: {api: {image: x, command: 'sh -c \"'}}", "services.api.command: cannot be split into words"),
    ("services: {api: {}}", "services.api: has neither image nor build"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), MALFORMED)
def test_what_is_malformed_is_named_by_file_line_and_key(folder: Path, text: str, words: str) -> None:
    with pytest.raises(TaskInvalid) as caught:
        read(folder, text)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{folder / 'docker-compose.yaml'}:1: ")


UNSUPPORTED = [
    ("configs: {c: {}}\nservices: {}", "configs"),
    ("include: [x]\nservices: {}", "include"),
    ("secrets: {s: {}}\nservices: {}", "secrets"),
    ("services: {api: {image: x, extends: {service: y}}}", "services.api.extends"),
    ("services: {api: {image: x, secrets: [s]}}", "services.api.secrets"),
    ("services: {api: {image: x, configs: [s]}}", "services.api.configs"),
    ("services: {api: {image: x, volumes_from: [y]}}", "services.api.volumes_from"),
    ("services: {api: {image: x, pid: 'service:y'}}", "services.api.pid: service:y"),
    ("services: {api: {image: x, ipc: 'container:y'}}", "services.api.ipc: container:y"),
    ("services: {api: {image: x, scale: 2}}", "services.api.scale: 2 containers of a service"),
    ("services: {api: {image: x, deploy: {replicas: 3}}}", "services.api.deploy.replicas: 3 containers of a service"),
    ("services: {api: {build: 'https://host/repo.git'}}", "services.api.build: a remote context: https"),
    ("services: {api: {build: {ssh: [default]}}}", "services.api.build.ssh"),
    ("services: {api: {image: x, networks: {n: {ipv4_address: 1.2.3.4}}}}\nnetworks: {n: }", "services.api.networks.n"),
    ("services: {api: {image: x, networks: [n]}}\nnetworks: {n: {driver: macvlan}}", "networks.n.driver: macvlan"),
    ("services: {api: {image: x, networks: [n]}}\nnetworks: {n: {ipam: {}}}", "networks.n.ipam"),
    ("services: {api: {image: x, volumes: ['v:/v']}}\nvolumes: {v: {driver: nfs}}", "volumes.v.driver: nfs"),
    ("services: {api: {image: x, volumes: ['v:/v']}}\nvolumes: {v: {driver_opts: {}}}", "volumes.v.driver_opts"),
    ("services: {api: {image: x, volumes: [{type: image, source: y, target: /y}]}}", "services.api.volumes[0].type"),
    ("services: {api: {image: x, volumes: ['${HOST_VERIFIER_LOGS_PATH}:/l']}}", "services.api.volumes[0]: only"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key"), UNSUPPORTED)
def test_what_is_not_supported_is_named_by_its_key(folder: Path, text: str, key: str) -> None:
    found = read(folder, text)
    assert len(found.unsupported) == 1
    assert found.unsupported[0].startswith(key)
    assert found.host_access == ()


HOST = [
    ("services: {api: {image: x, privileged: true}}", "services.api.privileged"),
    ("services: {api: {image: x, network_mode: host}}", "services.api.network_mode: host"),
    ("services: {api: {image: x, network_mode: 'container:c'}}", "services.api.network_mode: container:c"),
    ("services: {api: {image: x, cap_add: [NET_RAW]}}", "services.api.cap_add: NET_RAW"),
    ("services: {api: {image: x, pid: host}}", "services.api.pid: host"),
    ("services: {api: {image: x, ipc: host}}", "services.api.ipc: host"),
    ("services: {api: {image: x, userns_mode: host}}", "services.api.userns_mode: host"),
    ("services: {api: {image: x, devices: ['/dev/kvm']}}", "services.api.devices: /dev/kvm"),
    ("services: {api: {image: x, cap_add: [SYS_ADMIN]}}", "services.api.cap_add: SYS_ADMIN"),
    ("services: {api: {image: x, cap_add: [all]}}", "services.api.cap_add: ALL"),
    (
        "services: {api: {image: x, security_opt: ['seccomp:unconfined']}}",
        "services.api.security_opt: seccomp:unconfined",
    ),
    ("services: {api: {image: x, volumes: ['/etc:/host']}}", "services.api.volumes[0]: /etc"),
    ("services: {api: {image: x, volumes: ['../../:/host']}}", "services.api.volumes[0]: ../../"),
    ("services: {api: {image: x, volumes: ['~/x:/host']}}", "services.api.volumes[0]: ~/x"),
    ("services: {api: {image: x, volumes: ['./out:/host']}}", "services.api.volumes[0]: ./out"),
    (
        "services: {api: {image: x, volumes: ['/var/run/docker.sock:/var/run/docker.sock']}}",
        "services.api.volumes[0]: /var/run/docker.sock",
    ),
    ("services: {api: {image: x, volumes: [{type: bind, source: /etc, target: /e}]}}", "services.api.volumes[0]: /etc"),
    ("services: {api: {build: ../../}}", "services.api.build: ../../"),
    ("services: {api: {build: {context: ., dockerfile: ../../D}}}", "services.api.build.dockerfile: ../../D"),
    ("services: {api: {image: x, volumes: ['v:/v']}}\nvolumes: {v: {external: true}}", "volumes.v.external: v"),
    (
        "services: {api: {image: x, networks: [n]}}\nnetworks: {n: {external: true, name: corp}}",
        "networks.n.external: corp",
    ),
]


@pytest.mark.parametrize(("text", "asked"), HOST)
def test_what_gives_access_to_the_host_is_named_by_key_and_value(folder: Path, text: str, asked: str) -> None:
    found = read(folder, text)
    assert len(found.host_access) == 1
    assert found.host_access[0].startswith(asked)
    assert found.unsupported == ()


def test_what_has_no_effect_is_named_with_the_reason(folder: Path) -> None:
    found = read(
        folder,
        """
        services:
          main: {volumes: ["${HOST_VERIFIER_LOGS_PATH}:/logs/verifier"]}
          api:
            image: x
            ports: ["80:80"]
            logging: {driver: none}
            stop_grace_period: 2m
            deploy: {mode: replicated, resources: {limits: {cpus: "2", memory: 1g, pids: 9}, reservations: {cpus: "1"}}}
        """,
    )
    assert set(found.ignored) == {
        "services.main.volumes[0]",
        "services.api.ports",
        "services.api.logging",
        "services.api.stop_grace_period",
        "services.api.deploy.mode",
        "services.api.deploy.resources.reservations.cpus",
    }
    assert found.project is not None
    assert found.project.services["api"].limits == {"cpus": 2.0, "memory_mb": 1024.0, "pids_limit": 9}


def test_a_file_that_lacks_variables_is_no_error_of_the_file(folder: Path) -> None:
    found = read(folder, "services: {api: {image: x, mem_limit: '${MEM}'}}")
    assert (found.project, [asked.name for asked in found.missing]) == (None, ["MEM"])
    with pytest.raises(TaskInvalid, match="mem_limit: has to be a size"):
        read(folder, "services: {api: {image: x, mem_limit: '${MEM}'}}", MEM="much")


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpus: all", -1),
        ("gpus: 2", 2),
        ("deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}", 1),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", -1),
    ],
)
def test_gpus_are_counted(folder: Path, text: str, gpus: int) -> None:
    assert service(folder, f"image: x\n{text}").gpus == gpus


def test_files_of_the_task_are_no_files_of_the_host_wherever_the_compose_file_is(folder: Path) -> None:
    (folder.parent / "tests").mkdir()
    found = service(
        folder,
        """
        build: {context: .., dockerfile: environment/api/Dockerfile}
        volumes: ["../tests:/t", "./made/later:/m"]
        """,
    )
    assert found.build == ImageBuild(str(folder.parent.resolve()), "environment/api/Dockerfile")
    assert [(mount.kind, mount.source) for mount in found.mounts] == [("copy", "../tests"), ("copy", "made/later")]
    asked = read(folder, "services: {api: {build: ../.., volumes: ['../../x:/x', './out/x:/y']}}").host_access
    assert [each.partition(":")[0] for each in asked] == [
        "services.api.build",
        "services.api.volumes[0]",
        "services.api.volumes[1]",
    ]
