"""The overview: alarms come first, every series has a line, and unfinished runs have no score."""

from __future__ import annotations

from pathlib import Path

from site_series import HOSTILE, ReadPage, a_site, usual, write_drop, write_night

from reports.site import overview
from reports.site.content import NightlySeries


def read(folder: Path, *lanes: NightlySeries) -> ReadPage:
    with a_site(folder, lanes) as site:
        return ReadPage(overview.render(site))


def test_an_alarm_comes_first_with_its_size_its_night_and_its_tasks(tmp_path: Path) -> None:
    page = read(write_drop(tmp_path))
    start = page.words.index("Alarm: m is lower since 2026-01-13")
    assert start < page.words.index("Scores")
    assert "over the drop (5 nights): 41.7 %, usually 83.3 % the last night alone: 41.7 %" in page.words
    assert "Most likely task-01, task-02, task-03, task-04, task-05" in page.words
    assert {"nights/2026-01-17.html", "nights/2026-01-13.html", "tasks/task-01.html"} <= set(page.links)
    assert "No alarm" not in page.words


def test_without_an_alarm_there_is_one_quiet_line(tmp_path: Path) -> None:
    words = read(write_drop(tmp_path, usual_nights=12, dropped_nights=0)).words
    assert "✓ No alarm. 1 series quiet." in words
    assert "▲" not in words


def test_nights_before_the_baseline_is_there_are_learned_from(tmp_path: Path) -> None:
    words = read(write_drop(tmp_path, usual_nights=3, dropped_nights=0)).words
    assert "No alarm. 1 series still learning a baseline." in words


def test_the_change_is_measured_from_the_last_night_before_the_drop(tmp_path: Path) -> None:
    page = read(write_drop(tmp_path))
    assert "−41.7 ±" in page.words
    assert "last good night: 2026-01-12" in page.words
    assert "compare/night-11--night-16.html" in page.links


def test_a_run_that_is_not_over_has_no_score(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"task-00": (1.0,), "task-01": (1.0,)})
    write_night(tmp_path, 1, {"task-00": (1.0,)}, hashes={"task-00": "h", "task-01": "h"}, status="running")
    page = read(tmp_path)
    assert "▶ running night-01 m 1 of 2 trials, so far 100.0 % of the trials with a verdict" in page.words
    scores = page.words[page.words.index("Over time") : page.words.index("Latest nights")]
    assert scores.count("%") == 1


def test_what_was_cut_short_says_so(tmp_path: Path) -> None:
    write_night(tmp_path, 0, {"task-00": (1.0,)}, hashes={"task-00": "h", "task-01": "h"}, status="interrupted")
    words = read(tmp_path).words
    assert "◐ cut short night-00 m 1 of 2 trials, so far 100.0 %" in words


def test_several_models_on_several_datasets_make_a_matrix(tmp_path: Path) -> None:
    for number, (model, source) in enumerate([("a", "one"), ("b", "one"), ("a", "two")]):
        write_night(tmp_path, number, usual(0), model=model, source=source)
    words = read(tmp_path).words
    assert "Models and datasets" in words
    assert "Model two one a 83.3 % 83.3 % b – not run 83.3 %" in words


def test_one_dataset_needs_no_matrix(tmp_path: Path) -> None:
    for number, model in enumerate("ab"):
        write_night(tmp_path, number, usual(0), model=model)
    assert "Models and datasets" not in read(tmp_path).words


def test_several_agents_of_models_make_a_matrix(tmp_path: Path) -> None:
    for number, (model, agent) in enumerate([("a", "codex@1"), ("b", "codex@1"), ("a", "claude-code@2")]):
        write_night(tmp_path, number, usual(0), model=model, agent=agent)
    words = read(tmp_path).words
    assert "Agents and models: " in words
    assert "Agent a b claude-code@2 83.3 % – not run codex@1 83.3 % 83.3 %" in words
    assert "Models and datasets" not in words


def test_nights_and_series_name_the_agents_of_a_model(tmp_path: Path) -> None:
    for number, agent in enumerate(["codex@1", "claude-code@2"]):
        write_night(tmp_path, number, usual(0), model="a", agent=agent)
    write_night(tmp_path, 2, usual(0), model="b", agent="codex@1")
    words = read(tmp_path).words
    nights = words[words.index("Latest nights") :]
    for name in ("a with codex@1 83.3 %", "a with claude-code@2 83.3 %", "first run b 83.3 %"):
        assert name in nights
    # The line of a series does not say its agent twice.
    scores = words[words.index("Scores") : words.index("Latest nights")]
    assert scores.count("claude-code@2") == 1
    assert scores.count("codex@1") == 2


def test_one_agent_needs_no_matrix(tmp_path: Path) -> None:
    for number, model in enumerate("ab"):
        write_night(tmp_path, number, usual(0), model=model)
    assert "Agents and models" not in read(tmp_path).words


def test_series_of_one_name_say_what_sets_them_apart(tmp_path: Path) -> None:
    write_night(tmp_path, 0, usual(0), temperature=0.3)
    write_night(tmp_path, 1, usual(0), temperature=0.9)
    assert "differs from night-01 in model.temperature" in read(tmp_path).words


def test_a_lane_is_a_series_of_its_name_and_of_its_nights(tmp_path: Path) -> None:
    runs = [write_night(tmp_path, number, usual(number), model=f"step-{number}") for number in range(3)]
    page = read(tmp_path, NightlySeries("checkpoints/*", {run: f"night {at}" for at, run in enumerate(runs)}))
    assert "checkpoints/* … learning step-2, tests" in page.words
    assert "night 2 2026-01-03 … learning" in page.words


def test_only_the_latest_nights_are_there(tmp_path: Path) -> None:
    page = read(write_drop(tmp_path, usual_nights=13, dropped_nights=0))
    assert "2026-01-13 ✓ quiet" in page.words
    assert "All nights, 3 more" in page.words
    assert "2026-01-03 …" not in page.words


def test_many_series_have_a_page_of_their_own(tmp_path: Path) -> None:
    for number in range(70):
        write_night(tmp_path, number, {"task-00": (1.0,)}, model=f"model-{number:02}")
    with a_site(tmp_path) as site:
        first, everything = ReadPage(overview.render(site)), ReadPage(overview.render_series(site))
    assert "All series, 10 more" in first.words
    assert "model-00" not in first.words
    assert everything.words.count("first run") == 70


def test_no_run_is_an_empty_page_that_says_how_to_begin(tmp_path: Path) -> None:
    words = read(tmp_path).words
    assert "No runs yet." in words
    assert "Scores" not in words


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write_night(tmp_path, 0, usual(0))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    words = read(tmp_path).words
    assert "What could not be read" in words
    assert "torn/run.json: not JSON" in words


def test_the_feed_is_announced(tmp_path: Path) -> None:
    assert "feed.xml" in read(tmp_path).links


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    for number in range(3):
        write_night(tmp_path, number, {HOSTILE: (1.0,)}, model=HOSTILE, agent=HOSTILE, source=HOSTILE)
    page = read(tmp_path)
    assert page.tags.count("script") == 2
    assert "<script>alert('x')</script>" in page.words
    assert "\u202e" not in page.words
    assert not [link for link in page.links if link.startswith("/")]
