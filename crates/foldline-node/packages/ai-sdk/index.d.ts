import type { FoldSettings, SessionPool } from "@foldline/core";
import type { LanguageModelMiddleware, Tool } from "ai";

/** Settings of the middleware: those of a session except its dialect. */
export type FoldlineSettings = Omit<FoldSettings, "format" | "tools" | "system"> & {
  /** Number of conversations that are remembered. */
  limit?: number;
  /** True if an error of foldline is thrown; otherwise the SDK's own prompt is sent. */
  strict?: boolean;
};

export interface Foldline {
  /** Folds the prompt of each call: for `wrapLanguageModel`. */
  middleware: LanguageModelMiddleware;
  /** The tool with which the model unfolds: register it as `unfold`. */
  tool: Tool<Record<string, unknown>, string>;
  /** The sessions, and what the last request was. */
  pool: SessionPool;
}

/** Returns a middleware that keeps prompts inside a budget, and the tool with which the model unfolds. */
export declare function foldline(settings?: FoldlineSettings): Foldline;
