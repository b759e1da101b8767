"""`tbench extract`: one reply per task and seed, read and never executed."""

from __future__ import annotations

from pathlib import Path

import click

from tbench import exit_codes
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import print_line, print_text
from tbench.proxies.extraction.settings import ExtractConfig


@click.command(cls=ConfiguredCommand, configuration=ExtractConfig)
@click.option("--resume", is_flag=True, help="Go on with the extraction in --output: what has no reply is asked again.")
@click.option("--score", metavar="DIR", type=A_PATH, help="Only score the replies that are stored in DIR.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def extract(given: Given[ExtractConfig], resume: bool, score: Path | None, as_json: bool) -> None:
    """Ask for one reply per task and seed, and print how many hold a command; nothing is executed."""
    from tbench.proxies.extraction.score import rewards_named, score_directory
    from tbench.proxies.extraction.text import render as as_text

    resolved = given.resolve()
    config = resolved.config
    if score is None:
        from tbench.cli.proxies.extract_live import ask_and_store

        directory = ask_and_store(resolved, resume)
    else:
        directory = score
    result, problems = score_directory(directory, rewards_named(config.score.relevance, config.score.conciseness))
    for problem in problems:
        print_line(f"note: left out: {problem}", err=True)
    if as_json:
        print_text(result.model_dump_json(indent=2))
    else:
        for line in as_text(result):
            print_text(line)
        print_line(f"extraction directory: {directory}")
    if result.replies / result.planned < config.output.min_coverage:
        raise click.exceptions.Exit(exit_codes.UNCOVERED)
