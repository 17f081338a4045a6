"""Measures of a session: what the client sent, compared with what the provider received."""

import itertools
import json
import re

from sdk import TASK

LISTS = {"/chat/completions": "messages", "/responses": "input", "/messages": "messages", ":generateContent": "contents"}
SUBTASK = re.compile(r"Subtask (\d)")
# Share of the room for a prompt up to which new results must arrive whole; the rest is for the error of the estimate.
FIT_RATIO = 0.85


def api(path):
    """Returns the API of a path, for base URLs with and without /v1; none for other paths."""
    path = path.removeprefix("/v1")
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return ":generateContent"
    return path if path in LISTS else None


class Body:
    """A request body."""

    def __init__(self, path, data):
        self.api, self.data, self.json = api(path), data, json.loads(data)
        listed = self.json.get(LISTS[self.api])
        self.list = [{"role": "user", "content": listed}] if isinstance(listed, str) else listed
        answers = [at for at, it in enumerate(self.list) if by_model(it)]
        self.task = self.list[: answers[0]] if answers else self.list
        self.new = self.list[answers[-1] + 1 :] if answers else []
        self.name_results()
        self.has_tools = bool(self.json.get("tools"))
        self.continues_thread = (self.json.get("thread") or {}).get("type") == "continue"

    def name_results(self):
        """Adds the ids of their calls to results of Gemini that lack them: results are in the order of the calls."""
        calls = []
        for it in self.list:
            parts = it.get("parts") or []
            results = [part["functionResponse"] for part in parts if "functionResponse" in part]
            for call, result in zip(calls, results):
                result.setdefault("id", call.get("id"))
            calls = [part["functionCall"] for part in parts if "functionCall" in part]

    def conversation(self):
        """Returns the name of the conversation: that of a sub-agent, or `main`."""
        found = [SUBTASK.match(text.strip()) for it in self.task for text in texts(content(it))]
        return "".join("subtask " + it[1] for it in found if it)[-9:] or "main"

    def elements(self, stored=()):
        """Returns the messages as a prompt cache compares them: without fields that it does not see, text as one part.
        A reference is the item that it refers to, if `stored` has it."""
        head = [self.instructions(), self.json.get("tools")]
        if isinstance(head[0], list):
            # Claude Code sends facts about the request in a block that Anthropic removes from the prompt.
            head[0] = [block for block in head[0] if not block.get("text", "").startswith("x-anthropic-billing-header:")]
        listed = [stored[it["id"]] if is_reference(it) and it["id"] in stored else it for it in self.list]
        return [json.dumps(plain(it), sort_keys=True) for it in head + listed]

    def instructions(self):
        return self.json.get("system") or self.json.get("instructions") or self.json.get("systemInstruction")

    def items(self):
        """Returns the items by their ids, without references."""
        return {it["id"]: it for it in self.list if it.get("id") and not is_reference(it)}

    def results(self, listed=None):
        """Returns the texts of tool results by the ids of their calls."""
        found = {}
        for it in self.list if listed is None else listed:
            if it.get("type") == "function_call_output":
                found[it["call_id"]] = "".join(texts(it["output"]))
            elif it.get("role") == "tool":
                found[it["tool_call_id"]] = "".join(texts(it.get("content")))
            elif isinstance(it.get("parts"), list):
                answers = (part["functionResponse"] for part in it["parts"] if "functionResponse" in part)
                found.update((answer["id"], answer["response"].get("output", "")) for answer in answers)
            elif isinstance(it.get("content"), list):
                blocks = (block for block in it["content"] if block.get("type") == "tool_result")
                found.update((block["tool_use_id"], "".join(texts(block.get("content")))) for block in blocks)
        return found


def is_reference(it):
    return it.get("type") == "item_reference"


def by_model(it):
    return it.get("role") in ("assistant", "model") or it.get("type") in ("function_call", "reasoning", "item_reference")


def content(it):
    return it.get("content") or it.get("parts")


def texts(content):
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or [] if isinstance(part, dict) and isinstance(part.get("text"), str)]


# Fields that are not part of a prompt: a client of the Responses API may leave out those that it received.
UNSEEN = {"cache_control", "status", "logprobs", "annotations"}


def plain(value):
    if isinstance(value, dict):
        is_item = value.get("type") in ("message", "reasoning", "function_call") or "role" in value
        unseen = UNSEEN | {"id"} if is_item else UNSEEN
        # The type of a message is optional.
        unseen = unseen | {"type"} if value.get("type") == "message" else unseen
        value = {name: plain(it) for name, it in value.items() if name not in unseen and it is not None}
        if isinstance(value.get("content"), str) and "role" in value:
            value["content"] = [{"type": "text", "text": value["content"]}]
        if value.get("type") in ("input_text", "output_text"):
            # The same text may be sent as a plain string.
            value["type"] = "text"
        return value
    return [plain(it) for it in value] if isinstance(value, list) else value


