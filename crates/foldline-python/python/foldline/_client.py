"""Wrapping of a provider's client: folds before each call, unfolds inside it. Shared by two adapters."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._pool import SessionPool
from ._requests import count_tokens, unfold_tool

#: Calls of the unfold tool that are answered inside one call of the client.
MAX_HIDDEN_ROUNDS = 8
#: Tokens of a hidden call and of the frame of its result.
ROUND_TOKENS = 100


@dataclass(frozen=True)
class Endpoint:
    """How a method of a client names its messages, and how its answers call tools."""

    format: Any
    #: Keyword of the messages, and of the instructions outside of them.
    messages_key: str
    system_key: str | None
    #: Returns the calls in an answer, as (id, name, arguments as JSON).
    calls: Callable[[Any], list[tuple[str, str, str]]]
    #: Returns the messages of a hidden round: the answer with its calls, and their results.
    hidden_round: Callable[[Any, list[tuple[str, str]]], list[Any]]


@dataclass
class HiddenRounds:
    """One call of a client: what is sent, and the rounds that the caller does not see."""

    endpoint: Endpoint
    pool: SessionPool
    kwargs: dict[str, Any]
    injects: bool
    #: Tokens that are left in the window.
    room: int = 0
    rounds: int = 0

    @classmethod
    def begin(cls, endpoint: Endpoint, pool: SessionPool, kwargs: dict[str, Any]) -> HiddenRounds:
        kwargs = dict(kwargs)
        tools = kwargs.get("tools")
        tool = unfold_tool(endpoint.format)
        name = tool.get("name") or tool["function"]["name"]
        is_taken = any(name in (it.get("name"), it.get("function", {}).get("name")) for it in tools or [])
        # A stream is passed on as it arrives, so calls in it cannot be hidden.
        injects = bool(tools) and not kwargs.get("stream") and not is_taken
        if injects:
            kwargs["tools"] = [*tools, tool]
        messages, room = kwargs.get(endpoint.messages_key), 0
        if isinstance(messages, list) and not kwargs.get("previous_response_id"):
            plain = [it if isinstance(it, dict) else _to_dict(it) for it in messages]
            system = kwargs.get(endpoint.system_key) if endpoint.system_key else None
            folded = pool.fold(plain, model=kwargs.get("model"), tools=kwargs.get("tools"), system=_or_none(system))
            if folded is not None:
                kwargs[endpoint.messages_key] = folded.messages
                room = folded.budget - folded.tokens
        return cls(endpoint, pool, kwargs, injects, room)

    def answer(self, response: Any) -> bool:
        """Answers the calls of the unfold tool. Returns true if the request has to be sent again."""
        if not self.injects or self.rounds >= MAX_HIDDEN_ROUNDS:
            return False
        calls = self.endpoint.calls(response)
        if not calls or any(name != "unfold" for _, name, _ in calls):
            return False
        # The round itself has tokens too: the calls, and the frames of the results.
        each = self.room // len(calls) - ROUND_TOKENS
        answers = [(call_id, self.pool.answer(arguments, max(each, 0))) for call_id, _, arguments in calls]
        self.room -= sum(count_tokens(text, self.kwargs.get("model")) + ROUND_TOKENS for _, text in answers)
        key = self.endpoint.messages_key
        self.kwargs[key] = [*self.kwargs[key], *self.endpoint.hidden_round(response, answers)]
        self.rounds += 1
        return True


def _to_dict(value: Any) -> dict[str, Any]:
    """Returns a message as a plain dict: clients accept their own response objects too."""
    return json.loads(value.model_dump_json(exclude_none=True)) if hasattr(value, "model_dump_json") else dict(value)


def _or_none(value: Any) -> Any:
    """Returns a value, or none for the client's marks of missing arguments."""
    return value if isinstance(value, (str, list)) else None


def wrap_method(resource: Any, endpoint: Endpoint, pool: SessionPool, is_async: bool) -> None:
    """Replaces the method `create` of this resource of a client."""
    create = resource.create

    if is_async:

        @functools.wraps(create)
        async def fold_async(**kwargs: Any) -> Any:
            hidden = HiddenRounds.begin(endpoint, pool, kwargs)
            response = await create(**hidden.kwargs)
            while hidden.answer(response):
                response = await create(**hidden.kwargs)
            return response

        resource.create = fold_async
        return

    @functools.wraps(create)
    def fold_sync(**kwargs: Any) -> Any:
        hidden = HiddenRounds.begin(endpoint, pool, kwargs)
        response = create(**hidden.kwargs)
        while hidden.answer(response):
            response = create(**hidden.kwargs)
        return response

    resource.create = fold_sync
