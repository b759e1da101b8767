"""Makes what is sent for a record: chat messages for the server's template, or a prompt rendered here.

The rules of local rendering are those of the TB2-lite evaluation published by LLM-OS-Models: which models lose earlier
thinking, when a tokenizer's own template is passed over, what stands in where it fails, and what that means for rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import Field

from harness.model import Rendering
from harness.rendering import render_prompt
from harness.text import without_lone_surrogates
from harness.trajectory import Frozen, Message
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Record, transcript
from tbench.proxies.replay.directory import PromptReport, TemplateStatus, overall_status, token_quantiles
from tbench.text import one_line

# A tokenizer with its chat template: the part of transformers that replay needs, and how it is loaded.


class Tokenizer(Protocol):
    """The methods of `transformers.PreTrainedTokenizerBase` that replay calls."""

    name_or_path: str

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: Any
    ) -> Any:
        """The prompt's text, with `tokenize=False`. May raise anything, as templates refuse with exceptions."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...


def load_tokenizer(path: str) -> Tokenizer:
    """Load the tokenizer in a directory, or the repository of that name. Raises UsageError.

    Code that comes with it is not run (`trust_remote_code` stays off).
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
    except Exception as error:  # noqa: BLE001 -- whatever a foreign file makes it raise
        raise UsageError(f"--tokenizer-path {path}: cannot be loaded: {one_line(str(error))}") from None
    return tokenizer


Switch = Literal["on", "off", "auto"]
Messages = list[dict[str, str]]

_YES, _NO = {"on", "true", "1", "yes", "enabled"}, {"off", "false", "0", "no", "disabled"}
_THINKING = (("<think>", "</think>"), ("<|channel>thought\n", "<channel|>"))
_CHATML_FAMILIES = ("qwen", "lfm", "nemotron-terminal", "ouro")
_DEEPSEEK_BOS, _DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_EMPTY_CHANNEL = "<|channel>thought\n<channel|>"
_WRITES_ITS_BOS = {"chat_template", "gemma4_patched", "gemma4_fallback", "deepseek_v4_fallback"}
SHOWN_ERRORS = 3


class PromptOptions(Frozen):
    """How prompts are made, as the user chose it."""

    render: Literal["server", "local"] = "server"
    tokenizer_path: str | None = None
    thinking_mode: str = "auto"
    """One of on, true, 1, yes, enabled; off, false, 0, no, disabled; auto."""
    strip_thinking_history: Switch = "auto"
    gemma4_empty_thought_channel: Switch = "auto"
    chat_template_kwargs: dict[str, Any] = Field(default={})


class Prompt(NamedTuple):
    """The part of a request that is its own, and how it was made."""

    fields: dict[str, Any]
    """`messages` (and `chat_template_kwargs`), or `prompt` (and `add_special_tokens`); always encodable."""
    status: TemplateStatus
    stripped_thinking_blocks: int = 0
    error: str | None = None
    """Why the tokenizer's template could not be used; None where it was, or was not tried."""
    has_messages: bool = True
    """Whether the record carries a conversation, not just a prompt."""


