"""Hostile runs: names and texts that try to be markup, and damaged directories."""

from __future__ import annotations

import json
from pathlib import Path

from run_trees import a_result, write_run
from written_trials import Exchange, WrittenTrial, tear, tear_steps, write_files_of

from tbench.results import Blame, ErrorInfo, Stage

MARKUP = "</title></script></style>--><img src=x onerror=alert(1)><b class=injected>\"'`&amp;"
"""Loads a picture, opens a dialog and leaves an element wherever it is not escaped."""
ESCAPES = (
    "\x1b[31mred\x1b[0m \x1b]0;a title\x07\x1b]52;c;aGk=\x07\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\ "
    "\x1b[2J\x1b[999;999H\x1b[?1049h \x9b31m \x00\x08\x7f \u2028 \u202egnp.exe ]]> {{7*7}} ${alert(1)} <!--<script>"
)
"""Terminal escapes, and characters that pages must not contain."""
NAMES = (
    MARKUP.replace("/", ""),
    "quotes \" and ' and `",
    "emoji 🧪 and \u202etxet dekrow",
    "..",
    ".",
    "-rf",
    "con.",
    "a#b?c%2f..%2f",
    "x" * 200,
)
"""Task names of which each can be a directory, but for the dots."""
NOWHERE = ("a/../../../outside", "/etc/passwd", "")
"""Task names that cannot be directories."""
SECRET = "tbench-outside-secret"
"""Content of a file outside of all runs, which hostile names try to reach."""


def write_hostile_runs(folder: Path) -> Path:
    """Write all hostile runs into `folder`."""
    (folder / "outside" / "seed-0").mkdir(parents=True)
    (folder / "outside" / "seed-0" / "session.cast").write_text(SECRET)
    _write_names(folder / "runs" / MARKUP.replace("/", "")[:80])
    _write_cut_off(folder / "runs" / "cut off")
    _write_many_seeds(folder / "runs" / "many-seeds")
    _write_strange(folder / "runs")
    return folder / "runs"


def _write_names(run: Path) -> None:
    text = f"{MARKUP}\n{ESCAPES}\n"
    trial = WrittenTrial(
        exchanges=[Exchange(text, text, text, warnings=(text,), reasoning=text)],
        instruction=text,
        output=text,
        tests={MARKUP: MARKUP, "plain": ""},
    )
    error = ErrorInfo(stage=Stage.VERIFIER, type=MARKUP, blame=Blame.TASK, retryable=False, message=text)
    results = [a_result(name, 0, 0.5, trial=text) for name in (*NAMES, *NOWHERE)]
    results += [a_result(NAMES[0], 1, None, error=error)]
    write_run(
        run,
        results,
        dict.fromkeys((*NAMES, *NOWHERE), MARKUP),
        (0, 1),
        model=MARKUP,
        prompt_hash=MARKUP,
        base_url=MARKUP,
        name=MARKUP,
    )
    for result in results:
        if result.task in NAMES[:3] + NAMES[5:]:
            directory = write_files_of(run, result, trial)
    (directory / "session.cast").write_text('{"version": 2}\n[1, "o"]\nnull\n[NaN, "o", "x"]\n["1", "o", "y"]\n[2, "o"')


def _write_cut_off(run: Path) -> None:
    """A run under way, or one that was killed: a trial is over, another has begun, and last lines are torn."""
    results = [a_result("over", 0, 1.0), a_result("begun", 0, 1.0)]
    write_run(run, results, {"over": "h", "begun": "h", "waiting": "h"}, (0, 1), status="running")
    directories = [write_files_of(run, result, WrittenTrial()) for result in results]
    tear_steps(directories[1])
    tear(run / "results.jsonl")


def _write_many_seeds(run: Path) -> None:
    seeds = range(200)
    results = [a_result("often", seed, float(seed % 3 == 0)) for seed in seeds]
    write_run(run, results, {"often": "h"}, seeds)


def _write_strange(folder: Path) -> None:
    """Runs that cannot be read, or that are not tbench's own."""
    newer = write_run(folder / "of a newer version", [a_result("t", 0, 1.0)], {"t": "h"}, (0,))
    (newer / "run.json").write_text(json.dumps({**json.loads((newer / "run.json").read_text()), "schema_version": 99}))
    torn = write_run(folder / "torn", [a_result("t", 0, 1.0)], {"t": "h"}, (0,))
    (torn / "run.json").write_bytes((torn / "run.json").read_bytes()[:100])
    write_run(folder / "nothing-yet", [], {"t": "h"}, (0, 1), status="running")
    write_run(folder / "no-tasks", [], {}, ())
    bare = folder / "bare"
    bare.mkdir()
    lines = [{"task": f"{MARKUP} {at}", "seed": 0, "reward": at / 3, "model": MARKUP} for at in range(3)]
    (bare / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
