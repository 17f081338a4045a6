/** Dialect of messages; `converse` is that of Bedrock. */
export type Format = "openai-chat" | "openai-responses" | "anthropic" | "gemini" | "ollama" | "converse";
export type Policy = "none" | "lossless" | "balanced" | "tight";
/** A message (or item) of a provider, as a plain object. */
export type Message = Readonly<Record<string, unknown>>;

/** Settings of sessions and folds; all may be missing. */
export interface FoldSettings {
  /** Dialect of the messages. Default: openai-chat; `fold` detects it. */
  format?: Format;
  /** Model for which tokens are counted and priced. */
  model?: string;
  /** Maximum tokens of a request. Default: the model's window less the reserve for the answer. */
  budget?: number;
  /** Window of the model, if it differs from the built-in table. */
  window?: number;
  /** Tokens reserved for the answer. */
  maxOutputTokens?: number;
  policy?: Policy;
  /** Name of a price table, such as anthropic-5m, openai or local. */
  prices?: string;
  /** Declared tools, as they are sent. */
  tools?: readonly unknown[];
  /** Instructions outside the messages, as they are sent. */
  system?: unknown;
  /** Tools whose results and arguments are never folded. */
  pinTools?: readonly string[];
  /** Targets of calls (files, commands) that are never folded. */
  pinTargets?: readonly string[];
  /** Path of an archive. Originals stay in memory without one. */
  archive?: string;
  /** Namespace in the archive. */
  namespace?: string;
  /** Name of the session in the archive. */
  session?: string;
}

/** What to send now. */
export interface Rendering {
  /** The messages to send. Those without a fold are the objects that were pushed. */
  messages: Message[];
  /** For each message the index of the pushed one; null for a note that replaces whole rounds. */
  sources: (number | null)[];
  /** Position of the first message that differs from the last rendering. */
  firstChanged: number;
  /** True if messages that were sent before changed, so the cached prefix ends at `firstChanged`. */
  creased: boolean;
  /** Tokens of the request, including system and tools. */
  tokens: number;
  /** The same without any fold. */
  receivedTokens: number;
  /** Maximum tokens of a request. */
  budget: number;
}

/** An original that was found by its words. */
export interface OriginalHit {
  handle: string;
  tool?: string;
  /** The best line, counted from 1. */
  line: number;
  /** That line, shortened. */
  snippet: string;
}

/**
 * A growing conversation in a provider's own messages, and the requests that fit its model.
 *
 * Add messages with `push` and call `request` before each call to the model; or pass the whole history to `fold`. The
 * pushed messages are never changed, and must not be changed by the caller. All calls are synchronous.
 */
export declare class FoldSession {
  constructor(settings?: FoldSettings);
  /** Number of messages. */
  get length(): number;
  /** Maximum tokens of a request. */
  get budget(): number;
  /** Declaration of the tool with which the model unfolds; `answer` answers its calls. */
  get tool(): Record<string, unknown>;
  /** Adds messages; none if one of them is not a message of the session's format. */
  push(...messages: Message[]): void;
  /** Decides what to send now. Originals of new folds are stored before it returns. */
  request(): Rendering;
  /**
   * Returns what to send for this whole history. Messages that the session has are not added again; if the history does
   * not begin with them, the session starts over.
   */
  fold(messages: readonly Message[]): Rendering;
  /** Returns true if this history begins with the messages of the session. */
  isContinuedBy(messages: readonly Message[]): boolean;
  /** Sets the tools and the system prompt that are sent from now on, for the count of tokens. */
  setContext(context: { tools?: readonly unknown[]; system?: unknown }): void;
  /** Returns the original of a handle, of this conversation or of its archive. */
  unfold(handle: string): string;
  /** Returns the exact bytes of an original. */
  unfoldBytes(handle: string): Uint8Array;
  /** Returns the result of a model's call of `tool`, of at most `room` tokens. Errors are texts for the model. */
  answer(args: string | Record<string, unknown>, room?: number): string;
  /** Finds folded originals by words: those of the archive, or without one of this conversation. */
  search(words: string, limit?: number): OriginalHit[];
}

