"""`tbench extract`: one reply per task and seed, read and never executed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tbench.cli.common import (
    BaseUrl,
    ChatTemplateKwargs,
    ExtraBody,
    FirstSeed,
    Model,
    RequestTimeout,
    TaskPatterns,
    Tasks,
    given,
    json_object,
)


def register(app: typer.Typer) -> None:
    app.command()(extract)


def extract(
    source: Tasks = "bundled",
    task: TaskPatterns = None,
    seeds: Annotated[int, typer.Option("--seeds", "-k", min=1, help="Replies per task, with seeds 0, 1, …")] = 1,
    first_seed: FirstSeed = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Requests at once.")] = 16,
    base_url: BaseUrl = None,
    model: Model = None,
    protocol: Annotated[
        str, typer.Option(help="thinking-bash, bash-block, bash-tool, keystrokes-json or keystrokes-xml.")
    ] = "thinking-bash",
    prompt: Annotated[
        str | None,
        typer.Option(
            help="File whose blocks replace the protocol's prompts.", show_default="thinking-bash: the bare request"
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per reply, thinking included.")] = 256,
    extra_body: ExtraBody = None,
    render: Annotated[
        str | None,
        typer.Option(
            help="Who makes the prompt: server, or here as chatml, gemma, gemma4, contract.",
            show_default="thinking-bash: contract; others: server",
        ),
    ] = None,
    chat_template_kwargs: ChatTemplateKwargs = None,
    request_timeout: RequestTimeout = 600.0,
    retry_budget: Annotated[
        float, typer.Option(min=0, help="Seconds to keep trying a failing endpoint before the reply is an error.")
    ] = 900.0,
    max_outage: Annotated[
        float, typer.Option(min=0, help="Seconds to wait while the endpoint is away; 0: no waiting.")
    ] = 3600.0,
    relevance: Annotated[
        str, typer.Option(help="How the execution relevance counts: distinct, occurrences or literal.")
    ] = "distinct",
    conciseness: Annotated[str, typer.Option(help="Shape of the conciseness: step, linear or negative.")] = "step",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Its directory; must be new or empty, but for --resume.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the extraction in --output: what has no reply is asked again.")
    ] = False,
    score: Annotated[
        Path | None, typer.Option("--score", metavar="DIR", help="Only score the replies that are stored in DIR.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    min_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a smaller share of the requests has a reply.")
    ] = 0.0,
) -> None:
    """Ask for one reply per task and seed, and print how many hold a command; nothing is executed."""
    from tbench.proxies.extraction.score import rewards_named, score_directory
    from tbench.proxies.extraction.text import render as as_text

    if score is None:
        from tbench.cli.options import ModelOptions, RunOptions
        from tbench.cli.proxies.extract_live import AskOptions, ask_and_store

        model_options = ModelOptions(
            base_url=base_url,
            model=model,
            protocol=protocol,
            prompt=prompt,
            sampling=given(
                temperature=temperature,
                top_p=top_p,
                max_tokens=max_tokens,
                extra_body=json_object("--extra-body", extra_body, '{"top_k": 20}'),
            ),
            rendering=given(
                template=render,
                chat_template_kwargs=json_object(
                    "--chat-template-kwargs", chat_template_kwargs, '{"enable_thinking": false}'
                ),
            ),
            request_timeout_sec=request_timeout,
            retry_budget_sec=retry_budget,
            max_outage_sec=max_outage,
        )
        options = RunOptions(
            source=source,
            patterns=tuple(task or ()),
            seeds=tuple(range(first_seed, first_seed + seeds)),
            concurrency=concurrency,
            model=model_options,
        )
        directory = ask_and_store(AskOptions(options, output, resume, relevance, conciseness))
    else:
        directory = score
    result, problems = score_directory(directory, rewards_named(relevance, conciseness))
    for problem in problems:
        typer.echo(f"note: left out: {problem}", err=True)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        for line in as_text(result):
            typer.echo(line)
        typer.echo(f"extraction directory: {directory}")
    if result.replies / result.planned < min_coverage:
        raise typer.Exit(3)
