"""`tbench extract`: one reply per task and seed, read and never executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tbench.cli.common import (
    base_url_option,
    chat_template_kwargs_option,
    extra_body_option,
    first_seed_option,
    given,
    json_object,
    json_option,
    model_option,
    request_timeout_option,
    task_option,
    tasks_argument,
)
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import A_NAME, A_PATH, Integer, Number, Suggested


@click.command(cls=TbenchCommand)
@tasks_argument
@task_option
@click.option("--seeds", "-k", type=Integer(min=1), default=1, help="Replies per task, with seeds 0, 1, …")
@first_seed_option
@click.option("--concurrency", "-n", type=Integer(min=1), default=16, help="Requests at once.")
@base_url_option
@model_option
@click.option(
    "--protocol",
    type=Suggested("keystrokes-json", "keystrokes-xml", "bash-block", "bash-tool", "thinking-bash"),
    default="thinking-bash",
    help="thinking-bash, bash-block, bash-tool, keystrokes-json or keystrokes-xml.",
)
@click.option(
    "--prompt",
    type=A_NAME,
    show_default="thinking-bash: the bare request",
    help="File whose blocks replace the protocol's prompts.",
)
@click.option("--temperature", type=Number(min=0.0), default=0.7, help="Sampling temperature.")
@click.option("--top-p", type=float, default=0.95, help="Nucleus sampling.")
@click.option("--max-tokens", type=Integer(min=1), default=256, help="Tokens per reply, thinking included.")
@extra_body_option
@click.option(
    "--render",
    type=Suggested("server", "chatml", "gemma", "gemma4", "contract"),
    show_default="thinking-bash: contract; others: server",
    help="Who makes the prompt: server, or here as chatml, gemma, gemma4, contract.",
)
@chat_template_kwargs_option
@request_timeout_option
@click.option(
    "--retry-budget",
    type=Number(min=0),
    default=900.0,
    help="Seconds to keep trying a failing endpoint before the reply is an error.",
)
@click.option(
    "--max-outage",
    type=Number(min=0),
    default=3600.0,
    help="Seconds to wait while the endpoint is away; 0: no waiting.",
)
@click.option(
    "--relevance",
    type=Suggested("distinct", "occurrences", "literal"),
    default="distinct",
    help="How the execution relevance counts: distinct, occurrences or literal.",
)
@click.option(
    "--conciseness",
    type=Suggested("step", "linear", "negative"),
    default="step",
    help="Shape of the conciseness: step, linear or negative.",
)
@click.option("--output", "-o", type=A_PATH, help="Its directory; must be new or empty, but for --resume.")
@click.option("--resume", is_flag=True, help="Go on with the extraction in --output: what has no reply is asked again.")
@click.option("--score", metavar="DIR", type=A_PATH, help="Only score the replies that are stored in DIR.")
@json_option
@click.option(
    "--min-coverage",
    type=Number(min=0, max=1),
    default=0.0,
    help="Exit with 3 when a smaller share of the requests has a reply.",
)
def extract(**options: Any) -> None:
    """Ask for one reply per task and seed, and print how many hold a command; nothing is executed."""
    from tbench.proxies.extraction.score import rewards_named, score_directory
    from tbench.proxies.extraction.text import render as as_text

    directory = options["score"] or _ask(options)
    result, problems = score_directory(directory, rewards_named(options["relevance"], options["conciseness"]))
    for problem in problems:
        click.echo(f"note: left out: {problem}", err=True)
    if options["as_json"]:
        click.echo(result.model_dump_json(indent=2))
    else:
        for line in as_text(result):
            click.echo(line)
        click.echo(f"extraction directory: {directory}")
    if result.replies / result.planned < options["min_coverage"]:
        raise click.exceptions.Exit(3)


def _ask(said: dict[str, Any]) -> Path:
    """Ask for the replies, and return the directory that holds them."""
    from tbench.cli.options import ModelOptions, RunOptions
    from tbench.cli.proxies.extract_live import AskOptions, ask_and_store

    model_options = ModelOptions(
        base_url=said["base_url"],
        model=said["model"],
        protocol=said["protocol"],
        prompt=said["prompt"],
        sampling=given(
            temperature=said["temperature"],
            top_p=said["top_p"],
            max_tokens=said["max_tokens"],
            extra_body=json_object("--extra-body", said["extra_body"], '{"top_k": 20}'),
        ),
        rendering=given(
            template=said["render"],
            chat_template_kwargs=json_object(
                "--chat-template-kwargs", said["chat_template_kwargs"], '{"enable_thinking": false}'
            ),
        ),
        request_timeout_sec=said["request_timeout"],
        retry_budget_sec=said["retry_budget"],
        max_outage_sec=said["max_outage"],
    )
    options = RunOptions(
        source=said["source"],
        patterns=said["task"],
        seeds=tuple(range(said["first_seed"], said["first_seed"] + said["seeds"])),
        concurrency=said["concurrency"],
        model=model_options,
    )
    return ask_and_store(AskOptions(options, said["output"], said["resume"], said["relevance"], said["conciseness"]))
