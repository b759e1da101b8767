"""`tbench extract` and `tbench replay run`: request and score a model's replies, without executing them."""

from __future__ import annotations

from pathlib import Path

import click

from tbench import exit_codes
from tbench.cli.common import with_endpoint
from tbench.cli.parsing.commands import flag, option
from tbench.cli.parsing.configured import ConfiguredCommand, GivenSettings
from tbench.cli.parsing.values import PATH_TYPE
from tbench.cli.printing import print_line, print_notes, print_text
from tbench.proxies.extraction.settings import ExtractConfig
from tbench.proxies.replay.generation.settings import ReplayConfig


@click.command(cls=ConfiguredCommand, configuration=ExtractConfig)
@flag("--resume", "Continue the extraction in --output: request the missing replies.")
@option("--score DIR", "Only score the replies stored in DIR.", PATH_TYPE)
@flag("--json", "Print one JSON object instead of tables.", name="as_json")
def extract(given: GivenSettings[ExtractConfig], resume: bool, score: Path | None, as_json: bool) -> None:
    """Ask for one reply per task and seed; count those that contain a command; nothing is executed."""
    from tbench.proxies.extraction.score import make_rewards, score_directory
    from tbench.proxies.extraction.score import render as as_text

    resolved = (with_endpoint(given) if score is None else given).resolve()
    config = resolved.config
    if score is None:
        from tbench.cli.proxies.generation import ask_and_store

        directory = ask_and_store(resolved, resume)
    else:
        directory = score
    result, problems = score_directory(directory, make_rewards(config.score.relevance, config.score.conciseness))
    print_notes(f"left out: {problem}" for problem in problems)
    if as_json:
        print_text(result.model_dump_json(indent=2))
    else:
        for line in as_text(result):
            print_text(line)
        print_line(f"extraction directory: {directory}")
    if result.replies / result.planned < config.output.min_coverage:
        raise click.exceptions.Exit(exit_codes.TOO_FEW_VERDICTS)


# `tbench replay run`


@click.command("run", cls=ConfiguredCommand, configuration=ReplayConfig)
@flag("--resume", "Continue the replay in --output: request the missing replies.")
@flag("--skip-if-exists", "Do nothing if --output has a result.")
def replay_run(given: GivenSettings[ReplayConfig], resume: bool, skip_if_exists: bool) -> None:
    """Ask a model for its next action at every step of recorded conversations, and store and score its replies."""
    from tbench.cli.proxies.generation import execute, say
    from tbench.cli.proxies.replay import score_and_show
    from tbench.proxies.replay.directory import REPLAY, RESULT_NAME
    from tbench.proxies.replay.generation.options import ReplayOptions

    config = with_endpoint(given).resolve().config
    options = ReplayOptions.from_config(config)
    if skip_if_exists and (options.output / RESULT_NAME).exists():
        say(f"{options.output}: has a result; skipped")
        return
    if not resume:
        REPLAY.refuse_to_overwrite(options.output)
    code = execute(options)
    if code in (0, 3):
        score_and_show(options.output, config.output.metric_revision)
    if code:
        raise click.exceptions.Exit(code)
