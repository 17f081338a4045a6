// Prompts of the AI SDK as chat messages, and the folds of these mapped back.
//
// A message becomes one chat message, and each result of a tool message one of its own, so that a fold of a chat
// message is a fold of one part of the prompt. Parts that are not texts, calls or results are counted and never folded.

import { isDeepStrictEqual } from "node:util";

/** Returns chat messages, and for each its message in the prompt and its part if it is a result. */
export function toChat(prompt) {
  const chat = [];
  const positions = [];
  prompt.forEach((message, at) => {
    if (message.role !== "tool") {
      chat.push(messageToChat(message));
      positions.push({ at, index: null });
      return;
    }
    message.content.forEach((part, index) => {
      chat.push(toolPartToChat(part));
      positions.push({ at, index });
    });
  });
  return { chat, positions };
}

/** Returns the prompt of a rendering. Messages and parts without folds are those of the given prompt. */
export function fromChat(prompt, chat, positions, { messages, sources }) {
  const sent = [];
  let open = null;
  messages.forEach((message, rendered) => {
    const source = sources[rendered];
    if (source === null) {
      sent.push({ role: "user", content: [{ type: "text", text: textOf(message) }] });
      open = null;
      return;
    }
    const { at, index } = positions[source];
    const isFolded = message !== chat[source] && !isDeepStrictEqual(message, chat[source]);
    if (index === null) {
      sent.push(isFolded ? foldedMessage(prompt[at], chat[source], message) : prompt[at]);
      open = null;
      return;
    }
    const part = prompt[at].content[index];
    const newPart = isFolded ? foldedResult(part, message) : part;
    if (open?.at === at) {
      open.content.push(newPart);
    } else {
      open = { at, content: [newPart] };
      sent.push({ ...prompt[at], content: open.content });
    }
  });
  return sent;
}

function messageToChat({ role, content }) {
  if (typeof content === "string") return { role, content };
  const chat = { role, content: content.filter((part) => !isCall(part)).map(toBlock) };
  const calls = content.filter(isCall);
  if (calls.length > 0) {
    if (chat.content.length === 0) chat.content = null;
    chat.tool_calls = calls.map((call) => ({
      id: call.toolCallId,
      type: "function",
      function: { name: call.toolName, arguments: JSON.stringify(call.input ?? {}) },
    }));
  }
  return chat;
}

/** Returns true for a call that the client answers; calls that the provider executes are counted only. */
function isCall(part) {
  return part.type === "tool-call" && !part.providerExecuted;
}

function toolPartToChat(part) {
  if (part.type !== "tool-result") return { role: "user", content: [opaqueBlock(part)] };
  return { role: "tool", tool_call_id: part.toolCallId, content: resultContent(part.output) };
}

function resultContent(output) {
  switch (output.type) {
    case "text":
    case "error-text":
      return output.value;
    case "json":
    case "error-json":
      return JSON.stringify(output.value);
    case "content":
      return output.value.map(toBlock);
    default:
      return [opaqueBlock(output)];
  }
}

function toBlock(part) {
  if (part.type === "text") return { type: "text", text: part.text };
  if (part.type === "file" && part.mediaType?.startsWith("image")) {
    const { type, data, url } = part.data;
    if (type === "url") return { type: "image_url", image_url: { url: String(url) } };
    if (type === "data") {
      const mediaType = part.mediaType.includes("/") ? part.mediaType : "image/png";
      return { type: "image_url", image_url: { url: `data:${mediaType};base64,${toBase64(data)}` } };
    }
  }
  return opaqueBlock(part);
}

/** Returns a block that is counted and never folded. */
function opaqueBlock(part) {
  return { type: "opaque", value: JSON.stringify(part, (_, value) => (value instanceof Uint8Array ? toBase64(value) : value)) };
}

function toBase64(data) {
  return typeof data === "string" ? data : Buffer.from(data).toString("base64");
}

/** Returns the text of a note or of a folded message. */
function textOf({ content }) {
  return typeof content === "string" ? content : (content ?? []).map((block) => block.text ?? "").join("\n");
}

function foldedMessage(message, before, after) {
  if (typeof message.content === "string") return { ...message, content: textOf(after) };
  const blocks = alignedBlocks(before.content ?? [], after.content ?? []);
  const calls = new Map((after.tool_calls ?? []).map((call) => [call.id, call.function.arguments]));
  const content = message.content.map((part) => {
    if (isCall(part)) {
      const json = calls.get(part.toolCallId);
      return json === undefined || json === JSON.stringify(part.input ?? {}) ? part : { ...part, input: JSON.parse(json) };
    }
    const block = blocks.shift();
    return part.type === "text" && block && block.text !== part.text ? { ...part, text: block.text } : part;
  });
  return { ...message, content };
}

/** Returns a result with its folded text. A JSON result becomes text: a marker is not JSON. */
function foldedResult(part, after) {
  const { output } = part;
  if (output.type === "content") {
    const blocks = alignedBlocks(output.value.map(toBlock), after.content ?? []);
    const value = output.value.map((item, at) =>
      item.type === "text" && blocks[at] ? { ...item, text: blocks[at].text } : item,
    );
    return { ...part, output: { ...output, value } };
  }
  const type = output.type.startsWith("error") ? "error-text" : "text";
  return { ...part, output: { ...output, type, value: textOf(after) } };
}

/** Returns for each block of a message its folded form; undefined if it was dropped. */
function alignedBlocks(before, after) {
  if (typeof after === "string") return before.map((block, at) => (at === 0 ? { ...block, text: after } : undefined));
  if (before.length === after.length) return [...after];
  const rest = [...after];
  return before.map((block) => (rest[0]?.type === block.type ? rest.shift() : undefined));
}
