"""Runs clients of gateways and providers through the real proxy, each at a named upstream of the settings file.

    python named_upstreams.py PYTHON FOLDLINE [TURNS [WINDOW [CLIENT..]]]

PYTHON has the libraries of the clients installed: openai and boto3, anthropic[bedrock,google_cloud], mistralai, groq,
openrouter, or LangChain's for the same providers. Each provider has its own path, credential, rules, form of reasoning and
words for a prompt that does not fit:

    OpenRouter       `reasoning_details` come back as they were sent; at most four `cache_control`, of which those of the
                     instructions and the newest message remain; comments in streams
    DeepSeek         `reasoning_content` comes back with every call; at the others reasoning may leave, but not change
    xAI              the error is a text, not an object
    Groq, Mistral    unknown fields of messages are refused; Mistral's texts and reasoning are a list, and nothing but an
                     assistant's turn follows a result
    Mantle           Bedrock's endpoints in the form of OpenAI and of Anthropic, with a key or signed by the proxy
    Claude           the other endpoints in the form of Anthropic: Foundry, AWS, and Google Cloud

Credentials are invented. The table: `session.py`.
"""

import json

import agents
import apis
import session

KEY = "invented"
ALLOWED_FIELDS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "tool_calls"},
    "tool": {"role", "content", "tool_call_id"},
}


class Chat(session.Provider):
    """A provider of Chat Completions."""

    url, path, model, dialect, auth = "", "/v1/chat/completions", "gpt-4o", "openai-chat", "client"
    credential = ("authorization", f"Bearer {KEY}")
    comments = ()
    # Fields of a message that may leave, but not change.
    optional = ()

    def __init__(self, turns, window):
        super().__init__(turns, window)
        self.sent = {}

    def answer(self, method, path, headers, data):
        """Returns the status, the content type and the body of a response."""
        if method != "POST" or path.partition("?")[0] != self.url + self.path:
            session.report_unknown_path(method, path)
            return session.json_response({}, 404)
        body, size = json.loads(data), len(data) // 4
        broken = self.broken(body)
        if not self.is_authentic(method, path, headers, data):
            broken.add("credential")
        turn = self.receive(size, broken, body["messages"])
        if turn is None:
            return session.json_response(self.refusal(size), 400)
        return self.reply(turn, body.get("stream"))

    def is_authentic(self, method, path, headers, data):
        name, value = self.credential
        return headers.get(name) == value

    def broken(self, body):
        broken = apis.broken_chat(body)
        if body["model"] != self.model:
            broken.add("model")
        for it in body["messages"]:
            sent = self.sent.get((it.get("tool_calls") or [{}])[0].get("id"), {})
            is_kept = lambda key, value: it.get(key) == value or key in self.optional and key not in it
            broken |= {f"{key} comes back" for key, value in sent.items() if not is_kept(key, value)}
        return broken

    def reply(self, turn, is_stream):
        fields = self.fields(turn)
        if turn.arguments:
            self.sent[apis.call_id(turn)] = fields
        if not is_stream:
            return session.json_response(apis.chat_body(turn, self.model, fields))
        return session.event_stream([*self.comments, *apis.chat_chunks(turn, self.model, fields), "data: [DONE]"])

    def fields(self, turn):
        """Returns the fields of a message that come back as they were sent."""
        return {}

    def refusal(self, size):
        """Returns the body with which a prompt that does not fit is refused."""
        text = f"This model's maximum context length is {self.window} tokens. However, you requested {size} tokens "
        text += f"({size - 1000} in the messages, 1000 in the completion). Please reduce the length of the messages or completion."
        return {"error": {"message": text, "type": "invalid_request_error", "param": None, "code": "invalid_request_error"}}


class OpenRouter(Chat):
    url, path, model = "/api/v1", "/chat/completions", "anthropic/claude-sonnet-4.5"
    comments = (": OPENROUTER PROCESSING",)
    optional = ("reasoning",)
    has_marks = True

    def fields(self, turn):
        detail = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0, "text": f"File {turn.number} is next."}
        return {"reasoning": detail["text"], "reasoning_details": [detail | {"signature": f"signature of {turn.number}"}]}

    def broken(self, body):
        broken = super().broken(body)
        if not self.has_marks:
            return broken
        is_marked = lambda it: isinstance(it.get("content"), list) and any("cache_control" in part for part in it["content"])
        marked = [at for at, it in enumerate(body["messages"]) if is_marked(it)]
        if not 2 <= len(marked) <= 4 or marked[0] != 0 or marked[-1] != len(body["messages"]) - 1:
            broken.add("cache_control")
        return broken

    def refusal(self, size):
        text = f"This endpoint's maximum context length is {self.window} tokens. However, you requested about {size} tokens "
        text += f"({size - 1200} of text input, 200 of tool input, 1000 in the output). Please reduce the length of either one, "
        text += 'or use the "middle-out" transform to compress your prompt automatically.'
        return {"error": {"message": text, "code": 400, "metadata": {"provider_name": None}}, "user_id": "user_invented"}


