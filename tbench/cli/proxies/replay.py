"""`tbench replay`: the commands around next-action replay; each lives in a file of its own."""

from __future__ import annotations

import typer

from tbench.cli.proxies import replay_build, replay_merge, replay_run, replay_score


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Let a model continue recorded conversations, and score its next commands; nothing is executed.",
        no_args_is_help=True,
    )
    replay_run.register(group)
    replay_score.register(group)
    replay_merge.register(group)
    replay_build.register(group)
    app.add_typer(group, name="replay")
