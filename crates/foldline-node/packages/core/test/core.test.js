// The core of the package: sessions, folds, counts, checks, archives, errors.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import * as foldline from "../index.js";
import { FORMATS, conversation, markerHandles, requestBody, toolsOf } from "./conversation.js";

/** Pushes a conversation and returns the last rendering. */
function run(session, rounds = 40) {
  let rendering;
  for (const messages of conversation("openai-chat", rounds)) {
    session.push(...messages);
    rendering = session.request();
  }
  return rendering;
}

for (const [format, model] of Object.entries(FORMATS)) {
  test(`session fits, obeys laws, is stable and unfolds: ${format}`, () => {
    const budget = 4_000;
    const tools = toolsOf(format);
    const session = new foldline.FoldSession({ format, model, budget, tools });
    let creases = 0;
    let sent = [];
    for (const messages of conversation(format, 60)) {
      const before = structuredClone(messages);
      session.push(...messages);
      const rendering = session.request();
      assert.deepEqual(messages, before);
      assert(rendering.tokens <= budget && rendering.receivedTokens >= rendering.tokens);
      if (!rendering.creased) assert.deepEqual(rendering.messages.slice(0, sent.length), sent);
      creases += rendering.creased ? 1 : 0;
      sent = rendering.messages;
      const body = requestBody(format, sent);
      assert.deepEqual(foldline.brokenLaws(body, { format }), []);
      assert.equal(foldline.countTokens(body, { model, format }), rendering.tokens);
    }
    assert(creases > 2 && creases < 30, `${creases} creases`);
    const handles = markerHandles(sent);
    assert(handles.some((handle) => session.unfold(handle).includes("value_")));
  });

  test(`whole history gives the same messages as a growing session: ${format}`, () => {
    const grown = new foldline.FoldSession({ format, model, budget: 4_000 });
    const whole = new foldline.FoldSession({ format, model, budget: 4_000 });
    let history = [];
    for (const messages of conversation(format, 40)) {
      grown.push(...messages);
      history = [...history, ...structuredClone(messages)];
      assert.deepEqual(whole.fold(history).messages, grown.request().messages);
    }
    const branch = history.slice(0, 20);
    const fresh = new foldline.FoldSession({ format, model, budget: 4_000 });
    assert.deepEqual(whole.fold(branch).messages, fresh.fold(branch).messages);
  });

  test(`fold of one body: ${format}`, () => {
    const body = requestBody(format, [...conversation(format, 60)].flat());
    const before = structuredClone(body);
    const folded = foldline.fold(body, { budget: 4_000 });
    assert.deepEqual(body, before);
    assert(folded.tokens <= 4_000 && folded.receivedTokens > 4_000);
    assert.deepEqual(foldline.brokenLaws(folded.body, { before: body, format }), []);
    assert.deepEqual(JSON.parse(folded.text), folded.body);
    const handles = markerHandles(folded.body);
    assert(handles.length > 0 && handles.every((handle) => folded.unfold(handle).length > 0));
  });
}

test("messages without folds are the pushed objects", () => {
  const session = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000 });
  const message = { role: "user", content: "hi" };
  session.push(message);
  const rendering = session.request();
  assert.equal(rendering.messages[0], message);
  assert.deepEqual([rendering.sources, rendering.firstChanged, rendering.creased], [[0], 0, false]);
});

test("CannotFit has floor, budget and largest", () => {
  const session = new foldline.FoldSession({ model: "gpt-4o", budget: 200 });
  session.push({ role: "user", content: "word ".repeat(2_000) });
  assert.throws(
    () => session.request(),
    (error) => {
      assert(error instanceof foldline.CannotFit && error instanceof foldline.FoldlineError);
      assert.equal(error.name, "CannotFit");
      assert(error.budget === 200 && error.floor > 1_000);
      assert(error.largest.message === 0 && error.largest.tokens > 1_000);
      return true;
    },
  );
});

test("bad input is a typed error and adds nothing", () => {
  const circular = {};
  circular.self = circular;
  const calls = [
    () => new foldline.FoldSession({ policy: "loose" }),
    () => new foldline.FoldSession({ format: "smoke-signals" }),
    () => new foldline.FoldSession({ prices: "free" }),
    () => new foldline.FoldSession({ budgte: 3 }),
    () => new foldline.FoldSession().push("text"),
    () => new foldline.FoldSession().push(circular),
    () => new foldline.FoldSession().push({ role: "user", content: 1n }),
    () => foldline.fold("not json"),
    () => foldline.replay("does-not-exist"),
  ];
  for (const call of calls) assert.throws(call, foldline.InvalidInput, String(call));
  const session = new foldline.FoldSession({ model: "gpt-4o" });
  assert.throws(() => session.push({ role: "user", content: "a" }, 7), foldline.InvalidInput);
  assert.equal(session.length, 0);
  session.push({ role: "user", content: "a" });
  assert.equal(session.request().messages.length, 1);
});

test("text without a UTF-8 form is kept", () => {
  const session = new foldline.FoldSession({ model: "gpt-4o" });
  const message = { role: "user", content: "a\ud83d lone surrogate, \u00e4 and \u{1f600}" };
  session.push(message);
  assert.deepEqual(session.request().messages, [message]);
});

