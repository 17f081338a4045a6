// foldline for the AI SDK: folds the prompt of each model call. The messages that the SDK holds stay as they are.

import { SessionPool, unfoldTool } from "@foldline/core";
import { jsonSchema, tool } from "ai";

import { fromChat, toChat } from "./prompt.js";

export function foldline(settings = {}) {
  const pool = new SessionPool({ ...settings, format: "openai-chat" });
  const declared = unfoldTool("openai-chat").function;
  return {
    pool,
    tool: tool({
      description: declared.description,
      inputSchema: jsonSchema(declared.parameters),
      execute: (args) => pool.answer(args),
    }),
    middleware: {
      specificationVersion: "v4",
      async transformParams({ params, model }) {
        const { chat, positions } = toChat(params.prompt);
        const tools = (params.tools ?? []).map(countedTool);
        const rendering = pool.fold(chat, { model: model.modelId, tools });
        if (rendering === null) return params;
        return { ...params, prompt: fromChat(params.prompt, chat, positions, rendering) };
      },
    },
  };
}

/** Returns what counts for a tool's tokens. */
function countedTool({ type, name, description, inputSchema, ...rest }) {
  if (type !== "function") return { type, name, ...rest };
  return { type, function: { name, description, parameters: inputSchema } };
}
