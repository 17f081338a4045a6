// foldline for pi: folds the request of each model call. The session that pi holds and stores stays as it is.

import { SessionPool, unfoldTool } from "@foldline/core";

/** Dialects of pi's APIs, each with the fields of a request that have its conversation and its instructions. */
const CHAT = { format: "openai-chat", messages: "messages" };
const RESPONSES = { format: "openai-responses", messages: "input", system: "instructions" };
const APIS = {
  "anthropic-messages": { format: "anthropic", messages: "messages", system: "system" },
  "openai-completions": CHAT,
  "openai-responses": RESPONSES,
  "azure-openai-responses": RESPONSES,
  "openai-codex-responses": RESPONSES,
};

export function foldline(settings = {}) {
  return (pi) => {
    const pools = new Map();
    const unknown = new Set();
    /** True if the last request was folded, or is inside its budget. */
    let fits = false;
    const declared = unfoldTool("openai-responses");

    pi.registerTool({
      name: declared.name,
      label: "Unfold",
      description: declared.description,
      parameters: declared.parameters,
      async execute(_id, args) {
        return { content: [{ type: "text", text: answer([...pools.values()], args) }], details: {} };
      },
    });

    pi.on("before_provider_request", ({ payload }, { model }) => {
      const api = APIS[model.api];
      fits = false;
      if (api === undefined || !Array.isArray(payload?.[api.messages])) {
        warnOnce(unknown, model.api);
        return undefined;
      }
      const key = JSON.stringify([api.format, model.provider, model.id]);
      if (!pools.has(key)) pools.set(key, openPool(api.format, model, settings));
      const context = { model: model.id, tools: payload.tools, system: payload[api.system] };
      const rendering = pools.get(key).fold(payload[api.messages], context);
      if (rendering === null) return undefined;
      fits = true;
      return { ...payload, [api.messages]: rendering.messages };
    });

    // pi would replace the history by a summary, although it fits.
    pi.on("session_before_compact", ({ reason }) => (fits && reason === "threshold" ? { cancel: true } : undefined));
  };
}

export default foldline();

function openPool(format, model, settings) {
  return new SessionPool({ window: model.contextWindow, maxOutputTokens: model.maxTokens, ...settings, format });
}

/** Returns the answer of the pool that has the original. */
function answer(pools, args) {
  const answers = pools.map((pool) => pool.answer(args));
  const isKnown = (text) => !text.startsWith("No original has") && !text.startsWith("Nothing was folded");
  return answers.find(isKnown) ?? answers[0] ?? "Nothing was folded yet.";
}

function warnOnce(unknown, api) {
  if (unknown.has(api)) return;
  unknown.add(api);
  process.emitWarning(`requests to ${api} are sent as they are: this API is not supported`, "FoldlineWarning");
}
