"""`tbench run`: tasks × seeds against an endpoint, scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tbench.run import RunOutcome


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    source: Annotated[
        str,
        typer.Argument(metavar="TASKS", help="A directory of tasks, one task, or 'bundled'.", show_default=True),
    ] = "bundled",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="Only tasks whose name matches this glob (repeatable)."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", "-k", min=1, help="Trials per task, with seeds 0, 1, …")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Trials at once.")] = 4,
    agent: Annotated[
        str,
        typer.Option(help="model (a language model at the keyboard), oracle (the reference solution) or nop."),
    ] = "model",
    base_url: Annotated[
        str | None,
        typer.Option(envvar="OPENAI_BASE_URL", help="The endpoint, e.g. http://localhost:8000/v1."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model id; may be left out when the endpoint lists just one."),
    ] = None,
    protocol: Annotated[str, typer.Option(help="keystrokes-json or bash-block.")] = "keystrokes-json",
    prompt: Annotated[str | None, typer.Option(help="File whose blocks replace the protocol's prompts.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 0.95,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per turn, thinking included.")] = 16384,
    extra_body: Annotated[
        str | None, typer.Option(help="JSON merged into each request, e.g. '{\"top_k\": 20}'.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Most replies of the model per trial.")] = 100,
    format_errors: Annotated[int, typer.Option(min=1, help="Unusable replies in a row that end a trial.")] = 5,
    command_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one command (bash-block).")] = 120.0,
    max_completion_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most generated tokens per trial; no limit by default.")
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Wait every keystroke's whole duration, as fixed-sleep harnesses do."),
    ] = False,
    request_timeout: Annotated[float, typer.Option(min=1, help="Seconds for one request to the endpoint.")] = 600.0,
    retry_budget: Annotated[
        float,
        typer.Option(min=0, help="Seconds to keep trying a failing endpoint before the trial is an error."),
    ] = 900.0,
    cpu_overcommit: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="cpus of all trials at once, as a multiple of the machine's; above 1, load may decide timed tests.",
        ),
    ] = 1.0,
    build: Annotated[bool, typer.Option("--build", help="Build images even where they exist.")] = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Run directory; must be new or empty.")] = None,
    min_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a smaller share of trials has a verdict.")
    ] = 0.0,
) -> None:
    """Run tasks against a model and print the score."""
    from tbench.cli.execute import ModelOptions, RunOptions, execute

    options = RunOptions(
        source=source,
        patterns=tuple(task or ()),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        concurrency=concurrency,
        agent=agent,
        cpu_overcommit=cpu_overcommit,
        build=build,
        output=output,
        model=ModelOptions(
            base_url=base_url,
            model=model,
            protocol=protocol,
            prompt=prompt,
            sampling=_sampling(temperature, top_p, max_tokens, extra_body),
            limits={
                "steps": steps,
                "format_errors": format_errors,
                "command_sec": command_timeout,
                "completion_tokens": max_completion_tokens,
            },
            settling="strict" if strict else "adaptive",
            request_timeout_sec=request_timeout,
            retry_budget_sec=retry_budget,
        ),
    )
    finish(execute(options), min_coverage)


def finish(outcome: RunOutcome, min_coverage: float) -> None:
    """Exit with the code that the outcome deserves."""
    if outcome.interrupted:
        raise typer.Exit(130)
    if any(result.error is not None and result.error.type == "internal" for result in outcome.results):
        raise typer.Exit(1)
    scored = sum(result.reward is not None for result in outcome.results)
    if outcome.results and scored / len(outcome.results) < min_coverage:
        raise typer.Exit(3)


def _sampling(temperature: float, top_p: float, max_tokens: int, extra_body: str | None) -> dict[str, Any]:
    import json

    from tbench.errors import UsageError

    extra: Any = {}
    if extra_body is not None:
        try:
            extra = json.loads(extra_body)
        except ValueError as error:
            raise UsageError(f"--extra-body: not valid JSON: {error}") from None
        if not isinstance(extra, dict):
            raise UsageError('--extra-body: must be a JSON object such as {"top_k": 20}')
    return {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "extra_body": extra}
