// foldline for the OpenAI Agents SDK: folds the input of each model call. The items that the SDK holds stay as they are.
//
// The models of a provider are wrapped. A `callModelInputFilter` would not do: the SDK writes the filtered input of a
// run into its session.

import { SessionPool, unfoldTool } from "@foldline/core";
import { tool } from "@openai/agents";

import { fromResponses, toResponses } from "./items.js";

export function foldline(settings = {}) {
  const pool = new SessionPool({ ...settings, format: "openai-responses" });
  const declared = unfoldTool("openai-responses");
  return {
    pool,
    tool: tool({
      name: declared.name,
      description: declared.description,
      parameters: declared.parameters,
      strict: false,
      execute: (args) => pool.answer(args),
    }),
    provider: (provider) => ({
      getModel: async (name) => new FoldedModel(await provider.getModel(name), name, pool),
    }),
  };
}

/** A model that receives folded input. */
class FoldedModel {
  #model;
  #name;
  #pool;

  constructor(model, name, pool) {
    this.#model = model;
    this.#name = name;
    this.#pool = pool;
  }

  get supportsPromptModelSelection() {
    return this.#model.supportsPromptModelSelection;
  }

  getResponse(request) {
    return this.#model.getResponse(this.#fold(request));
  }

  getStreamedResponse(request) {
    return this.#model.getStreamedResponse(this.#fold(request));
  }

  getRetryAdvice(failure) {
    return this.#model.getRetryAdvice?.(failure);
  }

  #fold(request) {
    const { input, tools, handoffs, systemInstructions } = request;
    // A provider that holds the history receives only what is new.
    const isWhole = Array.isArray(input) && !request.previousResponseId && !request.conversationId;
    if (!isWhole) return request;
    const items = input.map(toResponses);
    const counted = [...tools.map(countedTool), ...handoffs.map(countedHandoff)];
    const rendering = this.#pool.fold(items, { model: this.#name, tools: counted, system: systemInstructions });
    return rendering === null ? request : { ...request, input: fromResponses(input, items, rendering) };
  }
}

/** Returns what counts for a tool's tokens. */
function countedTool(declared) {
  if (declared.type !== "function") return declared;
  const { type, name, description, parameters } = declared;
  return { type, name, description, parameters };
}

/** Returns what counts for the tokens of a handoff, which is sent as a tool. */
function countedHandoff({ toolName, toolDescription, inputJsonSchema }) {
  return { type: "function", name: toolName, description: toolDescription, parameters: inputJsonSchema };
}
