"""`tbench config`, and errors of all commands for invalid settings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import in_process
import pexpect
import pytest
from click.testing import CliRunner
from fault_server import FaultServer
from run_plans import a_document

from harness.protocols import PROTOCOLS
from tbench.cli import app
from tbench.config.setting import iter_settings, json_schema
from tbench.config.settings import RunConfig
from tbench.demo.server import DemoEndpoint
from tbench.errors import UsageError
from tbench.storage.run_store import RunStore

URL = "http://127.0.0.1:9/v1"
"""Address without a server; no test gets as far as connecting."""
COMMANDS = {
    "run": ("run", "--base-url", URL),
    "extract": ("extract", "--base-url", URL),
    "replay run": ("replay", "run", "steps.jsonl", "-o", "replay", "--base-url", URL),
}


def tbench(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return in_process.tbench(*arguments, directory=directory, **variables)


def shown(directory: Path, *arguments: str, **variables: str) -> dict[str, tuple[Any, str]]:
    """Return value and origin by path, as printed by `config show`."""
    done = tbench(directory, "config", "show", *arguments, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    lines = (re.fullmatch(r"(\S+) = (.*?) +# (.*)", line) for line in done.stdout.splitlines())
    return {match[1]: (tomllib.loads(f"x = {match[2]}")["x"], match[3]) for match in lines if match}


def test_show_has_every_setting_with_its_default(tmp_path: Path) -> None:
    found = shown(tmp_path)
    assert list(found) == [setting.path for setting in iter_settings(RunConfig)]
    assert {origin for _, origin in found.values()} == {"default"}
    assert (found["tasks.source"][0], found["limits.steps"][0], found["model.base_url"][0]) == ("bundled", 100, "none")


def test_show_says_the_layer_that_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("[model]\ntop_p = 0.5\nmax_tokens = 7\n[agent]\npreset = 'tmax'\n")
    found = shown(
        tmp_path,
        *("-c", "one.toml", "-c", "model.max_tokens=8", "-k", "3", "--no-build", "--strict"),
        TBENCH_MODEL_TOP_P="0.4",
        TBENCH_SCHEDULE_CONCURRENCY="9",
        OPENAI_BASE_URL="http://HOST/v1",
    )
    assert {path: each for path, each in found.items() if each[1] not in ("default", "preset tmax")} == {
        "tasks.seeds": (3, "--seeds"),
        "model.top_p": (0.5, "one.toml"),
        "model.max_tokens": (8, "-c model.max_tokens"),
        "model.base_url": ("http://HOST/v1", "OPENAI_BASE_URL"),
        "agent.preset": ("tmax", "one.toml"),
        "agent.settling": ("strict", "--strict"),
        "sandbox.build": (False, "--no-build"),
        "schedule.concurrency": (9, "TBENCH_SCHEDULE_CONCURRENCY"),
    }
    assert found["agent.protocol"] == ("bash-tool", "preset tmax")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--send-reasoning"], "on"),
        (["--send-reasoning", "auto"], "auto"),
        (["--send-reasoning", "off"], "off"),
        (["--no-send-reasoning"], "off"),
    ],
)
def test_what_is_on_or_off_needs_no_value(words: list[str], value: str, tmp_path: Path) -> None:
    assert shown(tmp_path, *words)["model.send_reasoning"] == (value, "--send-reasoning")


def test_what_show_prints_is_a_file_that_says_the_same(tmp_path: Path) -> None:
    arguments = ("--preset", "terminus-2", "--steps", "none", "--extra-body", '{"a": {"b": [1, "x"]}}', "-t", "b*")
    arguments += ("-n", "auto", "--shard", "1/4")
    done = tbench(tmp_path, "config", "show", *arguments)
    (tmp_path / "shown.toml").write_text(done.stdout)
    first, again = shown(tmp_path, *arguments), shown(tmp_path, "-c", "shown.toml")
    assert {path: value for path, (value, _) in again.items()} == {path: value for path, (value, _) in first.items()}
    assert {origin for _, origin in again.values()} == {"shown.toml"}


def test_the_file_of_init_changes_nothing_until_it_is_edited(tmp_path: Path) -> None:
    done = tbench(tmp_path, "config", "init", "run.toml")
    assert (done.returncode, done.stdout, done.stderr) == (0, "written: run.toml\n", "")
    assert shown(tmp_path, "-c", "run.toml") == shown(tmp_path)
    assert (tmp_path / "run.toml").read_text() == tbench(tmp_path, "config", "init").stdout


def test_every_line_of_the_file_of_init_is_valid_and_a_default(tmp_path: Path) -> None:
    text = re.sub(r"^# (?=\w+ = )", "", tbench(tmp_path, "config", "init").stdout, flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(text)
    found, defaults = shown(tmp_path, "-c", "all.toml"), shown(tmp_path)
    assert {path: value for path, (value, _) in found.items()} == {path: value for path, (value, _) in defaults.items()}
    assert {origin for _, origin in found.values()} == {"all.toml"}


@pytest.mark.parametrize("command", ["extract", "replay run"])
def test_the_whole_file_of_init_is_understood_by_the_other_commands(command: str, tmp_path: Path) -> None:
    text = re.sub(r"^# (?=\w+ = )", "", tbench(tmp_path, "config", "init").stdout, flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(text)
    done = tbench(tmp_path, *COMMANDS[command][:-2], "-c", "all.toml")
    assert "no endpoint: give --base-url" in done.stderr


def test_the_file_of_init_sets_what_is_given_and_the_model_that_the_endpoint_lists(tmp_path: Path) -> None:
    with DemoEndpoint({}) as demo:
        words = ("-k", "3", "--preset", "tmax", "-t", "tidy-notes", "-x", "b*")
        done = tbench(tmp_path, "config", "init", "run.toml", *words, OPENAI_BASE_URL=demo.base_url)
        url = demo.base_url
    assert (done.returncode, done.stderr) == (0, "")
    written = {name: values for name, values in tomllib.loads((tmp_path / "run.toml").read_text()).items() if values}
    assert written == {
        "tasks": {"seeds": 3, "include": ["tidy-notes"], "exclude": ["b*"]},
        "model": {"base_url": url, "name": "scripted-demo"},
        "agent": {"preset": "tmax"},
    }
    assert shown(tmp_path, "-c", "run.toml")["agent.protocol"] == ("bash-tool", "preset tmax")


def test_no_password_is_in_the_file_of_init(tmp_path: Path) -> None:
    text = tbench(tmp_path, "config", "init", "--base-url", "http://me:secret@127.0.0.1:9/v1").stdout
    assert 'base_url = "http://127.0.0.1:9/v1"' in text and "secret" not in text


def test_on_a_terminal_init_asks_for_the_endpoint_and_for_one_of_its_models(
    tmp_path: Path, endpoint: FaultServer
) -> None:
    endpoint.always_list({"id": "small"}, {"id": "large"})
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TBENCH_", "OPENAI_"))}
    program = (
        "import tbench.agents.setup as setup; setup.LOCAL_ENDPOINT = 'http://127.0.0.1:9/v1'\n"
        "from tbench.cli import main; main()"
    )
    child = pexpect.spawn(
        sys.executable, ["-c", program, "config", "init", "run.toml"], cwd=str(tmp_path), env=environment, timeout=60
    )
    child.expect("Endpoint, such as")
    child.sendline(endpoint.base_url)
    child.expect("Model")
    child.sendline("large")
    child.expect("written: run.toml")
    child.expect(pexpect.EOF)
    assert tomllib.loads((tmp_path / "run.toml").read_text())["model"] == {
        "base_url": endpoint.base_url,
        "name": "large",
    }


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("mine")
    done = tbench(tmp_path, "config", "init", "run.toml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tbench: run.toml: already exists; name a new file (nothing is overwritten)\n"
    assert (tmp_path / "run.toml").read_text() == "mine"
    assert tbench(tmp_path, "config", "init", "none/run.toml").returncode == 2


def test_the_schema_describes_every_setting(tmp_path: Path) -> None:
    schema = json.loads(tbench(tmp_path, "config", "schema").stdout)
    for setting in iter_settings(RunConfig):
        section = schema["properties"][setting.section]
        # pydantic before 2.9 wraps the reference.
        reference = re.search(r'"#/\$defs/(\w+)"', json.dumps(section))
        assert reference is not None, setting.path
        part = schema["$defs"][reference[1]]
        assert " ".join(part["properties"][setting.name]["description"].split()) == setting.help != "", setting.path


def test_the_schema_allows_several_models_no_limit_and_only_known_names() -> None:
    schema = json_schema(RunConfig)
    one, several = schema["properties"]["model"]["anyOf"]
    assert one["$ref"] == several["items"]["$ref"] == "#/$defs/ModelConfig" and several["type"] == "array"
    assert {"const": "none"} in schema["$defs"]["LimitsConfig"]["properties"]["steps"]["anyOf"]
    assert schema["$defs"]["AgentConfig"]["properties"]["protocol"]["enum"] == list(PROTOCOLS)
    assert {"tmax", "none"} < set(schema["$defs"]["AgentConfig"]["properties"]["preset"]["enum"])


MISTAKES = [
    ("-c run.tml", "-c run.tml: is neither an existing file nor section.name=value"),
    ("-c .", "-c .: cannot be read: Is a directory"),
    ("-c no.toml", "-c no.toml: is not valid TOML: "),
    ("-c model.tempratur=1", "-c model.tempratur=1: model.tempratur: no such setting; did you mean model.temperature?"),
    ("-c deep.toml", "deep.toml: model.temperature: Input should be a valid number (got {'deep': {'x': 1}})"),
    ("-c deeper.toml", "deeper.toml: model.sampling: no such setting; there are "),
    (
        "-c model.temperature.x.y=1",
        "-c model.temperature.x.y=1: model.temperature: is a single value without a key x.y",
    ),
    ("-c model.temperature=warm", "model.temperature: Input should be a valid number (got 'warm')"),
    ("-c typed.toml", "typed.toml: model.temperature: Input should be a valid number (got '0.5')"),
    ("-c section.toml", "section.toml: modle: no such section; did you mean model?"),
    ("-c bare.toml", "bare.toml: model: is a section; write [model] and its settings below it"),
    ("-c run-typo.toml", "run-typo.toml: sandbox.buidl: no such setting; did you mean sandbox.build?"),
    ("-c extract-typo.toml", "extract-typo.toml: score.relevence: no such setting; did you mean score.relevance?"),
    ("-c replay-typo.toml", "replay-typo.toml: dataset.lmit: no such setting; did you mean dataset.limit?"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    texts = {
        "no": "x = ",
        "deep": "[model.temperature.deep]\nx = 1",
        "deeper": "[model.sampling.deep.er]\nx = 1",
        "typed": "[model]\ntemperature = '0.5'",
        "section": "[modle]\nname = 'x'",
        "bare": "model = 1",
        "run-typo": "[sandbox]\nbuidl = true",
        "extract-typo": "[score]\nrelevence = 'literal'",
        "replay-typo": "[dataset]\nlmit = 3",
        "chatml": "[model]\ntemplate = 'chatml'",
        "reasoning": "[model]\nsend_reasoning = 'on'",
        "shared": "[tasks]\nsource = '/nowhere'\n[sandbox]\nbuild = true\n[agent]\nsettling = 'strict'\n[score]\n"
        "relevance = 'literal'\n[dataset]\nlimit = 3\n[prompt]\nrender = 'server'\n[output]\nmodel_short = 'x'",
    }
    for name, text in texts.items():
        (directory / f"{name}.toml").write_text(text)
    return directory


def mistake(directory: Path, *arguments: str, **variables: str) -> str:
    """Return the error of a command, run in this process."""
    environment = {name: None for name in os.environ if name.startswith(("TBENCH_", "OPENAI_"))}
    with contextlib.chdir(directory):
        done = CliRunner().invoke(app, list(arguments), env={**environment, **variables})
    assert isinstance(done.exception, UsageError) and done.output == "", done
    return str(done.exception)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("arguments", "said"), MISTAKES)
def test_a_mistake_in_a_setting_is_one_line(command: str, arguments: str, said: str, files: Path) -> None:
    check_one_line(mistake(files, *COMMANDS[command], *arguments.split()), said)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TBENCH_MODEL_NAME", "", "TBENCH_MODEL_NAME: is empty; give it a value, or unset it"),
        ("TBENCH_MODEL_NAMES", "x", "TBENCH_MODEL_NAMES: no setting has this name; did you mean TBENCH_MODEL_NAME?"),
        ("TBENCH_SANDBOX_BIULD", "x", "no setting has this name; did you mean TBENCH_SANDBOX_BUILD?"),
        ("TBENCH_SCHEDULE_CONCURRENCY", "all", "schedule.concurrency: Input should be a valid integer"),
    ],
)
def test_a_mistake_in_the_environment_is_one_line(
    command: str, variable: str, value: str, said: str, files: Path
) -> None:
    check_one_line(mistake(files, *COMMANDS[command], **{variable: value}), said)


@pytest.mark.parametrize("command", ["run", "extract"])
def test_two_files_that_contradict_each_other_are_named_in_one_line(command: str, files: Path) -> None:
    done = mistake(files, *COMMANDS[command], "-c", "chatml.toml", "-c", "reasoning.toml")
    check_one_line(done, "(model.template from chatml.toml, model.send_reasoning from reasoning.toml)")


@pytest.mark.parametrize(
    ("command", "next_mistake"),
    [
        ("run", "/nowhere: no such directory"),
        ("extract", "/nowhere: no such directory"),
        ("replay run", "steps.jsonl: "),
    ],
)
def test_a_file_and_an_environment_serve_all_commands(command: str, next_mistake: str, files: Path) -> None:
    """Each command ignores the settings of the others, and fails later for another reason."""
    variables = {"TBENCH_DATASET_LIMIT": "3", "TBENCH_SCORE_RELEVANCE": "literal", "TBENCH_SANDBOX_BUILD": "true"}
    check_one_line(mistake(files, *COMMANDS[command], "-c", "shared.toml", **variables), next_mistake)


@pytest.mark.parametrize(("command", "setting"), [("run", "score.relevance=x"), ("replay run", "sandbox.build=true")])
def test_an_assignment_for_another_command_is_refused(command: str, setting: str, files: Path) -> None:
    done = mistake(files, *COMMANDS[command], "-c", setting)
    check_one_line(done, "this command does not have this setting")


@pytest.mark.parametrize("command", ["run", "extract"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("-l 0", "--limit: Input should be greater than or equal to 1 (got '0')"),
        ("-x nope", "--exclude nope: matches no task in "),
        ("-t tidy-* -x tidy-*", "--exclude leaves no task"),
    ],
)
def test_a_mistake_in_the_choice_of_tasks_is_one_line(command: str, arguments: str, said: str, files: Path) -> None:
    check_one_line(mistake(files, *COMMANDS[command], *arguments.split()), said)


def check_one_line(line: str, said: str) -> None:
    assert "\n" not in line and said in line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(command: str, files: Path) -> None:
    for arguments, variables in ((["-c", "no.toml"], {}), (["-c", "none"], {}), ([], {"TBENCH_MODEL_NAME": ""})):
        done = tbench(files, *COMMANDS[command], *arguments, **variables)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
        assert done.stderr.startswith("tbench: ")


def test_no_password_is_shown(tmp_path: Path) -> None:
    done = tbench(tmp_path, "config", "show", "-c", "model.base_url=http://me:sesame@host/v1")
    assert "sesame" not in done.stdout + done.stderr
    assert shown(tmp_path, "--base-url", "http://me:sesame@host/v1")["model.base_url"] == (
        "http://host/v1",
        "--base-url",
    )


@pytest.mark.parametrize("setting", ["agent.preset=tmax", "limits.steps=3", "model.temperature=0.1"])
def test_a_run_goes_on_as_it_was_started_whatever_a_file_says(tmp_path: Path, setting: str) -> None:
    RunStore.create(tmp_path / "run", a_document()).close()
    done = tbench(tmp_path, "resume", "run", "-c", setting)
    path = setting.partition("=")[0]
    words = f"-c {path}: {path}: differs from the value the run was started with; start a new run"
    assert (done.returncode, done.stderr) == (2, f"tbench: {words}\n")
