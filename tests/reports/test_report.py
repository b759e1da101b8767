"""The self-contained page about a run: well-formed, escaped, complete."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from urllib.parse import unquote

import pytest
from run_plans import a_config, a_document, a_plan
from shown_runs import failure, mixed, read, store, trial

from harness.trajectory import Outcome
from reports.report import write_report
from tbench.errors import UsageError
from tbench.results import TaskStepResult
from tbench.storage.read_run import RunUnreadable

HOSTILE = "</pre><script>alert('x')</script><img src=http://evil.example/x onerror=alert(1)>"


def test_the_page_is_well_formed_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    file = write_report(mixed(tmp_path, base_url="http://localhost:8000/v1"))
    page = read(file)
    assert not [reference for reference in page.references if "//" in reference]
    assert not {"script", "iframe", "object", "img"} & {tag for tag, _ in page.tags}
    assert "url(" not in page.text
    assert "@import" not in page.text
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    style = file.read_text(encoding="utf-8").partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert not [attrs for _, attrs in page.tags if "style" in attrs]


def test_the_page_says_the_score_and_what_it_means(tmp_path: Path) -> None:
    words = read(write_report(mixed(tmp_path, model="m-9b", version="0.1.0"))).words()
    for text in (
        "score so far 37.5 ± 41.2 % (sample std over 2 seeds; 66.7 % over the 1 completed; ",
        "incomplete: 1 trial not run; coverage 4/6; unscored = 0)",
        "score over scored trials only ",
        "score bounds 37.5 to 70.8 %",
        "It is not a confidence interval.",
        "1 ended in an error and 1 have no result",
        "m-9b",
        "0.1.0",
    ):
        assert text in words


def test_what_was_overridden_stands_beside_the_score(tmp_path: Path) -> None:
    config = a_config(agent_timeout_multiplier=2, memory_mb=8192)
    document = a_document(a_plan()).model_copy(update={"config": config})
    run = store(tmp_path / "run", [trial("t", 0, 1.0)], ["t"])
    (run / "run.json").write_text(document.model_dump_json())
    words = read(write_report(run)).words()
    assert "Overridden: agent timeout x2, 8192 MB of memory instead of each task's" in words
    assert "Overridden" not in read(write_report(mixed(tmp_path / "other"))).words()


def test_cells_tell_pass_partial_fail_error_and_missing_apart_without_colour(tmp_path: Path) -> None:
    page = read(write_report(mixed(tmp_path)))
    cells = [attrs for _, attrs in page.of_class("cell") if "title" in attrs]
    assert [attrs["class"].split()[1] for attrs in cells] == ["fail", "error", "pass", "missing", "pass", "partial"]
    assert [attrs["title"] for attrs in cells] == [
        "seed 0: fail, reward 0, step_limit, 3 steps, 10.0\N{NO-BREAK SPACE}s",
        "seed 1: error, no verdict: TestsNeverRan, 3 steps, 10.0\N{NO-BREAK SPACE}s",
        "seed 0: pass, 3 steps, 10.0\N{NO-BREAK SPACE}s",
        "seed 1: no result",
        "seed 0: pass, 3 steps, 10.0\N{NO-BREAK SPACE}s",
        "seed 1: partial, reward 0.25, 3 steps, 10.0\N{NO-BREAK SPACE}s",
    ]
    for sign in ("✓", ".25", "✗", "!", "·"):
        assert sign in page.text


def test_a_cell_leads_to_the_line_of_its_trial(tmp_path: Path) -> None:
    page = read(write_report(mixed(tmp_path)))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    led = [attrs["href"] for tag, attrs in page.of_class("cell") if tag == "a"]
    assert led == ["#trial-1-0", "#trial-1-1", "#trial-2-0", "#trial-0-0", "#trial-0-1"]
    assert {each.removeprefix("#") for each in led} <= set(ids)
    assert len(ids) == len(set(ids))


def test_a_partial_reward_close_to_one_does_not_look_like_a_pass(tmp_path: Path) -> None:
    page = read(write_report(store(tmp_path, [trial("t", 0, 0.999), trial("t", 1, 1.0)], ["t"])))
    assert "0.999" in page.words()


def test_tables_have_headers_and_sections_have_names(tmp_path: Path) -> None:
    page = read(write_report(mixed(tmp_path)))
    assert ("html", {"lang": "en"}) in page.tags
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert {attrs["aria-labelledby"] for tag, attrs in page.tags if tag == "section"} <= ids
    assert all(attrs.get("scope") in ("row", "col", "rowgroup") for tag, attrs in page.tags if tag == "th")


def test_everything_hostile_is_escaped(tmp_path: Path) -> None:
    results = [trial(HOSTILE, 0, None, error=failure(HOSTILE)), trial(HOSTILE, 1, 1.0, model=HOSTILE)]
    hostile = {"model": HOSTILE, "agent": HOSTILE, "run": HOSTILE, "extra_body": {HOSTILE: HOSTILE}}
    file = write_report(store(tmp_path, results, [HOSTILE], **hostile))
    page = read(file)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count("alert('x')") >= 7
    assert "<script" not in file.read_text(encoding="utf-8")


def test_characters_that_no_page_may_hold_are_replaced(tmp_path: Path) -> None:
    results = [trial("t", 0, None, error=failure("\x1b[31m\x00 \u202egnp.exe\x1b[0m"))]
    text = write_report(store(tmp_path, results, ["t"])).read_text(encoding="utf-8")
    assert not {"\x1b", "\x00", "\u202e"} & set(text)
    assert ">� �gnp.exe<" in text


def test_links_lead_to_the_files_that_exist(tmp_path: Path) -> None:
    run = mixed(tmp_path / "runs" / "a run#1")
    first, second = run / "trials/solved/seed-0", run / "trials/late/seed-0"
    for file in (first / "result.json", first / "verifier/stdout.txt", second / "session.cast"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    for out in (None, tmp_path / "site" / "deep" / "page.html"):
        page = write_report(run, out)
        links = read(page).files()
        assert len(links) == 3
        assert all((page.parent / unquote(link)).is_file() for link in links)
        assert not any("#" in link or " " in link for link in links)


def test_each_step_of_a_task_has_a_line_with_its_trial(tmp_path: Path) -> None:
    steps = (
        TaskStepResult(name="build", reward=0.4, outcome=Outcome.SUBMITTED, steps=5, stopped="reward 0.4 is below 0.5"),
        TaskStepResult(name="document", begun=False),
    )
    run = store(tmp_path, [trial("t", 0, 0.4, task_steps=steps, reward_all_steps=0.2)], ["t"])
    for name in ("build", "document", "../../../../outside"):
        (run / "trials/t/seed-0/steps" / name).mkdir(parents=True)
    (run / "trials/t/seed-0/steps/build/trajectory.json").write_text("{}")
    page = read(write_report(run))
    assert "step 1 build: reward 0.4, submitted, 5 steps, 0.0 s, reward 0.4 is below 0.5" in page.words()
    assert "step 2 document: never started" in page.words()
    assert "0.2 counting 0 for task steps that never started" in page.words()
    assert "score 10.0 % with 0 for the 1 task step that 1 trial never began" in page.words()
    assert page.files() == ["trials/t/seed-0/steps/build/trajectory.json"]


def test_the_name_of_a_step_cannot_lead_out_of_the_run(tmp_path: Path) -> None:
    steps = (TaskStepResult(name="../../../../outside", reward=1.0),)
    run = store(tmp_path / "run", [trial("t", 0, 1.0, task_steps=steps, reward_all_steps=1.0)], ["t"])
    (run / "trials/t/seed-0/steps").mkdir(parents=True)
    (run / "outside").mkdir()
    (run / "outside" / "trajectory.json").write_text("{}")
    assert read(write_report(run)).files() == []


def test_a_later_attempt_links_into_its_own_directory(tmp_path: Path) -> None:
    run = store(tmp_path, [trial("t", 0, 1.0, attempt=2)], ["t"])
    for place in ("trials/t/seed-0", "trials/t/seed-0/attempt-2"):
        (run / place).mkdir(parents=True, exist_ok=True)
        (run / place / "trajectory.json").write_text("{}")
    assert read(write_report(run)).files() == ["trials/t/seed-0/attempt-2/trajectory.json"]


@pytest.mark.parametrize("name", ["../../outside", "/etc", "nul\0byte", "\ud800"])
def test_a_task_name_cannot_lead_out_of_the_run(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside" / "seed-0"
    outside.mkdir(parents=True)
    (outside / "result.json").write_text("{}")
    run = store(tmp_path / "run", [], [name])
    (run / "results.jsonl").write_text(trial("t", 0, 1.0).model_dump_json().replace('"t"', json.dumps(name)))
    (run / "trials").mkdir()
    try:
        page = read(write_report(run))
    except RunUnreadable:
        return
    assert page.files() == []


def test_a_scripted_demo_is_announced(tmp_path: Path) -> None:
    assert "Scripted demo, not a model." in read(write_report(mixed(tmp_path / "a", model="scripted-demo"))).words()
    assert "Scripted demo" not in read(write_report(mixed(tmp_path / "b", model="m"))).words()


def test_time_is_shown_in_seconds_and_percent(tmp_path: Path) -> None:
    words = read(write_report(mixed(tmp_path))).words()
    assert "model: 30.0 s, 60.0 %" in words
    assert "command: 10.0 s, 20.0 %" in words
    assert "model 6.0 s (60.0 %), command 2.0 s (20.0 %), verifier 1.0 s (10.0 %)" in words


def test_a_run_without_results_or_timings_still_has_a_page(tmp_path: Path) -> None:
    words = read(write_report(store(tmp_path, [], ["t"]))).words()
    assert "score not available (incomplete: 2 trials not run; coverage 0/2)" in words
    assert "This is not a score of 0." in words
    assert "No timings were recorded." in words


def test_imported_results_have_a_page_too(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"task": "a", "seed": 0, "reward": 0.5}\n')
    words = read(write_report(tmp_path)).words()
    assert "score 50.0 % (1 seed, no std; coverage 1/1)" in words
    assert "no run.json" in words


def test_nothing_is_left_behind_when_a_page_is_replaced(tmp_path: Path) -> None:
    run = mixed(tmp_path)
    assert write_report(run) == write_report(run) == run / "report.html"
    assert sorted(file.name for file in run.iterdir()) == ["report.html", "results.jsonl", "run.json"]


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    run, page, other = mixed(tmp_path / "run"), tmp_path / "page.html", tmp_path / "other.html"
    assert write_report(run, page) == write_report(run, page) == page
    other.write_text("<!doctype html>\n<p>mine</p>\n")
    for file in (other, run / "run.json"):
        before = file.read_bytes()
        with pytest.raises(UsageError, match="nothing is overwritten"):
            write_report(run, file)
        assert file.read_bytes() == before
