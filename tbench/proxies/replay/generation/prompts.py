"""Makes the prompt of a record: chat messages for the server's template, or a prompt rendered locally.

Local rendering follows the rules of the TB2-lite evaluation published by LLM-OS-Models: for which models earlier
thinking is removed, when a tokenizer's own template is not used, the fallbacks if it fails, and eligibility for rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from harness.model import Rendering
from harness.model_text import without_lone_surrogates
from harness.rendering import render_prompt
from harness.trajectory import Frozen, Message
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Record, transcript
from tbench.proxies.replay.directory import PromptReport, TemplateStatus, overall_status, token_quantiles
from tbench.text import one_line


class Tokenizer(Protocol):
    """Methods of `transformers.PreTrainedTokenizerBase` that replay calls."""

    name_or_path: str

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: Any
    ) -> Any:
        """Return the prompt's text, with `tokenize=False`. May raise any exception, as templates do."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...


def load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer from a directory or a repository name. Raises UsageError.

    Its own code is not executed (`trust_remote_code` stays off).
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(
            f"--tokenizer-path {path}: transformers cannot be imported ({one_line(str(error))}); install it with "
            "pip install 'tbench[tokenizer]', or leave the option out and let the server render"
        ) from None
    try:
        tokenizer: Tokenizer = AutoTokenizer.from_pretrained(path)
    except Exception as error:  # noqa: BLE001 -- foreign files may cause any exception
        raise UsageError(f"--tokenizer-path {path}: cannot be loaded: {one_line(str(error))}") from None
    return tokenizer


Switch = Literal["on", "off", "auto"]
Messages = list[dict[str, str]]

_YES, _NO = {"on", "true", "1", "yes", "enabled"}, {"off", "false", "0", "no", "disabled"}
_THINKING = (("<think>", "</think>"), ("<|channel>thought\n", "<channel|>"))
_CHATML_FAMILIES = ("qwen", "lfm", "nemotron-terminal", "ouro")
_DEEPSEEK_BOS, _DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_EMPTY_CHANNEL = "<|channel>thought\n<channel|>"
_INCLUDES_BOS = {"chat_template", "gemma4_patched", "gemma4_fallback", "deepseek_v4_fallback"}
ERRORS_SHOWN = 3


class PromptOptions(Frozen):
    """Options of rendering, as given by the user."""

    render: Literal["server", "local"] = "server"
    tokenizer_path: str | None = None
    thinking_mode: str = "auto"
    """One of on, true, 1, yes, enabled; off, false, 0, no, disabled; auto."""
    strip_thinking_history: Switch = "auto"
    gemma4_empty_thought_channel: Switch = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default={})


class Prompt(NamedTuple):
    """The fields of a request that depend on the record, and how they were rendered."""

    fields: dict[str, Any]
    """`messages` (and `chat_template_kwargs`), or `prompt` (and `add_special_tokens`); always encodable."""
    status: TemplateStatus
    stripped_thinking_blocks: int = 0
    error: str | None = None
    """Why the tokenizer's template could not be used; None if it was used or not tried."""
    has_messages: bool = True
    """Whether the record has a conversation, not just a prompt."""


