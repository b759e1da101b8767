"""The page of a run: headline, links, checks, and very many trials."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest
from run_plans import a_document, a_plan
from run_trees import a_result, write_run
from shown_runs import Page, failure, mixed, read, store, trial

from reports.page_paths import trial_page
from reports.report import write_report
from reports.run.page import ERRORS_SHOWN, MAX_CHARACTERS, MAX_RESAMPLED, readable
from reports.site.writer import write_site
from tbench.config.document import PlannedTask, Status
from tbench.origin import DatasetOrigin
from tbench.results import HostSample, Integrity, TrialResult


def planned(path: Path, results: list[TrialResult], status: Status, tasks: list[str], **known: object) -> Path:
    """Write a run of tbench (not an imported one) with seeds 0 and 1."""
    named = tuple(PlannedTask(name=task, hash=f"sha256:{task}") for task in tasks)
    changed = {"run": path.name, "status": status, "tasks": named, "seeds": (0, 1), **known}
    store(path, results, tasks)
    (path / "run.json").write_text(a_document(a_plan()).model_copy(update=changed).model_dump_json())
    return path


def site_page(root: Path, run: str = "run") -> Page:
    """Return the page of a run in the site of `root`."""
    return read(write_site([root], root / "site").overview.parent / "runs" / run / "index.html")


@pytest.mark.parametrize("status", ["running", "interrupted", "stopped", "failed"])
def test_a_run_that_is_not_over_leads_with_its_state_and_not_with_a_score(tmp_path: Path, status: Status) -> None:
    run = planned(tmp_path / "run", [trial("a", 0, 1.0)], status, ["a", "b"], stopped="the disk is full")
    for page in (site_page(tmp_path), read(write_report(run))):
        assert f"run: {status}: 1 of 4 trials have a verdict" in page.words()
        assert f"State {status}: 1 of 4 trials have a verdict" in page.words()
        assert "Why: the disk is full." in page.words()
        assert "score so far 25.0 ± 35.4 %" in page.words()
        assert "pass@2" not in page.words()


def test_a_run_that_is_over_leads_with_its_score(tmp_path: Path) -> None:
    results = [trial(task, seed, float(seed)) for task in ("a", "b") for seed in (0, 1)]
    planned(tmp_path / "run", results, "finished", ["a", "b"])
    words = site_page(tmp_path).words()
    assert "Score score 50.0 ± 70.7 % (sample std over 2 seeds; coverage 4/4)" in words
    assert "pass@2, any of 2" in words


def test_a_score_can_be_quoted_with_all_that_it_depends_on(tmp_path: Path) -> None:
    origin = DatasetOrigin(name="bench", version="2.0", source="tbench", tasks=2, verified=True, digest="d1")
    planned(tmp_path / "run", [trial("a", 0, 1.0), trial("a", 1, 0.0)], "finished", ["a"], dataset=origin)
    words = site_page(tmp_path).words()
    quote = words[words.index("| | | |---|---|") :]
    for part in ("50.0 ± 70.7 % (sample std over 2 seeds", "1 × 2", "2 of 2 trials", "bench", "2.0", "d1", "tbench"):
        assert part in quote, part
    planned(tmp_path / "other", [trial("a", 0, 1.0)], "running", ["a"])
    assert "|---|" not in site_page(tmp_path, "other").words(), "no score to quote yet"


def test_gpu_seconds_are_a_column_if_the_number_of_gpus_is_known(tmp_path: Path) -> None:
    results = [a_result("a", seed, 1.0) for seed in (0, 1)]
    write_run(tmp_path / "with", results, {"a": "h"}, (0, 1), gpus=8)
    write_run(tmp_path / "without", results, {"a": "h"}, (0, 1))
    write_site([tmp_path], tmp_path / "site")
    priced, bare = (site_page(tmp_path, run).words() for run in ("with", "without"))
    assert "GPU-seconds" not in bare
    assert priced[priced.index("Every trial") :].count("120.0") == 2, "two trials at once share 30 s of 8 GPUs"


def test_cells_and_lines_lead_to_the_pages_of_trials_and_tasks(tmp_path: Path) -> None:
    results = [trial("a/b c", 0, 1.0), trial("a/b c", 1, None, error=failure("x"), final=False)]
    planned(tmp_path / "run", [*results, trial("a/b c", 1, 0.0, attempt=2)], "finished", ["a/b c"])
    page = site_page(tmp_path)
    cells = [attrs["href"] for tag, attrs in page.of_class("cell") if tag == "a"]
    assert [f"runs/run/{unquote(href)}" for href in cells] == [
        trial_page("run", "a/b c", 0),
        trial_page("run", "a/b c", 1, attempt=2),
    ]
    led = {f"runs/run/{unquote(href)}" for href in page.files()}
    assert trial_page("run", "a/b c", 1) in led
    assert {unquote(href) for href in page.files()} >= {"../../nights/2026-01-01.html", "../../index.html"}
    assert any(href.startswith("../../tasks/") for href in page.files())


def test_the_run_before_it_is_compared_with_it(tmp_path: Path) -> None:
    for day, reward in enumerate((1.0, 0.0), start=1):
        results = [trial("a", seed, reward) for seed in (0, 1)]
        planned(tmp_path / f"run-{day}", results, "finished", ["a"], created_at=f"2026-01-0{day}T00:00:00Z")
    page = site_page(tmp_path, "run-2")
    assert "−100.0 points since the last good run, run-1" in page.words()
    assert "../../compare/run-1--run-2.html" in page.files()


def test_nothing_of_a_page_runs_or_looks_otherwise_than_the_site_says(tmp_path: Path) -> None:
    mixed(tmp_path / "run")
    page = site_page(tmp_path, "nightly")
    assert not [attrs for tag, attrs in page.tags if "style" in attrs or tag == "style"]
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert [attrs["src"] for attrs in scripts] == ["../../assets/site.js", "../../assets/tables.js"]


def test_what_speaks_against_a_score_stands_beside_it(tmp_path: Path) -> None:
    origin = DatasetOrigin(
        name="bench", version="2.0", source="tbench", tasks=9, verified=False, compared=2, differing=("a",), digest="d1"
    )
    pressed = HostSample(load_max=9.0)
    tampered = Integrity(tamper=("reward-written: before the tests",))
    results = [
        trial("a", 0, 0.0, host=pressed),
        trial("a", 1, 1.0, integrity=tampered),
        trial("b", 0, 1.0, human_touched=True),
        trial("b", 0, 1.0),
        trial("b", 1, None, error=failure("no")),
    ]
    planned(tmp_path / "run", results, "finished", ["a", "b"], dataset=origin)
    page = site_page(tmp_path)
    for text in (
        "Coverage (doubt) 3 of 4 trials got a verdict; 1 error",
        "Tampering (bad) signs in 1 trial 1 trial a seed 1: reward 1; reward-written: before the tests",
        "Tasks (bad) bench@2.0: 1 of 2 tasks match the published digests; changed: a",
        "dataset digest d1",
        "Limits (good) timeouts, CPUs and memory as the tasks specify",
        "1 of 1 failed trial ran on an overloaded machine: load up to 9.0 per cpu",
        "Repeated results (doubt) 1 trial with more than one final result; the last one counts",
        "b seed 0: 1, 1",
    ):
        assert text in page.words()
    assert len([attrs for _, attrs in page.of_class("check") if "bad" in attrs["class"]]) == 2


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            {"memory": "in force", "disk": "not in force"},
            "Limits (good) timeouts, CPUs and memory as the tasks specify disk",
        ),
        ({"memory": "not in force"}, "Limits (doubt) memory not in force"),
        ({"memory": "cannot be seen"}, "Limits (doubt) memory cannot be seen"),
    ],
)
def test_limits_that_an_engine_did_not_keep_speak_against_a_score(
    tmp_path: Path, limits: dict[str, str], text: str
) -> None:
    planned(tmp_path / "run", [trial("a", 0, 1.0)], "finished", ["a"], engine={"limits": limits})
    assert text in site_page(tmp_path).words()


def test_a_run_of_which_little_is_known_says_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"task": "a", "seed": 0, "reward": 1}\n{"task": "b", "se')
    words = read(write_report(tmp_path)).words()
    assert "Limits (unknown) it is not recorded which limits applied" in words
    assert "Machine (unknown) its load was not recorded" in words
    assert "the last line is incomplete and was ignored" in words


def test_many_seeds_are_a_bar_with_the_cells_behind_it(tmp_path: Path) -> None:
    results = [trial("t", seed, float(seed % 2)) for seed in range(40)]
    page = read(write_report(store(tmp_path, results, ["t"], seeds=tuple(range(40)), status="finished")))
    assert "20 ✓ pass 20 ✗ fail" in page.words()
    assert len(page.of_class("many")) == 1
    assert len([attrs for _, attrs in page.of_class("cell") if "title" in attrs]) == 40


def test_very_many_trials_have_cells_that_lead_to_files_and_no_list(tmp_path: Path) -> None:
    tasks = [f"task-{number:04}" for number in range(MAX_RESAMPLED + 1)]
    results = [trial(task, seed, 1.0) for task in tasks for seed in range(7)]
    run = store(tmp_path, results, tasks, seeds=tuple(range(7)), status="finished")
    file = run / "trials/task-0003/seed-5/trajectory.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    out = write_report(run)
    page = read(out)
    assert page.files() == ["trials/task-0003/seed-5/trajectory.json"]
    assert "too many trials to list one by one" in page.words()
    assert "Standard error over tasks" in page.words()
    assert out.stat().st_size < 300 * len(results)


def test_of_very_many_kinds_of_errors_the_first_are_shown(tmp_path: Path) -> None:
    kinds = [failure("no").model_copy(update={"type": f"Kind{number}"}) for number in range(ERRORS_SHOWN + 2)]
    results = [trial(kind.type, 0, None, error=kind) for kind in kinds]
    page = read(write_report(store(tmp_path, results, [kind.type for kind in kinds])))
    assert len(page.of_class("failure")) == ERRORS_SHOWN
    assert "2 rarer kinds of errors not shown." in page.words()


def test_the_worst_task_comes_first_and_what_is_unknown_last(tmp_path: Path) -> None:
    results = [trial("good", 0, 1.0), trial("bad", 0, 0.0), trial("middle", 0, 0.5)]
    out = write_report(store(tmp_path, results, ["unknown", "good", "bad", "middle"]))
    rows = out.read_text(encoding="utf-8").split("<tr data-kinds=")[1:]
    assert [row.partition("</th>")[0].rpartition(">")[2] for row in rows] == ["bad", "middle", "good", "unknown"]


def test_a_name_breaks_between_its_parts_and_stays_text(tmp_path: Path) -> None:
    name = "a-b_c/<b>.d"
    text = write_report(store(tmp_path, [trial(name, 0, 1.0)], [name])).read_text(encoding="utf-8")
    assert "a-<wbr>b_<wbr>c/<wbr>&lt;b&gt;.<wbr>d</th>" in text


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        ("\x1b[1mStep 1\x1b[0m\r\n\x1b[31mE: no\x1b[0m", "Step 1\nE: no"),
        (" 10%\r 50%\r100%\ndone\r", "100%\ndone"),
        ("\\u001b[31mred\\u001b[0m", "red"),
        ("\x1b]0;a title\x07text\x1b(B", "text"),
        ("a\n\n\n\n\nb\n", "a\n\nb"),
        ("  indented\n\tline", "  indented\n\tline"),
        ("an escape at the end \x1b[", "an escape at the end"),
    ],
)
def test_the_output_of_a_build_is_shown_as_its_terminal_would_show_it(message: str, seen: str) -> None:
    assert readable(message) == seen


def test_of_a_long_message_beginning_and_end_are_kept() -> None:
    text = readable("begin " + "x" * (3 * MAX_CHARACTERS) + " end")
    assert text.startswith("begin ")
    assert text.endswith(" end")
    assert "characters are left out here" in text
    assert len(text) < MAX_CHARACTERS + 100
