"""Runs clients whose paths name the model through the real proxy: google-genai and AzureOpenAI.

    python path_models.py PYTHON FOLDLINE [TURNS [WINDOW]]       PYTHON has google-genai and openai installed

The server checks every request: its path, its key, alternating roles and as many responses as calls (Gemini), and a tool
message for every call (Azure). Each row of the table is one session:

    turns            requests that the server accepted
    refused          prompts that did not fit
    broken           rules that requests broke; must be empty
    largest          tokens of the largest accepted prompt, as the server estimates them
    folded           requests that contain a marker; must not be 0
    done             true if the client received the final text
"""

import json
import re
import sys

import session
from session import COMMON, DONE

GEMINI_PATH = re.compile(r"/v1(?:beta)?/models/gemini-2\.5-pro:(generateContent|streamGenerateContent)(\?alt=sse)?")
AZURE_PATH = re.compile(r"/openai/deployments/gpt-4o/chat/completions\?api-version=2024-10-21")


def broken_gemini(body):
    broken, before = set(), None
    for it in body["contents"]:
        count = lambda content, key: sum(key in part for part in content["parts"])
        if before is None and it["role"] != "user" or before and before["role"] == it["role"]:
            broken.add("roles alternate")
        if before and count(before, "functionCall") != count(it, "functionResponse"):
            broken.add("calls and responses")
        if any(part.get("text") == "" for part in it["parts"]) or not it["parts"]:
            broken.add("empty text")
        before = it
    return broken


def broken_azure(body):
    broken, open_ids = set(), []
    for it in body["messages"]:
        if it["role"] == "tool":
            if it["tool_call_id"] not in open_ids:
                broken.add("result without a call")
            open_ids = [call for call in open_ids if call != it["tool_call_id"]]
            continue
        if open_ids:
            broken.add("call without a result")
        open_ids = [call["id"] for call in it.get("tool_calls") or []]
    return broken


class Provider:
    """The state of the server."""

    def __init__(self, turns, window):
        self.turns, self.window = turns, window
        self.log = {"turns": 0, "refused": 0, "broken": [], "largest": 0, "folded": 0}

    def answer(self, method, path, headers, data):
        """Returns the status, the content type and the body of a response."""
        if method != "POST":
            return 404, "application/json", b"{}"
        body, size = json.loads(data), len(data) // 4
        gemini, azure = GEMINI_PATH.fullmatch(path), AZURE_PATH.fullmatch(path)
        if not (gemini or azure):
            print(f"unknown path {path}", file=sys.stderr)
            return 404, "application/json", b"{}"
        broken = broken_gemini(body) if gemini else broken_azure(body)
        if headers.get("x-goog-api-key" if gemini else "api-key") != "invented":
            broken.add("key")
        self.log["broken"] = sorted(broken | set(self.log["broken"]))
        if size > self.window:
            self.log["refused"] += 1
            if gemini:
                text = f"The input token count ({size}) exceeds the maximum number of tokens allowed ({self.window})."
                error = {"code": 400, "status": "INVALID_ARGUMENT", "message": text}
            else:
                text = f"This model's maximum context length is {self.window} tokens. However, your messages resulted in {size} tokens."
                error = {"code": "context_length_exceeded", "message": text}
            return 400, "application/json", json.dumps({"error": error}).encode()
        self.log["turns"] += 1
        self.log["largest"] = max(self.log["largest"], size)
        self.log["folded"] += "[folded: " in json.dumps(body.get("contents") or body.get("messages"))
        number = self.log["turns"]
        text = DONE if number > self.turns else f"Reading file {number}."
        path_argument = None if number > self.turns else {"path": f"{number}.txt"}
        if gemini:
            chunks = gemini_chunks(text, path_argument, size)
            if gemini[1] == "generateContent":
                return 200, "application/json", json.dumps(joined_gemini(chunks)).encode()
            return 200, "text/event-stream", "".join(f"data: {json.dumps(it)}\r\n\r\n" for it in chunks).encode()
        if not body.get("stream"):
            return 200, "application/json", json.dumps(azure_body(text, number, path_argument, size)).encode()
        events = [json.dumps(it) for it in azure_chunks(text, number, path_argument, size)] + ["[DONE]"]
        return 200, "text/event-stream", "".join(f"data: {it}\n\n" for it in events).encode()


