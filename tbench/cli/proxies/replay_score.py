"""`tbench replay score`: score stored replies, again or for the first time, without the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench import exit_codes
from tbench.cli.common import json_option
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tbench.proxies.replay.scoring.parser import Revision
    from tbench.proxies.replay.scoring.recompute import Recomputed


dataset_option = click.option(
    "--dataset", metavar="RECORDS.jsonl", type=A_PATH, help="The dataset; a run's manifest names its own."
)
metric_revision_option = click.option(
    "--metric-revision", type=OneOf("v0", "v1", "v2"), help="Revision of the metric; v2 by default."
)


@click.command(cls=TbenchCommand)
@click.argument(
    "path",
    cls=Argument,
    metavar="PATH",
    type=A_PATH,
    help="A run of replay, its replies (responses.jsonl), or a result file.",
)
@dataset_option
@metric_revision_option
@click.option(
    "--output", metavar="RESULT.json", type=A_PATH, help="Where the result goes; default: beside the replies."
)
@json_option
def score(
    path: Path, dataset: Path | None, metric_revision: Revision | None, output: Path | None, as_json: bool
) -> None:
    """Score replies, or recompute a result file from its own units."""
    if _is_result(path):
        _recompute(path, metric_revision, dataset, output, as_json=as_json)
    else:
        score_and_show(path, metric_revision, dataset, output, as_json=as_json)


def score_and_show(
    path: Path,
    revision: Revision | None,
    dataset: Path | None = None,
    output: Path | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Score stored replies, write the result and print what it says."""
    from tbench.proxies.replay.run_files import RESULT_NAME
    from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION
    from tbench.proxies.replay.scoring.result import replace_result
    from tbench.proxies.replay.scoring.score_run import score_path

    result = score_path(path, dataset, revision or DEFAULT_REVISION)
    target = output or (path if path.is_dir() else path.parent) / RESULT_NAME
    replace_result(target, result)
    show(result, target, as_json=as_json)


def show(result: Mapping[str, Any], target: Path, *, as_json: bool) -> None:
    """Print what a result says, and where it is."""
    if as_json:
        import json

        short = {key: value for key, value in result.items() if key != "per_step"}
        print_text(json.dumps({**short, "result": str(target)}, indent=2))  # ASCII: it fits into any terminal
        return
    from tbench.proxies.replay.scoring.result_text import lines_of_result

    for line in lines_of_result(result):
        print_text(line)
    print_line(f"written: {target}")


def _is_result(path: Path) -> bool:
    """Whether `path` is a JSON file, but no run's manifest."""
    return path.is_file() and path.suffix == ".json" and path.name != "replay.json"


def _recompute(
    path: Path, revision: Revision | None, dataset: Path | None, output: Path | None, *, as_json: bool
) -> None:
    from tbench.errors import UsageError
    from tbench.proxies.replay.scoring.recompute import recompute
    from tbench.proxies.replay.scoring.result import read_result
    from tbench.proxies.replay.scoring.result_text import lines_of_recomputed

    if dataset or output:
        raise UsageError(f"{path}: is recomputed from its own units; leave out --dataset and --output")
    document = read_result(path)
    found = recompute(path, document, revision)
    if as_json:
        import json

        print_text(json.dumps({"path": str(path), "revisions": [_as_json(each) for each in found]}, indent=2))
    else:
        for line in lines_of_recomputed(document["aggregate"], found):
            print_text(line)
    _exit_unless_identical(found)


def _as_json(each: Recomputed) -> dict[str, Any]:
    return {
        "metric_revision": each.revision,
        "identical": each.identical,
        "aggregate": dict(each.aggregate),
        "differing": {key: {"stored": old, "recomputed": new} for key, (old, new) in each.differing.items()},
        "absent": list(each.absent),
        "differing_steps": list(each.differing_steps),
    }


def _exit_unless_identical(found: Sequence[Recomputed]) -> None:
    if not any(each.identical for each in found):
        raise click.exceptions.Exit(exit_codes.UNCOVERED)
