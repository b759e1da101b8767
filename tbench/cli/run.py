"""`tbench run`: tasks × seeds against an endpoint, scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tbench.cli.common import (
    BaseUrl,
    ChatTemplateKwargs,
    ExtraBody,
    FirstSeed,
    LogLevel,
    Model,
    RequestTimeout,
    TaskPatterns,
    Tasks,
    given,
    json_object,
    log_level_of,
    one_of,
)

if TYPE_CHECKING:
    from tbench.runs.run import RunOutcome


def register(app: typer.Typer) -> None:
    app.command()(run)


def run(
    source: Tasks = "bundled",
    task: TaskPatterns = None,
    seeds: Annotated[int, typer.Option("--seeds", "-k", min=1, help="Trials per task, with seeds 0, 1, …")] = 1,
    first_seed: FirstSeed = 0,
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Trials at once.")] = 4,
    agent: Annotated[
        str,
        typer.Option(
            help="model (a language model at the keyboard), oracle (the reference solution), nop, or module:Class."
        ),
    ] = "model",
    base_url: BaseUrl = None,
    model: Model = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Settings of another harness: terminus-2, tmax, mini-swe-agent or thinking-bash."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="keystrokes-json, keystrokes-xml, bash-block, bash-tool or thinking-bash.",
            show_default="keystrokes-json",
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="File whose blocks replace the protocol's prompts.")] = None,
    observation_bytes: Annotated[
        int | None,
        typer.Option(min=200, help="Longer observations lose their middle.", show_default="10000"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Sampling temperature.", show_default="0.7")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.", show_default="0.95")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens per turn, thinking included.", show_default="16384")
    ] = None,
    extra_body: ExtraBody = None,
    render: Annotated[
        str | None,
        typer.Option(
            help="How the history becomes a prompt: server, or chatml, gemma, gemma4, contract for base models.",
            show_default="server",
        ),
    ] = None,
    chat_template_kwargs: ChatTemplateKwargs = None,
    strip_thinking: Annotated[
        str | None,
        typer.Option(help="Leave the thinking out of earlier replies: on, off or auto.", show_default="auto"),
    ] = None,
    send_reasoning: Annotated[
        bool, typer.Option("--send-reasoning", help="Send reasoning that came apart from the reply back.")
    ] = False,
    neutralise_special_tokens: Annotated[
        bool,
        typer.Option(
            "--neutralise-special-tokens", help="Defuse control tokens in what the terminal shows, e.g. < |im_end|>."
        ),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Most replies of the model per trial.", show_default="100")
    ] = None,
    format_errors: Annotated[
        int | None, typer.Option(min=1, help="Unusable replies in a row that end a trial.", show_default="5")
    ] = None,
    command_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds for one command in the bash protocols.", show_default="120"),
    ] = None,
    max_completion_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most generated tokens per trial; no limit by default.")
    ] = None,
    context_tokens: Annotated[
        int | None, typer.Option(min=256, help="Prompt and reply together, where the server allows more.")
    ] = None,
    on_overflow: Annotated[
        str | None,
        typer.Option(help="At the end of the context: stop, drop-oldest-outputs or summarize.", show_default="stop"),
    ] = None,
    strict: Annotated[
        bool | None,
        typer.Option(
            "--strict/--adaptive",
            help="Wait every keystroke's whole duration, as fixed-sleep harnesses do.",
            show_default="adaptive",
        ),
    ] = None,
    shell_state: Annotated[
        str | None,
        typer.Option(
            help="Bash protocols run all commands in one shell (persistent), or each in a process of its own (fresh).",
            show_default="persistent",
        ),
    ] = None,
    request_timeout: RequestTimeout = 600.0,
    retry_budget: Annotated[
        float,
        typer.Option(min=0, help="Seconds to keep trying a failing endpoint before the trial is an error."),
    ] = 900.0,
    max_outage: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds to pause the run while the endpoint is away, before it stops; 0 is no pause."
        ),
    ] = 3600.0,
    cpu_overcommit: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="cpus of all trials at once, as a multiple of the machine's; above 1, load may decide timed tests.",
        ),
    ] = 1.0,
    max_load: Annotated[
        float | None,
        typer.Option(min=0.1, help="No trial starts beside others while the load average per cpu is above this."),
    ] = None,
    build: Annotated[bool, typer.Option("--build", help="Build images even where they exist.")] = False,
    verify: Annotated[
        str,
        typer.Option(
            help="Verify in the agent's container (shared), in a copy without its processes (isolated), or both."
        ),
    ] = "shared",
    keep: Annotated[
        str, typer.Option(help="Leave the containers of these trials running: none, failed or all.")
    ] = "none",
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Keep every trial's files before the verifier as an image.")
    ] = False,
    network: Annotated[
        str, typer.Option(help="Who has a network: as the task says, none, or bridge (all of them).")
    ] = "task",
    block_host: Annotated[
        bool, typer.Option("--block-host", help="Trials cannot reach the engine's host and the endpoint.")
    ] = False,
    no_new_privileges: Annotated[
        bool, typer.Option("--no-new-privileges", help="sudo, su and other setuid programs have no effect in trials.")
    ] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Run directory; must be new or empty, but for --resume.")
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="Further attempts at a trial whose error another one may heal.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --output, where there is one.")
    ] = False,
    retry_errors: Annotated[
        str | None,
        typer.Option(
            metavar="[TYPE]...",
            help="With --resume: also trials with these errors; with all errors when none is named.",
        ),
    ] = None,
    min_coverage: Annotated[
        float, typer.Option(min=0, max=1, help="Exit with 3 when a smaller share of trials has a verdict.")
    ] = 0.0,
    log_level: LogLevel = "info",
) -> None:
    """Run tasks against a model and print the score."""
    from tbench.cli.execute import execute
    from tbench.cli.options import ModelOptions, RunOptions

    options = RunOptions(
        source=source,
        patterns=tuple(task or ()),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        concurrency=concurrency,
        agent=agent,
        cpu_overcommit=cpu_overcommit,
        retries=retries,
        max_load=max_load,
        build=build,
        verify=one_of("--verify", verify, ("shared", "isolated", "both")),
        keep=one_of("--keep", keep, ("none", "failed", "all")),
        snapshot=snapshot,
        network=one_of("--network", network, ("task", "none", "bridge")),
        block_host=block_host,
        no_new_privileges=no_new_privileges,
        output=output,
        model=ModelOptions(
            base_url=base_url,
            model=model,
            preset=preset,
            protocol=protocol,
            prompt=prompt,
            observation_bytes=observation_bytes,
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
                strip_thinking=strip_thinking,
                send_reasoning=send_reasoning or None,
            ),
            limits=given(
                steps=steps,
                format_errors=format_errors,
                command_sec=command_timeout,
                completion_tokens=max_completion_tokens,
                context_tokens=context_tokens,
                on_overflow=on_overflow,
            ),
            settling=None if strict is None else "strict" if strict else "adaptive",
            shell_state=None if shell_state is None else one_of("--shell-state", shell_state, ("persistent", "fresh")),
            neutralise_special_tokens=neutralise_special_tokens,
            request_timeout_sec=request_timeout,
            retry_budget_sec=retry_budget,
            max_outage_sec=max_outage,
        ),
    )
    level = log_level_of(log_level)
    finish(execute(options, resume=resume, retry_errors=retry_errors, log_level=level), min_coverage)


def finish(outcome: RunOutcome, min_coverage: float) -> None:
    """Exit with the code that the outcome deserves."""
    if outcome.interrupted:
        raise typer.Exit(130)
    if any(result.error is not None and result.error.type == "internal" for result in outcome.results):
        raise typer.Exit(1)
    if outcome.stopped is not None:
        raise typer.Exit(4)
    scored = sum(result.reward is not None for result in outcome.results)
    if outcome.results and scored / len(outcome.results) < min_coverage:
        raise typer.Exit(3)