class UnmarkedOpenRouter(OpenRouter):
    has_marks = False


class DeepSeek(Chat):
    # Clients leave out the version, and the proxy adds it; the provider accepts both.
    model = "deepseek-reasoner"

    def fields(self, turn):
        return {"reasoning_content": f"File {turn.number} is next."}


class XAi(Chat):
    url, path, model, optional = "/v1", "/chat/completions", "grok-4", ("reasoning_content",)

    def fields(self, turn):
        return {"reasoning_content": f"File {turn.number} is next."}

    def refusal(self, size):
        text = f"This model's maximum prompt length is {self.window} but the request contains {size} tokens."
        return {"code": "Client specified an invalid argument", "error": text}


class Groq(Chat):
    path, model, optional = "/openai/v1/chat/completions", "llama-3.3-70b-versatile", ("reasoning",)

    def broken(self, body):
        allowed = ALLOWED_FIELDS | {"assistant": ALLOWED_FIELDS["assistant"] | {"reasoning"}}
        return super().broken(body) | unknown_fields(body, allowed)

    def fields(self, turn):
        return {"reasoning": f"File {turn.number} is next."}

    def refusal(self, size):
        text = "Please reduce the length of the messages or completion."
        return {"error": {"message": text, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}}


class Mistral(Chat):
    model = "mistral-large-latest"

    def broken(self, body):
        optional = {"assistant": ALLOWED_FIELDS["assistant"] | {"prefix"}, "tool": ALLOWED_FIELDS["tool"] | {"name"}}
        broken = super().broken(body) | unknown_fields(body, ALLOWED_FIELDS | optional)
        roles = [it["role"] for it in body["messages"]]
        if any(before == "tool" and role not in ("tool", "assistant") for before, role in zip(roles, roles[1:])):
            broken.add("order of roles")
        ids = (call["id"] for it in body["messages"] for call in it.get("tool_calls") or [])
        if not all(len(it) == 9 and it.isalnum() for it in ids):
            broken.add("ids have nine letters or digits")
        return broken

    def fields(self, turn):
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": f"File {turn.number} is next."}]}
        return {"content": [thinking, {"type": "text", "text": turn.text}]}

    def refusal(self, size):
        text = f"Prompt contains {size} tokens and 0 draft tokens, too large for model with {self.window} maximum context length"
        return {"object": "error", "message": text, "type": "invalid_request_error", "param": None, "code": "3051"}


class MantleChat(Chat):
    path, model, dialect = "/openai/v1/chat/completions", "openai.gpt-oss-120b", "converse"

    def refusal(self, size):
        text = f"prompt tokens ({size}) exceed model maximum ({self.window})"
        return {"error": {"message": text, "type": "validation_error", "param": None, "code": "validation_error"}}


class Claude(Chat):
    """A provider of Anthropic Messages."""

    url, path, model, dialect = "/anthropic", "/v1/messages", "claude-sonnet-4-5", "anthropic"

    def broken(self, body):
        return apis.broken_laws(body, bool(body.get("tools")), False) | ({"model"} if body["model"] != self.model else set())

    def is_authentic(self, method, path, headers, data):
        return super().is_authentic(method, path, headers, data) and bool(headers.get("anthropic-version"))

    def reply(self, turn, is_stream):
        return session.event_stream(apis.message_stream(turn)) if is_stream else session.json_response(apis.message_body(turn))

    def refusal(self, size):
        text = f"prompt is too long: {size} tokens > {self.window} maximum"
        return {"type": "error", "error": {"type": "invalid_request_error", "message": text}}


class MantleClaude(Claude):
    model, dialect = "anthropic.claude-sonnet-4-5", "converse"


class Foundry(Claude):
    credential = ("api-key", KEY)


class ClaudeOnAws(Claude):
    url = ""


class ClaudeOnGoogleCloud(Claude):
    url = "/projects/invented"


def without_reasoning(kind):
    """Returns a provider whose model does not reason, for clients that do not send reasoning back."""
    return type(kind.__name__, (kind,), {"fields": Chat.fields})


def unknown_fields(body, allowed):
    """Returns the fields of messages that a provider does not know."""
    return {f"unknown field {key}" for it in body["messages"] for key in it if key not in allowed[it["role"]]}


