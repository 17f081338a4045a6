"""Runs clients whose paths name the model through the real proxy: Gemini, Gemini and Claude on Vertex, and Azure OpenAI.

    python path_models.py PYTHON FOLDLINE [TURNS [WINDOW [CLIENT..]]]

PYTHON has the libraries of the clients installed: google-genai, anthropic[vertex], openai; langchain-google-genai, which
needs an older google-genai; for the client in JavaScript it is the folder whose node_modules has @google/genai.

The server checks every request: its path, its key, alternating roles, as many responses as calls and their signatures
(Gemini), a tool message for every call (Azure), and the laws of Anthropic Messages (Claude). Credentials are invented. The
table: `session.py`.
"""

import json
import re

import agents
import apis
import session

MODELS = {"gemini": "gemini-2.5-pro", "azure": "gpt-4o", "claude": "claude-sonnet-4-5@20250929"}
PROJECT = "/v1(?:beta1)?/projects/invented/locations/us-east5/publishers"
METHOD = r"(generateContent|streamGenerateContent)(?:\?alt=sse)?"
# The API, its path, and the header that has the key.
ROUTES = [
    ("gemini", rf"/v1(?:beta)?/models/{MODELS['gemini']}:{METHOD}", ("x-goog-api-key", "invented")),
    ("gemini", rf"{PROJECT}/google/models/{MODELS['gemini']}:{METHOD}", ("authorization", "Bearer ya29.invented")),
    ("claude", rf"{PROJECT}/anthropic/models/{MODELS['claude']}:(rawPredict|streamRawPredict)", ("authorization", "Bearer ya29.invented")),
    ("azure", r"/openai/deployments/gpt-4o/(chat/completions)\?api-version=2024-10-21", ("api-key", "invented")),
]


class PathProvider(session.Provider):
    """The state of the server."""

    def answer(self, method, path, headers, data):
        """Returns the status, the content type and the body of a response."""
        found = ((api, match[1], key) for api, pattern, key in ROUTES if (match := re.fullmatch(pattern, path)))
        api, method, (key_header, key) = next(found, (None, None, (None, None)))
        if not api:
            session.report_unknown_path(method, path)
            return session.json_response({}, 404)
        body, size = json.loads(data), len(data) // 4
        broken = {"gemini": apis.broken_gemini, "azure": apis.broken_chat, "claude": broken_claude}[api](body)
        if headers.get(key_header) != key:
            broken.add("key")
        if api == "claude" and body.get("stream", False) != (method == "streamRawPredict"):
            broken.add("stream")
        turn = self.receive(size, broken, body.get("contents") or body.get("messages"))
        if turn is None:
            return session.json_response(refusal(api, size, self.window), 400)
        is_stream = method.startswith("stream") or body.get("stream")
        if api == "gemini":
            return gemini_stream(turn) if is_stream else session.json_response(apis.gemini_body(turn))
        if api == "claude":
            return session.event_stream(apis.message_stream(turn)) if is_stream else session.json_response(apis.message_body(turn))
        if not is_stream:
            return session.json_response(apis.chat_body(turn, "gpt-4o"))
        filtered = {"id": "", "object": "", "created": 0, "model": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}
        return session.event_stream([filtered, *apis.chat_chunks(turn, "gpt-4o"), "data: [DONE]"])


def gemini_stream(turn):
    status, kind, data = session.event_stream(apis.gemini_chunks(turn))
    return status, kind, data.replace(b"\n", b"\r\n")


def broken_claude(body):
    """Returns the laws that a request to Claude on Vertex breaks."""
    broken = apis.broken_laws(body, bool(body.get("tools")), False)
    if "model" in body:
        broken.add("the path names the model")
    if not body.get("anthropic_version"):
        broken.add("anthropic_version")
    return broken


def refusal(api, size, window):
    """Returns the body with which a provider refuses a prompt that does not fit."""
    if api == "gemini":
        text = f"The input token count ({size}) exceeds the maximum number of tokens allowed ({window})."
        return {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": text}}
    if api == "claude":
        text = f"prompt is too long: {size} tokens > {window} maximum"
        return {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    text = f"This model's maximum context length is {window} tokens. However, your messages resulted in {size} tokens."
    return {"error": {"code": "context_length_exceeded", "message": text}}


GOOGLE_CREDENTIALS = 'vertexai=True, project="invented", location="us-east5", credentials=Credentials("ya29.invented")'
OAUTH = "from google.oauth2.credentials import Credentials\n"
# The model and the agent of each client.
AGENTS = {
    "google-genai": ("gemini", agents.genai('genai.Client(api_key="invented", http_options=options)')),
    "google-genai, Vertex": ("gemini", OAUTH + agents.genai(f"genai.Client({GOOGLE_CREDENTIALS}, http_options=options)")),
    "langchain-google-genai": (
        "gemini",
        agents.langchain(
            "from langchain_google_genai import ChatGoogleGenerativeAI\n"
            'llm = ChatGoogleGenerativeAI(model=model, base_url=base, google_api_key="invented")\n'
        ),
    ),
    "langchain-google-genai, Vertex": (
        "gemini",
        agents.langchain(
            OAUTH + "from langchain_google_genai import ChatGoogleGenerativeAI\n"
            f"llm = ChatGoogleGenerativeAI(model=model, base_url=base, {GOOGLE_CREDENTIALS})\n"
        ),
    ),
    "@google/genai": ("gemini", agents.genai_javascript('{ apiKey: "invented", httpOptions: { baseUrl: base } }')),
    "AnthropicVertex": (
        "claude",
        agents.messages(
            "from anthropic import AnthropicVertex\n"
            'client = AnthropicVertex(base_url=base + "/v1", region="us-east5", project_id="invented", access_token="ya29.invented")\n'
        ),
    ),
    "AzureOpenAI": (
        "azure",
        agents.openai_like(
            "from openai import AzureOpenAI\n"
            'azure = dict(azure_deployment="gpt-4o", api_version="2024-10-21", api_key="invented")\n'
            "client = AzureOpenAI(azure_endpoint=base, **azure)\n"
        ),
    ),
}


def run(python, foldline, name, way, turns, window):
    provider, (model, agent) = PathProvider(turns, window), AGENTS[name]
    environment = session.environment_without("GOOGLE_", "GEMINI_", "OPENAI_", "AZURE_", "ANTHROPIC_")
    with (
        session.serve(provider.answer) as upstream,
        session.proxy(foldline, upstream, *session.window_arguments(way, window), environment=environment) as (base, folder),
    ):
        is_done = session.run_agent(python, agent, [base, MODELS[model], window, turns, way], environment, folder)
    return provider.row(name, way, is_done)


if __name__ == "__main__":
    session.main(AGENTS, run, ("whole", "stream", "learned"))
