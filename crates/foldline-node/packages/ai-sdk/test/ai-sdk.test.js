// The middleware inside the real AI SDK: an agent of 60 turns in a window of 16k.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { createOpenAI } from "@ai-sdk/openai";
import { brokenLaws, countTokens } from "@foldline/core";
import { foldline } from "@foldline/ai-sdk";
import { generateText, isStepCount, jsonSchema, tool, wrapLanguageModel } from "ai";

import { TASK, source } from "../../core/test/conversation.js";
import { startProvider } from "../../core/test/provider.js";
import { fromChat, toChat } from "../prompt.js";

const BUDGET = 16_000;
const TURNS = 60;

const read_file = tool({
  description: "Reads a file.",
  inputSchema: jsonSchema({ type: "object", properties: { path: { type: "string" } }, required: ["path"] }),
  execute: ({ path }) => source(Number(path.match(/\d+/)[0]), 60),
});

test("an agent of 60 turns stays inside its window", async () => {
  const provider = await startProvider(TURNS);
  try {
    const openai = createOpenAI({ baseURL: provider.url, apiKey: "not-a-key" });
    const fold = foldline({ budget: BUDGET });
    const model = wrapLanguageModel({ model: openai.chat("gpt-4o"), middleware: fold.middleware });
    const tools = { read_file, unfold: fold.tool };
    const result = await generateText({ model, tools, instructions: "Be brief.", prompt: TASK, stopWhen: isStepCount(100) });

    assert.equal(result.text, "Done.");
    assert.equal(provider.reads, TURNS);
    // The SDK's own history has every result as it was.
    const results = result.steps.flatMap((step) => step.toolResults).filter((it) => it.toolName === "read_file");
    assert.deepEqual(results.map((it) => it.output), Array.from({ length: TURNS }, (_, at) => source(at + 1, 60)));
    const unfolded = provider.bodies.map((body) => body.messages.find((it) => it.tool_call_id === "unfold_1"));
    assert(unfolded.some((message) => message?.content.includes("value_")));

    let creases = 0;
    let sent = [];
    for (const body of provider.bodies) {
      assert.deepEqual(brokenLaws(body, { format: "openai-chat" }), []);
      assert(countTokens(body, { format: "openai-chat" }) <= BUDGET);
      const kept = sent.findIndex((message, at) => JSON.stringify(message) !== JSON.stringify(body.messages[at]));
      creases += kept === -1 ? 0 : 1;
      sent = body.messages;
    }
    assert(creases >= 1 && creases <= 25, `${creases} creases`);
  } finally {
    provider.close();
  }
});

test("a prompt without folds is sent as it is, with all kinds of parts", () => {
  const image = { type: "file", mediaType: "image/png", data: { type: "data", data: new Uint8Array([1, 2]) } };
  const call = (id, more) => ({ type: "tool-call", toolCallId: id, toolName: "read", input: { path: "a" }, ...more });
  const result = (id, output) => ({ type: "tool-result", toolCallId: id, toolName: "read", output });
  const prompt = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "text", text: "Look." }, image], providerOptions: { x: { y: 1 } } },
    {
      role: "assistant",
      content: [{ type: "reasoning", text: "hm" }, { type: "text", text: "ok" }, call("a"), call("b"), call("s", { providerExecuted: true })],
    },
    {
      role: "tool",
      content: [
        result("a", { type: "json", value: { n: 1 } }),
        result("b", { type: "content", value: [{ type: "text", text: "t" }, image] }),
      ],
    },
  ];
  const { chat, positions } = toChat(prompt);
  const sources = chat.map((_, at) => at);
  assert.deepEqual(fromChat(prompt, chat, positions, { messages: chat, sources }), prompt);
  // Equal messages of an earlier call count as unchanged too.
  assert.deepEqual(fromChat(prompt, chat, positions, { messages: structuredClone(chat), sources }), prompt);
});

test("folds are mapped back to the parts that they shorten", () => {
  const result = (id, output) => ({ type: "tool-result", toolCallId: id, toolName: "read", output });
  const call = { type: "tool-call", toolCallId: "a", toolName: "read", input: { path: "long" } };
  const prompt = [
    { role: "user", content: [{ type: "text", text: "Look." }] },
    { role: "assistant", content: [{ type: "reasoning", text: "hm" }, { type: "text", text: "long" }, call] },
    { role: "tool", content: [result("a", { type: "error-json", value: { n: 1 } }), result("b", { type: "text", value: "whole" })] },
  ];
  const { chat, positions } = toChat(prompt);
  const folded = structuredClone(chat);
  folded[1].content[1].text = "short";
  folded[1].tool_calls[0].function.arguments = '{"path":"short"}';
  folded[2].content = "[folded]";
  const note = { role: "user", content: "note" };
  const sent = fromChat(prompt, chat, positions, { messages: [note, ...folded], sources: [null, 0, 1, 2, 3] });
  assert.deepEqual(sent, [
    { role: "user", content: [{ type: "text", text: "note" }] },
    prompt[0],
    {
      role: "assistant",
      content: [{ type: "reasoning", text: "hm" }, { type: "text", text: "short" }, { ...call, input: { path: "short" } }],
    },
    { role: "tool", content: [result("a", { type: "error-text", value: "[folded]" }), prompt[2].content[1]] },
  ]);
});

test("every line of code in the README is a line of a test", () => {
  const lines = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
  const tested = new Set(lines("./ai-sdk.test.js").split("\n").map((line) => line.trim()));
  const blocks = [...lines("../README.md").matchAll(/```js\n(.*?)```/gs)].flatMap((match) => match[1].trim().split("\n"));
  assert(blocks.length > 3);
  assert.deepEqual(blocks.filter((line) => line.trim() !== "" && !tested.has(line.trim())), []);
});
