"""The model interface of the agent loop, and its sampling and rendering settings."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, Self, runtime_checkable

from pydantic import BeforeValidator, Field, field_validator, model_validator

from harness.trajectory import Frozen, Message, Reply

SeedScheme = Literal["hashed", "bare"]
_OWN_FIELDS = {
    *("model", "messages", "prompt", "tools", "temperature", "top_p", "max_tokens"),
    *("seed", "n", "stream", "stream_options"),
}
_RENAMABLE = {"temperature", "top_p", "max_tokens", "seed", "stop", "skip_special_tokens", "chat_template_kwargs"}
"""Request fields that some servers know by another name, or not at all."""


class SamplingSettings(Frozen):
    """Sampling settings, all of which are sent with every request.

    A server's own defaults come from the model's files and differ between models.
    """

    temperature: float = Field(default=0.7, ge=0)
    """Sampling temperature."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: int = Field(default=16384, ge=1)
    """Maximum number of tokens per turn, thinking included."""
    extra_body: dict[str, Any] = Field(default={})
    """Fields to add to each request, such as {"top_k": 20}. Other fields: min_p, repetition_penalty, stop … vLLM
    silently ignores names that it does not know."""
    rename_fields: dict[str, str | None] = Field(default={})
    """Send request fields under other names; null leaves a field out. Example for servers that refuse the usual names:
    {"max_tokens": "max_completion_tokens", "top_p": null}."""
    omit_seed: bool = False
    """Send no seeds. Then no trial can be reproduced."""
    seed_scheme: SeedScheme = "hashed"
    """Send a hash of seed, task and step, or the seed itself. With `bare` a server like vLLM draws the same noise for
    all tasks."""

    @field_validator("extra_body")
    @classmethod
    def _check_extra_body(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OWN_FIELDS & value.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set here")
        if "extra_body" in value:
            raise ValueError("extra_body inside extra_body: servers ignore it silently")
        return value

    @field_validator("rename_fields")
    @classmethod
    def _check_renames(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        if unknown := sorted(value.keys() - _RENAMABLE):
            raise ValueError(f"{', '.join(unknown)}: unknown field; can be renamed: {', '.join(sorted(_RENAMABLE))}")
        names = [name for name in value.values() if name is not None]
        if bad := [name for name in names if not name or name in _OWN_FIELDS - value.keys()]:
            raise ValueError(f"{bad[0]!r} cannot be used as a field name: empty or already taken")
        if len(set(names)) < len(names):
            raise ValueError("two fields are renamed to the same name")
        return value


class Sampling(SamplingSettings):
    """Sampling parameters of all queries."""

    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """Seed of queries without one of their own; None sends no seed."""

    def wire_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's fields under the names that the server knows, without those that are not to be sent."""
        names = {**self.rename_fields, "seed": None} if self.omit_seed else self.rename_fields
        return {name: value for field, value in fields.items() if (name := names.get(field, field)) is not None}


def hashed_seed(seed: int, task: str, step: int) -> int:
    """Return a request's seed: the first 31 bits of sha256(`[seed,"task",step]` as compact ASCII JSON), big-endian.

    A server that seeds its noise by request, such as vLLM, draws the same noise for equal seeds: with the trial's seed
    alone, the results of all tasks would be correlated. Every server accepts 31 bits.
    """
    text = json.dumps([seed, task, step], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class Seeds:
    """Derives the seeds of one trial's requests from its task and seed."""

    task: str
    seed: int
    scheme: SeedScheme = "hashed"
    """`hashed`: a different seed for each task, seed and step; `bare`: the trial's seed for all requests."""

    def for_step(self, step: int) -> int:
        """Return the seed for a request of this step, counted from 1."""
        return self.seed if self.scheme == "bare" else hashed_seed(self.seed, self.task, step)


def _on_or_off(value: object) -> object:
    """Map true and false, which a file may use as well, to `on` and `off`."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), value)


Template = Literal["server", "chatml", "gemma", "gemma4", "contract"]


class Rendering(Frozen):
    """Settings for rendering the history into the text that the model sees."""

    template: Template = "server"
    """Render prompts on the server, or here as chatml, gemma, gemma4 or contract. `server` uses the chat endpoint, with
    the model's own template. The others are rendered here and sent to /v1/completions, for base models. `gemma` has the
    turns of Gemma 1 to 3, and `contract` has headings such as `### System`."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Variables of the server's template. An example is {"enable_thinking": false}; servers ignore variables that the
    template does not know."""
    strip_thinking: Literal["on", "off", "auto"] = "auto"
    """Leave the thinking out of earlier replies. `auto`: only where the prompt is rendered here; a server's
    template has its own rule for it."""
    send_reasoning: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_or_off)] = "auto"
    """Send earlier reasoning back. It is sent in the field in which it came, and the server's template drops what its
    model should not see. `auto`: yes if the server renders prompts and strip_thinking is not on, until a server refuses
    it."""

    @property
    def sends_reasoning(self) -> bool:
        """Whether reasoning is sent back, as long as no server refuses it."""
        if self.send_reasoning == "auto":
            return self.template == "server" and self.strip_thinking != "on"
        return self.send_reasoning == "on"

    @property
    def takes_tools(self) -> bool:
        """Whether queries may have tools: only the server's own template supports them."""
        return self.template == "server"

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.template != "server" and self.chat_template_kwargs:
            raise ValueError(f"chat_template_kwargs are for the server's template, not for {self.template}")
        if self.template != "server" and self.send_reasoning == "on":
            raise ValueError(f"send_reasoning is for the server's template: {self.template} does not support it")
        if self.send_reasoning == "on" and self.strip_thinking == "on":
            raise ValueError("send_reasoning and strip_thinking=on contradict each other")
        return self


class ServedModel(Frozen):
    """A model in the endpoint's list."""

    id: str
    context_tokens: int | None = None
    """The server's `max_model_len`; None if not reported."""
    root: str | None = None
    """Path or repository of the weights."""
    names: tuple[str, ...] = ()
    """Other names listed with the same root."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """The requested name, then the others."""
        return (self.id, *self.names)


@runtime_checkable
class SupportsTemperature(Protocol):
    """A model that can be queried at another temperature."""

    def at_temperature(self, temperature: float) -> Model:
        """Return the same model at another temperature."""
        ...


@runtime_checkable
class ReportsMaxTokens(Protocol):
    """A model whose server may limit max_tokens."""

    @property
    def most_tokens(self) -> int | None:
        """Largest max_tokens that the server accepts; None as long as no refusal has stated it."""
        ...


@runtime_checkable
class MultiServer(Protocol):
    """A model behind several servers, one of which is assigned to a trial."""

    def bind_trial(self) -> AbstractContextManager[Model]:
        """Assign a server to one trial for the block, and return its model."""
        ...


def bind_trial(model: Model) -> AbstractContextManager[Model]:
    """Return a context manager for the model of one trial, bound to one server if there are several."""
    return model.bind_trial() if isinstance(model, MultiServer) else contextlib.nullcontext(model)


@runtime_checkable
class HttpModel(Protocol):
    """A model that is queried over HTTP."""

    @property
    def model(self) -> str | None:
        """Model id; None if not settled yet."""
        ...

    def request(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, dict[str, Any]]:
        """Return the path below the base URL and the body of the request that `query` sends. Raises RequestRefused."""
        ...


class Model(Protocol):
    """A language model: harness.endpoint.chat.ChatModel, or one of your own."""

    @property
    def context_tokens(self) -> int | None:
        """Maximum number of tokens of prompt and reply together; None if unknown."""

    @property
    def sampling(self) -> Sampling: ...

    @property
    def patience_sec(self) -> float:
        """Longest time that `query` may spend on failed requests and waiting before it gives up."""

    async def query(
        self,
        messages: Sequence[Message],
        *,
        seed: int | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        """Return one reply; `tools` are the functions that it may call, in OpenAI's format.

        Raises EndpointUnavailable, RequestRefused or ContextLimitReached (harness.errors).
        """
        ...
