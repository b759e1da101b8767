"""A tokenizer with its chat template: the part of transformers that replay needs, and how it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tbench.errors import UsageError
from tbench.text import one_line


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
