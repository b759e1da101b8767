"""The file of a nightly benchmark, and errors in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly_bench import ENDPOINT, PROXIES, NightlyBench

from tbench.config.layers import Layers
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.nightly.night import run_variables, write_settings
from tbench.nightly.reading import (
    Checkpoint,
    GateSection,
    as_settings_file,
    due_checkpoints,
    natural_key,
    read_benchmark,
    unique_slugs,
)
from tbench.scores.gate.nights import GateRule


def test_the_gates_settings_are_those_of_its_rule() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(GateRule)}
    assert {name: field.default for name, field in GateSection.model_fields.items() if name != "enabled"} == fields
    assert GateSection(h=4.0).rule == GateRule(h=4.0)


def test_a_run_gets_the_settings_of_the_file_and_reads_the_environment_itself(
    bench: NightlyBench, tmp_path: Path
) -> None:
    bench.write(ENDPOINT + 'extra_body = { top_k = 20, "a b" = [1, "x"] }\n[run.limits]\nsteps = "none"\n')
    found = bench.read(TBENCH_MODEL_TEMPERATURE="0.25", TBENCH_LIMITS_STEPS="7")
    assert (found.run.model.temperature, found.run.limits.steps, found.run.tasks.seeds) == (0.25, None, 2)
    (tmp_path / "run.toml").write_text(as_settings_file(found.run_values))
    layers = Layers(RunConfig)
    told = layers.resolve(layers.file(tmp_path / "run.toml")).config
    assert told == found.run.with_values(model={"temperature": 0.7})


def test_the_container_proxy_is_not_written_to_a_file(bench: NightlyBench, tmp_path: Path) -> None:
    bench.write(f'{ENDPOINT}[run.sandbox]\ncontainer_proxy = "http://me:pa%40ss-w0rd@p:1"\nkeep = "all"\n')
    found = bench.read()
    written = write_settings(tmp_path, found)["run"].read_text()
    assert "all" in written and "w0rd" not in written
    assert run_variables(found) == {"TBENCH_SANDBOX_CONTAINER_PROXY": "http://me:pa%40ss-w0rd@p:1"}


def test_the_benchmark_has_its_files_name_by_default(bench: NightlyBench) -> None:
    bench.write()
    assert bench.read().name == "bench"
    bench.write(name="main")
    assert bench.read().name == "main"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[servee]\n", "servee: no such section; did you mean serve?"),
        ("[rnu]\n", "rnu: no such section; did you mean run?"),
        ("[serve]\ncomand = ['x']\n", "serve.comand: no such setting; did you mean serve.command?"),
        ("[serve]\ncommand = 'vllm serve'\n", "serve.command: Input should be a valid"),
        ("[serve]\ncommand = ['vllm', '{model}']\n", "{model} is not a placeholder; use one of {checkpoint}, {name}"),
        ("[serve]\ncommand = ['vllm']\nport = 0\n", "port 0 takes a free port, so command needs a {port}"),
        ("[serve]\ncommand = ['vllm']\nenv = { A = 1 }\n", "serve.env: A: must have a string as value"),
        (f"[serve]\ncommand = ['vllm']\n{ENDPOINT}", "model.base_url: [serve] starts the server"),
        ("", "no endpoint; set [serve] command or [run.model] base_url, or the variable OPENAI_BASE_URL"),
        (f"{ENDPOINT}name = 'm'\n", "[run.model] name and nightly.checkpoints both name the model"),
        (f"{ENDPOINT}temprature = 1\n", "[run]: model.temprature: no such setting; did you mean model.temperature?"),
        (f"{ENDPOINT}[run.output]\ndirectory = 'x'\n", "output.directory: is set by the night"),
        (f"{ENDPOINT}[run.agent]\nprotocol = 1\n", "[run]: agent.protocol: Input should be a valid string (got 1)"),
        (f"{ENDPOINT}[[proxy]]\nkind = 'reply'\n", "[[proxy]] 1: kind: must be one of replay, extract (got 'reply')"),
        (f"{ENDPOINT}[[proxy]]\nkind = 'replay'\n[proxy.datset]\n", "datset: no such section; did you mean dataset?"),
        (f"{ENDPOINT}[[proxy]]\nkind = 'extract'\n[[proxy]]\nkind = 'extract'\n", "another proxy is called extract"),
        (
            f"{ENDPOINT}[[proxy]]\nkind = 'extract'\nname = '../x'\n",
            "name: must consist of letters, digits, dots and dashes",
        ),
        ("[run]\nseeds = 3\n", "seeds: no such section"),
    ],
)
def test_a_mistake_is_one_line(bench: NightlyBench, text: str, words: str) -> None:
    bench.write(text)
    with pytest.raises(UsageError) as told:
        bench.read()
    assert str(told.value).startswith(str(bench.folder / "bench.toml")) or words.startswith("port")
    assert words in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "is not UTF-8 text"),
        (b"[nightly", "is not valid TOML"),
        (b"run = 3", "run: is a section"),
        (b"proxy = 3\n[run.model]\nbase_url='http://h/v1'", "proxy: is a list; write [[proxy]]"),
        (b"[run.model]\nbase_url = 'http://h/v1'\n", "no model to run; list nightly.checkpoints"),
        (b"[nightly]\ncheckpoints=['a','a']\n[serve]\ncommand=['x']", "checkpoints: a: is listed twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "bench.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as told:
        read_benchmark(file, {}, PROXIES)
    assert str(file) in str(told.value) and words in str(told.value)


def test_without_checkpoints_the_model_that_the_run_names_is_run(bench: NightlyBench) -> None:
    bench.write(f"{ENDPOINT}name = 'org/m'\n", checkpoints=[])
    assert bench.read().entries == ("org/m",)
    bench.write("[run.agent]\nname = 'oracle'\n", checkpoints=[])
    assert bench.read().entries == ("oracle",)


# Which models a night runs.


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    for number in (1000, 900, 20):
        (tmp_path / f"step-{number}").mkdir()
    return tmp_path


def test_the_matches_of_a_glob_come_in_natural_order(steps: Path) -> None:
    found = due_checkpoints([f"{steps}/step-*"], set(), repeat=False)
    assert [each.name for each in found] == ["step-20", "step-900", "step-1000"]
    assert {each.entry for each in found} == {f"{steps}/step-*"}


def test_a_match_is_run_once_and_an_entry_without_wildcards_every_night(steps: Path) -> None:
    glob = f"{steps}/step-*"
    done = {(glob, f"{steps}/step-20"), ("latest", "latest")}
    assert [each.name for each in due_checkpoints(["latest", glob], done, repeat=False)] == [
        "latest",
        "step-900",
        "step-1000",
    ]
    assert len(due_checkpoints(["latest", glob], done, repeat=True)) == 4


def test_a_glob_that_matches_nothing_is_an_error(steps: Path) -> None:
    with pytest.raises(UsageError, match=r"checkpoint-\*: matches no path; correct the entry"):
        due_checkpoints([f"{steps}/checkpoint-*"], set(), repeat=False)


def test_checkpoints_that_are_called_alike_have_files_of_their_own() -> None:
    listed = [Checkpoint("a", "/x/run1/step-5"), Checkpoint("a", "/x/run2/step-5"), Checkpoint("b", "org/Model v2")]
    assert unique_slugs(listed) == ["x-run1-step-5", "x-run2-step-5", "Model-v2"]
    assert unique_slugs([Checkpoint("a", "??"), Checkpoint("a", "!!"), Checkpoint("a", "../..")])[:2] == [
        "model",
        "model-2",
    ]


@settings(max_examples=50)
@given(st.lists(st.text(max_size=70), max_size=4))
def test_names_of_files_are_safe_and_differ(paths: list[str]) -> None:
    found = unique_slugs(Checkpoint("entry", path) for path in paths)
    assert len(set(found)) == len(found) == len(paths)
    assert all(name and "/" not in name and not name.startswith((".", "-")) for name in found)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=9), max_size=9))
def test_all_names_can_be_put_in_order(names: list[str]) -> None:
    assert sorted(sorted(names, key=natural_key, reverse=True), key=natural_key) == sorted(names, key=natural_key)
