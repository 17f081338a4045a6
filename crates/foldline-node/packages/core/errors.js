// Errors with the kinds that the native module reports.

/** An error of foldline. */
export class FoldlineError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An argument is not valid. */
export class InvalidInput extends FoldlineError {}

/** No original has this handle. */
export class UnknownHandle extends FoldlineError {}

/** The archive cannot be opened, read or written. */
export class ArchiveError extends FoldlineError {}

/** The conversation cannot be folded to the budget. */
export class CannotFit extends FoldlineError {
  constructor(message, options, { floor, budget, largest } = {}) {
    super(message, options);
    this.floor = floor;
    this.budget = budget;
    this.largest = largest;
  }
}

const KINDS = { InvalidInput, UnknownHandle, ArchiveError, CannotFit, FoldlineError };

/** Runs work of the native module; its errors become typed. */
export function typed(work) {
  try {
    return work();
  } catch (cause) {
    let reported;
    try {
      reported = JSON.parse(cause.message);
    } catch {
      throw cause;
    }
    throw new (KINDS[reported.kind] ?? FoldlineError)(reported.message, { cause }, reported);
  }
}
