/** Small building blocks that all views use. */

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';

/** A section of the page: a question, and its answer. */
export function View(props: { id: string; title: string; question: string; children: ComponentChildren }) {
  return (
    <section id={props.id} class="view" aria-labelledby={`${props.id}-title`}>
      <header>
        <h2 id={`${props.id}-title`}>{props.title}</h2>
        <p class="question">{props.question}</p>
      </header>
      {props.children}
    </section>
  );
}

/** An empty state: why there is nothing, and what to do. */
export function Empty(props: { why: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p>{props.why}</p>
      {props.children}
    </div>
  );
}

/** A command with a button that copies it. */
export function Command(props: { text: string }) {
  const [copied, setCopied] = useState(false);
  const copy = () => {
    navigator.clipboard?.writeText(props.text).then(
      () => setCopied(true),
      () => setCopied(false),
    );
  };
  return (
    <span class="command">
      <code>{props.text}</code>
      <button type="button" class="quiet" onClick={copy} aria-label={`Copy: ${props.text}`}>
        {copied ? 'copied' : 'copy'}
      </button>
    </span>
  );
}

/** A number with its name, and a note that defines it. */
export function Figure(props: { name: string; value: string; note?: string; tone?: 'bad' | 'good' | undefined }) {
  return (
    <div class="figure">
      <dt>{props.name}</dt>
      <dd class={props.tone ?? ''}>{props.value}</dd>
      {props.note === undefined ? null : <dd class="note">{props.note}</dd>}
    </div>
  );
}

/** A table that scrolls sideways inside its frame; the frame takes the keyboard focus. */
export function Scroll(props: { label: string; children: ComponentChildren }) {
  return (
    <section class="scroll" tabIndex={0} aria-label={props.label}>
      {props.children}
    </section>
  );
}

/** A loading or failed state. */
export function Pending(props: { error: string | null }) {
  return props.error === null ? (
    <p class="pending">Loading.</p>
  ) : (
    <p class="pending bad" role="alert">
      {props.error}
    </p>
  );
}
