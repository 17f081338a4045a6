// Items of the Agents SDK as items of the Responses API, one for one, and the folds of these mapped back. Items that
// are not messages, calls of functions, their results or reasoning are counted and never folded.

import { isDeepStrictEqual } from "node:util";

/** Returns the item as the API receives it, as far as it counts for tokens and laws. */
export function toResponses(item) {
  switch (item.type) {
    case undefined:
    case "message":
      return { type: "message", role: item.role, content: toContent(item.content) };
    case "function_call":
      return { type: "function_call", call_id: item.callId, name: item.name, arguments: item.arguments };
    case "function_call_result":
      return { type: "function_call_output", call_id: item.callId, output: toOutput(item.output) };
    case "reasoning":
      return {
        type: "reasoning",
        id: item.id,
        summary: item.content.map(({ text }) => ({ type: "summary_text", text })),
        encrypted_content: item.providerData?.encryptedContent ?? item.providerData?.encrypted_content,
      };
    default:
      return item.callId === undefined ? item : { ...item, call_id: item.callId };
  }
}

/** Returns the items of a rendering. Items without folds are those of the given list. */
export function fromResponses(items, before, { messages, sources }) {
  return messages.map((message, at) => {
    const source = sources[at];
    if (source === null) return { type: "message", role: "user", content: textOf(message.content) };
    const isFolded = message !== before[source] && !isDeepStrictEqual(message, before[source]);
    return isFolded ? foldedItem(items[source], message) : items[source];
  });
}

function toContent(content) {
  return typeof content === "string" ? content : content.map(toBlock);
}

function toOutput(output) {
  if (typeof output === "string") return output;
  if (Array.isArray(output)) return output.map(toBlock);
  return output.type === "text" ? output.text : [toBlock(output)];
}

function toBlock(part) {
  if (typeof part.text === "string") return { type: part.type, text: part.text };
  if (part.type === "input_image" && typeof part.image === "string") {
    return { type: "input_image", image_url: part.image };
  }
  return part;
}

function foldedItem(item, after) {
  switch (after.type) {
    case "message":
      return { ...item, content: foldedContent(item.content, after.content) };
    case "function_call":
      return { ...item, arguments: after.arguments };
    case "function_call_output":
      if (item.output.type === "text") return { ...item, output: { ...item.output, text: textOf(after.output) } };
      return { ...item, output: foldedContent(item.output, after.output) };
    default:
      return item;
  }
}

/** Returns content with its folded texts. */
function foldedContent(before, after) {
  if (typeof before === "string" || typeof after === "string" || !Array.isArray(before)) return textOf(after);
  const rest = [...after];
  return before.flatMap((part) => {
    const block = rest[0]?.type === part.type ? rest.shift() : undefined;
    // A block without a counterpart was dropped.
    if (block === undefined) return before.length === after.length ? [part] : [];
    return [typeof part.text === "string" && block.text !== part.text ? { ...part, text: block.text } : part];
  });
}

function textOf(content) {
  return typeof content === "string" ? content : content.map((block) => block.text ?? "").join("\n");
}
