"""`tbench explain`: its output, its JSON and its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from compared_runs import store_run
from explained_histories import draw

from tbench.cli import app
from tbench.errors import UsageError


def tbench(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["explain", *map(str, arguments)], prog_name="tbench")
    if isinstance(done.exception, UsageError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nights")
    draw(folder, ("context", "model"), 4)
    return folder


def test_a_difference_is_explained_sentence_first(nights: Path) -> None:
    text = tbench(nights / "night-08", "--against", "last-good")
    lines = text.splitlines()
    assert "points below" in lines[0] and "context full" in lines[0]
    assert any(line.startswith("  moved: server.max_model_len") for line in lines)
    assert any(line.startswith("* context full") for line in lines)
    assert any(line.startswith("* verifier's tests") for line in lines)
    assert "… and " in text and "--all-trials" in text
    assert len(tbench(nights / "night-08", "--against", nights / "night-07", "--all-trials").splitlines()) > 50


def test_a_run_by_itself_lists_lost_points_with_remedies(nights: Path) -> None:
    text = tbench(nights / "night-08")
    assert "Lost points of night-08" in text
    assert "context full: serve a longer context" in text
    assert "Points:" not in text


def test_json_has_the_parts_and_they_add_up(nights: Path) -> None:
    found = json.loads(tbench(nights / "night-08", "--against", "last-good", "--json"))
    parts = [part["difference"] for part in found["difference"]["parts"]]
    assert abs(sum(parts) - found["difference"]["difference"]) <= 1e-12
    assert found["schema_version"] == 1 and found["sentence"] and found["command"]


def test_wrong_combinations_are_one_line(tmp_path: Path, nights: Path) -> None:
    one, other = store_run(tmp_path / "a", {"x": (1.0,)}), store_run(tmp_path / "b", {"y": (1.0,)})
    for arguments, words in (
        ((nights / "night-08", "--against", nights / "night-08"), "the same run"),
        ((nights / "night-08", "--against", "last-good", "--against", nights / "night-07"), "cannot be combined"),
        ((nights / "night-00", "--against", "last-good"), "no earlier finished run"),
        ((tmp_path / "gone",), "no such run"),
        ((one, "--against", other), "no task in common"),
    ):
        with pytest.raises(UsageError) as caught:
            tbench(*arguments)
        assert words in str(caught.value) and "\n" not in str(caught.value)


def test_texts_of_models_cannot_control_the_terminal(tmp_path: Path) -> None:
    run = store_run(tmp_path / "a", {"x\x1b[2J": (0.0,)})
    assert "\x1b[2J" not in tbench(run)
