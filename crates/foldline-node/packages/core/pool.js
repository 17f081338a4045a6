// Sessions of several conversations, found by their history. For adapters.

import { FoldlineError } from "./errors.js";
import { toJson } from "./options.js";
import { FoldSession } from "./session.js";

export class SessionPool {
  #settings;
  #limit;
  #strict;
  /** Sessions with their contexts, the most recently used one last. */
  #sessions = [];

  constructor({ limit = 64, strict = false, ...settings } = {}) {
    this.#settings = settings;
    this.#limit = limit;
    this.#strict = strict;
    this.last = null;
    // Wrong settings are an error now, not a warning at every request.
    new FoldSession(settings);
  }

  fold(messages, { model, tools, system } = {}) {
    try {
      const entry = this.#find(messages) ?? this.#open(model);
      const context = toJson([tools ?? null, system ?? null]);
      if (entry.context !== context) {
        entry.session.setContext({ tools, system });
        entry.context = context;
      }
      this.last = entry.session.fold(messages);
      return this.last;
    } catch (error) {
      if (this.#strict || !(error instanceof FoldlineError)) throw error;
      process.emitWarning(`not folded, the request is sent as it is: ${error.message}`, "FoldlineWarning");
      return null;
    }
  }

  /** Returns the session with the longest history that these messages continue. */
  #find(messages) {
    let found;
    for (const entry of this.#sessions) {
      const isLonger = found === undefined || entry.session.length > found.session.length;
      if (isLonger && entry.session.isContinuedBy(messages)) found = entry;
    }
    if (found !== undefined) {
      this.#sessions.splice(this.#sessions.indexOf(found), 1);
      this.#sessions.push(found);
    }
    return found;
  }

  #open(model) {
    const entry = { session: new FoldSession({ model, ...this.#settings }), context: undefined };
    this.#sessions.push(entry);
    if (this.#sessions.length > this.#limit) this.#sessions.splice(0, this.#sessions.length - this.#limit);
    return entry;
  }

  unfold(handle) {
    let first;
    for (const { session } of this.#sessions.toReversed()) {
      try {
        return session.unfold(handle);
      } catch (error) {
        first ??= error;
      }
    }
    throw first ?? new FoldlineError("no conversation was folded yet");
  }

  answer(args, room) {
    const answers = this.#sessions.toReversed().map(({ session }) => session.answer(args, room));
    const isKnown = (answer) => !answer.startsWith("No original has") && !answer.startsWith("Not a handle");
    return answers.find(isKnown) ?? answers[0] ?? "Nothing was folded yet.";
  }
}
