// Functions over single request bodies and recordings.

import { typed } from "./errors.js";
import { native } from "./native.js";
import { toJson, toOptions } from "./options.js";

export function fold(body, settings = {}) {
  const folded = typed(() => native.fold(typeof body === "string" ? body : toJson(body), toOptions(settings)));
  return {
    body: JSON.parse(folded.body),
    text: folded.body,
    tokens: folded.tokens,
    receivedTokens: folded.receivedTokens,
    unfold: (handle) => typed(() => folded.unfold(handle)).toString("utf8"),
  };
}

export function countTokens(value, { model, format } = {}) {
  if (typeof value === "string" && format === undefined) return typed(() => native.countTokens(value, model));
  const text = typeof value === "string" ? value : toJson(value);
  return typed(() => native.countTokens(text, model, format ?? "openai-chat"));
}

export function brokenLaws(body, { before, format } = {}) {
  return typed(() => native.brokenLaws(toJson(body), before === undefined ? undefined : toJson(before), format));
}

export function unfoldTool(format = "openai-chat") {
  return JSON.parse(typed(() => native.toolDeclaration(format)));
}

export function applyStrategy(name, messages, { format = "openai-chat", ...options } = {}) {
  const { messages: changed, stats } = typed(() =>
    native.applyStrategy(name, toJson(messages), toJson({ ...options, format })),
  );
  return {
    messages: changed.map(({ index, json }) => (json === undefined ? messages[index] : JSON.parse(json))),
    sources: changed.map(({ index }) => index ?? null),
    stats: JSON.parse(stats),
  };
}

export function replay(paths, { budget = 128_000, policy = "balanced", prices = "anthropic-5m", minCalls = 10 } = {}) {
  const options = toJson({ budget, policy, prices, min_calls: minCalls });
  return JSON.parse(typed(() => native.replay([paths].flat(), options)));
}
