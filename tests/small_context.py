"""A server with a short context that its list of models does not tell, in the ways in which servers refuse."""

from __future__ import annotations

import json
from typing import Any, Literal

from fault_server import Seen, answer, completion

Style = Literal["vllm", "vllm-old", "litellm", "silent", "halving", "500", "empty", "proxy", "shifts"]


class SmallContext:
    """Answers chat requests for a FaultServer's `answer_by`, each with `content` where it fits `context` tokens.

    `vllm` refuses max_tokens above the context and clamps the rest, `vllm-old` refuses prompt and max_tokens above it,
    `litellm` passes that on in its own frame, `halving` tells no number, `500` is the status of the same words as
    `vllm-old`, `empty` answers with nothing, `proxy` refuses bodies above 20 kB with a page, `shifts` forgets.
    """

    def __init__(self, style: Style, content: str, context: int = 8192) -> None:
        self.style, self.content, self.context = style, content, context
        self.asked: list[int] = []
        """The max_tokens of each request."""

    def __call__(self, seen: Seen) -> bytes:
        if seen.path.endswith("/models"):
            return answer(200, {"object": "list", "data": [{"id": "tiny"}]})
        wanted = int(seen.json.get("max_tokens", 16))
        self.asked.append(wanted)
        prompt = sum(len(str(each.get("content"))) for each in seen.json.get("messages", [])) // 4 + 10
        if self.style == "shifts":
            return self._reply(min(prompt, self.context))
        if self.style == "proxy":
            return self._page() if len(seen.body) > 20_000 else self._reply(prompt)
        if self.style == "empty" and prompt + 20 > self.context:
            return answer(200, completion("", "length", usage=None))
        refused = self._refusal(prompt, wanted)
        return self._reply(prompt) if refused is None else refused

    def _refusal(self, prompt: int, wanted: int) -> bytes | None:
        c = self.context
        if prompt >= c:
            words = f"This model's maximum context length is {c} tokens. However, your prompt contains {prompt} tokens."
        elif self.style in {"vllm", "litellm"} and wanted > c:
            words = f"max_tokens={wanted} cannot be greater than max_model_len={c}. Please request fewer output tokens."
        elif self.style == "halving" and wanted + prompt > c:
            words = "max_tokens is too large"
        elif self.style in {"vllm-old", "500"} and wanted + prompt > c:
            total = wanted + prompt
            words = (
                f"This model's maximum context length is {c} tokens. However, you requested {total} tokens ({prompt} "
            )
            words += f"in the messages, {wanted} in the completion). Please reduce the length of the messages."
        else:
            return None
        error: dict[str, Any] = {"message": words, "type": "BadRequestError", "param": None, "code": 400}
        if self.style == "litellm":
            told = f"litellm.BadRequestError: Hosted_vllmException - {json.dumps({'error': error})}. No fallback."
            error = {"message": told, "type": None, "param": None, "code": "400"}
        return answer(500 if self.style == "500" else 400, {"error": error})

    def _page(self) -> bytes:
        page = b"<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body></body>\r\n</html>"
        return answer(413, page, {"content-type": "text/html"})

    def _reply(self, prompt: int) -> bytes:
        usage = {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20}
        return answer(200, completion(self.content, usage=usage))
