"""The core of the package: sessions, folds, counts, checks, archives, errors."""

import copy
import json
import subprocess
import threading

import pytest

import foldline
from agents_of_tests import FORMATS, conversation, marker_handles, request_body, tools_of


@pytest.mark.parametrize("format", FORMATS)
def test_session_fits_obeys_laws_is_stable_and_unfolds(format):
    budget, creases, sent = 4_000, 0, []
    tools = tools_of(format)
    session = foldline.FoldSession(format=format, model=FORMATS[format], budget=budget, tools=tools)
    for messages in conversation(format, 60):
        untouched = copy.deepcopy(messages)
        session.push(*messages)
        rendering = session.request()
        assert messages == untouched
        assert rendering.tokens <= budget
        assert rendering.received_tokens >= rendering.tokens
        if not rendering.creased:
            assert rendering.messages[: len(sent)] == sent
        creases += rendering.creased
        sent = rendering.messages
        body = request_body(format, sent)
        assert foldline.broken_laws(body, format=format) == []
        assert foldline.count_tokens(body, model=FORMATS[format], format=format) == rendering.tokens
    assert 2 < creases < 30
    handles = marker_handles(sent)
    assert handles
    originals = [session.unfold(handle) for handle in handles]
    assert any("value_" in original for original in originals)


@pytest.mark.parametrize("format", FORMATS)
def test_whole_history_gives_the_same_bytes_as_a_growing_session(format):
    grown = foldline.FoldSession(format=format, model=FORMATS[format], budget=4_000)
    whole, history = foldline.FoldSession(format=format, model=FORMATS[format], budget=4_000), []
    for messages in conversation(format, 40):
        grown.push(*messages)
        history = [*history, *copy.deepcopy(messages)]
        assert whole.fold(history).messages == grown.request().messages
    # Another branch of the conversation starts over.
    branch = history[:20]
    fresh = foldline.FoldSession(format=format, model=FORMATS[format], budget=4_000)
    assert whole.fold(branch).messages == fresh.fold(branch).messages


def test_session_of_the_readme_of_the_repository():
    messages = [message for part in conversation("openai-chat", 100) for message in part]
    session = foldline.FoldSession(model="gpt-4o", budget=32_000)
    session.push(*messages)
    rendering = session.request()
    assert rendering.tokens <= 32_000 < rendering.received_tokens


def test_messages_without_folds_are_the_pushed_objects():
    session = foldline.FoldSession(model="gpt-4o", budget=4_000)
    message = {"role": "user", "content": "hi"}
    session.push(message)
    rendering = session.request()
    assert rendering.messages[0] is message
    assert (rendering.sources, rendering.first_changed, rendering.creased) == ([0], 0, False)


def test_cannot_fit_has_floor_budget_and_largest():
    session = foldline.FoldSession(model="gpt-4o", budget=200)
    session.push({"role": "user", "content": "word " * 2_000})
    with pytest.raises(foldline.CannotFit) as caught:
        session.request()
    error = caught.value
    assert isinstance(error, foldline.FoldlineError)
    assert error.budget == 200 and error.floor > 1_000
    assert error.largest is not None and error.largest[0] == 0 and error.largest[1] > 1_000


@pytest.mark.parametrize(
    "call",
    [
        lambda: foldline.FoldSession(policy="loose"),
        lambda: foldline.FoldSession(format="smoke-signals"),
        lambda: foldline.FoldSession(prices="free"),
        lambda: foldline.FoldSession(budgte=3),
        lambda: foldline.FoldSession().push("text"),
        lambda: foldline.FoldSession().push({"role": "user", "content": float("nan")}),
        lambda: foldline.FoldSession().push({"role": "user", "content": {1, 2}}),
        lambda: foldline.fold("not json"),
        lambda: foldline.replay("does-not-exist"),
    ],
)
def test_bad_input_is_a_typed_error(call):
    with pytest.raises(foldline.InvalidInput):
        call()


def write_recordings(path, count):
    """Writes recorded conversations, whose calls read files."""

    def turn(session, number):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
        text = "".join(f"value_{session}_{number}_{line} = {line * number}\n" for line in range(200))
        return [
            {"role": "assistant", "content": f"Reading file_{number}.py.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": text},
        ]

    with path.open("w") as file:
        for session in range(count):
            messages = [{"role": "user", "content": f"Task {session}: read all files."}]
            for number in range(12 + session):
                messages += turn(session, number)
            messages.append({"role": "assistant", "content": "Done."})
            file.write(json.dumps({"id": f"session-{session}", "messages": messages}) + "\n")


def test_merged_shards_are_the_replay_of_all(tmp_path):
    path = tmp_path / "recordings.jsonl"
    write_recordings(path, 6)
    settings = {"budget": 8_000, "prices": "openai"}
    shards = [foldline.replay_shard(path, shard=f"{number}/3", **settings) for number in (3, 1, 2)]
    assert json.dumps(foldline.merge_replays(shards)) == json.dumps(foldline.replay(path, **settings))
    other = foldline.replay_shard(path, shard="1/3", budget=9_000, prices="openai")
    for results in ([], shards[:2], [*shards, shards[0]], [*shards[:1], other, *shards[2:]], ["{}"]):
        with pytest.raises(foldline.InvalidInput):
            foldline.merge_replays(results)
    with pytest.raises(foldline.InvalidInput):
        foldline.replay_shard(path, shard="4/3")


