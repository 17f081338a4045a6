// Conversations of a scripted agent in several formats. Shared by the tests of all packages.

/** Formats, each with a model. */
export const FORMATS = {
  "openai-chat": "gpt-4o",
  "openai-responses": "gpt-4o",
  anthropic: "claude-sonnet-4-6",
  gemini: "gemini-2.5-pro",
  ollama: "qwen3:8b",
  converse: "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
};

export const TASK = "Make the parser in src/parser.rs faster and keep its tests green.";

/** Returns the text of a file, different for every file. */
export function source(file, lines = 30) {
  return Array.from({ length: lines }, (_, line) => `let value_${file}_${line} = parse(input_${file}, ${line});\n`).join("");
}

/** Yields the messages before each request: the task, then one round at a time. */
export function* conversation(format, rounds, lines = 30) {
  const texts = [{ text: TASK }];
  if (format === "gemini") yield [{ role: "user", parts: texts }];
  else yield [{ role: "user", content: format === "converse" ? texts : TASK }];
  for (let at = 1; at < rounds; at++) {
    yield roundOf(format, `c${at}`, "read_file", { path: `src/file_${at}.rs` }, source(at, lines));
  }
}

function roundOf(format, id, name, args, result) {
  const encoded = JSON.stringify(args);
  switch (format) {
    case "openai-chat":
      return [
        { role: "assistant", content: null, tool_calls: [{ id, type: "function", function: { name, arguments: encoded } }] },
        { role: "tool", tool_call_id: id, content: result },
      ];
    case "openai-responses":
      return [
        { type: "function_call", call_id: id, name, arguments: encoded },
        { type: "function_call_output", call_id: id, output: result },
      ];
    case "anthropic":
      return [
        { role: "assistant", content: [{ type: "tool_use", id, name, input: args }] },
        { role: "user", content: [{ type: "tool_result", tool_use_id: id, content: result }] },
      ];
    case "ollama":
      return [
        { role: "assistant", content: "", tool_calls: [{ function: { name, arguments: args } }] },
        { role: "tool", tool_name: name, content: result },
      ];
    case "converse":
      return [
        { role: "assistant", content: [{ toolUse: { toolUseId: id, name, input: args } }] },
        { role: "user", content: [{ toolResult: { toolUseId: id, content: [{ text: result }] } }] },
      ];
    default:
      return [
        { role: "model", parts: [{ functionCall: { name, args } }] },
        { role: "user", parts: [{ functionResponse: { name, response: { output: result } } }] },
      ];
  }
}

/** Returns a request body with these messages and the tool of the conversations. */
export function requestBody(format, messages) {
  const schema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
  const named = { name: "read_file", description: "Reads a file." };
  const model = FORMATS[format];
  switch (format) {
    case "openai-chat":
    case "ollama":
      return { model, tools: [{ type: "function", function: { ...named, parameters: schema } }], messages };
    case "openai-responses":
      return { model, tools: [{ type: "function", ...named, parameters: schema }], input: messages };
    case "anthropic":
      return { model, max_tokens: 1_000, tools: [{ ...named, input_schema: schema }], messages };
    case "converse":
      return { toolConfig: { tools: [{ toolSpec: { ...named, inputSchema: { json: schema } } }] }, messages };
    default:
      return { tools: [{ functionDeclarations: [{ ...named, parameters: schema }] }], contents: messages };
  }
}

/** Returns the declarations of the tool of the conversations. */
export function toolsOf(format) {
  const body = requestBody(format, []);
  return format === "converse" ? body.toolConfig.tools : body.tools;
}

/** Returns the handles in markers, in order. */
export function markerHandles(value) {
  return [...JSON.stringify(value).matchAll(/unfold ([0-9a-z]{12})\b/g)].map((match) => match[1]);
}