test("archive keeps originals for other sessions", () => {
  const folder = mkdtempSync(join(tmpdir(), "foldline-"));
  try {
    const archive = join(folder, "archive.db");
    const session = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000, archive, session: "first" });
    const handles = markerHandles(run(session).messages);
    const other = new foldline.FoldSession({ model: "gpt-4o", archive });
    assert(handles.length > 0);
    for (const handle of handles) assert.equal(other.unfold(handle), session.unfold(handle));
    const hits = other.search("value_3_7");
    assert(hits.some((hit) => other.unfold(hit.handle).includes("value_3_7")));
    assert.throws(() => other.unfold("0".repeat(12)), foldline.UnknownHandle);
    assert.throws(() => new foldline.FoldSession({ archive: folder }), foldline.ArchiveError);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("search and answer without an archive", () => {
  const session = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000 });
  const [handle] = markerHandles(run(session).messages);
  const [hit] = session.search("value_3_7");
  assert(hit.snippet.includes("value_3_7") && hit.line > 0);
  assert(session.unfold(hit.handle).includes("value_3_7"));
  assert(session.answer({ handle, grep: "value" }).split("value").length > 2);
  assert(session.answer('{"handle":"0000000000"}').startsWith("Not a handle"));
  assert(session.answer({ handle: "0".repeat(12) }).startsWith("No original has"));
  assert.equal(session.tool.function.name, "unfold");
});

test("tools and system count toward the budget", () => {
  const session = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000 });
  session.push({ role: "user", content: "hi" });
  const alone = session.request().tokens;
  session.setContext({ tools: [{ type: "function", function: { name: "read" } }], system: "be brief ".repeat(50) });
  session.push({ role: "user", content: "go" });
  assert(session.request().tokens > alone + 100);
});

test("pins are kept", () => {
  const session = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000, pinTargets: ["file_1.rs"] });
  assert(JSON.stringify(run(session).messages).includes("value_1_7"));
});

test("a pool finds the session of a history and sends what cannot fit unless strict", () => {
  const pool = new foldline.SessionPool({ model: "gpt-4o", budget: 4_000, limit: 2 });
  const histories = [1, 2, 3].map(() => []);
  for (const messages of conversation("openai-chat", 30)) {
    for (const [at, history] of histories.entries()) {
      history.push(...(history.length === 0 ? [{ role: "user", content: `Task ${at}` }] : messages));
      const alone = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000 });
      if (history.length % 20 === 1) assert.deepEqual(pool.fold(history).messages, alone.fold(history).messages);
    }
  }
  assert(pool.answer({ handle: markerHandles(pool.last.messages)[0] }).length > 0);
  const large = [{ role: "user", content: "word ".repeat(5_000) }];
  assert.equal(pool.fold(large), null);
  const strict = new foldline.SessionPool({ model: "gpt-4o", budget: 4_000, strict: true });
  assert.throws(() => strict.fold(large), foldline.CannotFit);
  assert.throws(() => new foldline.SessionPool({ policy: "loose" }), foldline.InvalidInput);
});

for (const [format, model] of Object.entries(FORMATS)) {
  test(`classic strategies: ${format}`, () => {
    const history = [...conversation(format, 40)].flat();
    const before = structuredClone(history);
    const trimmed = foldline.applyStrategy("trim_middle", history, { format, keep_first: 1 });
    assert(trimmed.messages.length < history.length && trimmed.stats.hits > 10);
    assert.equal(trimmed.messages.at(-1), history.at(-1));
    assert.equal(trimmed.sources.at(-1), history.length - 1);
    const compacted = foldline.applyStrategy("compact_to_budget", history, { format, budget: 12_000, model });
    assert(compacted.stats.fits && foldline.countTokens(history, { format, model }) > 12_000);
    for (const { messages } of [trimmed, compacted]) {
      assert.deepEqual(foldline.brokenLaws(requestBody(format, messages), { format }), []);
    }
    assert.deepEqual(history, before);
  });
}

test("bad options of a strategy are a typed error", () => {
  const calls = [
    () => foldline.applyStrategy("trim_everything", []),
    () => foldline.applyStrategy("trim_middle", [], { keepLast: 3 }),
    () => foldline.applyStrategy("compact_to_budget", []),
  ];
  for (const call of calls) assert.throws(call, foldline.InvalidInput, String(call));
});

test("counts and version", () => {
  assert.equal(foldline.countTokens("hello world", { model: "gpt-4o" }), 2);
  assert(foldline.countTokens([{ role: "user", content: "hello world" }], { model: "gpt-4o" }) > 2);
  const manifest = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8"));
  assert.equal(foldline.version, manifest.version);
});

test("the lines of the README work", () => {
  const messages = [...conversation("openai-chat", 40)].flat();
  const session = new foldline.FoldSession({ model: "gpt-4o", budget: 4_000 });
  session.push(...messages);
  const rendering = session.request();
  assert(rendering.tokens <= 4_000);
  const body = requestBody("openai-chat", messages);
  const folded = foldline.fold(body, { budget: 4_000 });
  assert(folded.tokens <= 4_000);
});

test("every line of code in the README is a line of a test", () => {
  const lines = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
  const tested = new Set(lines("./core.test.js").split("\n").map((line) => line.trim()));
  const blocks = [...lines("../README.md").matchAll(/```js\n(.*?)```/gs)].flatMap((match) => match[1].trim().split("\n"));
  assert(blocks.length > 3);
  assert.deepEqual(blocks.filter((line) => line.trim() !== "" && !tested.has(line.trim())), []);
});
