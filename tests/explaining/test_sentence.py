"""The sentence on top: what moved, how many points, how sure, and the command."""

from __future__ import annotations

from pathlib import Path

from explained_histories import draw

from tbench.explaining.explain import explain
from tbench.explaining.sentence import p_text, points


def test_a_planted_cause_is_said_with_points_certainty_and_a_command(tmp_path: Path) -> None:
    found, _ = draw(tmp_path, ("context",), 2)
    part = found.named[0]
    assert "points below" in found.sentence
    assert f"{points(part.difference, signed=True)} (" in found.sentence and "context full" in found.sentence
    assert "server.max_model_len: 32,768 → 16,384 tokens" in found.sentence
    assert "Next, serve 32,768 tokens again" in found.sentence
    assert found.command.startswith("tbench run") and found.sentence.endswith(found.command)
    assert "\n" not in found.sentence


def test_without_a_finding_it_says_so_and_how_to_see_more(tmp_path: Path) -> None:
    found, _ = draw(tmp_path, (), 2)
    assert "nothing is beyond chance" in found.sentence
    assert found.command.startswith("tbench power ")


def test_a_single_run_says_what_costs_most_and_what_can_be_done(tmp_path: Path) -> None:
    draw(tmp_path, ("request-timeout",), 2)
    found = explain(tmp_path / "night-08")
    assert "lost points" in found.sentence and "request timeout" in found.sentence
    assert "to gain at most" in found.sentence


def test_numbers_are_short() -> None:
    assert (points(-0.0001, signed=True), points(0.1234, signed=True), points(0.5)) == ("0.0", "+12.3", "50.0")
    assert (p_text(0.0123), p_text(1e-12)) == ("p 0.012", "p below 0.000001")
