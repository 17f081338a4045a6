import type { FoldSettings, SessionPool } from "@foldline/core";
import type { FunctionTool, ModelProvider } from "@openai/agents";

/** Settings: those of a session except its dialect. */
export type FoldlineSettings = Omit<FoldSettings, "format" | "tools" | "system"> & {
  /** Number of conversations that are remembered. */
  limit?: number;
  /** True if an error of foldline is thrown; otherwise the SDK's own items are sent. */
  strict?: boolean;
};

export interface Foldline {
  /** Returns a provider whose models receive folded items: for `modelProvider` of a `Runner`. */
  provider(provider: ModelProvider): ModelProvider;
  /** The tool with which the model unfolds. */
  tool: FunctionTool<any, any, any>;
  /** The sessions, and what the last request was. */
  pool: SessionPool;
}

/** Returns a wrapper of model providers that keeps requests inside a budget, and the tool with which the model unfolds. */
export declare function foldline(settings?: FoldlineSettings): Foldline;
