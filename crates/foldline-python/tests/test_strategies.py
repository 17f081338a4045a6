"""The classic strategies: over messages of every format, with their options."""

import copy
import json

import pytest

import foldline
from agents_of_tests import FORMATS, conversation, request_body, round_of, model_text, source, user
from foldline import strategies

#: Strategies with options that change the conversation of `history_of`.
ENABLED = {
    "apply_all": {"middle": {}, "calls": {}, "snippets": {}},
    "compact_to_budget": {"budget": 8_000},
    "dedup_tool_calls": {},
    "dedup_tool_outputs": {},
    "prune_low_entropy": {},
    "repair_orphans": {},
    "snippet_stale_tool_outputs": {},
    "terminal_truncate": {"budget": 2_000},
    "trim_middle": {},
    # prune_thinking has a test of its own: only some formats have reasoning.
}


def history_of(format):
    """Returns a conversation in which every strategy finds something: repeats, long results, noise, and an open call."""
    messages = [message for part in conversation(format, 8) for message in part]
    messages += round_of(format, "long", "read_file", {"path": "src/long.rs"}, source(90, 400))
    for at in range(2):
        path = {"path": "src/a_path_that_is_long_enough_to_be_replaced_by_a_reference_to_the_first_call.rs"}
        messages += round_of(format, f"again{at}", "read_file", path, source(91, 40))
    messages += [model_text(format, "I look. " + " " * 200 + "\n\n\n\n\nDone."), user(format, "Go on.")]
    messages += round_of(format, "open", "read_file", {"path": "src/open.rs"}, "lost")[:1]
    messages += [user(format, "Never mind.")]
    return messages + [message for at in range(50, 57) for message in round_of(format, f"c{at}", "ls", {"at": at}, "ok")]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ENABLED)
def test_strategy_shortens_and_is_idempotent(name, format):
    strategy, options = getattr(strategies, name), ENABLED[name]
    history = strategies.repair_orphans(history_of(format), format=format).messages
    if name == "repair_orphans":
        history = history_of(format)
    before = copy.deepcopy(history)
    shortened = strategy(history, format=format, **options)
    assert history == before
    # Without ids of calls there is nothing that a reference could name.
    has_ids = format not in ("gemini", "ollama")
    assert (shortened.messages != history) == (has_ids or not name.startswith("dedup"))
    for message, source_index in zip(shortened.messages, shortened.sources):
        assert source_index is None or message is history[source_index] or message != history[source_index]
    assert {index for index in shortened.sources if index is not None}.isdisjoint(shortened.dropped)
    body = request_body(format, shortened.messages)
    assert foldline.broken_laws(body, before=request_body(format, before), format=format) == []
    assert strategy(shortened.messages, format=format, **options).messages == shortened.messages


def test_strategies_of_the_guide():
    history = [message for part in conversation("openai-chat", 40) for message in part]
    from foldline.strategies import apply_all, compact_to_budget

    view = apply_all(history).messages
    assert view == history
    view = compact_to_budget(history, 16_000, model="gpt-4o").messages
    assert foldline.count_tokens(view, model="gpt-4o") <= 16_000 < foldline.count_tokens(history, model="gpt-4o")
    assert [message["role"] for message in view] == [message["role"] for message in history]


def test_statistics_state_what_was_done():
    history = history_of("openai-chat")
    stats = strategies.apply_all(history).stats
    assert stats["outputs"]["hits"] == 1 and stats["repairs"]["unanswered"] == 1 and stats["middle"]["hits"] == 0
    assert strategies.dedup_tool_outputs(history).stats["bytes_saved"] > 500
    compacted = strategies.compact_to_budget(history, 8_000)
    assert compacted.stats["fits"] and compacted.stats["after"] <= 8_000 < compacted.stats["before"]
    assert not strategies.compact_to_budget(history, 10).stats["fits"]
    truncated = strategies.terminal_truncate(history, 2_000)
    assert truncated.stats["fits"] and truncated.stats["dropped"] == len(truncated.dropped) > 0


def test_fields_of_shortened_messages_are_kept():
    history = history_of("openai-chat")
    for at, message in enumerate(history):
        message["x_mark"] = at
    shortened = strategies.snippet_stale_tool_outputs(history)
    (changed,) = [at for at, message in enumerate(shortened.messages) if message is not history[at]]
    assert shortened.messages[changed].keys() == history[changed].keys()
    assert shortened.messages[changed]["x_mark"] == changed
    assert len(shortened.messages[changed]["content"]) < len(history[changed]["content"])


def test_old_thinking_is_pruned():
    history = [user("anthropic", "Read them.")]
    for at in range(6):
        thought = {"type": "thinking", "thinking": f"I read file {at}."}
        call, result = round_of("anthropic", f"c{at}", "read_file", {"path": f"{at}.rs"}, source(at))
        history += [{**call, "content": [thought, *call["content"]]}, result]
    pruned = strategies.prune_thinking(history, format="anthropic", keep_last=4)
    kept = [at for at, message in enumerate(pruned.messages) if "thinking" in json.dumps(message)]
    assert pruned.stats["hits"] == 4 and kept == [9, 11]
    all_kept = strategies.prune_thinking(history, format="anthropic", retention="keep_all")
    assert all_kept.messages == history and all_kept.dropped == []


def test_texts_are_counted_and_compressed():
    log = "".join(f"step {line} is fine\n" for line in range(400)) + "error: no such field\n"
    compressed = strategies.compress(log, 200)
    assert "error: no such field" in compressed.text and compressed.after <= 200 < compressed.before
    assert compressed.omitted_lines > 300
    assert strategies.estimate_tokens("fold the old parts") == 6
    messages = [user("openai-chat", "fourteen bytes")]
    assert strategies.total_tokens(messages) == 4 + 8
    assert strategies.total_tokens(request_body("openai-chat", messages)) > 4 + 8


@pytest.mark.parametrize(
    "call",
    [
        lambda: strategies.apply_all([], kep_last=3),
        lambda: strategies.apply_all([], outputs={"keep_last": "three"}),
        lambda: strategies.trim_middle([], format="smoke-signals"),
        lambda: strategies.prune_thinking([], retention="drop_everything"),
        lambda: strategies.compact_to_budget([], -1),
        lambda: strategies.repair_orphans([7]),
        lambda: strategies.compress("text", 5, max_chunk_bytes="many"),
    ],
)
def test_bad_input_is_a_typed_error(call):
    with pytest.raises(foldline.InvalidInput):
        call()