def moves(bodies, needs_tools=True):
    """Returns the requests that do not begin with the previous one of their conversation, as pairs of both."""
    found, last, stored = [], {}, {}
    for body in bodies:
        if needs_tools and not body.has_tools:
            continue
        stored.update(body.items())
        now, name = body.elements(stored), body.conversation()
        before = last.get(name, [])
        if now[: len(before)] != before and now != before[: len(now)]:
            found.append((before, now))
        last[name] = now
    return found


def thoughts(element):
    """Returns the signatures of the reasoning in a message, and the message without that reasoning."""
    message = json.loads(element)
    blocks = message.get("content") if isinstance(message, dict) else None
    if not isinstance(blocks, list):
        return set(), element
    thought = [block for block in blocks if block.get("type") == "thinking"]
    message["content"] = [block for block in blocks if block not in thought]
    return {block["signature"] for block in thought}, json.dumps(message, sort_keys=True)


def left_out(found, sent):
    """Counts the pairs in which only reasoning is missing that the client received and never sent back. If it is the newest
    reasoning of a request with a crease, the crease is decided again, and more differs."""
    count = 0
    for before, now in found:
        (was, old), (are, new) = (zip(*map(thoughts, side)) for side in (before, now))
        gone = set().union(*was) - set().union(*are)
        newest = next((signatures for signatures in reversed(was) if signatures), set())
        count += bool(gone) and (old == new[: len(old)] or newest <= gone) and not any(it.encode() in body.data for it in gone for body in sent)
    return count


def hidden_pairs(received):
    """Returns how many hidden pairs are in the next request of the client, and how many should be.

    A pair whose round never succeeded does not count: the client repeats its request, and the model starts over. Nor
    does a pair that a crease folded, where the request changes before the pair.
    """
    kept = due = 0
    for at, (note, body) in enumerate(received):
        calls = note.get("calls", [])
        ids = [call["id"].encode() for call in calls if call["name"] == "unfold"]
        later = [it for it in received[at + 1 :] if it[0]["conversation"] == note["conversation"] and it[1].has_tools]
        rounds = list(itertools.takewhile(lambda it: it[0]["hidden"], later))
        if not ids or len(rounds) == len(later) or (len(ids) == len(calls) and not rounds):
            continue
        before, following = rounds[-1][1] if rounds else body, later[len(rounds)][1]
        elements = before.elements()
        position = next((index for index, it in enumerate(elements) if any(call in it.encode() for call in ids)), len(elements))
        is_folded = following.elements()[:position] != elements[:position]
        found = sum(following.data.count(it) >= 2 for it in ids)
        kept, due = kept + found, due + (found if is_folded else len(ids))
    return kept, due


def tasks(received, task=TASK):
    """Returns how many requests have the user's task verbatim, and how many should: all that do not continue a thread."""
    kept = due = 0
    for note, body in received:
        if note["reply"] == "summary":
            break
        if body.continues_thread:
            continue
        if body.has_tools or note["reply"] == "text":
            wanted = task if note["conversation"] == "main" else note["conversation"].capitalize() + ": read the files"
            due += 1
            kept += wanted.encode() in body.data
    return kept, due


def new_results(sent, received, window):
    """Returns how many new results arrived whole, how many should (they fit), and how many did not fit and were cut."""
    first = {}
    for note, body in received:
        for call_id, text in body.results().items():
            first.setdefault(call_id, (text, note, body))
    whole = due = cut = 0
    checked = set()
    for body in sent:
        for call_id, text in body.results(body.new).items():
            if call_id in checked:
                continue
            checked.add(call_id)
            got, note, there = first.get(call_id, ("", *received[-1]))
            if got == text:
                whole, due = whole + 1, due + 1
            elif fits(body, note, there, window):
                due += 1
            else:
                cut += 1
    return whole, due, cut


def fits(body, note, there, window):
    """Returns true if instructions, tools, task and new results clearly fit; tokens are estimated by the ratio at the provider."""
    fixed = [body.instructions(), body.json.get("tools"), body.task, body.new]
    size = sum(len(json.dumps(it).encode()) for it in fixed if it)
    output = body.json.get("max_tokens") or body.json.get("max_output_tokens") or body.json.get("max_completion_tokens") or 0
    return size * note["tokens"] / len(there.data) <= FIT_RATIO * (window - max(output, window // 10))
