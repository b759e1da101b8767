"""`tbench replay run`: a reply of the model for every step of a dataset."""

from __future__ import annotations

from typing import Annotated

import typer

from tbench.cli.common import ChatTemplateKwargs, ExtraBody, Model, RequestTimeout, json_object, one_of
from tbench.cli.proxies.replay_score import MetricRevision, score


def register(replay: typer.Typer) -> None:
    replay.command()(run)


def run(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="JSONL of steps, corrected or legacy records.")],
    base_url: Annotated[
        list[str] | None,
        typer.Option(envvar="OPENAI_BASE_URL", help="The endpoint (repeatable: requests go round several)."),
    ] = None,
    model: Model = None,
    model_short: Annotated[
        str | None, typer.Option(help="Names the result; default: the last part of the model's id.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="Run directory: new, or one of the same settings to go on with."),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Requests at once.")] = 16,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per reply, thinking included.")] = 1024,
    repetition_penalty: Annotated[float, typer.Option(help="vLLM's; always sent.")] = 1.0,
    min_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Sent only above 0.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Sent with every request, where given.")] = None,
    stop_string: Annotated[list[str] | None, typer.Option(help="Ends a reply (repeatable).")] = None,
    include_stop_str_in_output: Annotated[
        bool, typer.Option("--include-stop-str-in-output", help="Replies keep the stop string.")
    ] = False,
    no_skip_special_tokens: Annotated[
        bool, typer.Option("--no-skip-special-tokens", help="Replies keep special tokens.")
    ] = False,
    extra_body: ExtraBody = None,
    render: Annotated[
        str | None,
        typer.Option(
            help="Who makes the prompt: server, or local for /completions.",
            show_default="server; local with --tokenizer-path",
        ),
    ] = None,
    tokenizer_path: Annotated[
        str | None, typer.Option(help="Tokenizer whose own template renders (needs the extra tbench[tokenizer]).")
    ] = None,
    thinking_mode: Annotated[str, typer.Option(help="enable_thinking of the template: on, off or auto.")] = "auto",
    strip_thinking_history: Annotated[
        str, typer.Option(help="Leave thinking out of earlier replies: on, off; auto is Gemma 4 only.")
    ] = "auto",
    gemma4_empty_thought_channel: Annotated[
        str, typer.Option(help="End prompts with an empty thought channel: on, off; auto is Gemma 4 26B and 31B.")
    ] = "auto",
    chat_template_kwargs: ChatTemplateKwargs = None,
    allow_raw_fallback: Annotated[
        bool, typer.Option("--allow-raw-fallback", help="Send prompts without any template; such runs have no rank.")
    ] = False,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Prompt and reply together, where the server allows more.")
    ] = None,
    allow_overflow: Annotated[
        bool, typer.Option("--allow-overflow", help="Leave steps that do not fit the context without an answer.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many steps.")] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Only steps whose index modulo N is I, e.g. 0/4.")
    ] = None,
    metric_revision: Annotated[
        MetricRevision | None, typer.Option(help="Revision of the metric for the result; v2 by default.")
    ] = None,
    skip_if_exists: Annotated[
        bool, typer.Option("--skip-if-exists", help="Do nothing where --output has a result.")
    ] = False,
    request_timeout: RequestTimeout = 600.0,
    retry_budget: Annotated[
        float, typer.Option(min=0, help="Seconds to keep trying a failing request before its step is an error.")
    ] = 900.0,
    max_outage: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for an endpoint that is away; 0 is no wait.")
    ] = 3600.0,
) -> None:
    """Ask a model for its next action at every step of recorded conversations, and keep the raw replies."""
    from pathlib import Path

    from tbench.cli.proxies.replay_run_live import execute, say
    from tbench.errors import UsageError
    from tbench.proxies.replay.asking.options import ReplayOptions, parse_shard
    from tbench.proxies.replay.asking.prompts import PromptOptions
    from tbench.proxies.replay.run_files import RESULT_NAME

    if output is None:
        raise UsageError("--output: where do the replies go? Name a directory")
    if skip_if_exists and (Path(output) / RESULT_NAME).exists():
        say(f"{output}: has a result; skipped")
        return
    on_off = ("on", "off", "auto")
    options = ReplayOptions(
        dataset=Path(dataset),
        base_urls=tuple(base_url or ()),
        model=model,
        model_short=model_short,
        output=Path(output),
        concurrency=concurrency,
        sampling={
            "temperature": temperature,
            "top_p": top_p,
            "max_tokens": max_tokens,
            "seed": seed,
        },
        vllm={
            "repetition_penalty": repetition_penalty,
            **({"min_p": min_p} if min_p > 0 else {}),
            **({"stop": stop_string} if stop_string else {}),
            **({"include_stop_str_in_output": True} if include_stop_str_in_output else {}),
            **({"skip_special_tokens": False} if no_skip_special_tokens else {}),
        },
        extra_body=json_object("--extra-body", extra_body, '{"top_k": 20}') or {},
        prompt=PromptOptions(
            render=one_of(
                "--render", render or ("local" if tokenizer_path is not None else "server"), ("server", "local")
            ),
            tokenizer_path=tokenizer_path,
            thinking_mode=thinking_mode,
            strip_thinking_history=one_of("--strip-thinking-history", strip_thinking_history, on_off),
            gemma4_empty_thought_channel=one_of("--gemma4-empty-thought-channel", gemma4_empty_thought_channel, on_off),
            chat_template_kwargs=json_object(
                "--chat-template-kwargs", chat_template_kwargs, '{"enable_thinking": false}'
            )
            or {},
        ),
        allow_raw_fallback=allow_raw_fallback,
        max_model_len=max_model_len,
        allow_overflow=allow_overflow,
        limit=limit,
        shard=parse_shard(shard),
        request_timeout_sec=request_timeout,
        retry_budget_sec=retry_budget,
        max_outage_sec=max_outage,
    )
    code = execute(options)
    if code in (0, 3):
        score(options.output, metric_revision=metric_revision)
    if code:
        raise typer.Exit(code)
