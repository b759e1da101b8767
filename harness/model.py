"""A language model as the agent loop needs it, and how it is sampled."""

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
_OURS = {
    *("model", "messages", "prompt", "tools", "temperature", "top_p", "max_tokens"),
    *("seed", "n", "stream", "stream_options"),
}
_RENAMED = {"temperature", "top_p", "max_tokens", "seed", "stop", "skip_special_tokens", "chat_template_kwargs"}
"""Fields that a server may know by another name, or not at all."""


class SamplingSettings(Frozen):
    """What the user decides about sampling; all of it is sent with every request.

    A server's own defaults come from the model's files, and differ between models.
    """

    temperature: float = Field(default=0.7, ge=0)
    """Sampling temperature."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: int = Field(default=16384, ge=1)
    """Most tokens per turn, thinking included."""
    extra_body: dict[str, Any] = Field(default={})
    """Merged into each request, such as {"top_k": 20}. Other fields: min_p, repetition_penalty, stop … vLLM ignores a
    name that it does not know, silently."""
    rename_fields: dict[str, str | None] = Field(default={})
    """Request fields by other names; null leaves one out. For servers that refuse ours, such as
    {"max_tokens": "max_completion_tokens", "top_p": null}."""
    omit_seed: bool = False
    """Send no seeds. Then no trial can be repeated."""
    seed_scheme: SeedScheme = "hashed"
    """Send a hash of seed, task and step, or the seed. With `bare` a server like vLLM draws the same noise for all
    tasks."""

    @field_validator("extra_body")
    @classmethod
    def _leave_ours_alone(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & value.keys()):
            raise ValueError(f"{', '.join(taken)} cannot be set here")
        if "extra_body" in value:
            raise ValueError("extra_body inside extra_body: servers ignore it silently")
        return value

    @field_validator("rename_fields")
    @classmethod
    def _rename_what_is_sent(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        if unknown := sorted(value.keys() - _RENAMED):
            raise ValueError(f"{', '.join(unknown)}: no field of ours; these are: {', '.join(sorted(_RENAMED))}")
        names = [name for name in value.values() if name is not None]
        if bad := [name for name in names if not name or name in _OURS - value.keys()]:
            raise ValueError(f"{bad[0]!r} is no free name for a field")
        if len(set(names)) < len(names):
            raise ValueError("two fields under one name")
        return value


class Sampling(SamplingSettings):
    """Sampling parameters of all queries."""

    seed: int | None = Field(default=None, ge=0, lt=2**63)
    """The seed of queries that name none; None sends none."""

    def on_the_wire(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a request under the names that the server knows, without those that are not to be sent."""
        names = {**self.rename_fields, "seed": None} if self.omit_seed else self.rename_fields
        return {name: value for field, value in fields.items() if (name := names.get(field, field)) is not None}


def hashed_seed(seed: int, task: str, step: int) -> int:
    """The seed of a request: the first 31 bits of sha256(`[seed,"task",step]` as compact ASCII JSON), big-endian.

    A server that seeds its noise by request, as vLLM does, draws the same noise for equal seeds: with the trial's seed
    alone all tasks would rise and fall together. 31 bits are what every server takes.
    """
    text = json.dumps([seed, task, step], separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True)
class Seeds:
    """The seeds of the requests of one trial: a task with a seed."""

    task: str
    seed: int
    scheme: SeedScheme = "hashed"
    """`hashed`: another for each task, seed and step; `bare`: the trial's, for all."""

    def at(self, step: int) -> int:
        """The seed for a request of the step with this number, counted from 1."""
        return self.seed if self.scheme == "bare" else hashed_seed(self.seed, self.task, step)


def _word_of(value: object) -> object:
    """The word for true or false, which a file may say as well."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), value)


Template = Literal["server", "chatml", "gemma", "gemma4", "contract"]


class Rendering(Frozen):
    """How the history becomes the text that the model sees."""

    template: Template = "server"
    """Prompts by server, chatml, gemma, gemma4 or contract. `server` uses the chat endpoint, with the model's own
    template. The others are rendered here and sent to /v1/completions, for base models: `chatml`, the turns of `gemma`
    1 to 3 or of `gemma4`, or the `contract` of `### System` headings."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """Variables of the server's template. Such as {"enable_thinking": false}; servers ignore those that the template
    does not know."""
    strip_thinking: Literal["on", "off", "auto"] = "auto"
    """Leave the thinking out of earlier replies. `auto`: only where the prompt is rendered here; a server's
    template has its own rule for it."""
    send_reasoning: Annotated[Literal["auto", "on", "off"], BeforeValidator(_word_of)] = "auto"
    """Send earlier reasoning back. It goes under the name in which it came, and the server's
    template drops what its model is not to see. `auto`: until a server refuses that."""

    @property
    def sends_reasoning(self) -> bool:
        """Whether reasoning goes back, as long as no server refuses it."""
        if self.send_reasoning == "auto":
            return self.template == "server" and self.strip_thinking != "on"
        return self.send_reasoning == "on"

    @property
    def takes_tools(self) -> bool:
        """Whether queries may have tools: only the server's own template has a place for them."""
        return self.template == "server"

    @model_validator(mode="after")
    def _nothing_without_effect(self) -> Self:
        if self.template != "server" and self.chat_template_kwargs:
            raise ValueError(f"chat_template_kwargs are for the server's template, not for {self.template}")
        if self.template != "server" and self.send_reasoning == "on":
            raise ValueError(f"send_reasoning is for the server's template: {self.template} has no place for it")
        if self.send_reasoning == "on" and self.strip_thinking == "on":
            raise ValueError("send_reasoning and strip_thinking=on contradict each other")
        return self


class ServedModel(Frozen):
    """A model as the endpoint lists it."""

    id: str
    context_tokens: int | None = None
    """The server's `max_model_len`; None where it does not say."""
    root: str | None = None
    """The path or repository that the weights came from."""
    names: tuple[str, ...] = ()
    """Its other names: those that are listed with the same root."""

    @property
    def all_names(self) -> tuple[str, ...]:
        """The name that was asked for, then the others."""
        return (self.id, *self.names)


@runtime_checkable
class Tempered(Protocol):
    """A model whose temperature may be another one for a while."""

    def at_temperature(self, temperature: float) -> Model:
        """The same model, asked at another temperature."""
        ...


@runtime_checkable
class Bounded(Protocol):
    """A model whose server may take less max_tokens than is asked for."""

    @property
    def most_tokens(self) -> int | None:
        """The largest max_tokens that it takes; None where no refusal has told."""
        ...


@runtime_checkable
class Bindable(Protocol):
    """A model behind several servers, of which a trial is to have one."""

    def bound(self) -> AbstractContextManager[Model]:
        """The model for one trial, during the block."""
        ...


def bound(model: Model) -> AbstractContextManager[Model]:
    """The model as one trial asks it, during the block."""
    return model.bound() if isinstance(model, Bindable) else contextlib.nullcontext(model)


@runtime_checkable
class OverHttp(Protocol):
    """A model that is asked over HTTP."""

    @property
    def model(self) -> str | None:
        """Its id; None where that is not settled."""
        ...

    def request(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, dict[str, Any]]:
        """The path below the base URL, and the body, of the request that `query` sends. Raises RequestRefused."""
        ...


class Model(Protocol):
    """A language model: harness.endpoint.chat.ChatModel, or one of your own."""

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of prompt and reply together; None if unknown."""

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
        """One reply; `tools` are the functions that it may call, in OpenAI's format.

        Raises EndpointUnavailable, RequestRefused or ContextLimitReached (harness.errors).
        """
        ...
