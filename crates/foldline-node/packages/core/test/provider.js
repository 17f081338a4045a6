// A provider on loopback that answers like a model which reads files and unfolds once. It serves Chat Completions and
// Responses, and records what it received. Shared by the tests of the adapters.

import { createServer } from "node:http";

import { markerHandles } from "./conversation.js";

const UNFOLD_AT = 45;

/** Starts a provider whose model calls a tool that reads a file in each of its turns, and `unfold` once. */
export async function startProvider(turns, readTool = "read_file") {
  const provider = { bodies: [], reads: 0, unfolded: null, readTool };
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const body = JSON.parse(Buffer.concat(chunks).toString());
      provider.bodies.push(body);
      const call = nextCall(provider, body, turns);
      const isStream = body.stream === true && request.url.endsWith("/chat/completions");
      response.setHeader("content-type", isStream ? "text/event-stream" : "application/json");
      if (isStream) return response.end(chatStream(chatReply(call)));
      const reply = request.url.endsWith("/responses") ? responsesReply : chatReply;
      response.end(JSON.stringify(reply(call)));
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  provider.url = `http://127.0.0.1:${server.address().port}/v1`;
  provider.close = () => {
    server.closeAllConnections();
    server.close();
  };
  return provider;
}

function nextCall(provider, body, turns) {
  const [handle] = markerHandles(body.messages ?? body.input);
  if (provider.reads >= UNFOLD_AT && provider.unfolded === null && handle !== undefined) {
    provider.unfolded = handle;
    return ["unfold_1", "unfold", { handle }];
  }
  if (provider.reads === turns) return null;
  provider.reads += 1;
  return [`call_${provider.reads}`, provider.readTool, { path: `src/file_${provider.reads}.rs` }];
}

function chatReply(call) {
  const message = { role: "assistant", content: call === null ? "Done." : null };
  if (call !== null) {
    const [id, name, args] = call;
    message.tool_calls = [{ id, type: "function", function: { name, arguments: JSON.stringify(args) } }];
  }
  const choice = { index: 0, message, finish_reason: call === null ? "stop" : "tool_calls", logprobs: null };
  const usage = { prompt_tokens: 1, completion_tokens: 1, total_tokens: 2 };
  return { id: "x", object: "chat.completion", created: 1, model: "gpt-4o", choices: [choice], usage };
}

/** Returns a reply as a stream of two events. */
function chatStream(reply) {
  const [{ message, finish_reason }] = reply.choices;
  const tool_calls = message.tool_calls?.map((call, index) => ({ index, ...call }));
  const chunk = (choices, usage) => ({ ...reply, object: "chat.completion.chunk", choices, usage });
  const first = chunk([{ index: 0, delta: { ...message, tool_calls }, finish_reason: null }]);
  const last = chunk([{ index: 0, delta: {}, finish_reason }], reply.usage);
  return `data: ${JSON.stringify(first)}\n\ndata: ${JSON.stringify(last)}\n\ndata: [DONE]\n\n`;
}

function responsesReply(call) {
  const text = { type: "output_text", text: "Done.", annotations: [] };
  let item = { type: "message", id: "msg_1", role: "assistant", status: "completed", content: [text] };
  if (call !== null) {
    const [id, name, args] = call;
    item = { type: "function_call", id: `fc_${id}`, call_id: id, name, arguments: JSON.stringify(args), status: "completed" };
  }
  const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2, input_tokens_details: {}, output_tokens_details: {} };
  return { id: "resp_1", object: "response", created_at: 1, status: "completed", model: "gpt-4o", output: [item], usage };
}
