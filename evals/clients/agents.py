"""The agents of the scripts for single clients: one loop for each API, as the text of a program.

Each function takes the lines that create the client, and returns a program for `session.run_agent`. Its arguments are the
base URL, the model, the window, the number of turns, and the way.
"""

from session import COMMON

COMMON += "base, model, window, turns, way = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]), sys.argv[5]\n"


def chat(client, kept="()", prepare="messages"):
    """Chat Completions. The lines define `complete` and `stream`; the fields `kept` of a message are sent back."""
    return COMMON + client + CHAT.replace("KEPT", kept).replace("PREPARED", prepare)


CHAT = """
def joined(chunks):
    message = {}
    for chunk in chunks:
        for key, value in (chunk["choices"][0]["delta"] if chunk["choices"] else {}).items():
            if key == "role":
                message[key] = value
            elif value:
                message[key] = message[key] + value if message.get(key) else value
    return message

tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}}]
messages = [{"role": "system", "content": "You are a careful reader."}, {"role": "user", "content": TASK}]
for _ in range(turns + 2):
    asked = dict(model=model, messages=PREPARED, tools=tools, max_tokens=1000)
    if way == "stream":
        message = joined(chunk.model_dump(exclude_none=True) for chunk in stream(**asked))
    else:
        message = complete(**asked).choices[0].message.model_dump(exclude_none=True)
    calls = [{key: call[key] for key in ("id", "type", "function")} for call in message.get("tool_calls") or []]
    written = {key: message[key] for key in ("content", *KEPT) if message.get(key)}
    messages.append({"role": "assistant", **written, **({"tool_calls": calls} if calls else {})})
    if not calls:
        content = message["content"]
        print(content if isinstance(content, str) else content[-1]["text"])
        break
    for it in calls:
        result = read_file(**json.loads(it["function"]["arguments"]))
        messages.append({"role": "tool", "tool_call_id": it["id"], "content": result})
"""


def openai_like(client, kept="()", prepare="messages"):
    """Chat Completions with a library that has the form of OpenAI's. The lines define `client`."""
    methods = "\ncomplete = client.chat.completions.create\nstream = lambda **asked: complete(stream=True, **asked)\n"
    return chat(client + methods, kept, prepare)


def messages(client):
    """Anthropic Messages. The lines define `client`."""
    return COMMON + client + MESSAGES


MESSAGES = """
messages = [{"role": "user", "content": TASK}]
tools = [{"name": "read_file", "description": "Reads a file.", "input_schema": SCHEMA}]
for _ in range(turns + 2):
    asked = dict(model=model, messages=messages, system="You are a careful reader.", tools=tools, max_tokens=1000)
    if way == "stream":
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)
    messages.append({"role": "assistant", "content": [it.model_dump(exclude_none=True) for it in answer.content]})
    calls = [it for it in answer.content if it.type == "tool_use"]
    if not calls:
        print(answer.content[0].text)
        break
    results = [{"type": "tool_result", "tool_use_id": it.id, "content": read_file(**it.input)} for it in calls]
    messages.append({"role": "user", "content": results})
"""


def genai(client):
    """google-genai. The lines define `client`; `types` and `options` are imported and created before them."""
    return COMMON + GENAI.replace("CLIENT", client)


GENAI = """
from google import genai
from google.genai import types
options = types.HttpOptions(base_url=base)
client = CLIENT
declaration = types.FunctionDeclaration(name="read_file", description="Reads a file.", parameters_json_schema=SCHEMA)
config = types.GenerateContentConfig(
    system_instruction="You are a careful reader.", tools=[types.Tool(function_declarations=[declaration])], max_output_tokens=1000
)
contents = [types.Content(role="user", parts=[types.Part(text=TASK)])]
for _ in range(turns + 2):
    asked = dict(model=model, contents=contents, config=config)
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
"""


def langchain(model):
    """A chat model of LangChain. The lines define `llm`."""
    return COMMON + model + LANGCHAIN


LANGCHAIN = """
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
llm = llm.bind_tools([read_file])
messages = [SystemMessage("You are a careful reader."), HumanMessage(TASK)]
for _ in range(turns + 2):
    if way == "stream":
        answer = None
        for chunk in llm.stream(messages):
            answer = chunk if answer is None else answer + chunk
    else:
        answer = llm.invoke(messages)
    messages.append(answer)
    if not answer.tool_calls:
        print(answer.text if isinstance(answer.text, str) else answer.text())
        break
    for call in answer.tool_calls:
        messages.append(ToolMessage(read_file(**call["args"]), tool_call_id=call["id"], name=call["name"]))
"""


def genai_javascript(options):
    """@google/genai for JavaScript. The lines are the options of its client."""
    return GENAI_JAVASCRIPT.replace("OPTIONS", options)


GENAI_JAVASCRIPT = """// An agent with @google/genai.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const [prefix, base, model, , turns, way] = process.argv.slice(1);
const require = createRequire(`${prefix}/package.json`);
const { GoogleGenAI } = await import(pathToFileURL(require.resolve("@google/genai")));
const ai = new GoogleGenAI(OPTIONS);
const readFile = ({ path }) =>
  Array.from({ length: 150 }, (_, at) => `${path}: line ${at} of the file has the value ${(at * 7919) % 1009}\\n`).join("");
const schema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const functionDeclarations = [{ name: "read_file", description: "Reads a file.", parametersJsonSchema: schema }];
const config = { systemInstruction: "You are a careful reader.", tools: [{ functionDeclarations }], maxOutputTokens: 1000 };
const contents = [{ role: "user", parts: [{ text: "Read every file that is listed, one after the other, and report the end." }] }];
for (let turn = 0; turn < Number(turns) + 2; turn++) {
  const parts = [];
  const asked = { model, contents, config };
  const responses = way === "stream" ? await ai.models.generateContentStream(asked) : [await ai.models.generateContent(asked)];
  for await (const it of responses) parts.push(...it.candidates[0].content.parts.filter((part) => part.text !== ""));
  contents.push({ role: "model", parts });
  const calls = parts.flatMap((part) => part.functionCall ?? []);
  if (!calls.length) {
    console.log(parts.map((part) => part.text).join(""));
    break;
  }
  const result = ({ name, args }) => ({ functionResponse: { name, response: { output: readFile(args) } } });
  contents.push({ role: "user", parts: calls.map(result) });
}
"""