# Marks the instructions and the newest message, as OpenRouter's guide does. All texts are parts, so that only marks move.
MARKED = """
def marked(messages):
    written = []
    for at, it in enumerate(messages):
        mark = {"cache_control": {"type": "ephemeral"}} if at in (0, len(messages) - 1) else {}
        written.append({**it, "content": [{"type": "text", "text": it["content"], **mark}]} if "content" in it else it)
    return written
"""
OPENAI = "from openai import OpenAI\nclient = OpenAI(base_url=base{}, api_key='invented')\n"
LANGCHAIN = "from {0} import {1}\nllm = {1}(model=model, base_url=base{2}, api_key='invented', max_tokens=1000)\n"
ANTHROPIC = "from anthropic import {0}\nclient = {0}(base_url=base{1})\n"
DETAILS, CONTENT = "('reasoning', 'reasoning_details')", "('reasoning_content',)"
# The provider and the agent of each client. The agent's base URL is that of the named upstream.
AGENTS = {
    "openai, OpenRouter": (OpenRouter, agents.openai_like(OPENAI.format('+"/v1"') + MARKED, DETAILS, "marked(messages)")),
    "openrouter": (
        OpenRouter,
        agents.chat(
            "from openrouter import OpenRouter\nclient = OpenRouter(api_key='invented', server_url=base + '/v1')\n"
            "complete = client.chat.send\nstream = lambda **asked: complete(stream=True, **asked)\n" + MARKED,
            DETAILS,
            "marked(messages)",
        ),
    ),
    "openai, DeepSeek": (DeepSeek, agents.openai_like(OPENAI.format(""), CONTENT)),
    "openai, xAI": (XAi, agents.openai_like(OPENAI.format('+"/v1"'), CONTENT)),
    "groq": (
        Groq,
        agents.openai_like("from groq import Groq\nclient = Groq(base_url=base, api_key='invented')\n", "('reasoning',)"),
    ),
    "mistralai": (
        Mistral,
        agents.chat(
            "from mistralai.client import Mistral\nclient = Mistral(api_key='invented', server_url=base)\n"
            "complete = client.chat.complete\nstream = lambda **asked: (it.data for it in client.chat.stream(**asked))\n"
        ),
    ),
    "langchain-openrouter": (UnmarkedOpenRouter, agents.langchain(LANGCHAIN.format("langchain_openrouter", "ChatOpenRouter", "+'/v1'"))),
    "langchain-deepseek": (without_reasoning(DeepSeek), agents.langchain(LANGCHAIN.format("langchain_deepseek", "ChatDeepSeek", ""))),
    "langchain-xai": (XAi, agents.langchain(LANGCHAIN.format("langchain_xai", "ChatXAI", "+'/v1'"))),
    "langchain-groq": (Groq, agents.langchain(LANGCHAIN.format("langchain_groq", "ChatGroq", ""))),
    "langchain-mistralai": (
        without_reasoning(Mistral),
        agents.langchain(LANGCHAIN.format("langchain_mistralai", "ChatMistralAI", "+'/v1'")),
    ),
    "BedrockOpenAI": (
        MantleChat,
        agents.openai_like(
            "from openai import BedrockOpenAI\nclient = BedrockOpenAI(base_url=base + '/openai/v1', api_key='invented', aws_region='us-east-1')\n"
        ),
    ),
    "AnthropicBedrockMantle": (
        MantleClaude,
        agents.messages(ANTHROPIC.format("AnthropicBedrockMantle", "+'/anthropic', api_key='invented', aws_region='us-east-1'")),
    ),
    "AnthropicFoundry": (Foundry, agents.messages(ANTHROPIC.format("AnthropicFoundry", "+'/anthropic', api_key='invented'"))),
    "AnthropicAWS": (
        ClaudeOnAws,
        agents.messages(ANTHROPIC.format("AnthropicAWS", ", api_key='invented', aws_region='us-east-1', workspace_id='invented'")),
    ),
    "AnthropicGoogleCloud": (
        ClaudeOnGoogleCloud,
        agents.messages(
            ANTHROPIC.format("AnthropicGoogleCloud", "+'/projects/invented', token_provider=lambda: 'invented', workspace_id='invented'")
        ),
    ),
}


def run(python, foldline, name, way, turns, window):
    kind, agent = AGENTS[name]
    provider = kind(turns, window)
    prefixes = ("OPENAI_", "AZURE_", "ANTHROPIC_", "AWS_", "GROQ_", "MISTRAL_", "OPENROUTER_", "GOOGLE_")
    environment = session.environment_without(*prefixes)
    with session.serve(provider.answer) as upstream:
        # The base URL of OpenRouter and xAI has a path at the provider; the others' have one at the client.
        url = upstream + (kind.url if not issubclass(kind, Claude) else "")
        settings = f'[upstream.named]\nurl = "{url}"\ndialect = "{kind.dialect}"\nauth = "{kind.auth}"\n'
        arguments = session.window_arguments(way, window)
        with session.proxy(foldline, upstream, *arguments, environment=environment, settings=settings) as (base, folder):
            is_done = session.run_agent(python, agent, [f"{base}/named", kind.model, window, turns, way], environment, folder)
    return provider.row(name, way, is_done)


if __name__ == "__main__":
    session.main(AGENTS, run, ("whole", "stream", "learned"))
