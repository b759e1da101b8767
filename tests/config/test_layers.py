"""layers: later ones win, every value knows its origin, and a mistake is one line that names both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tbench.config.layers import PRESETS, Layers, Resolved, Value, preset
from tbench.config.settings import RunConfig, SandboxConfig
from tbench.errors import UsageError
from tbench.proxies.extraction.settings import ExtractConfig
from tbench.proxies.replay.generation.settings import ReplayConfig

LAYERS = Layers(RunConfig)
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "run.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def resolve(*layers: Sequence[Value]) -> Resolved[RunConfig]:
    return LAYERS.resolve([value for layer in layers for value in layer])


def complaint(what: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        what()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_later_layers_win_and_the_origin_is_theirs(write: Write) -> None:
    resolved = resolve(
        LAYERS.environment({"TBENCH_MODEL_TEMPERATURE": "0.1", "TBENCH_LIMITS_STEPS": "7", "HOME": "/root"}),
        LAYERS.file(write("[model]\ntemperature = 0.2\ntop_p = 0.5\n[agent]\npreset = 'tmax'")),
        LAYERS.assignment("model.top_p=0.6"),
        [LAYERS.option("model.max_tokens", "5", "--max-tokens")],
    )
    model = resolved.config.model
    assert (model.temperature, model.top_p, model.max_tokens, resolved.config.limits.steps) == (0.2, 0.6, 5, 7)
    assert resolved.origins["model.top_p"] == "-c model.top_p"
    assert resolved.origins["model.max_tokens"] == "--max-tokens"
    assert resolved.origins["limits.steps"] == "TBENCH_LIMITS_STEPS"
    assert resolved.origins["model.temperature"].endswith("run.toml")
    assert resolved.origins["limits.format_errors"] == "preset tmax"
    assert "tasks.seeds" not in resolved.origins


def test_the_usual_variable_of_the_endpoint_is_the_weaker_one() -> None:
    both = {"OPENAI_BASE_URL": "http://usual/v1", "TBENCH_MODEL_BASE_URL": "http://own/v1"}
    assert resolve(LAYERS.environment(both)).config.model.base_url == "http://own/v1"
    del both["TBENCH_MODEL_BASE_URL"]
    assert resolve(LAYERS.environment(both)).config.model.base_url == "http://usual/v1"
    assert resolve(LAYERS.environment({"OPENAI_BASE_URL": ""})).config.model.base_url is None


def test_no_limit_can_be_said_everywhere(write: Write) -> None:
    for layer in (
        LAYERS.environment({"TBENCH_LIMITS_STEPS": "none"}),
        LAYERS.file(write("[limits]\nsteps = 'none'")),
        LAYERS.assignment("limits.steps=none"),
    ):
        assert resolve(layer).config.limits.steps is None


def test_variables_are_allowed_by_name_and_not_by_pattern_or_value(write: Write) -> None:
    for layer in (
        LAYERS.environment({"TBENCH_SANDBOX_ALLOW_ENV": "HF_TOKEN,A"}),
        LAYERS.file(write("[sandbox]\nallow_env = ['HF_TOKEN', 'A']")),
        LAYERS.assignment("sandbox.allow_env=HF_TOKEN,A"),
        [LAYERS.option("sandbox.allow_env", ["HF_TOKEN", "A", "A"], "--allow-env")],
    ):
        assert resolve(layer).config.sandbox.allow_env == ("A", "HF_TOKEN")
    for wrong in ("*", "HF_*", "HF_TOKEN=secret", "${HF_TOKEN}", ""):
        said = complaint(lambda wrong=wrong: LAYERS.option("sandbox.allow_env", [wrong], "--allow-env"))  # type: ignore[misc]
        assert said.startswith(f"--allow-env: {wrong!r} is not the name of a variable")


def test_lists_and_objects_have_a_form_in_every_layer(write: Write) -> None:
    for layer in (
        LAYERS.environment({"TBENCH_TASKS_INCLUDE": "a*, b", "TBENCH_MODEL_EXTRA_BODY": '{"top_k": 20}'}),
        LAYERS.file(write("[tasks]\ninclude = ['a*', 'b']\n[model.extra_body]\ntop_k = 20")),
        [*LAYERS.assignment("tasks.include=a*,b"), *LAYERS.assignment("model.extra_body.top_k=20")],
    ):
        config = resolve(layer).config
        assert (config.tasks.include, config.model.extra_body) == (("a*", "b"), {"top_k": 20})


def test_a_key_within_an_object_leaves_the_others(write: Write) -> None:
    file = LAYERS.file(write("[model]\nextra_body = {top_k = 20, a = {b = 1}}"))
    config = resolve(file, LAYERS.assignment("model.extra_body.a.c=x"), LAYERS.assignment("model.extra_body.min_p=0"))
    assert config.config.model.extra_body == {"top_k": 20, "a": {"b": 1, "c": "x"}, "min_p": 0}


def test_what_only_another_command_has_is_passed_over(write: Write) -> None:
    layers = Layers(ExtractConfig, beside=[RunConfig])
    file = write("[sandbox]\nbuild = true\n[agent]\nsettling = 'strict'\n[model]\ntemperature = 0.3")
    values = [*layers.file(file), *layers.environment({"TBENCH_AGENT_SETTLING": "strict"})]
    assert [value.setting.path for value in values] == ["model.temperature"]


def test_what_was_meant_is_first_sought_among_the_settings_of_the_command() -> None:
    """A replay has model.stop, a run has not."""
    layers = Layers(RunConfig, beside=[RunConfig, ExtractConfig, ReplayConfig])
    assert complaint(lambda: layers.assignment("model.tops=1")).endswith("did you mean model.top_p?")
    assert complaint(lambda: layers.assignment("score.relevence=1")).endswith("did you mean score.relevance?")


def test_several_endpoints_of_a_replay_are_a_list(write: Write) -> None:
    layers = Layers(ReplayConfig)
    for value, urls in (("['http://a', 'http://b']", ("http://a", "http://b")), ("'http://a'", ("http://a",))):
        given = layers.file(write(f"[model]\nbase_url = {value}"))
        assert layers.resolve(given).config.model.base_url == urls
    for text in ("http://a http://b", "http://a,http://b"):
        usual = layers.environment({"OPENAI_BASE_URL": text})
        assert layers.resolve(usual).config.model.base_url == ("http://a", "http://b")
    assert "base_url: Input should be a valid" in complaint(lambda: layers.file(write("[model]\nbase_url = [1]")))


@pytest.mark.parametrize("text", ["none", "", " , "])
def test_a_list_without_anything_in_it_is_empty(text: str) -> None:
    given = [*LAYERS.assignment("tasks.include=a"), *LAYERS.assignment(f"tasks.include={text}")]
    assert resolve(given).config.tasks.include == ()


def test_a_stored_configuration_is_changed_by_what_is_given_now() -> None:
    before = resolve(LAYERS.assignment("agent.preset=tmax"), LAYERS.assignment("limits.steps=3")).config
    after = LAYERS.resolve(LAYERS.assignment("schedule.concurrency=9"), before).config
    assert after == before.with_values(schedule={"concurrency": 9})


def test_a_file_with_the_mark_that_windows_puts_first_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbf[limits]\r\nsteps = 3\r\n")
    assert resolve(LAYERS.file(file)).config.limits.steps == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = ", "is not valid TOML: Invalid value"),
        ("[modle]\nx = 1", "modle: no such section; did you mean model?"),
        ("[model]\ntemprature = 1", "model.temprature: no such setting; did you mean model.temperature?"),
        ("[model.sampling]\ntemperature = 1", "model.sampling: no such setting; there are "),
        ("[model.sampling.deep]\nx = 1", "model.sampling: no such setting; there are "),
        ("[agent.protocol.deep]\nx = 1", "agent.protocol: Input should be a valid string"),
        ("model = 1", "model: is a section; write [model] and its settings below it"),
        ("[model]\ntemperature = 'warm'", "model.temperature: Input should be a valid number (got 'warm')"),
        ("[model]\ntemperature = '0.5'", "model.temperature: Input should be a valid number (got '0.5')"),
        ("[tasks]\nseeds = true", "tasks.seeds: Input should be a valid integer (got True)"),
        ("[tasks]\ninclude = 'x'", "tasks.include: Input should be a valid array (got 'x')"),
        ("[sandbox]\nkeep = 'some'", "sandbox.keep: Input should be 'none', 'failed' or 'all' (got 'some')"),
        ("[agent]\npreset = 'vim'", "agent.preset: vim: unknown; known: terminus-2, tmax"),
        ("[model]\nrequest_timeout_sec = nan", "model.request_timeout_sec: "),
    ],
)
def test_a_mistake_in_a_file_is_named_with_file_and_key(write: Write, text: str, said: str) -> None:
    file = write(text)
    words = complaint(lambda: LAYERS.file(file))
    assert str(file) in words and said in words


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "No such file" in complaint(lambda: LAYERS.file(tmp_path / "none.toml"))
    assert "Is a directory" in complaint(lambda: LAYERS.file(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    assert "is not UTF-8 text" in complaint(lambda: LAYERS.file(tmp_path / "latin.toml"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run.tml", "is neither an existing file nor section.name=value"),
        ("model.x=1", "model.x: no such setting; there are "),
        ("model=1", "model: is a section; write model.name=value"),
        ("modle.name=1", "modle: no such section; did you mean model?"),
        ("model.temperature.x=1", "model.temperature: is a single value without a key x"),
        ("=1", "is neither an existing file nor section.name=value"),
        ("tasks.seeds=0", "tasks.seeds: Input should be greater than or equal to 1 (got '0')"),
        ("model.extra_body={", "model.extra_body: not valid JSON"),
        ("model.extra_body=[]", "model.extra_body: must be a JSON object"),
    ],
)
def test_a_mistake_in_an_assignment_is_named(text: str, said: str) -> None:
    words = complaint(lambda: LAYERS.assignment(text))
    assert words.startswith(f"-c {text}: ") and said in words


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TBENCH_MODEL_NAME": ""}, "TBENCH_MODEL_NAME: is empty; give it a value, or unset it"),
        ({"TBENCH_MODEL_NAMES": "x"}, "did you mean TBENCH_MODEL_NAME?"),
        ({"TBENCH_MODLE_NAME": "x"}, "did you mean TBENCH_MODEL_NAME?"),
        ({"TBENCH_TASKS_SEEDS": "many"}, "TBENCH_TASKS_SEEDS: tasks.seeds: Input should be a valid integer"),
    ],
)
def test_a_mistake_in_the_environment_is_named(variables: dict[str, str], said: str) -> None:
    assert said in complaint(lambda: LAYERS.environment(variables))


def test_other_variables_of_that_name_are_left_alone() -> None:
    assert LAYERS.environment({"TBENCH_DOCKERD_LOG": "x", "TBENCH_HISTORY_EXPANSION": ""}) == []


def test_two_files_that_contradict_each_other_are_both_named(write: Write, tmp_path: Path) -> None:
    one = LAYERS.file(write("[model]\ntemplate = 'chatml'", "one.toml"))
    other = LAYERS.file(write("[model]\nsend_reasoning = 'on'", "other.toml"))
    words = complaint(lambda: resolve(one, other))
    assert "send_reasoning is for the server's template" in words
    assert f"model.template from {tmp_path / 'one.toml'}" in words
    assert f"model.send_reasoning from {tmp_path / 'other.toml'}" in words


def test_a_value_that_only_the_whole_refuses_has_its_origin() -> None:
    option = LAYERS.option("model.extra_body", json.dumps({"seed": 1}), "--extra-body")
    assert complaint(lambda: resolve([option])) == "--extra-body: seed cannot be set here"


@pytest.mark.parametrize("given", [("a", "b"), ["a", "b"]])
def test_a_repeated_option_is_a_list(given: Any) -> None:
    assert resolve([LAYERS.option("tasks.include", given, "--task")]).config.tasks.include == ("a", "b")


TWO = ("http://a:8000/v1", "http://b:8000/v1")


def urls_of(config: RunConfig) -> list[str]:
    return [server.base_url for server in config.model.servers]


def test_an_endpoint_given_several_times_is_several_servers_and_given_once_is_one() -> None:
    layers = Layers(RunConfig)
    several = layers.option("model.base_url", TWO, "--base-url")
    once = layers.option("model.base_url", TWO[:1], "--base-url")
    assert urls_of(layers.resolve([several]).config) == list(TWO)
    assert layers.resolve([several]).config.model.base_url is None
    assert urls_of(layers.resolve([several, once]).config) == [TWO[0]]
    assert urls_of(layers.resolve([once, several]).config) == list(TWO)


def test_servers_with_weights_are_tables_of_a_file_and_replace_the_endpoint_below(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[[model.endpoints]]\nbase_url = "http://a:8000"\n[[model.endpoints]]\nbase_url = "http://b"\nweight = 3\n'
    )
    layers = Layers(RunConfig)
    resolved = layers.resolve([*layers.environment({"OPENAI_BASE_URL": "http://old"}), *layers.file(file)])
    assert [(server.base_url, server.weight) for server in resolved.config.model.servers] == [
        ("http://a:8000", 1.0),
        ("http://b", 3.0),
    ]
    assert "model.base_url" not in resolved.origins


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[model.endpoints]]\nbase_url = "http://a"\nweight = 0\n', "greater than 0"),
        ('[[model.endpoints]]\nbase_url = "http://a"\n[[model.endpoints]]\nbase_url = "http://a/v1/"\n', "twice"),
        ('[[model.endpoints]]\nbase_url = "a:8000"\n', "must look like http://host"),
        ("[[model.endpoints]]\nweight = 2\n", "Field required"),
        ('[[model.endpoints]]\nbase_url = "http://a"\nwieght = 2\n', "wieght|not permitted|forbidden"),
    ],
)
def test_servers_that_cannot_be_are_refused_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words) as refused:
        Layers(RunConfig).file(file)
    assert "\n" not in str(refused.value) and "model.endpoints" in str(refused.value)


# presets: the documented settings of other harnesses, each of them a value that tbench can take.

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
DIRECTORY = Path(__file__).parents[2] / "tbench" / "config" / "presets"


def test_every_file_is_a_preset() -> None:
    assert sorted(PRESETS) == sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_it_names_and_leaves_the_rest(name: str) -> None:
    made, plain = RunConfig(agent={"preset": name}).model_dump(), RunConfig().model_dump()
    for section, values in preset(name).items():
        plain[section] |= values
    assert made == {**plain, "agent": {**plain["agent"], "preset": name}}


def test_an_explicit_value_wins_over_the_preset_also_where_it_is_the_default() -> None:
    config = RunConfig.model_validate(
        {
            "agent": {"preset": "terminus-2", "protocol": "bash-block", "settling": "adaptive"},
            "model": {"temperature": 0.2},
            "limits": {"steps": 100},
        }
    )
    assert (config.agent.protocol, config.agent.settling, config.limits.steps) == ("bash-block", "adaptive", 100)
    assert (config.model.temperature, config.model.top_p, config.limits.on_overflow) == (0.2, 1.0, "summarize")


def test_a_preset_fills_up_parts_that_are_models_already() -> None:
    config = RunConfig.model_validate({"agent": RunConfig().agent.model_copy(), "limits": {"steps": 3}})
    assert config.limits.steps == 3
    given = type(config.agent)(preset="tmax")
    assert RunConfig(agent=given).limits.steps == 64


def test_a_shell_state_is_left_to_protocols_that_have_a_shell() -> None:
    keys: dict[str, Any] = {"preset": "mini-swe-agent", "protocol": "keystrokes-json"}
    assert RunConfig(agent=keys).agent.shell_state is None
    assert RunConfig(agent={"preset": "mini-swe-agent"}).agent.shell_state == "fresh"
    assert RunConfig(agent={"preset": "mini-swe-agent", "shell_state": "persistent"}).agent.shell_state == "persistent"


def test_an_agent_of_one_s_own_takes_nothing_of_the_built_in_loop() -> None:
    config = RunConfig(agent={"preset": "terminus-2", "name": "mine:Agent"})
    assert (config.agent.protocol, config.limits.on_overflow) == (
        RunConfig().agent.protocol,
        RunConfig().limits.on_overflow,
    )
    assert (config.limits.steps, config.agent.settling) == (1_000_000, "strict")


def test_tmax_is_as_its_harness_documents_it() -> None:
    tmax = preset("tmax")
    assert tmax["model"] == {"temperature": 0.7, "top_p": 0.95, "max_tokens": 16_384}
    limits = tmax["limits"]
    assert (limits["steps"], limits["command_sec"], limits["context_tokens"]) == (64, 120, 65_536)
    assert tmax["agent"]["protocol"] == "bash-tool"


def test_terminus_2_summarises_and_waits_durations_out() -> None:
    terminus = preset("terminus-2")
    assert (terminus["agent"]["protocol"], terminus["agent"]["settling"]) == ("keystrokes-json", "strict")
    assert terminus["limits"]["on_overflow"] == "summarize"


def test_mini_swe_agent_starts_a_process_per_command_and_the_others_keep_their_shell() -> None:
    states = {name: preset(name)["agent"].get("shell_state") for name in PRESETS}
    assert states == {
        "terminus-2": None, "tmax": "persistent", "mini-swe-agent": "fresh", "thinking-bash": "persistent"
    }  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_names_every_value_of_a_preset(name: str) -> None:
    row = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}`"))
    for value in (each for section in preset(name).values() for each in section.values()):
        shown = f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        assert shown in row, f"{name}: {value}"


def test_tables_of_a_file_list_models_and_other_layers_are_for_all_of_them() -> None:
    tables = [{"name": "a", "temperature": 0.5}, {"name": "b", "endpoints": [{"base_url": "http://h/v1"}]}]
    values = [
        *LAYERS.document({"model": {"top_p": 0.9, "temperature": 0.1}}, "common.toml"),
        *LAYERS.document({"model": tables, "tasks": {"seeds": 3}}, "two.toml"),
        LAYERS.option("model.base_url", "http://all/v1", "--base-url"),
    ]
    found = [each.config for each in LAYERS.resolve_each(values)]
    assert [(each.model.name, each.model.temperature, each.model.top_p, each.tasks.seeds) for each in found] == [
        ("a", 0.5, 0.9, 3),
        ("b", 0.1, 0.9, 3),
    ]
    assert [each.model.servers[0].base_url for each in found] == ["http://all/v1"] * 2
    with pytest.raises(UsageError, match="several models; only tbench run takes more than one"):
        LAYERS.resolve(values)
    one = LAYERS.document({"model": tables[:1]}, "one.toml")
    assert LAYERS.resolve(one).config == LAYERS.resolve(LAYERS.document({"model": tables[0]}, "one.toml")).config


def test_a_hint_leads_to_the_engines_of_the_run() -> None:
    assert SandboxConfig().engine_options == ""
    assert SandboxConfig(engines=("oci:",)).engine_options == " --engine oci:"
    assert SandboxConfig(engines=("ssh://a", "ssh://b")).engine_options == " --engine ssh://a --engine ssh://b"
