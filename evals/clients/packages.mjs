// An agent of each npm package that reads files.
//
//     node packages.mjs PREFIX openai|ai chat|responses|messages BASE_URL MODEL
//
// PREFIX is the folder whose node_modules has the packages.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const TASK = "Read every file you are told about, one after the other, and say when you are done.";
const MAX_STEPS = 400;
const PARAMETERS = { type: "object", properties: { path: { type: "string" } }, required: ["path"], additionalProperties: false };

const [prefix, library, api, base, model] = process.argv.slice(2);
const require = createRequire(`${prefix}/package.json`);
const load = async (name) => import(pathToFileURL(require.resolve(name)));

async function openai() {
  const { default: OpenAI } = await load("openai");
  const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "fake" });
  return api === "chat" ? openaiChat(client) : openaiResponses(client);
}

async function openaiChat(client) {
  const tools = [{ type: "function", function: { name: "read_file", description: "Reads a file", parameters: PARAMETERS } }];
  const messages = [{ role: "system", content: "You are a careful reader." }, { role: "user", content: TASK }];
  for (;;) {
    const { choices } = await client.chat.completions.stream({ model, messages, tools }).finalChatCompletion();
    const { content, tool_calls: calls = [] } = choices[0].message;
    if (!calls.length) return content;
    const tool_calls = calls.map(({ id, function: { name, arguments: text } }) => ({ id, type: "function", function: { name, arguments: text } }));
    messages.push({ role: "assistant", content, tool_calls });
    for (const call of calls) {
      const { path } = JSON.parse(call.function.arguments);
      messages.push({ role: "tool", tool_call_id: call.id, content: readFileSync(path, "utf8") });
    }
  }
}

async function openaiResponses(client) {
  const tools = [{ type: "function", name: "read_file", description: "Reads a file", parameters: PARAMETERS, strict: true }];
  const input = [{ role: "user", content: TASK }];
  for (;;) {
    const asked = { model, input, tools, store: false, include: ["reasoning.encrypted_content"] };
    const { output, output_text } = await client.responses.stream(asked).finalResponse();
    const calls = output.filter((item) => item.type === "function_call");
    if (!calls.length) return output_text;
    for (const { parsed_arguments, ...item } of output) {
      if (item.content) item.content = item.content.map(({ parsed, ...part }) => part);
      input.push(item);
    }
    for (const call of calls) {
      const { path } = JSON.parse(call.arguments);
      input.push({ type: "function_call_output", call_id: call.call_id, output: readFileSync(path, "utf8") });
    }
  }
}

async function ai() {
  const { streamText, tool, stepCountIs, isStepCount, jsonSchema } = await load("ai");
  const provider = async () => {
    if (api === "messages") {
      const { createAnthropic } = await load("@ai-sdk/anthropic");
      return createAnthropic({ baseURL: base + (process.env.FOLDLINE_EVAL_ROOT_URL ? "" : "/v1"), apiKey: "fake" })(model);
    }
    const { createOpenAI } = await load("@ai-sdk/openai");
    const openai = createOpenAI({ baseURL: `${base}/v1`, apiKey: "fake" });
    return api === "chat" ? openai.chat(model) : openai(model);
  };
  const read_file = tool({
    description: "Reads a file",
    inputSchema: jsonSchema(PARAMETERS),
    execute: async ({ path }) => readFileSync(path, "utf8"),
  });
  const result = streamText({
    model: await provider(),
    system: "You are a careful reader.",
    prompt: TASK,
    tools: { read_file },
    stopWhen: (stepCountIs ?? isStepCount)(MAX_STEPS),
    providerOptions: { anthropic: { thinking: { type: "adaptive" } } },
    onError: ({ error }) => {
      console.error(error);
      process.exitCode = 1;
    },
  });
  await result.consumeStream();
  return await result.text;
}

console.log(JSON.stringify({ text: await { openai, ai }[library]() }));