/**
 * The most recently used sessions, each of one conversation. A rendering depends only on the history, so a session that
 * was dropped costs time, never bytes. Use one pool per user: a model can unfold what any conversation of the pool folded.
 */
export declare class SessionPool {
  constructor(settings?: FoldSettings & { limit?: number; strict?: boolean });
  /** The last rendering, for statistics. */
  last: Rendering | null;
  /** Returns what to send for a history; null if it is to be sent as it is. */
  fold(
    messages: readonly Message[],
    context?: { model?: string; tools?: readonly unknown[]; system?: unknown },
  ): Rendering | null;
  /** Returns the original of a handle of any conversation of the pool. */
  unfold(handle: string): string;
  /** Returns the result of a model's call of the unfold tool. */
  answer(args: string | Record<string, unknown>, room?: number): string;
}

/** A folded request body. */
export interface FoldedRequest {
  /** The body to send. */
  body: Record<string, unknown>;
  /** The same as JSON; every byte outside of folds is the caller's. */
  text: string;
  tokens: number;
  /** Tokens of the body that was given. */
  receivedTokens: number;
  /** Returns the original of a handle. */
  unfold(handle: string): string;
}

/** Folds one request body of any format to a budget. The body itself is not changed. */
export declare function fold(body: string | Record<string, unknown>, settings?: FoldSettings): FoldedRequest;
/** Counts the tokens of a text, or of messages or a request body. An estimate for models without a public tokenizer. */
export declare function countTokens(value: unknown, options?: { model?: string; format?: Format }): number;
/** Returns the provider's rules that a body breaks and `before` obeys, each as a sentence. */
export declare function brokenLaws(
  body: Record<string, unknown>,
  options?: { before?: Record<string, unknown>; format?: Format },
): string[];
/** Returns the declaration of the tool with which a model unfolds. */
export declare function unfoldTool(format?: Format): Record<string, unknown>;
/** A classic strategy: docs/reference/strategies.md has what each does, and its thresholds. */
export type StrategyName =
  | "apply_all"
  | "compact_to_budget"
  | "dedup_tool_calls"
  | "dedup_tool_outputs"
  | "prune_low_entropy"
  | "prune_thinking"
  | "repair_orphans"
  | "snippet_stale_tool_outputs"
  | "terminal_truncate"
  | "trim_middle";
/**
 * Applies a classic strategy to a whole history, which is not changed. Options are those of the strategy, by the names of
 * the reference: `keep_last`, `budget`, .. What it removes cannot be unfolded: use `FoldSession` where that matters.
 */
export declare function applyStrategy(
  name: StrategyName,
  messages: readonly Message[],
  options?: { format?: Format; [option: string]: unknown },
): {
  /** The messages to send. Unchanged ones are the given objects. */
  messages: Message[];
  /** For each message the index of the given one; null for a new one, such as a marker. */
  sources: (number | null)[];
  stats: Record<string, unknown>;
};
/** Replays recorded sessions and returns what folding would have saved, cost and lost. Nothing leaves the machine. */
export declare function replay(
  paths: string | readonly string[],
  options?: { budget?: number; policy?: Policy; prices?: string; minCalls?: number },
): { sessions: number; calls: number; engines: Record<string, unknown>[] };

/** An error of foldline. */
export declare class FoldlineError extends Error {}
/** An argument is not valid. */
export declare class InvalidInput extends FoldlineError {}
/** No original has this handle. */
export declare class UnknownHandle extends FoldlineError {}
/** The archive cannot be opened, read or written. */
export declare class ArchiveError extends FoldlineError {}
/** The conversation cannot be folded to the budget. */
export declare class CannotFit extends FoldlineError {
  /** Smallest size to which it can be folded, in tokens. */
  readonly floor: number;
  readonly budget: number;
  /** Largest part of the floor: index of its message, and its tokens. */
  readonly largest: { message: number; tokens: number } | null;
}

export declare const version: string;
