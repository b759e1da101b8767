"""Whole trials of a task with two containers: the oracle passes, nop fails, and nothing is left over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tbench
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN

pytestmark = pytest.mark.engine
COMPOSE = """
services:
  main:
    depends_on: {mailbox: {condition: service_healthy}}
  mailbox:
    build: ./mailbox
    environment: ["LETTER=${LETTER}"]
    expose: ["7000"]
    healthcheck:
      test: [CMD, perl, -MIO::Socket::INET, -e, "exit !IO::Socket::INET->new('localhost:7000')"]
      interval: 5s
      retries: 5
"""
SERVER = r"""use IO::Socket::INET;
$| = 1;
my $server = IO::Socket::INET->new(LocalPort => 7000, Listen => 5, ReuseAddr => 1) or die;
print "open\n";
while (my $client = $server->accept) { print $client "$ENV{LETTER}\n"; close $client }
"""


@pytest.fixture
def letter(make_task: Any) -> Path:
    """A task: write the word that the service `mailbox` returns into a file."""
    path: Path = make_task(
        "letter",
        toml='[environment]\nmemory_mb = 256\nallow_internet = false\nenv = { LETTER = "tangerine" }\n',
        instruction="Connect to the host `mailbox` on port 7000, and write the word that it sends to /app/letter.\n",
        dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\n",
        solve="exec 3<>/dev/tcp/mailbox/7000 && cat <&3 >/app/letter\n",
        test="""word=$(cat </dev/tcp/mailbox/7000)
if [ -n "$word" ] && [ "$(cat /app/letter)" = "$word" ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
""",
    )
    (path / "environment" / "mailbox").mkdir()
    (path / "environment" / "docker-compose.yaml").write_text(COMPOSE)
    (path / "environment" / "mailbox" / "server.pl").write_text(SERVER)
    (path / "environment" / "mailbox" / "Dockerfile").write_text(
        'FROM debian:bookworm-slim\nCOPY server.pl /server.pl\nCMD ["perl", "/server.pl"]\n'
    )
    return path


JUDGE = """
services:
  main:
    build: {context: .}
    depends_on: [store]
  store:
    image: debian:bookworm-slim
    command:
      - perl
      - -MIO::Socket::INET
      - -e
      - |
        $$server = IO::Socket::INET->new(LocalPort => 7000, Listen => 5, ReuseAddr => 1) or die;
        while ($$client = $$server->accept) { print $$client "tangerine\\n"; close $$client }
"""


@pytest.fixture
def judged(make_task: Any) -> Path:
    """A task whose separate verifier container has a service that knows the answer."""
    path: Path = make_task(
        "judged",
        toml='artifacts = ["/app/letter"]\n[environment]\nmemory_mb = 256\nallow_internet = false\n'
        '[verifier]\nenvironment_mode = "separate"\n',
        instruction="Write the name of a small citrus fruit, smaller than an orange, to /app/letter.\n",
        dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\n",
        solve="echo tangerine > letter\n",
        test="""for _ in 1 2 3 4 5 6 7 8 9; do word=$(cat </dev/tcp/store/7000) && break; sleep 0.2; done
if [ "$(cat /app/letter)" = "$word" ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt
""",
    )
    (path / "tests" / "docker-compose.yaml").write_text(JUDGE)
    (path / "tests" / "Dockerfile").write_text("FROM debian:bookworm-slim\nCOPY . /tests/\nWORKDIR /app\n")
    return path


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
@pytest.mark.slow
async def test_a_verifier_of_its_own_may_have_services_beside_it(
    judged: Path, tmp_path: Path, engine: Engine, run_name: str, agent: str, reward: float
) -> None:
    config = tbench.RunConfig.model_validate({"agent": {"name": agent}})
    async with tbench.Runner(config, directory=tmp_path / run_name) as runner:
        record = await runner.trial(judged)
    assert (record.reward, record.result.error) == (reward, None)
    assert (record.result.integrity.verify, record.result.integrity.tamper) == ("separate", ())
    of_run = {"label": f"{LABEL_RUN}={record.result.run}"}
    assert [*engine.api.containers(all=True, filters=of_run), *engine.api.networks(filters=of_run)] == []


@pytest.mark.parametrize(
    ("agent", "verify", "reward"),
    [
        ("oracle", "shared", 1.0),
        ("nop", "shared", 0.0),
        pytest.param("oracle", "both", 1.0, marks=pytest.mark.slow),
        pytest.param("oracle", "isolated", 1.0, marks=pytest.mark.slow),
    ],
)
async def test_a_task_of_two_containers_is_run_and_judged(
    letter: Path, tmp_path: Path, engine: Engine, run_name: str, agent: str, verify: str, reward: float
) -> None:
    config = tbench.RunConfig.model_validate({"agent": {"name": agent}, "verify": {"mode": verify}})
    async with tbench.Runner(config, directory=tmp_path / run_name) as runner:
        record = await runner.trial(letter)
    assert (record.reward, record.result.error) == (reward, None)
    assert not [sign for sign in record.result.integrity.tamper if not sign.startswith("unconfirmed:")]
    assert (record.directory / "services" / "mailbox.log").read_text() == "open\n"
    of_run = {"label": f"{LABEL_RUN}={record.result.run}"}
    api = engine.api
    left = [*api.containers(all=True, filters=of_run), *api.networks(filters=of_run)]
    assert left + (api.volumes(filters=of_run)["Volumes"] or []) == []


async def test_tests_run_in_the_service_that_the_task_names_and_missing_folders_are_made(
    make_task: Any, tmp_path: Path, engine: Engine, run_name: str
) -> None:
    path: Path = make_task(
        "kept",
        toml='[environment]\nmemory_mb = 256\nallow_internet = false\n[verifier]\nservice = "store"\n',
        instruction="Write a letter to /shared/letter.\n",
        dockerfile="FROM debian:bookworm-slim\nWORKDIR /app\n",
        solve="echo tangerine > /shared/letter\n",
        # Only the store's mount is read-only.
        test="if [ -s /shared/letter ] && ! touch /shared/x; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n",
    )
    (path / "environment" / "docker-compose.yaml").write_text("""
services:
  main: {volumes: ["./made/here:/shared"]}
  store: {image: debian:bookworm-slim, command: sleep 600, mem_limit: 64m, volumes: ["./made/here:/shared:ro"]}
""")
    config = tbench.RunConfig.model_validate({"agent": {"name": "oracle"}})
    async with tbench.Runner(config, directory=tmp_path / run_name) as runner:
        record = await runner.trial(path)
    assert (record.reward, record.result.error) == (1.0, None)
