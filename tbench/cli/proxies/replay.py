"""`tbench replay`: the commands around next-action replay; each lives in a file of its own."""

from __future__ import annotations

import click

from tbench.cli.parsing.commands import Lazy, LazyGroup

COMMANDS = {
    "run": Lazy(
        "tbench.cli.proxies.replay_run",
        "replay_run",
        "Ask a model for its next action at every step of recorded conversations, and keep the raw replies.",
    ),
    "score": Lazy(
        "tbench.cli.proxies.replay_score", "score", "Score replies, or recompute a result file from its own units."
    ),
    "merge": Lazy(
        "tbench.cli.proxies.replay_merge", "merge", "Put the shards of one run together, and score the whole."
    ),
    "build": Lazy("tbench.cli.proxies.replay_build", "build", "Make a replay dataset from recorded conversations."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def replay() -> None:
    """Let a model continue recorded conversations, and score its next commands; nothing is executed."""
