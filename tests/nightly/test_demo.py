"""Scenarios of the demo: what each changes between the sixth and the seventh night, in the files of the demo."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

from tbench import exit_codes
from tbench.cli import app
from tbench.nightly.demo import SCENARIOS, night_names, prepare, set_checkpoint


def a_night(folder: Path, scenario: str, number: int) -> tuple[dict[str, Any], str]:
    """The configuration of a night, and its checkpoint."""
    night = list(night_names(number))[-1]
    file = prepare(folder, SCENARIOS[scenario], night)
    set_checkpoint(folder, night, SCENARIOS[scenario])
    return tomllib.loads(file.read_text()), (folder / "checkpoints" / "latest").resolve().name


@pytest.mark.parametrize(
    ("scenario", "changed"),
    [
        ("model", {"checkpoint"}),
        ("context", {"command"}),
        ("request-timeout", {"settings"}),
        ("thinking", {"command", "checkpoint"}),
        ("load", {"command"}),
        ("image", {"settings", "checkpoint"}),
        ("nothing", set()),
    ],
)
def test_a_scenario_changes_what_it_says_from_the_seventh_night_on(
    tmp_path: Path, scenario: str, changed: set[str]
) -> None:
    (first, good), (before, _), (after, last) = (a_night(tmp_path, scenario, number) for number in (1, 6, 7))
    assert first == before
    found = {"checkpoint"} if good != last else set()
    found |= {"command"} if before["serve"]["command"] != after["serve"]["command"] else set()
    found |= {"settings"} if before["run"] != after["run"] else set()
    assert found == changed


def test_every_night_is_on_the_given_engines(tmp_path: Path) -> None:
    for number in (1, 7):
        file = prepare(tmp_path, SCENARIOS["image"], list(night_names(number))[-1], ["oci:/store"])
        sandbox = tomllib.loads(file.read_text())["run"]["sandbox"]
        assert sandbox["engines"] == ["oci:/store"]
        assert ("build" in sandbox) == (number == 7)


def test_the_command_knows_every_scenario_and_the_server_its_options() -> None:
    nightly, endpoint = (app.get_command(click.Context(app), name) for name in ("nightly", "demo-endpoint"))
    assert nightly is not None and endpoint is not None
    (option,) = (each for each in nightly.params if each.name == "scenario")
    assert isinstance(option.type, click.Choice) and set(option.type.choices) == set(SCENARIOS)
    known = {name for each in endpoint.params for name in each.opts}
    given = {word for each in SCENARIOS.values() for some in each.options for word in some if word.startswith("--")}
    assert given <= known


@pytest.mark.slow
@pytest.mark.engine
def test_a_scenario_ends_with_its_alarm_and_its_cause_named_first(tools_volume: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tbench", "nightly", "--demo", str(tmp_path), "--scenario", "context", "--nights", "8"],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == exit_codes.ALARM, done.stderr[-2000:]
    record = json.loads((tmp_path / "nightly" / "nights" / "night-08" / "night.json").read_text())
    (gate,) = record["gates"].values()
    named = [part for part in gate["explained"]["parts"] if part["named"]]
    assert (named[0]["cause"], named[0]["because"]) == (
        "context_full", ["server.max_model_len: 2,560 → 1,280 tokens"]
    )  # fmt: skip
    # The night's server has ended: the command asks where the next line starts it again, which is what it says.
    assert "--base-url http://127.0.0.1:8000/v1" in gate["explained"]["command"]
    assert "--port 8000" in gate["explained"]["server"] and "--context-tokens 1280" in gate["explained"]["server"]
    # The night before may have been explained, too, with the same server.
    assert done.stdout.rindex(gate["explained"]["sentence"]) < done.stdout.rindex(gate["explained"]["server"])
