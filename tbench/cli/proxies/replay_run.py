"""`tbench replay run`: a reply of the model for every step of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import (
    chat_template_kwargs_option,
    extra_body_option,
    json_object,
    model_option,
    one_of,
    request_timeout_option,
)
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, Integer, Number, OneOf, Suggested
from tbench.cli.proxies.replay_score import score_and_show

if TYPE_CHECKING:
    from tbench.proxies.replay.asking.options import ReplayOptions
    from tbench.proxies.replay.asking.prompts import PromptOptions


@click.command(cls=TbenchCommand)
@click.argument(
    "dataset", cls=Argument, metavar="DATASET", type=A_NAME, help="JSONL of steps, corrected or legacy records."
)
@click.option(
    "--base-url",
    multiple=True,
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    help="The endpoint (repeatable: requests go round several).",
)
@model_option
@click.option("--model-short", help="Names the result; default: the last part of the model's id.")
@click.option("--output", "-o", type=A_NAME, help="Run directory: new, or one of the same settings to go on with.")
@click.option("--concurrency", "-n", type=Integer(min=1), default=16, help="Requests at once.")
@click.option("--temperature", type=Number(min=0.0), default=0.0, help="Sampling temperature.")
@click.option("--top-p", type=float, default=1.0, help="Nucleus sampling.")
@click.option("--max-tokens", type=Integer(min=1), default=1024, help="Tokens per reply, thinking included.")
@click.option("--repetition-penalty", type=float, default=1.0, help="vLLM's; always sent.")
@click.option("--min-p", type=Number(min=0.0, max=1.0), default=0.0, help="Sent only above 0.")
@click.option("--seed", type=Integer(min=0), help="Sent with every request, where given.")
@click.option("--stop-string", multiple=True, help="Ends a reply (repeatable).")
@click.option("--include-stop-str-in-output", is_flag=True, help="Replies keep the stop string.")
@click.option("--no-skip-special-tokens", is_flag=True, help="Replies keep special tokens.")
@extra_body_option
@click.option(
    "--render",
    type=Suggested("server", "local"),
    show_default="server; local with --tokenizer-path",
    help="Who makes the prompt: server, or local for /completions.",
)
@click.option(
    "--tokenizer-path", type=A_NAME, help="Tokenizer whose own template renders (needs the extra tbench[tokenizer])."
)
@click.option(
    "--thinking-mode",
    type=Suggested("on", "off", "auto"),
    default="auto",
    help="enable_thinking of the template: on, off or auto.",
)
@click.option(
    "--strip-thinking-history",
    type=OneOf("on", "off", "auto"),
    default="auto",
    help="Leave thinking out of earlier replies: on, off; auto is Gemma 4 only.",
)
@click.option(
    "--gemma4-empty-thought-channel",
    type=OneOf("on", "off", "auto"),
    default="auto",
    help="End prompts with an empty thought channel: on, off; auto is Gemma 4 26B and 31B.",
)
@chat_template_kwargs_option
@click.option("--allow-raw-fallback", is_flag=True, help="Send prompts without any template; such runs have no rank.")
@click.option("--max-model-len", type=Integer(min=1), help="Prompt and reply together, where the server allows more.")
@click.option("--allow-overflow", is_flag=True, help="Leave steps that do not fit the context without an answer.")
@click.option("--limit", type=Integer(min=1), help="Only the first so many steps.")
@click.option("--shard", metavar="I/N", help="Only steps whose index modulo N is I, e.g. 0/4.")
@click.option(
    "--metric-revision", type=OneOf("v0", "v1", "v2"), help="Revision of the metric for the result; v2 by default."
)
@click.option("--skip-if-exists", is_flag=True, help="Do nothing where --output has a result.")
@request_timeout_option
@click.option(
    "--retry-budget",
    type=Number(min=0),
    default=900.0,
    help="Seconds to keep trying a failing request before its step is an error.",
)
@click.option(
    "--max-outage",
    type=Number(min=0),
    default=3600.0,
    help="Seconds to wait for an endpoint that is away; 0 is no wait.",
)
def run(**options: Any) -> None:
    """Ask a model for its next action at every step of recorded conversations, and keep the raw replies."""
    from pathlib import Path

    from tbench.cli.proxies.replay_run_live import execute, say
    from tbench.errors import UsageError
    from tbench.proxies.replay.run_files import RESULT_NAME

    output = options["output"]
    if output is None:
        raise UsageError("--output: where do the replies go? Name a directory")
    if options["skip_if_exists"] and (Path(output) / RESULT_NAME).exists():
        say(f"{output}: has a result; skipped")
        return
    code = execute(_replay_options(options))
    if code in (0, 3):
        score_and_show(Path(output), revision=options["metric_revision"])
    if code:
        raise click.exceptions.Exit(code)


_AS_THEY_ARE = ("model", "model_short", "concurrency", "allow_raw_fallback", "max_model_len", "allow_overflow", "limit")


def _replay_options(said: dict[str, Any]) -> ReplayOptions:
    from pathlib import Path

    from tbench.proxies.replay.asking.options import ReplayOptions, parse_shard

    return ReplayOptions(
        dataset=Path(said["dataset"]),
        base_urls=said["base_url"],
        output=Path(said["output"]),
        sampling={name: said[name] for name in ("temperature", "top_p", "max_tokens", "seed")},
        vllm={
            "repetition_penalty": said["repetition_penalty"],
            **({"min_p": said["min_p"]} if said["min_p"] > 0 else {}),
            **({"stop": list(said["stop_string"])} if said["stop_string"] else {}),
            **({"include_stop_str_in_output": True} if said["include_stop_str_in_output"] else {}),
            **({"skip_special_tokens": False} if said["no_skip_special_tokens"] else {}),
        },
        extra_body=json_object("--extra-body", said["extra_body"], '{"top_k": 20}') or {},
        prompt=_prompt_options(said),
        shard=parse_shard(said["shard"]),
        request_timeout_sec=said["request_timeout"],
        retry_budget_sec=said["retry_budget"],
        max_outage_sec=said["max_outage"],
        **{name: said[name] for name in _AS_THEY_ARE},
    )


def _prompt_options(said: dict[str, Any]) -> PromptOptions:
    from tbench.proxies.replay.asking.prompts import PromptOptions

    render = said["render"] or ("local" if said["tokenizer_path"] is not None else "server")
    return PromptOptions(
        render=one_of("--render", render, ("server", "local")),
        tokenizer_path=said["tokenizer_path"],
        thinking_mode=said["thinking_mode"],
        strip_thinking_history=said["strip_thinking_history"],
        gemma4_empty_thought_channel=said["gemma4_empty_thought_channel"],
        chat_template_kwargs=json_object(
            "--chat-template-kwargs", said["chat_template_kwargs"], '{"enable_thinking": false}'
        )
        or {},
    )
