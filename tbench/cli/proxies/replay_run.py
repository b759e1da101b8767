"""`tbench replay run`: a reply of the model for every step of a dataset."""

from __future__ import annotations

import click

from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.proxies.replay.asking.settings import ReplayConfig


@click.command("run", cls=ConfiguredCommand, configuration=ReplayConfig)
@click.option(
    "--resume", is_flag=True, help="Go on with the replay in --output: steps without an answer are asked again."
)
@click.option("--skip-if-exists", is_flag=True, help="Do nothing where --output has a result.")
def replay_run(given: Given[ReplayConfig], resume: bool, skip_if_exists: bool) -> None:
    """Ask a model for its next action at every step of recorded conversations, and keep the raw replies."""
    from tbench.cli.proxies.replay_run_live import execute, say
    from tbench.cli.proxies.replay_score import score_and_show
    from tbench.proxies.replay.asking.options import ReplayOptions
    from tbench.proxies.replay.directory import REPLAY
    from tbench.proxies.replay.run_files import RESULT_NAME

    config = given.resolve().config
    options = ReplayOptions.of(config)
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
