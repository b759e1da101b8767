"""Several models in one `tbench run`: a run for each, and their comparison."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import in_process
import pytest
from fault_server import FaultServer, Seen, answer, completion
from lost_trials import CLAIM

TBENCH = str(Path(sys.executable).with_name("tbench"))
MODELS = ("org/strong", "org/weak", "late")
TOUCH = json.dumps({"analysis": "", "plan": "", "commands": [{"keystrokes": "touch /app/done\n"}]})
URL = ("--base-url", "http://127.0.0.1:1/v1")
SHARED = ("--verify", "shared")
"""One container for each trial, as it is not the verdict that is tested."""
AT_ONE_ENDPOINT = [each for model in MODELS[:2] for each in ("-m", model)]


@pytest.fixture
def endpoint() -> Iterator[FaultServer]:
    """Serves three models, of which all but the weak one solve the small task."""

    def reply(seen: Seen) -> bytes:
        is_first = not any(message["role"] == "assistant" for message in seen.json["messages"])
        content = TOUCH if is_first and seen.json["model"] != "org/weak" else CLAIM
        return answer(200, completion(content))

    with contextlib.closing(FaultServer()) as server:
        server.always_list(*({"id": model, "max_model_len": 32768} for model in MODELS))
        server.answer_by(reply)
        yield server


def tbench(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_BASE_URL"}
    return subprocess.run([TBENCH, *words], capture_output=True, text=True, timeout=300, check=False, env=environment)


def stored(directory: Path) -> tuple[dict[str, Any], list[tuple[str, str, float]]]:
    """What run.json says apart from times and the endpoint's replies, and the trials with their rewards."""
    document = json.loads((directory / "run.json").read_text())
    for name in ("created_at", "ended_at", "replies", "host"):
        document.pop(name, None)
    document["config"]["output"].pop("verbosity")
    lines = [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]
    return document, [(line["trial"], line["model"], line["reward"]) for line in lines]


@pytest.mark.engine
def test_each_model_gets_the_run_that_it_would_have_by_itself_and_they_are_compared(
    endpoint: FaultServer, make_task: Any, tmp_path: Path
) -> None:
    words = ["run", str(make_task()), "--base-url", endpoint.base_url, *SHARED]
    together = tbench(*words, *AT_ONE_ENDPOINT, "-o", str(tmp_path / "all"))
    assert together.returncode == 0, together
    scores = [line for line in together.stdout.splitlines() if line.startswith("score ")]
    assert [score.split(" (")[0] for score in scores] == ["score 100.0 %", "score 0.0 %"]
    assert "B - A: -100.00 points" in together.stdout
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["org-strong", "org-weak"]
    lines = together.stdout.splitlines()
    assert [line for line in lines if "tbench view" in line] == [lines[-1]]

    alone = tbench(*words, "-m", "org/weak", "-o", str(tmp_path / "alone" / "org-weak"), "-q")
    assert alone.returncode == 0, alone
    assert "score 0.0 %" in alone.stdout and "tbench " not in alone.stdout
    assert stored(tmp_path / "all" / "org-weak") == stored(tmp_path / "alone" / "org-weak")

    again = [*words, *AT_ONE_ENDPOINT, "-m", "late", "-o", str(tmp_path / "all")]
    cache = {"TBENCH_CACHE": os.environ["TBENCH_CACHE"]}
    assert "not empty; name a new directory" in in_process.tbench(*again, **cache).stderr
    plan = in_process.tbench(*again, "--resume", "--dry-run", **cache).stdout
    assert re.findall(r"\((resumed|new)\);", plan) == ["resumed", "resumed", "new"]
    continued = tbench(*again, "--resume", "--json")
    assert continued.returncode == 0, continued
    last = json.loads(continued.stdout.splitlines()[-1])
    assert (last["kind"], [run["model"] for run in last["runs"]]) == ("comparison", list(MODELS))
    assert continued.stdout.count('"kind":"trial_verdict"') == 1