class PromptBuilder:
    """Makes the prompts of one run. A `tokenizer` is needed for `render=local` only.

    The rules for model families look at the names in `model` and `root` (the path or repository behind it).
    Raises UsageError for settings that contradict each other.
    """

    def __init__(
        self, options: PromptOptions, model: str, root: str | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.options = options
        self._tokenizer = tokenizer
        named = " ".join(filter(None, (model, root, options.tokenizer_path, getattr(tokenizer, "name_or_path", ""))))
        self._name = named.lower()
        self._is_gemma4 = "gemma-4" in self._name
        self.enable_thinking = self._thinking(options.thinking_mode)
        self.strips = _settled(options.strip_thinking_history, self._is_gemma4)
        is_large = any(size in self._name for size in ("gemma-4-26b", "gemma-4-31b"))
        local = options.render == "local"
        self.empty_channel = _settled(options.gemma4_empty_thought_channel, local and is_large)
        if options.gemma4_empty_thought_channel == "on" and not local:
            raise UsageError("--gemma4-empty-thought-channel on: the server renders; use --render local")
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
        return Prompt(_as_fields(text, status), status, stripped, error, has_messages)

    def report(
        self,
        prompts: Sequence[Prompt],
        *,
        counts: Iterable[int] = (),
        counted_by: str | None = None,
        max_model_len: int | None = None,
        max_tokens: int | None = None,
    ) -> PromptReport:
        """How the prompts were made; `counts` has the tokens of those that were counted."""
        statuses = Counter(prompt.status for prompt in prompts)
        errors = {prompt.error for prompt in prompts if prompt.error}
        return PromptReport(
            template_status=overall_status(statuses),
            template_status_counts=dict(sorted(statuses.items())),
            rank_eligible="raw_fallback" not in statuses,
            raw_fallback_errors=tuple(sorted(errors)[:SHOWN_ERRORS]),
            chat_template_kwargs=self.chat_template_kwargs,
            prompt_options=self._as_settled(),
            stripped_thinking_blocks=sum(prompt.stripped_thinking_blocks for prompt in prompts),
            row_count=len(prompts),
            messages_rows=sum(prompt.has_messages for prompt in prompts),
            prompt_tokens_by=counted_by,
            max_model_len=max_model_len,
            max_tokens=max_tokens,
            **token_quantiles(counts),
        )

    def _as_settled(self) -> dict[str, Any]:
        return {
            **self.options.model_dump(exclude={"chat_template_kwargs"}),
            "enable_thinking": self.enable_thinking,
            "strips_thinking_history": self.strips,
            "writes_empty_thought_channel": self.empty_channel,
        }

    def _thinking(self, mode: str) -> bool | None:
        word = mode.strip().lower()
        if word in _YES | _NO:
            return word in _YES
        if word != "auto":
            raise UsageError(f"--thinking-mode {mode}: unknown; known: on, off, auto")
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
            return "chat_template", self._with_own_template(messages), None
        except Exception as error:  # noqa: BLE001 -- templates raise what they like
            words = one_line(f"{type(error).__name__}: {without_lone_surrogates(str(error))}")
        if self._is_gemma4:
            return "gemma4_fallback", self._gemma4(messages), words
        if any(name in self._name for name in ("deepseek-v4", "deepseek_v4")):
            return "deepseek_v4_fallback", self._deepseek(messages), words
        if any(family in self._name for family in _CHATML_FAMILIES):
            return "chatml_fallback", _turns(messages, "chatml"), words
        return "raw_fallback", without_lone_surrogates(record.prompt) or transcript(messages), words

    def _with_own_template(self, messages: Messages) -> str:
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
        """The prompt in DeepSeek's form, which harness.rendering has not: only the assistant's turns are closed."""
        before = {"system": "", "user": "<｜User｜>", "tool": "<｜User｜>", "assistant": "<｜Assistant｜>"}
        turns = [
            f"{before[role]}{message['content'].strip()}{_DEEPSEEK_EOS if role == 'assistant' else ''}"
            for message in messages
            for role in [message["role"]]
        ]
        opening = "<think>" if self.enable_thinking else "</think>"
        return f"{_DEEPSEEK_BOS}{''.join(turns)}<｜Assistant｜>{opening}"


def without_thinking_blocks(text: str) -> tuple[str, int]:
    """`text` without closed thinking blocks and the white space behind them and at its front; and their number.

    Upstream's rule, unlike that of `harness.rendering.without_thinking`: blocks count anywhere, and one that never ends
    stays. Linear, which a non-greedy pattern is not where many blocks never end.
    """
    removed = 0
    for opening, end in _THINKING:
        text, count = _without(text, opening, end)
        removed += count
    return text.lstrip(), removed


def _without(text: str, opening: str, end: str) -> tuple[str, int]:
    kept, at, count = [], 0, 0
    while (start := text.find(opening, at)) >= 0 and (close := text.find(end, start + len(opening))) >= 0:
        kept.append(text[at:start])
        at = close + len(end)
        while at < len(text) and text[at].isspace():
            at += 1
        count += 1
    return "".join([*kept, text[at:]]), count


def _settled(switch: Switch, auto: bool) -> bool:
    return auto if switch == "auto" else switch == "on"


def _turns(messages: Messages, template: Literal["chatml", "gemma4"]) -> str:
    history = [Message.model_validate(message) for message in messages]
    return render_prompt(history, Rendering(template=template, strip_thinking="off"))


def _as_fields(text: str, status: TemplateStatus) -> dict[str, Any]:
    # vLLM puts a <bos> in front of a prompt by itself; one that has its own would begin with two.
    return {"prompt": text, **({"add_special_tokens": False} if status in _WRITES_ITS_BOS else {})}
