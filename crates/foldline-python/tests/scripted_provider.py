"""A provider on loopback that answers like a model which reads 60 files and unfolds once.

It serves Chat Completions, Responses and Messages, checks every request by the laws of its API, and
records what it received.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import foldline
from agents_of_tests import marker_handles

FORMATS_BY_PATH = {
    "/v1/chat/completions": ("openai-chat", "messages"),
    "/v1/responses": ("openai-responses", "input"),
    "/v1/messages": ("anthropic", "messages"),
}


class ScriptedProvider:
    """Answers with `turns` calls of `read_file`, one call of `unfold` in between, then a text."""

    def __init__(self, turns=60, unfold_at=45):
        self.turns, self.unfold_at = turns, unfold_at
        self.bodies, self.formats, self.reads, self.unfolded = [], [], 0, None
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                raw = self.rfile.read(int(self.headers["content-length"]))
                answer = json.dumps(provider.answer(self.path, json.loads(raw))).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path, body):
        format, key = FORMATS_BY_PATH[path]
        self.bodies.append(body)
        self.formats.append((format, key))
        handles = marker_handles(body[key])
        if self.reads >= self.unfold_at and self.unfolded is None and handles:
            self.unfolded = handles[0]
            return reply(format, ("unfold_1", "unfold", {"handle": handles[0]}))
        if self.reads < self.turns:
            self.reads += 1
            return reply(format, (f"call_{self.reads}", "read_file", {"path": f"src/file_{self.reads}.rs"}))
        return reply(format, None)

    def check(self, budget, max_creases=25):
        """Checks the guarantees on everything that was received; returns the number of creases."""
        assert self.reads == self.turns and self.unfolded, (self.reads, self.unfolded)
        creases, sent = 0, []
        for body, (format, key) in zip(self.bodies, self.formats):
            broken = foldline.broken_laws(body, format=format)
            assert broken == [], broken
            assert foldline.count_tokens(body, format=format) <= budget
            kept = sum(1 for _ in _common_prefix(sent, body[key]))
            creases += kept < len(sent)
            sent = body[key]
        assert 1 <= creases <= max_creases, creases
        unfolded = [body for body, (_, key) in zip(self.bodies, self.formats) if "unfold_1" in json.dumps(body[key])]
        assert unfolded and "value_" in json.dumps(result_of(unfolded[0], "unfold_1"))
        return creases


def _common_prefix(before, after):
    for a, b in zip(before, after):
        if a != b:
            return
        yield a


def result_of(body, call):
    """Returns the message with the result of a call."""
    messages = body.get("messages") or body["input"]
    return [message for message in messages if call in json.dumps(message)][-1]


def reply(format, call):
    """Returns an answer with a call of a tool, or with a text."""
    if format == "openai-chat":
        message = {"role": "assistant", "content": None if call else "Done."}
        if call:
            function = {"name": call[1], "arguments": json.dumps(call[2])}
            message["tool_calls"] = [{"id": call[0], "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop", "logprobs": None}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "x", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice], "usage": usage}
    if format == "openai-responses":
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
        item["content"] = [{"type": "output_text", "text": "Done.", "annotations": []}]
        if call:
            item = {"type": "function_call", "id": f"fc_{call[0]}", "call_id": call[0], "name": call[1]}
            item |= {"arguments": json.dumps(call[2]), "status": "completed"}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
        return {
            "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-4o", "status": "completed",
            "output": [item], "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "usage": usage,
        }
    block = {"type": "text", "text": "Done."}
    if call:
        block = {"type": "tool_use", "id": call[0], "name": call[1], "input": call[2]}
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6", "content": [block],
        "stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