class PromptBuilder:
    """Renders the prompts of one run. A `tokenizer` is needed only for `render=local`.

    Model families are recognised by the names of `model`, of `root` (its path or repository) and of the tokenizer.
    Raises UsageError for contradictory settings.
    """

    def __init__(
        self, options: PromptOptions, model: str, root: str | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.options = options
        self._tokenizer = tokenizer
        names = " ".join(filter(None, (model, root, options.tokenizer_path, getattr(tokenizer, "name_or_path", ""))))
        self._name = names.lower()
        self._is_gemma4 = "gemma-4" in self._name
        self.enable_thinking = self._thinking(options.thinking_mode)
        self.strips = _resolve(options.strip_thinking_history, self._is_gemma4)
        is_large = any(size in self._name for size in ("gemma-4-26b", "gemma-4-31b"))
        local = options.render == "local"
        self.empty_channel = _resolve(options.gemma4_empty_thought_channel, local and is_large)
        if options.gemma4_empty_thought_channel == "on" and not local:
            raise UsageError("--gemma4-empty-thought-channel on: needs --render local")
        self._patches = local and self._is_gemma4 and (self.strips or self.empty_channel)
        self.chat_template_kwargs = self._kwargs()

    def build(self, record: Record) -> Prompt:
        messages, stripped = [], 0
        for message in record.usable_messages:
            content = message["content"]
            if self.strips and message["role"] == "assistant":
                content, blocks = without_thinking_blocks(content)
                stripped += blocks
            messages.append({"role": message["role"], "content": without_lone_surrogates(content)})
        has_messages = bool(record.messages)
        if self.options.render == "server":
            kwargs = {"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {}
            return Prompt({"messages": messages, **kwargs}, "server", stripped, None, has_messages)
        status, text, error = self._render(messages, record)
        # vLLM adds a <bos> to prompts by itself; those that include one would get two.
        own_bos = {"add_special_tokens": False} if status in _INCLUDES_BOS else {}
        return Prompt({"prompt": text, **own_bos}, status, stripped, error, has_messages)

    def report(
        self,
        prompts: Sequence[Prompt],
        *,
        counts: Iterable[int] = (),
        counted_by: str | None = None,
        max_model_len: int | None = None,
        max_tokens: int | None = None,
    ) -> PromptReport:
        """Report how the prompts were rendered; `counts` are the known token counts."""
        statuses = Counter(prompt.status for prompt in prompts)
        errors = {prompt.error for prompt in prompts if prompt.error}
        return PromptReport(
            template_status=overall_status(statuses),
            template_status_counts=dict(sorted(statuses.items())),
            rank_eligible="raw_fallback" not in statuses,
            raw_fallback_errors=tuple(sorted(errors)[:ERRORS_SHOWN]),
            chat_template_kwargs=self.chat_template_kwargs,
            prompt_options={
                **self.options.model_dump(exclude={"chat_template_kwargs"}),
                "enable_thinking": self.enable_thinking,
                "strips_thinking_history": self.strips,
                "writes_empty_thought_channel": self.empty_channel,
            },
            stripped_thinking_blocks=sum(prompt.stripped_thinking_blocks for prompt in prompts),
            row_count=len(prompts),
            messages_rows=sum(prompt.has_messages for prompt in prompts),
            prompt_tokens_by=counted_by,
            max_model_len=max_model_len,
            max_tokens=max_tokens,
            **token_quantiles(counts),
        )

    def _thinking(self, mode: str) -> bool | None:
        value = mode.strip().lower()
        if value in _YES | _NO:
            return value in _YES
        if value != "auto":
            raise UsageError(f"--thinking-mode {mode}: unknown; use on, off or auto")
        return False if self._is_gemma4 else None

    def _kwargs(self) -> dict[str, Any]:
        given = self.options.chat_template_kwargs
        if self.enable_thinking is None or given.get("enable_thinking", self.enable_thinking) is self.enable_thinking:
            thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
            return {**thinking, **given}
        if self.options.thinking_mode.strip().lower() == "auto":
            self.enable_thinking = bool(given["enable_thinking"])
            return dict(given)
        raise UsageError("--thinking-mode and enable_thinking in --chat-template-kwargs contradict each other")

    def _render(self, messages: Messages, record: Record) -> tuple[TemplateStatus, str, str | None]:
        if self._patches:
            return "gemma4_patched", self._gemma4(messages), None
        try:
            return "chat_template", self._apply_template(messages), None
        except Exception as error:  # noqa: BLE001 -- templates may raise any exception
            problem = one_line(f"{type(error).__name__}: {without_lone_surrogates(str(error))}")
        if self._is_gemma4:
            return "gemma4_fallback", self._gemma4(messages), problem
        if any(name in self._name for name in ("deepseek-v4", "deepseek_v4")):
            return "deepseek_v4_fallback", self._deepseek(messages), problem
        if any(family in self._name for family in _CHATML_FAMILIES):
            return "chatml_fallback", _turns(messages, "chatml"), problem
        return "raw_fallback", without_lone_surrogates(record.prompt) or transcript(messages), problem

    def _apply_template(self, messages: Messages) -> str:
        if self._tokenizer is None:
            raise LookupError("no tokenizer was given")
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **self.chat_template_kwargs
        )
        if not isinstance(text, str):
            raise TypeError(f"the template gave {type(text).__name__}, not text")
        return without_lone_surrogates(text)

    def _gemma4(self, messages: Messages) -> str:
        thinking = "<|turn>system\n<|think|>\n<turn|>\n" if self.enable_thinking else ""
        channel = _EMPTY_CHANNEL if self.empty_channel and not self.enable_thinking else ""
        return f"<bos>{thinking}{_turns(messages, 'gemma4')}{channel}"

    def _deepseek(self, messages: Messages) -> str:
        """Render in DeepSeek's format, which harness.rendering lacks: only the assistant's turns are closed."""
        before = {"system": "", "user": "<｜User｜>", "tool": "<｜User｜>", "assistant": "<｜Assistant｜>"}
        turns = [
            f"{before[role]}{message['content'].strip()}{_DEEPSEEK_EOS if role == 'assistant' else ''}"
            for message in messages
            for role in [message["role"]]
        ]
        opening = "<think>" if self.enable_thinking else "</think>"
        return f"{_DEEPSEEK_BOS}{''.join(turns)}<｜Assistant｜>{opening}"


def without_thinking_blocks(text: str) -> tuple[str, int]:
    """Remove closed thinking blocks with the white space after them; return the text, left-stripped, and their number.

    This is upstream's rule, which differs from `harness.rendering.without_thinking`: blocks may be anywhere, and an
    unclosed one stays. Linear, unlike a non-greedy pattern with many unclosed blocks.
    """
    removed = 0
    for opening, end in _THINKING:
        kept, at = [], 0
        while (start := text.find(opening, at)) >= 0 and (close := text.find(end, start + len(opening))) >= 0:
            kept.append(text[at:start])
            at = close + len(end)
            while at < len(text) and text[at].isspace():
                at += 1
        text, removed = "".join([*kept, text[at:]]), removed + len(kept)
    return text.lstrip(), removed


def _resolve(switch: Switch, auto: bool) -> bool:
    return auto if switch == "auto" else switch == "on"


def _turns(messages: Messages, template: Literal["chatml", "gemma4"]) -> str:
    history = [Message.model_validate(message) for message in messages]
    return render_prompt(history, Rendering(template=template, strip_thinking="off"))
