"""options: what the user gave wins over the preset, the preset over tbench's own values; the help says those."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from click.testing import CliRunner

from harness.fakes import ScriptedModel
from harness.limits import Limits
from harness.model import Rendering, Sampling, Template
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import ShellMode
from harness.protocols.text import OUTPUT_LIMIT_BYTES
from harness.trajectory import OnOverflow
from tbench.agents.presets import PRESETS
from tbench.cli import app
from tbench.cli.execute import _agent_maker
from tbench.cli.options import AgentSetup, ModelOptions, RunOptions, as_stored, for_earlier_run, from_stored
from tbench.errors import UsageError
from tbench.runs.plan import RunConfig, check_same_run, trial_id
from tbench.runs.resume import EarlierRun
from tbench.tasks.sources import TaskSet

URL = "http://localhost:1"
BASH = [name for name in PROTOCOLS if load_protocol(name).types_commands]
KEYSTROKES = sorted(PROTOCOLS.keys() - BASH)
USABLE = [name for name, preset in PRESETS.items() if preset.protocol in PROTOCOLS]


def wanted(agent: str = "model", **model: Any) -> RunOptions:
    return RunOptions("bundled", (0,), agent=agent, model=ModelOptions(**{"base_url": URL} | model))


def setup(agent: str = "model", **model: Any) -> AgentSetup:
    return AgentSetup.of(wanted(agent, **model))


def help_text() -> str:
    output = CliRunner().invoke(app, ["run", "--help"], prog_name="tbench", env={"COLUMNS": "400"}).output
    return re.sub(r"(?<=\w-) ", "", re.sub(r"\s+", " ", output))


def test_without_a_word_everything_is_as_the_models_have_it() -> None:
    made = setup()
    assert (made.sampling, made.limits, made.rendering) == (Sampling(), Limits(), Rendering())
    assert (made.name, made.settling, made.observation_bytes) == ("tbench:keystrokes-json", "adaptive", 10_000)
    assert (made.preset, made.neutralise_special_tokens) == (None, False)


@pytest.mark.parametrize("name", USABLE)
def test_a_preset_sets_what_it_names_and_leaves_the_rest(name: str) -> None:
    preset, made = PRESETS[name], setup(preset=name)
    assert made.sampling == Sampling(**preset.sampling)
    assert made.limits == Limits(**preset.limits)
    assert made.rendering == Rendering(**preset.rendering)
    assert made.as_config()["preset"] == name


def test_an_explicit_value_wins_over_the_preset() -> None:
    made = setup(
        preset="terminus-2",
        protocol="bash-block",
        sampling={"temperature": 0.2},
        limits={"steps": 7},
        settling="adaptive",
        observation_bytes=500,
    )
    assert made.sampling == Sampling(temperature=0.2, top_p=1.0)
    assert made.limits is not None
    assert (made.limits.steps, made.limits.on_overflow) == (7, "summarize")
    assert (made.name, made.settling, made.observation_bytes) == ("tbench:bash-block", "adaptive", 500)


def test_an_explicit_default_wins_over_the_preset_too() -> None:
    made = setup(preset="terminus-2", limits={"on_overflow": "stop", "steps": 100})
    assert made.limits is not None
    assert (made.limits.on_overflow, made.limits.steps) == ("stop", 100)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"preset": "vim"}, "--preset vim: unknown; known: terminus-2, tmax"),
        ({"limits": {"on_overflow": "pray"}}, "--on-overflow: Input should be 'stop'"),
        ({"rendering": {"template": "jinja"}}, "--render: Input should be 'server', 'chatml'"),
        ({"rendering": {"strip_thinking": "yes"}}, "--strip-thinking: Input should be 'on', 'off' or 'auto'"),
        (
            {"rendering": {"template": "chatml", "send_reasoning": True}},
            "--send-reasoning is for the server's template",
        ),
        (
            {"rendering": {"send_reasoning": True, "strip_thinking": "on"}},
            "--send-reasoning and --strip-thinking on contradict each other",
        ),
        ({"protocol": "morse"}, "--protocol: unknown protocol 'morse'"),
        ({"base_url": None}, "no endpoint: give --base-url"),
        (
            {"shell_state": "fresh"},
            "--shell-state fits the bash protocols: bash-block, bash-tool, thinking-bash; keystrokes-json types keys",
        ),
        ({"preset": "terminus-2", "shell_state": "persistent"}, "--shell-state fits the bash protocols: "),
    ],
)
def test_a_value_that_cannot_be_is_one_clear_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        setup(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"on_overflow": "summarize"}}, {"limits": {"context_tokens": 9000}}, {"observation_bytes": 500},
        {"rendering": {"strip_thinking": "on"}}, {"neutralise_special_tokens": True}, {"settling": "strict"},
    ],
)  # fmt: skip
def test_what_changes_the_measurement_is_another_trial(change: dict[str, Any]) -> None:
    def semantic(**model: Any) -> dict[str, Any]:
        known: dict[str, Any] = {"run": "r", "source": "s", "seeds": (0,), "concurrency": 1}
        return RunConfig(**known, **setup(**model).as_config()).semantic()

    assert semantic(**change) != semantic()


def test_what_could_be_set_only_later_leaves_the_ids_of_older_runs_alone() -> None:
    known: dict[str, Any] = {"run": "r", "source": "s", "seeds": (0,), "concurrency": 1}
    later = setup().as_config()
    older = {key: later[key] for key in ("agent", "protocol", "prompt_hash", "settling", "sampling")}
    limits = {key: later["limits"][key] for key in ("steps", "format_errors", "completion_tokens", "command_sec")}
    older["limits"] = {**limits, "timeout_sec": None}
    assert RunConfig(**known, **later).semantic() == RunConfig(**known, **older).semantic()


def test_a_tool_needs_the_servers_own_template() -> None:
    tooled = [name for name in PROTOCOLS if load_protocol(name).tools]
    for name in tooled:
        with pytest.raises(UsageError, match=f"--protocol {name}: calls a tool, which only --render server has"):
            setup(protocol=name, rendering={"template": "chatml"})


def test_a_preset_spelled_out_is_the_same_trial() -> None:
    preset = PRESETS["terminus-2"]
    spelled = setup(
        protocol=preset.protocol, sampling=preset.sampling, limits=preset.limits, settling=preset.settling
    ).as_config()
    assert {**spelled, "preset": "terminus-2"} == setup(preset="terminus-2").as_config()


# -- the shell state ------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", BASH)
def test_a_bash_protocol_keeps_its_shell_unless_told_otherwise(protocol: str) -> None:
    assert setup(protocol=protocol).shell_state == "persistent"
    assert setup(protocol=protocol, shell_state="fresh").shell_state == "fresh"


def test_the_users_shell_state_wins_over_the_presets() -> None:
    assert setup(preset="mini-swe-agent").shell_state == "fresh"
    assert setup(preset="mini-swe-agent", shell_state="persistent").shell_state == "persistent"
    assert setup(preset="tmax", shell_state="fresh").shell_state == "fresh"


@pytest.mark.parametrize("protocol", KEYSTROKES)
def test_keystrokes_have_no_shell_state_also_where_the_preset_has_one(protocol: str) -> None:
    assert setup(protocol=protocol).as_config()["shell_state"] is None
    assert setup(preset="mini-swe-agent", protocol=protocol).as_config()["shell_state"] is None


@pytest.mark.parametrize("state", get_args(ShellMode))
def test_the_terminal_gets_the_shell_state(own: str, state: ShellMode) -> None:
    endpoint: Any = ScriptedModel([])
    for made in (setup(own, shell_state=state), setup(protocol="bash-block", shell_state=state)):
        agent: Any = _agent_maker(made, endpoint)()
        assert agent._spec.shell_mode == state


def resolved(made: AgentSetup) -> RunConfig:
    return RunConfig(run="r", source="s", seeds=(0,), concurrency=1, model="m", **made.as_config())


def going_on(document: dict[str, Any], options: RunOptions) -> RunConfig:
    """What `--resume` makes of these options in the directory of the run with this run.json. Raises UsageError."""
    config = resolved(for_earlier_run(AgentSetup.of(options), options, document))
    check_same_run(EarlierRun(Path("runs/earlier"), document), config, TaskSet((), {}))
    return config


def document_of(config: RunConfig, options: RunOptions) -> dict[str, Any]:
    return {**config.model_dump(mode="json"), "options": as_stored(options), "tasks": []}


def written_before_there_was_a_shell_state(options: RunOptions) -> dict[str, Any]:
    document = document_of(resolved(AgentSetup.of(options)), options)
    del document["shell_state"], document["options"]["model"]["shell_state"]
    return document


def test_a_fresh_shell_is_another_trial() -> None:
    persistent, fresh = (resolved(setup(preset="mini-swe-agent", shell_state=each)) for each in get_args(ShellMode))
    assert fresh.semantic() == {**persistent.semantic(), "shell_state": "fresh"}


@pytest.mark.parametrize("later", [{}, {"shell_state": None}, {"shell_state": "persistent"}])
def test_a_persistent_shell_leaves_ids_what_they_were(later: dict[str, Any]) -> None:
    known: dict[str, Any] = {"run": "r", "source": "s", "seeds": (0,), "concurrency": 1, "agent": "tbench:bash-tool"}
    limits = {"steps": 3, "format_errors": 3, "command_sec": 60.0}
    config = RunConfig(**known, protocol="bash-tool", settling="adaptive", limits=limits, **later)
    # Written down before there was a shell state: a change of it makes stored runs look unfinished.
    assert trial_id("alpha", "0123", 7, config) == "alpha.s7.8c066a38b9"


@pytest.mark.parametrize("preset", USABLE)
def test_a_run_from_before_there_was_a_shell_state_goes_on_as_persistent_however_often(preset: str) -> None:
    options = wanted(preset=preset)
    document = written_before_there_was_a_shell_state(options)
    for _ in range(2):
        stored = from_stored(document["options"], "runs/earlier", {})
        config = going_on(document, stored)
        assert config.shell_state in (None, "persistent")
        assert config == going_on(document, options)
        document = document_of(config, stored)


def test_a_fresh_run_goes_on_as_fresh() -> None:
    options = wanted(preset="mini-swe-agent")
    assert going_on(document_of(resolved(AgentSetup.of(options)), options), options).shell_state == "fresh"


@pytest.mark.parametrize(
    ("begun", "now", "words"),
    [
        ({"shell_state": "fresh"}, {}, 'shell_state: "fresh" → "persistent"'),
        ({}, {"shell_state": "fresh"}, 'shell_state: "persistent" → "fresh"'),
        ({"preset": "mini-swe-agent"}, {"preset": "mini-swe-agent", "shell_state": "persistent"}, '"fresh" → "pers'),
    ],
)
def test_a_run_does_not_go_on_with_another_shell_state(begun: dict[str, Any], now: dict[str, Any], words: str) -> None:
    before, after = (wanted(**{"protocol": "bash-tool"} | each) for each in (begun, now))
    with pytest.raises(UsageError, match=re.escape(words)):
        going_on(document_of(resolved(AgentSetup.of(before)), before), after)


def test_an_older_run_does_not_become_a_fresh_one() -> None:
    document = written_before_there_was_a_shell_state(wanted(preset="mini-swe-agent"))
    with pytest.raises(UsageError, match='shell_state: null → "fresh"'):
        going_on(document, wanted(preset="mini-swe-agent", shell_state="fresh"))


# -- the help, which must not import the models that it is about -----------------------------------


def test_the_help_shows_the_real_defaults() -> None:
    text = help_text()
    limits, sampling, rendering = Limits(), Sampling(), Rendering()
    for option, value in {
        "--temperature": sampling.temperature,
        "--top-p": sampling.top_p,
        "--max-tokens": sampling.max_tokens,
        "--steps": limits.steps,
        "--format-errors": limits.format_errors,
        "--command-timeout": f"{limits.command_sec:g}",
        "--on-overflow": limits.on_overflow,
        "--render": rendering.template,
        "--strip-thinking": rendering.strip_thinking,
        "--observation-bytes": OUTPUT_LIMIT_BYTES,
        "--protocol": "keystrokes-json",
        "--shell-state": "persistent",
    }.items():
        entry = text.partition(f" {option} ")[2].partition(" --")[0]
        assert f"[default: ({value})" in entry, option


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--render", get_args(Template)),
        ("--on-overflow", get_args(OnOverflow)),
        ("--preset", tuple(PRESETS)),
        ("--protocol", tuple(PROTOCOLS)),
        ("--shell-state", get_args(ShellMode)),
    ],
)
def test_the_help_names_every_choice(option: str, words: tuple[str, ...]) -> None:
    entry = help_text().partition(f" {option} ")[2].partition(" --")[0]
    assert [word for word in words if word not in entry] == []


# -- a user's own agent ----------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_agent_of_mine.py").write_text("class Idle:\n    async def run(self, assignment):\n        pass\n")
    return "own_agent_of_mine:Idle"


def test_a_users_agent_may_do_without_an_endpoint(own: str) -> None:
    made = setup(own, base_url=None, limits={"steps": 5})
    assert (made.name, made.protocol, made.sampling, made.rendering) == (own, None, None, None)
    assert made.limits == Limits(steps=5)
    assert len(made.as_config()["agent_sha256"]) == 64


def test_a_users_agent_has_the_sampling_of_its_endpoint(own: str) -> None:
    assert setup(own, sampling={"temperature": 0.1}).sampling == Sampling(temperature=0.1)


def test_options_of_the_built_in_loop_are_refused_with_a_users_agent(own: str) -> None:
    with pytest.raises(UsageError, match="--protocol, --on-overflow: belong to tbench's own agent"):
        setup(own, protocol="bash-block", limits={"on_overflow": "summarize"})


def test_how_it_is_judged_is_part_of_the_measurement_and_what_is_kept_is_not() -> None:
    known: dict[str, Any] = {"run": "r", "source": "s", "seeds": (0,), "concurrency": 1, "agent": "oracle"}
    plain = RunConfig(**known).semantic()
    assert "verify" not in plain
    assert RunConfig(**known, keep="all", snapshot=True).semantic() == plain
    assert RunConfig(**known, verify="isolated").semantic() != plain