def test_bad_message_adds_nothing():
    session = foldline.FoldSession(model="gpt-4o")
    with pytest.raises(foldline.InvalidInput):
        session.push({"role": "user", "content": "a"}, 7)
    assert len(session) == 0
    session.push({"role": "user", "content": "a"})
    assert len(session.request().messages) == 1


def test_text_that_has_no_utf8_form_is_kept():
    session = foldline.FoldSession(model="gpt-4o")
    message = {"role": "user", "content": "a\ud83d lone surrogate, \u00e4 and \U0001f600"}
    session.push(message)
    assert session.request().messages == [message]


def test_command_unfolds_what_a_session_folded(tmp_path, command):
    path = tmp_path / "archive.db"
    session = foldline.FoldSession(model="gpt-4o", budget=4_000, archive=path)
    for messages in conversation("openai-chat", 40):
        session.push(*messages)
        sent = session.request().messages
    handles = marker_handles(sent)
    assert handles
    for handle in handles[:3]:
        printed = subprocess.run([command, "unfold", handle, "--raw", "--archive", path], capture_output=True, check=True)
        assert printed.stdout == session.unfold_bytes(handle)
    unknown = subprocess.run([command, "unfold", "0" * 12, "--archive", path], capture_output=True)
    assert unknown.returncode != 0


def test_archive_keeps_originals_for_other_sessions(tmp_path):
    path = tmp_path / "archive.db"
    session = foldline.FoldSession(model="gpt-4o", budget=4_000, archive=path, session="first")
    for messages in conversation("openai-chat", 40):
        session.push(*messages)
        sent = session.request().messages
    handles = marker_handles(sent)
    other = foldline.FoldSession(model="gpt-4o", archive=path)
    for handle in handles:
        assert other.unfold(handle) == session.unfold(handle)
    hits = other.search("value_3_7")
    assert any("value_3_7" in other.unfold(hit.handle) for hit in hits)
    with pytest.raises(foldline.UnknownHandle):
        other.unfold("0" * 12)
    with pytest.raises(foldline.ArchiveError):
        foldline.FoldSession(archive=tmp_path)


def test_search_and_answer_without_an_archive():
    session = foldline.FoldSession(model="gpt-4o", budget=4_000)
    for messages in conversation("openai-chat", 40):
        session.push(*messages)
        rendering = session.request()
    sent = rendering.messages
    hits = session.search("value_3_7")
    assert hits and "value_3_7" in hits[0].snippet and hits[0].line > 0
    assert "value_3_7" in session.unfold(hits[0].handle)
    handle = marker_handles(sent)[0]
    assert session.answer({"handle": handle, "grep": "value"}).count("value") > 1
    assert session.answer('{"handle":"0000000000"}').startswith("Not a handle")
    assert session.answer({"handle": "0" * 12}).startswith("No original has")
    assert session.tool["function"]["name"] == "unfold"


@pytest.mark.parametrize("format", FORMATS)
def test_fold_of_one_body(format):
    messages = [message for part in conversation(format, 60) for message in part]
    body = request_body(format, messages)
    before = copy.deepcopy(body)
    folded = foldline.fold(body, budget=4_000)
    assert body == before
    assert folded.tokens <= 4_000 < folded.received_tokens
    assert foldline.broken_laws(folded.body, before=body, format=format) == []
    assert json.loads(folded.text) == folded.body
    handles = marker_handles([folded.body])
    assert handles and all(folded.unfold(handle) for handle in handles)


def test_counts():
    assert foldline.count_tokens("hello world", model="gpt-4o") == 2
    messages = [{"role": "user", "content": "hello world"}]
    assert foldline.count_tokens(messages, model="gpt-4o") > 2
    body = {"model": "claude-sonnet-4-6", "messages": messages, "system": "be brief"}
    assert foldline.count_tokens(body, format="anthropic") > foldline.count_tokens(messages, format="anthropic")


def test_context_counts_toward_the_budget():
    session = foldline.FoldSession(model="gpt-4o", budget=4_000)
    session.push({"role": "user", "content": "hi"})
    alone = session.request().tokens
    session.set_context(tools=[{"type": "function", "function": {"name": "read"}}], system="be brief " * 50)
    session.push({"role": "user", "content": "go"})
    assert session.request().tokens > alone + 100


def test_pins_are_kept():
    session = foldline.FoldSession(model="gpt-4o", budget=4_000, pin_targets=["file_1.rs"])
    for messages in conversation("openai-chat", 40):
        session.push(*messages)
        sent = session.request().messages
    assert "value_1_7" in json.dumps(sent)


def test_sessions_in_threads():
    results = {}

    def run(name):
        session = foldline.FoldSession(model="gpt-4o", budget=4_000)
        for messages in conversation("openai-chat", 30):
            session.push(*messages)
            results[name] = session.request().messages

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert all(result == results[0] for result in results.values())


def test_version_and_types():
    import importlib.resources

    assert foldline.__version__.count(".") == 2
    assert importlib.resources.files(foldline).joinpath("py.typed").is_file()
