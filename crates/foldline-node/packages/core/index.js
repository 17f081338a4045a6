// Keeps an LLM agent's conversation inside its model's window, by folds that can be unfolded byte for byte.

import { native } from "./native.js";

export { ArchiveError, CannotFit, FoldlineError, InvalidInput, UnknownHandle } from "./errors.js";
export { SessionPool } from "./pool.js";
export { applyStrategy, brokenLaws, countTokens, fold, replay, unfoldTool } from "./requests.js";
export { FoldSession } from "./session.js";

export const version = native.version();
