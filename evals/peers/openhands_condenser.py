"""OpenHands: one of its condensers that need no model, by name and with the defaults of its configuration.

    openhands_condenser.py amortized | observation_masking | recent

Messages become its events: an action for each call, an observation for each result, a message action for
each text. The history keeps the condensations, as its agent does. The system message and the first user message
are kept, and calls without results and results without calls are removed, as by its conversation memory."""

import sys

from openhands.core.config import condenser_config
from openhands.events.action import CmdRunAction, MessageAction
from openhands.events.event import EventSource
from openhands.events.observation import CmdOutputObservation
from openhands.memory.condenser import condenser, impl  # noqa: F401  (impl registers the condensers)
from openhands.memory.view import View

from pipe import serve

CONFIGURATIONS = {
    "amortized": condenser_config.AmortizedForgettingCondenserConfig,
    "observation_masking": condenser_config.ObservationMaskingCondenserConfig,
    "recent": condenser_config.RecentEventsCondenserConfig,
}


def make(setup):
    condense = condenser.Condenser.from_config(CONFIGURATIONS[sys.argv[1]](), None).condense
    events, places, seen = [], {}, 0

    def add(event, source, place):
        event._id, event._source = len(events), source
        events.append(event)
        places[event._id] = place

    def ingest(at, message):
        role, text = message["role"], message.get("content") or ""
        if role in ("system", "developer"):
            return
        if role == "tool":
            observation = CmdOutputObservation(content=text, command="")
            add(observation, EventSource.ENVIRONMENT, (at, message["tool_call_id"]))
        elif message.get("tool_calls"):
            for call in message["tool_calls"]:
                add(CmdRunAction(command=call["function"]["arguments"]), EventSource.AGENT, (at, call["id"]))
        else:
            source = EventSource.USER if role == "user" else EventSource.AGENT
            add(MessageAction(content=text), source, (at, None))

    def history():
        while True:
            view = View.from_events(events)
            condensed = condense(view)
            if isinstance(condensed, View):
                return view, condensed
            add(condensed.action, EventSource.AGENT, None)

    def render(messages):
        nonlocal seen
        for at in range(seen, len(messages)):
            ingest(at, messages[at])
        seen = len(messages)
        view, condensed = history()
        kept = {}
        # A masked observation is a new event at the position of the old one; other events are found by their id.
        same_length = len(view) == len(condensed)
        for index, event in enumerate(condensed):
            known = places.get(event.id) if event.id in places else None
            place = known or (places[view[index].id] if same_length else None)
            if place is not None:
                at, call = place
                kept.setdefault(at, {})[call] = None if known else event.content
        first_user = next((at for at, message in enumerate(messages) if message["role"] == "user"), None)
        called = {call for calls in kept.values() for call in calls if call}
        made = {call["id"] for at in kept for call in messages[at].get("tool_calls") or [] if call["id"] in kept[at]}
        answered = {messages[at]["tool_call_id"] for at in kept if messages[at]["role"] == "tool"}
        paired = called & made & answered
        out = []
        for at, message in enumerate(messages):
            role = message["role"]
            if role in ("system", "developer") or at == first_user:
                out.append(message)
            elif at not in kept:
                continue
            elif role == "tool":
                if message["tool_call_id"] in paired:
                    masked = kept[at][message["tool_call_id"]]
                    out.append(message if masked is None else {**message, "content": masked})
            elif message.get("tool_calls"):
                calls = [call for call in message["tool_calls"] if call["id"] in paired]
                if calls:
                    out.append({**message, "tool_calls": calls})
            else:
                out.append(message)
        return out

    return render


serve(make)
