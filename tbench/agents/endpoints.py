"""Connects to the configured endpoints, before anything is started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from functools import partial

from harness.endpoint.address import full_url, without_password
from harness.endpoint.chat import ChatModel
from harness.endpoint.outage import OutagePolicy
from harness.endpoint.replicas import MOVE_ON_SEC, Endpoint, Replicas, WaitNotice
from harness.endpoint.retry import RetryPolicy, TransientError
from harness.errors import EndpointError, RequestRefused
from harness.model import Rendering, Sampling, ServedModel
from harness.trajectory import Message
from tbench.config.settings import ModelConfig, ServerConfig
from tbench.errors import UsageError

_PREFLIGHT_SEC = 20.0
_LIST_SEC = 2.0


def make_chat(
    model: ModelConfig,
    on_wait: Callable[[str, float], None],
    on_outage: Callable[[str], None],
    server: ServerConfig | None = None,
    retry_budget_sec: float | None = None,
    api_key: str | None = None,
) -> ChatModel:
    """Make a client of one server, by default the only one; not connected yet. Raises EndpointError without a URL.

    Without an `api_key`, the environment's is used.
    """
    at = server.base_url if server is not None else model.servers[0].base_url if model.servers else ""
    chat = ChatModel(
        at,
        model.name,
        Sampling(**model.model_dump(include=set(Sampling.model_fields))),
        api_key=api_key or os.environ.get("OPENAI_API_KEY"),
        request_timeout_sec=model.request_timeout_sec or None,
        retry=RetryPolicy(total_sec=model.retry_budget_sec if retry_budget_sec is None else retry_budget_sec),
        rendering=Rendering(**model.model_dump(include=set(Rendering.model_fields))),
        on_wait=on_wait,
        max_outage=OutagePolicy(max_sec=model.max_outage_sec),
        on_outage=on_outage,
    )
    chat.model_identity.is_strict = model.other_weights == "pause"
    return chat


async def connect(
    model: ModelConfig, say: Callable[[str], None], api_key: str | None = None
) -> tuple[Endpoint, ServedModel]:
    """Connect to the endpoint, so that a wrong URL does not cost a run. Raises UsageError."""
    chat = make_endpoint(model, say, api_key)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(chat.close)
        try:
            served = await chat.connect(budget_sec=min(_PREFLIGHT_SEC, model.retry_budget_sec))
        except EndpointError as error:
            raise UsageError(f"endpoint: {error}") from None
        stack.pop_all()
    return chat, served


async def require_tool_calls(chat: Endpoint, agent: str) -> None:
    """Check by one short request that the server allows tool calls. Closes `chat` and raises UsageError if not."""
    parameters = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "list_files", "description": "", "parameters": parameters}}
    try:
        # The trials wait for a server that is slow or down now.
        async with asyncio.timeout(_PREFLIGHT_SEC):
            await chat.query([Message(role="user", content="Say ok.")], seed=None, max_tokens=1, tools=[tool])
    except RequestRefused as error:
        await chat.close()
        raise UsageError(f"--agent {agent}: works by tool calls, which the server refuses: {error}") from None
    except (EndpointError, TimeoutError):
        pass


def make_endpoint(model: ModelConfig, say: Callable[[str], None], api_key: str | None = None) -> Endpoint:
    """Make a client that reports waits and outages, without sending a request. Raises UsageError."""
    servers = model.servers
    try:
        if len(servers) <= 1:
            on_wait = WaitNotice("endpoint", say, 0.0)
            return make_chat(model, on_wait, lambda text: say(f"endpoint {text}"), api_key=api_key)
        budget_sec = min(model.retry_budget_sec, MOVE_ON_SEC)
        chats = []
        for server in servers:
            name = f"endpoint {without_password(full_url(server.base_url))}"
            on_outage = partial(_report_notes, name, say)
            chats.append(make_chat(model, WaitNotice(name, say), on_outage, server, budget_sec, api_key))
    except EndpointError as error:
        raise UsageError(f"endpoint: {error}") from None
    weights = [server.weight for server in servers]
    return Replicas(
        chats, lambda text: say(f"endpoint {text}"), weights=weights, retry_budget_sec=model.retry_budget_sec
    )


def _report_notes(name: str, say: Callable[[str], None], text: str) -> None:
    say(f"{name} {text}")


async def listed_models(url: str, api_key: str | None = None) -> tuple[str, ...]:
    """Return the models that a server lists at a URL; none if it does not answer one short request."""
    try:
        async with ChatModel(url, None, Sampling(), api_key=api_key) as chat:
            async with asyncio.timeout(_LIST_SEC):  # not counting the imports above, which may take as long
                return tuple(card.id for card in await chat.list_models())
    except (TransientError, EndpointError, TimeoutError):
        return ()
