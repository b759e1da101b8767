"""The page of a night: a quiet night is one line, others show what changed since the last good one."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_series import HASHES, HOSTILE, TASKS, ReadPage, a_site, dropped, usual, write_drop, write_night

from reports.site import night, series
from reports.site.content import Site
from reports.site.states import drop_text
from reports.site.writer import write_site

PAIR = {"task-00": (1.0, 1.0), "task-01": (1.0, 0.0), "task-02": (0.0, 0.0)}


def read(site: Site, name: str) -> ReadPage:
    return ReadPage(night.render(site, name, site.nights[name]))


def two_nights(folder: Path, now: dict[str, tuple[float | None, ...]], **known: object) -> ReadPage:
    """The page of the second of two nights."""
    write_night(folder, 0, PAIR)
    write_night(folder, 1, now, **known)
    with a_site(folder) as site:
        return read(site, "2026-01-02")


def test_a_quiet_night_is_one_line_and_the_rest_is_folded(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path, usual_nights=12, dropped_nights=0)) as site:
        html = night.render(site, "2026-01-12", site.nights["2026-01-12"])
    page = ReadPage(html)
    assert "✓ quiet m 83.3 % +0.0 ± 12.3 points since 2026-01-11 coverage 12/12 C = 0.0 of 5" in page.words
    assert html.index("<details") < html.index("Configuration and versions")
    assert "lede" not in page.classes


def test_an_alarm_has_its_evidence_in_the_open(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path)) as site:
        page = read(site, "2026-01-15")
    assert "▲ alarm m" in page.words
    assert "−41.7 ± 14.9 points since 2026-01-12" in page.words
    assert "C = 13.1, above the limit of 5, since 2026-01-13" in page.words
    assert "task-01 12 of 12 0 of 5" in page.words
    assert "fold" not in page.classes


def test_a_drop_has_the_same_figure_on_every_page(tmp_path: Path) -> None:
    write_drop(tmp_path / "runs")
    written = write_site([tmp_path / "runs"], tmp_path / "site")
    (series,) = written.site.series
    assert series.verdict is not None and series.verdict.drop is not None
    drop = series.verdict.drop
    assert f"dropped by {drop.points.removeprefix('-')} points" in series.verdict.lines()[0]
    assert drop.now - drop.base == pytest.approx(drop.moved)
    pages = ["index.html", *(f"nights/2026-01-{day}.html" for day in (14, 15, 17)), "runs/night-16/index.html"]
    for name in pages:
        words = ReadPage((tmp_path / "site" / name).read_text()).words
        assert drop_text(drop).replace("\N{NO-BREAK SPACE}", " ") in words.replace("\N{NO-BREAK SPACE}", " "), name


def test_tasks_that_fell_come_the_worst_first_with_links_to_both_trials(tmp_path: Path) -> None:
    page = two_nights(tmp_path, {"task-00": (1.0, 0.0), "task-01": (0.0, 0.0), "task-02": (0.0, 1.0)})
    lower = page.words[page.words.index("Lower 2 tasks, 1 newly failing") : page.words.index("Newly passing 1 task")]
    assert lower.index("task-01 newly failing") < lower.index("task-00 ✓ ✓ ✓ ✗ 1.00 → 0.50 −50.0")
    assert {"../runs/night-00/trial.html?task-01--0", "../runs/night-01/trial.html?task-01--0"} <= set(page.links)


def test_what_is_solved_at_no_seed_any_more_is_newly_failing(tmp_path: Path) -> None:
    page = two_nights(tmp_path, {**PAIR, "task-00": (0.0, 0.0), "task-01": (1.0, 1.0)})
    assert "Newly failing 1 task" in page.words
    assert "task-00 ✓ ✓ ✗ ✗ 1.00 → 0.00 −100.0" in page.words
    assert "Higher 1 task" in page.words


def test_errors_stand_apart_from_failures(tmp_path: Path) -> None:
    page = two_nights(tmp_path, {**PAIR, "task-00": (None, None), "task-01": (1.0, None)})
    assert "Lower" not in page.words
    assert "Errors (not failures) 3 trials" in page.words
    assert "ImagePullFailed image infra 3 0 ! task-00 rate <limit>" in page.words
    assert "Tasks that lost all their verdicts: task-00 ! !" in page.words
    assert "../runs/night-01/trial.html?task-00--0" in page.links


def test_settings_that_changed_are_shown_with_both_values(tmp_path: Path) -> None:
    page = two_nights(tmp_path, PAIR, concurrency=9)
    assert "1 setting changed" in page.words
    assert "schedule.concurrency 4 → 9" in page.words


def test_the_content_of_tasks_that_changed_is_named(tmp_path: Path) -> None:
    page = two_nights(tmp_path, PAIR, hashes={**{task: HASHES[task] for task in PAIR}, "task-02": "new"})
    assert "tasks changed content of task-02" in page.words


def test_a_night_without_changes_says_so(tmp_path: Path) -> None:
    page = two_nights(tmp_path, PAIR)
    assert "No known change since 2026-01-01" in page.words
    assert "Every task has the same reward as in 2026-01-01." in page.words


def test_the_first_night_has_nothing_to_compare_with(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path, usual_nights=2, dropped_nights=0)) as site:
        page = read(site, "2026-01-01")
    assert "There is no earlier good night" in page.words


def test_nights_without_a_common_task_are_not_compared(tmp_path: Path) -> None:
    page = two_nights(tmp_path, {"another": (1.0,)})
    assert "No task in common with 2026-01-01" in page.words


def test_nights_are_linked_with_their_neighbours(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path, usual_nights=3, dropped_nights=0)) as site:
        first, middle, last = (read(site, f"2026-01-0{day}") for day in (1, 2, 3))
    assert {"2026-01-01.html", "2026-01-03.html"} <= set(middle.links)
    assert "2026-01-03.html" not in first.links
    assert "2026-01-04.html" not in last.links


def test_a_run_under_way_has_coverage_in_place_of_a_score(tmp_path: Path) -> None:
    page = two_nights(tmp_path, {"task-00": (1.0, 1.0)}, hashes=dict.fromkeys(PAIR, "h"), status="running")
    assert "▶ running m 2 of 6 trials so far 100.0 % of the trials with a verdict" in page.words


def test_a_night_in_hindsight_says_which_alarm_it_was_part_of(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path)) as site:
        page = read(site, "2026-01-13")
    assert "in hindsight part of the drop for which 2026-01-14 raised the alarm" in page.words


def test_the_night_on_which_an_alarm_ended_says_so(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path, back=4)) as site:
        page = read(site, "2026-01-18")
    assert "✓ alarm over m" in page.words
    assert "The alarm is over" in page.words


def test_the_loudest_run_of_a_night_comes_first(tmp_path: Path) -> None:
    write_drop(tmp_path)
    for number in range(17):
        write_night(tmp_path, number, usual(number), model="steady", name=f"steady-{number}")
    with a_site(tmp_path) as site:
        words = read(site, "2026-01-17").words
        listed = ReadPage(night.render_nights(site)).words
    assert words.index("▲ alarm m") < words.index("✓ quiet steady")
    assert "17 nights, 4 with an alarm" in listed
    assert "2026-01-17 ▲ alarm m 41.7 % steady 83.3 %" in listed


def test_long_lists_are_unfolded_on_demand_and_end(tmp_path: Path) -> None:
    names = [f"t{number:03}" for number in range(60)]
    write_night(tmp_path, 0, dict.fromkeys(names, (1.0,)))
    write_night(tmp_path, 1, dict.fromkeys(names, (0.0,)))
    with a_site(tmp_path) as site:
        page = read(site, "2026-01-02")
    assert "Newly failing 60 tasks" in page.words
    assert "and 50 more tasks: compare the runs" in page.words


def test_the_page_of_a_series_has_its_chart_and_all_its_runs(tmp_path: Path) -> None:
    with a_site(write_drop(tmp_path)) as site:
        page = ReadPage(series.render(site, site.series[0]))
    assert "17 runs of bundled" in page.words
    assert "svg" in page.tags
    assert "night-16 ▲ alarm 41.7 % 21.8 12/12 0" in page.words
    assert "alarm: the score dropped by 41.7 ± " in page.words


def test_a_series_of_one_run_has_no_chart_yet(tmp_path: Path) -> None:
    write_night(tmp_path, 0, usual(0))
    with a_site(tmp_path) as site:
        page = ReadPage(series.render(site, site.series[0]))
    assert "The history starts with the second finished run." in page.words


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    for number in range(2):
        write_night(tmp_path, number, {HOSTILE: (float(number),), TASKS[0]: (None,)}, model=HOSTILE)
    with a_site(tmp_path) as site:
        page = read(site, "2026-01-02")
    assert page.tags.count("script") == 2
    assert "<script>alert('x')</script>" in page.words
    assert not [link for link in page.links if "../../" in link or "%" in link]


def test_a_drop_that_is_not_judged_yet_is_a_quiet_night(tmp_path: Path) -> None:
    write_drop(tmp_path, usual_nights=12, dropped_nights=0)
    write_night(tmp_path, 12, dropped(12))
    with a_site(tmp_path) as site:
        page = read(site, "2026-01-13")
    assert "✓ quiet m 41.7 % −41.7 ±" in page.words
    assert "C = 4.4 of 5" in page.words
