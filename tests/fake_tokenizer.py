"""A tokenizer without transformers: a real Jinja template, and words for tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment


class FakeTokenizer:
    """A Tokenizer that renders as transformers does, and refuses without a template."""

    def __init__(self, template: str | None = None, name_or_path: str = "fake/tokenizer") -> None:
        self.name_or_path = name_or_path
        self._template = template

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: Any
    ) -> Any:
        """Raises ValueError without a template, TemplateError for one that cannot be filled."""
        if self._template is None:
            raise ValueError("Cannot use chat template functions because tokenizer.chat_template is not set")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        text = environment.from_string(self._template).render(
            messages=conversation, add_generation_prompt=add_generation_prompt, **kwargs
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """A number per word."""
        return [len(word) for word in text.split()]