def gemini_chunks(text, arguments, size):
    parts = [{"text": text[:5]}, {"text": text[5:]}]
    parts += [{"functionCall": {"name": "read_file", "args": arguments}}] if arguments else []
    chunk = lambda part: {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}], "modelVersion": "gemini-2.5-pro"}
    last = chunk({"text": ""})
    last["candidates"][0]["finishReason"] = "STOP"
    last["usageMetadata"] = {"promptTokenCount": size, "candidatesTokenCount": 9, "totalTokenCount": size + 9}
    return [*map(chunk, parts), last]


def joined_gemini(chunks):
    parts = [part for it in chunks for part in it["candidates"][0]["content"]["parts"] if part.get("text") != ""]
    chunks[-1]["candidates"][0]["content"]["parts"] = parts
    return chunks[-1]


def azure_message(text, number, arguments):
    message = {"role": "assistant", "content": text}
    if arguments:
        function = {"name": "read_file", "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    return message


def azure_body(text, number, arguments, size):
    choice = {"index": 0, "message": azure_message(text, number, arguments), "finish_reason": "tool_calls" if arguments else "stop"}
    usage = {"prompt_tokens": size, "completion_tokens": 9, "total_tokens": size + 9}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice], "usage": usage}


def azure_chunks(text, number, arguments, size):
    chunk = lambda delta, end=None: {
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o",
        "choices": [{"index": 0, "delta": delta, "finish_reason": end}],
    }
    message = azure_message(text, number, arguments)
    yield {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
    yield chunk({"role": "assistant", "content": text})
    for call in message.get("tool_calls") or []:
        yield chunk({"tool_calls": [{"index": 0, **call}]})
    yield chunk({}, "tool_calls" if arguments else "stop")


# The agents: each prints the final text.
COMMON += "base, turns, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]\n"
AGENTS = {
    "google-genai": COMMON
    + """
from google import genai
from google.genai import types
client = genai.Client(api_key="invented", http_options=types.HttpOptions(base_url=base))
declaration = types.FunctionDeclaration(name="read_file", description="Reads a file.", parameters_json_schema=SCHEMA)
config = types.GenerateContentConfig(
    system_instruction="You are a careful reader.", tools=[types.Tool(function_declarations=[declaration])], max_output_tokens=1000
)
contents = [types.Content(role="user", parts=[types.Part(text=TASK)])]
for _ in range(turns + 2):
    asked = dict(model="gemini-2.5-pro", contents=contents, config=config)
    if way == "stream":
        chunks = list(client.models.generate_content_stream(**asked))
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts if part.text != ""]
    else:
        parts = client.models.generate_content(**asked).candidates[0].content.parts
    contents.append(types.Content(role="model", parts=parts))
    calls = [part.function_call for part in parts if part.function_call]
    if not calls:
        print("".join(part.text for part in parts))
        break
    results = [types.Part.from_function_response(name=it.name, response={"output": read_file(**it.args)}) for it in calls]
    contents.append(types.Content(role="user", parts=results))
""",
    "AzureOpenAI": COMMON
    + """
from openai import AzureOpenAI
client = AzureOpenAI(azure_endpoint=base, azure_deployment="gpt-4o", api_version="2024-10-21", api_key="invented")
tools = [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}]
messages = [{"role": "system", "content": "You are a careful reader."}, {"role": "user", "content": TASK}]
for _ in range(turns + 2):
    asked = dict(model="gpt-4o", messages=messages, tools=tools, max_tokens=1000)
    if way == "stream":
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**asked).choices[0].message
    calls = message.tool_calls or []
    written = {"role": "assistant", "content": message.content}
    if calls:
        written["tool_calls"] = [
            {"id": it.id, "type": "function", "function": {"name": it.function.name, "arguments": it.function.arguments}}
            for it in calls
        ]
    messages.append(written)
    if not calls:
        print(message.content)
        break
    for it in calls:
        result = read_file(**json.loads(it.function.arguments))
        messages.append({"role": "tool", "tool_call_id": it.id, "content": result})
""",
}


def run(python, foldline, name, way, turns, window):
    provider = Provider(turns, window)
    environment = session.environment_without("GOOGLE_", "GEMINI_", "OPENAI_", "AZURE_")
    with (
        session.serve(provider.answer) as upstream,
        session.proxy(foldline, upstream, "--window", str(window), environment=environment) as (base, folder),
    ):
        is_done = session.run_agent(python, AGENTS[name], [base, turns, way], environment, folder)
    row = {"client": name, "way": way, **provider.log, "done": is_done}
    row["ok"] = row["done"] and not row["broken"] and row["folded"] > 0
    return row


if __name__ == "__main__":
    session.main(AGENTS, run)