@pytest.mark.engine
def test_a_model_whose_endpoint_has_gone_does_not_keep_the_next_one_from_running(
    endpoint: FaultServer, make_task: Any, tmp_path: Path
) -> None:
    with contextlib.closing(FaultServer()) as gone:
        gone.will_list({"id": "gone", "max_model_len": 32768})
        gone.will_answer(404)
        at = [each for url in (endpoint.base_url, gone.base_url, endpoint.base_url) for each in ("--base-url", url)]
        models = ["-m", "org/strong", "-m", "gone", "-m", "late"]
        done = tbench("run", str(make_task()), *models, *at, *SHARED, "-o", str(tmp_path / "all"))
    assert done.returncode == 2, done
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["late", "org-strong"]
    assert "tbench: gone: endpoint: " in done.stderr
    assert f"repeat the command with --output {tmp_path / 'all'} --resume" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-m a -m b -m c {url} {url}", "--base-url is given 2 times for 3 models; give it once or for each"),
        (
            "-m a -m a {url}",
            "o/a: would be the directory of two runs; give models and agents different names (vLLM: --served",
        ),
        ("-m a/b -m a-b {url}", "o/a-b: would be the directory of two runs; give models and agents different"),
        ("-m a -a codex -a codex {url}", "o/a: would be the directory of two runs; give models and agents different"),
        ("-a codex -a aider {url} --shard 0/2", "--shard: cannot be combined with 2 agents; run each agent by itself"),
        ("-m a -m b {url} --shard 0/2", "--shard: cannot be combined with 2 models; run each model by itself"),
        ("-m a -m b --agent oracle", "--model: no effect with --agent oracle, which uses no model; leave out one or"),
        ("-a oracle -a nop --steps 5", "--steps: no effect with --agent oracle, which uses no model; leave out one or"),
        ("-a oracle -a codex {url} --retries 0 --retry-only sandbox_lost", "--retry-only: no effect with --retries 0"),
        ("-c two.toml -m c", "--model: two.toml lists 2 models; leave one of them out"),
        ("-c two.toml -m c -m d {url}", "two.toml and --model: both list models; leave one of them out"),
        ("-c unnamed.toml", "unnamed.toml: [[model]] 2: has no name; name each of several models"),
        ("-c two.toml --resume", "--resume: needs the run's directory as --output"),
    ],
)
def test_what_cannot_be_combined_with_several_models_is_refused_in_one_line(
    tmp_path: Path, words: str, said: str
) -> None:
    (tmp_path / "two.toml").write_text('[[model]]\nname = "a"\n[[model]]\nname = "b"\n[tasks]\nseeds = 2\n')
    (tmp_path / "unnamed.toml").write_text('[[model]]\nname = "a"\n[[model]]\nbase_url = "http://h/v1"\n')
    given = words.replace("{url}", " ".join(URL)).split()
    output = [] if "--resume" in given else ["-o", "o"]
    done = in_process.tbench("run", "bundled", *given, *output, directory=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert done.stderr.startswith(f"tbench: {said}")


def test_each_agent_runs_with_each_model_and_one_without_a_model_once(endpoint: FaultServer, tmp_path: Path) -> None:
    given = ["-a", "model", "-a", "oracle", *AT_ONE_ENDPOINT, "--base-url", endpoint.base_url, "-o", "o"]
    done = in_process.tbench("run", "bundled", *given, "--dry-run", directory=tmp_path)
    assert re.findall(r"\bo/([\w-]+)", done.stdout) == ["model-org-strong", "model-org-weak", "oracle-org-strong"]


@pytest.mark.parametrize("command", ["config show", "extract bundled", "debug tidy-notes", "replay run x.jsonl"])
def test_other_commands_take_one_model(tmp_path: Path, command: str) -> None:
    done = in_process.tbench(*command.split(), "-m", "a", "-m", "b", *URL, directory=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == "tbench: --model: several models; only tbench run takes more than one"


def test_a_folder_of_runs_is_resumed_by_the_command_that_began_them(tmp_path: Path) -> None:
    (tmp_path / "all" / "a").mkdir(parents=True)
    (tmp_path / "all" / "a" / "run.json").write_text("{}")
    done = in_process.tbench("resume", "all", directory=tmp_path)
    assert done.returncode == 2
    assert "all: is a folder of runs; name one of them, or repeat the tbench run command" in done.stderr
    done = in_process.tbench("run", "-m", "a", "-m", "b", *URL, "-o", "all/a", directory=tmp_path)
    assert done.stderr.startswith("tbench: all/a: is the run of a single model; name another directory")


def test_other_commands_take_one_agent(tmp_path: Path) -> None:
    done = in_process.tbench("config", "show", "-a", "codex", "-a", "aider", directory=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip() == "tbench: --agent: several agents; only tbench run takes more than one"
