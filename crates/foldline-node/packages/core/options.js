// Options of sessions and folds, and the conversion of plain values to JSON.

import { InvalidInput } from "./errors.js";

/** Returns the JSON of a plain value. */
export function toJson(value) {
  let text;
  try {
    text = JSON.stringify(value);
  } catch (cause) {
    throw new InvalidInput(`not a plain JSON value: ${cause.message}`, { cause });
  }
  if (text === undefined) throw new InvalidInput("not a plain JSON value");
  return text;
}

/** Names of options in the native module. */
const NAMES = {
  budget: "budget",
  format: "format",
  maxOutputTokens: "max_output_tokens",
  model: "model",
  pinTargets: "pin_targets",
  pinTools: "pin_tools",
  policy: "policy",
  prices: "prices",
  system: "system",
  tools: "tools",
  window: "window",
};
const ARCHIVE_NAMES = { archive: "path", namespace: "namespace", session: "session" };

/** Returns the settings as the JSON that the native module takes. */
export function toOptions(settings) {
  const options = { archive: {} };
  for (const [key, value] of Object.entries(settings)) {
    if (value === undefined || value === null) continue;
    if (Object.hasOwn(ARCHIVE_NAMES, key)) options.archive[ARCHIVE_NAMES[key]] = value;
    else if (Object.hasOwn(NAMES, key)) options[NAMES[key]] = value;
    else throw new InvalidInput(`unknown option ${JSON.stringify(key)}`);
  }
  return toJson(options);
}
