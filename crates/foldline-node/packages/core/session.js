// A conversation that grows message by message.

import { isDeepStrictEqual } from "node:util";

import { typed } from "./errors.js";
import { native } from "./native.js";
import { toJson, toOptions } from "./options.js";

export class FoldSession {
  #settings;
  #native;
  #pushed;
  #messages;
  #sources;

  constructor(settings = {}) {
    this.#settings = settings;
    this.#start();
  }

  #start() {
    this.#native = typed(() => new native.NativeSession(toOptions(this.#settings)));
    this.#pushed = [];
    this.#messages = [];
    this.#sources = [];
  }

  get length() {
    return this.#pushed.length;
  }

  get budget() {
    return this.#native.budget;
  }

  push(...messages) {
    if (messages.length === 0) return;
    typed(() => this.#native.push(toJson(messages)));
    for (const message of messages) this.#pushed.push(message);
  }

  request() {
    const changed = typed(() => this.#native.request());
    this.#messages.length = changed.first;
    this.#sources.length = changed.first;
    for (const { index, json } of changed.messages) {
      this.#messages.push(json === undefined ? this.#pushed[index] : JSON.parse(json));
      this.#sources.push(index ?? null);
    }
    return {
      messages: [...this.#messages],
      sources: [...this.#sources],
      firstChanged: changed.first,
      creased: changed.creased,
      tokens: changed.tokens,
      receivedTokens: changed.receivedTokens,
      budget: this.#native.budget,
    };
  }

  fold(messages) {
    if (!this.isContinuedBy(messages)) this.#start();
    this.push(...messages.slice(this.#pushed.length));
    return this.request();
  }

  isContinuedBy(messages) {
    if (this.#pushed.length > messages.length) return false;
    // The newest message differs first where histories branch.
    for (let at = this.#pushed.length - 1; at >= 0; at--) {
      const [ours, given] = [this.#pushed[at], messages[at]];
      if (ours !== given && !isDeepStrictEqual(ours, given)) return false;
    }
    return true;
  }

  setContext({ tools, system } = {}) {
    const [toolsJson, systemJson] = [tools, system].map((value) => (value == null ? undefined : toJson(value)));
    typed(() => this.#native.setContext(toolsJson, systemJson));
    this.#settings = { ...this.#settings, tools, system };
  }

  unfold(handle) {
    return this.unfoldBytes(handle).toString("utf8");
  }

  unfoldBytes(handle) {
    return typed(() => this.#native.unfold(handle));
  }

  answer(args, room) {
    return typed(() => this.#native.answer(typeof args === "string" ? args : toJson(args), room));
  }

  search(words, limit = 8) {
    return typed(() => this.#native.search(words, limit));
  }

  get tool() {
    return JSON.parse(typed(() => native.toolDeclaration(this.#settings.format ?? "openai-chat")));
  }
}
