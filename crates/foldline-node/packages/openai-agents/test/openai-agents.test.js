// The wrapped models inside the real Agents SDK: an agent of 60 turns in a window of 16k.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { brokenLaws, countTokens } from "@foldline/core";
import { foldline } from "@foldline/openai-agents";
import { Agent, MemorySession, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";

import { TASK, source } from "../../core/test/conversation.js";
import { startProvider } from "../../core/test/provider.js";
import { fromResponses, toResponses } from "../items.js";

const BUDGET = 16_000;
const TURNS = 60;

setTracingDisabled(true);

const read_file = tool({
  name: "read_file",
  description: "Reads a file.",
  parameters: { type: "object", properties: { path: { type: "string" } }, required: ["path"], additionalProperties: true },
  strict: false,
  execute: ({ path }) => source(Number(path.match(/\d+/)[0]), 60),
});

test("an agent of 60 turns stays inside its window", async () => {
  const provider = await startProvider(TURNS);
  try {
    const openAIClient = new OpenAI({ baseURL: provider.url, apiKey: "not-a-key" });
    const session = new MemorySession();
    const fold = foldline({ budget: BUDGET });
    const agent = new Agent({ name: "reader", model: "gpt-4o", instructions: "Be brief.", tools: [read_file, fold.tool] });
    const runner = new Runner({ modelProvider: fold.provider(new OpenAIProvider({ openAIClient })) });
    const result = await runner.run(agent, TASK, { session, maxTurns: 100 });

    assert.equal(result.finalOutput, "Done.");
    assert.equal(provider.reads, TURNS);
    // The history of the run and that of the session have every result as it was.
    for (const items of [result.history, await session.getItems()]) {
      const results = items.filter((item) => item.type === "function_call_result" && item.name === "read_file");
      assert.deepEqual(results.map(({ output }) => output.text ?? output), Array.from({ length: TURNS }, (_, at) => source(at + 1, 60)));
      assert.equal(items[0].content, TASK);
    }
    const unfolded = provider.bodies.map((body) => body.input.find((it) => it.call_id === "unfold_1" && it.output));
    assert(unfolded.some((item) => JSON.stringify(item?.output ?? "").includes("value_")));

    let creases = 0;
    let sent = [];
    for (const body of provider.bodies) {
      assert.deepEqual(brokenLaws(body, { format: "openai-responses" }), []);
      assert(countTokens(body, { format: "openai-responses" }) <= BUDGET);
      const kept = sent.findIndex((item, at) => JSON.stringify(item) !== JSON.stringify(body.input[at]));
      creases += kept === -1 ? 0 : 1;
      sent = body.input;
    }
    assert(creases >= 1 && creases <= 25, `${creases} creases`);
  } finally {
    provider.close();
  }
});

const ITEMS = [
  { role: "user", content: [{ type: "input_text", text: "Look." }, { type: "input_image", image: "data:image/png;base64,AA==" }] },
  { type: "reasoning", id: "r", content: [{ type: "input_text", text: "hm" }], providerData: { encryptedContent: "x" } },
  { type: "message", role: "assistant", status: "completed", content: [{ type: "output_text", text: "long" }] },
  { type: "function_call", callId: "a", name: "read", arguments: '{"path":"long"}' },
  { type: "function_call_result", callId: "a", name: "read", status: "completed", output: { type: "text", text: "whole" } },
  { type: "shell_call", callId: "s", action: { commands: ["ls"] } },
];

test("items without folds are sent as they are", () => {
  const before = ITEMS.map(toResponses);
  const sources = before.map((_, at) => at);
  const sent = fromResponses(ITEMS, before, { messages: structuredClone(before), sources });
  sent.forEach((item, at) => assert.equal(item, ITEMS[at]));
});

test("folds are mapped back to the texts that they shorten", () => {
  const before = ITEMS.map(toResponses);
  const folded = structuredClone(before);
  folded[2].content[0].text = "short";
  folded[3].arguments = '{"path":"short"}';
  folded[4].output = "[folded]";
  const note = { type: "message", role: "user", content: [{ type: "input_text", text: "note" }] };
  const sent = fromResponses(ITEMS, before, { messages: [note, ...folded], sources: [null, 0, 1, 2, 3, 4, 5] });
  assert.deepEqual(sent, [
    { type: "message", role: "user", content: "note" },
    ITEMS[0],
    ITEMS[1],
    { ...ITEMS[2], content: [{ type: "output_text", text: "short" }] },
    { ...ITEMS[3], arguments: '{"path":"short"}' },
    { ...ITEMS[4], output: { type: "text", text: "[folded]" } },
    ITEMS[5],
  ]);
});

test("input of a run whose provider holds the history is sent as it is", async () => {
  const requests = [];
  const model = { getResponse: async (request) => requests.push(request), getStreamedResponse: () => {} };
  const wrapped = await foldline({ budget: 2_000 }).provider({ getModel: () => model }).getModel("gpt-4o");
  const input = Array.from({ length: 60 }, (_, at) => ({ role: "user", content: `${at} ${"word ".repeat(100)}` }));
  const request = { input, tools: [], handoffs: [], previousResponseId: "resp_1" };
  await wrapped.getResponse(request);
  assert.equal(requests[0], request);
});

test("every line of code in the README is a line of a test", () => {
  const lines = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
  const tested = new Set(lines("./openai-agents.test.js").split("\n").map((line) => line.trim()));
  const blocks = [...lines("../README.md").matchAll(/```js\n(.*?)```/gs)].flatMap((match) => match[1].trim().split("\n"));
  assert(blocks.length > 3);
  assert.deepEqual(blocks.filter((line) => line.trim() !== "" && !tested.has(line.trim())), []);
});
