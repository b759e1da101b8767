"""`tbench run`: tasks × seeds against an endpoint, scored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import (
    base_url_option,
    chat_template_kwargs_option,
    extra_body_option,
    first_seed_option,
    given,
    json_object,
    log_level_option,
    model_option,
    request_timeout_option,
    task_option,
    tasks_argument,
)
from tbench.cli.parsing.retry_errors import CommandWithRetryErrors, retry_errors_option
from tbench.cli.parsing.values import A_NAME, Integer, Number, OneOf, Suggested

if TYPE_CHECKING:
    from tbench.cli.options import ModelOptions, RunOptions
    from tbench.runs.run import RunOutcome


@click.command(cls=CommandWithRetryErrors)
@tasks_argument
@task_option
@click.option("--seeds", "-k", type=Integer(min=1), default=1, help="Trials per task, with seeds 0, 1, …")
@first_seed_option
@click.option("--concurrency", "-n", type=Integer(min=1), default=4, help="Trials at once.")
@click.option(
    "--agent",
    type=Suggested("model", "oracle", "nop"),
    default="model",
    help="model (a language model at the keyboard), oracle (the reference solution), nop, or module:Class.",
)
@base_url_option
@model_option
@click.option(
    "--preset",
    type=Suggested("terminus-2", "tmax", "mini-swe-agent", "thinking-bash"),
    help="Settings of another harness: terminus-2, tmax, mini-swe-agent or thinking-bash.",
)
@click.option(
    "--protocol",
    type=Suggested("keystrokes-json", "keystrokes-xml", "bash-block", "bash-tool", "thinking-bash"),
    show_default="keystrokes-json",
    help="keystrokes-json, keystrokes-xml, bash-block, bash-tool or thinking-bash.",
)
@click.option("--prompt", type=A_NAME, help="File whose blocks replace the protocol's prompts.")
@click.option(
    "--observation-bytes", type=Integer(min=200), show_default="10000", help="Longer observations lose their middle."
)
@click.option("--temperature", type=Number(min=0.0), show_default="0.7", help="Sampling temperature.")
@click.option("--top-p", type=float, show_default="0.95", help="Nucleus sampling.")
@click.option("--max-tokens", type=Integer(min=1), show_default="16384", help="Tokens per turn, thinking included.")
@extra_body_option
@click.option(
    "--render",
    type=Suggested("server", "chatml", "gemma", "gemma4", "contract"),
    show_default="server",
    help="How the history becomes a prompt: server, or chatml, gemma, gemma4, contract for base models.",
)
@chat_template_kwargs_option
@click.option(
    "--strip-thinking",
    type=Suggested("on", "off", "auto"),
    show_default="auto",
    help="Leave the thinking out of earlier replies: on, off or auto.",
)
@click.option("--send-reasoning", is_flag=True, help="Send reasoning that came apart from the reply back.")
@click.option(
    "--neutralise-special-tokens",
    is_flag=True,
    help="Defuse control tokens in what the terminal shows, e.g. < |im_end|>.",
)
@click.option("--steps", type=Integer(min=1), show_default="100", help="Most replies of the model per trial.")
@click.option(
    "--format-errors", type=Integer(min=1), show_default="5", help="Unusable replies in a row that end a trial."
)
@click.option(
    "--command-timeout", type=Number(min=0.1), show_default="120", help="Seconds for one command in the bash protocols."
)
@click.option(
    "--max-completion-tokens", type=Integer(min=1), help="Most generated tokens per trial; no limit by default."
)
@click.option(
    "--context-tokens", type=Integer(min=256), help="Prompt and reply together, where the server allows more."
)
@click.option(
    "--on-overflow",
    type=Suggested("stop", "drop-oldest-outputs", "summarize"),
    show_default="stop",
    help="At the end of the context: stop, drop-oldest-outputs or summarize.",
)
@click.option(
    "--strict/--adaptive",
    default=None,
    show_default="adaptive",
    help="Wait every keystroke's whole duration, as fixed-sleep harnesses do.",
)
@click.option(
    "--shell-state",
    type=OneOf("persistent", "fresh"),
    show_default="persistent",
    help="Bash protocols run all commands in one shell (persistent), or each in a process of its own (fresh).",
)
@request_timeout_option
@click.option(
    "--retry-budget",
    type=Number(min=0),
    default=900.0,
    help="Seconds to keep trying a failing endpoint before the trial is an error.",
)
@click.option(
    "--max-outage",
    type=Number(min=0),
    default=3600.0,
    help="Seconds to pause the run while the endpoint is away, before it stops; 0 is no pause.",
)
@click.option(
    "--cpu-overcommit",
    type=Number(min=0.1),
    default=1.0,
    help="cpus of all trials at once, as a multiple of the machine's; above 1, load may decide timed tests.",
)
@click.option(
    "--max-load",
    type=Number(min=0.1),
    help="No trial starts beside others while the load average per cpu is above this.",
)
@click.option("--build", is_flag=True, help="Build images even where they exist.")
@click.option(
    "--verify",
    type=OneOf("shared", "isolated", "both"),
    default="shared",
    help="Verify in the agent's container (shared), in a copy without its processes (isolated), or both.",
)
@click.option(
    "--keep",
    type=OneOf("none", "failed", "all"),
    default="none",
    help="Leave the containers of these trials running: none, failed or all.",
)
@click.option("--snapshot", is_flag=True, help="Keep every trial's files before the verifier as an image.")
@click.option(
    "--network",
    type=OneOf("task", "none", "bridge"),
    default="task",
    help="Who has a network: as the task says, none, or bridge (all of them).",
)
@click.option("--block-host", is_flag=True, help="Trials cannot reach the engine's host and the endpoint.")
@click.option("--no-new-privileges", is_flag=True, help="sudo, su and other setuid programs have no effect in trials.")
@click.option("--output", "-o", type=A_NAME, help="Run directory; must be new or empty, but for --resume.")
@click.option(
    "--retries", type=Integer(min=0), default=1, help="Further attempts at a trial whose error another one may heal."
)
@click.option("--resume", is_flag=True, help="Go on with the run in --output, where there is one.")
@retry_errors_option("With --resume: also trials with these errors; with all errors when none is named.")
@click.option(
    "--min-coverage",
    type=Number(min=0, max=1),
    default=0.0,
    help="Exit with 3 when a smaller share of trials has a verdict.",
)
@log_level_option
def run(**options: Any) -> None:
    """Run tasks against a model and print the score."""
    from tbench.cli.execute import execute

    finish(
        execute(
            _run_options(options),
            resume=options["resume"],
            retry_errors=options["retry_errors"],
            log_level=options["log_level"],
        ),
        options["min_coverage"],
    )


_OF_THE_RUN = (
    *("source", "concurrency", "agent", "cpu_overcommit", "retries", "max_load", "build", "verify", "keep"),
    *("snapshot", "network", "block_host", "no_new_privileges", "output"),
)
_OF_THE_MODEL = (
    *("base_url", "model", "preset", "protocol", "prompt", "observation_bytes", "shell_state"),
    "neutralise_special_tokens",
)


def _run_options(said: dict[str, Any]) -> RunOptions:
    from tbench.cli.options import RunOptions

    return RunOptions(
        patterns=said["task"],
        seeds=tuple(range(said["first_seed"], said["first_seed"] + said["seeds"])),
        model=_model_options(said),
        **{name: said[name] for name in _OF_THE_RUN},
    )


def _model_options(said: dict[str, Any]) -> ModelOptions:
    from tbench.cli.options import ModelOptions

    return ModelOptions(
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
            strip_thinking=said["strip_thinking"],
            send_reasoning=said["send_reasoning"] or None,
        ),
        limits=given(
            steps=said["steps"],
            format_errors=said["format_errors"],
            command_sec=said["command_timeout"],
            completion_tokens=said["max_completion_tokens"],
            context_tokens=said["context_tokens"],
            on_overflow=said["on_overflow"],
        ),
        settling=None if said["strict"] is None else "strict" if said["strict"] else "adaptive",
        request_timeout_sec=said["request_timeout"],
        retry_budget_sec=said["retry_budget"],
        max_outage_sec=said["max_outage"],
        **{name: said[name] for name in _OF_THE_MODEL},
    )


def finish(outcome: RunOutcome, min_coverage: float) -> None:
    """Exit with the code that the outcome deserves."""
    if outcome.interrupted:
        raise click.exceptions.Exit(130)
    if any(result.error is not None and result.error.type == "internal" for result in outcome.results):
        raise click.exceptions.Exit(1)
    if outcome.stopped is not None:
        raise click.exceptions.Exit(4)
    scored = sum(result.reward is not None for result in outcome.results)
    if outcome.results and scored / len(outcome.results) < min_coverage:
        raise click.exceptions.Exit(3)
