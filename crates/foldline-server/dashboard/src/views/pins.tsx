/** What is never folded in a session. */

import { useState } from 'preact/hooks';
import { api, type Pins } from '../api';

type PinKind = keyof Pins;

const KINDS: Record<PinKind, string> = { targets: 'file, command or query', tools: 'tool' };

/** Returns the pins with one more; the same object if it is pinned already. */
export function withPin(pins: Pins, kind: PinKind, text: string): Pins {
  return text === '' || pins[kind].includes(text) ? pins : { ...pins, [kind]: [...pins[kind], text] };
}

/** Returns the pins without one. */
export function withoutPin(pins: Pins, kind: PinKind, text: string): Pins {
  return { ...pins, [kind]: pins[kind].filter((it) => it !== text) };
}

export function PinList(props: { session: string; pins: Pins; onChange: (pins: Pins) => void }) {
  const { session, pins } = props;
  const [kind, setKind] = useState<PinKind>('targets');
  const [text, setText] = useState('');
  const [error, setError] = useState<string | null>(null);
  const save = (changed: Pins) => {
    if (changed === pins) return;
    api.setPins(session, changed).then(
      (saved) => {
        setError(null);
        setText('');
        props.onChange(saved.pins);
      },
      (reason: Error) => setError(reason.message),
    );
  };
  const all = (Object.keys(KINDS) as PinKind[]).flatMap((of) => pins[of].map((name) => [of, name] as const));
  return (
    <section class="pins" aria-label="Never fold">
      <h4>Never fold</h4>
      <p class="muted">
        Pins hold from the next crease on; what is folded already stays folded. A target matches if it contains the
        text.
      </p>
      {all.length === 0 ? null : (
        <ul>
          {all.map(([of, name]) => (
            <li key={`${of} ${name}`}>
              <span class="muted">{of === 'tools' ? 'tool' : 'target'}</span> <code>{name}</code>
              <button
                type="button"
                class="quiet"
                onClick={() => save(withoutPin(pins, of, name))}
                aria-label={`Remove the pin ${name}`}
              >
                remove
              </button>
            </li>
          ))}
        </ul>
      )}
      <form
        class="actions"
        onSubmit={(event) => {
          event.preventDefault();
          save(withPin(pins, kind, text.trim()));
        }}
      >
        <select
          aria-label="Kind of pin"
          value={kind}
          onChange={(event) => setKind(event.currentTarget.value as PinKind)}
        >
          {(Object.keys(KINDS) as PinKind[]).map((it) => (
            <option key={it} value={it}>
              {KINDS[it]}
            </option>
          ))}
        </select>
        <input
          type="text"
          aria-label="Text of the pin"
          placeholder={kind === 'tools' ? 'todo_write' : 'PLAN.md'}
          maxLength={512}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <button type="submit">Pin</button>
      </form>
      {error === null ? null : (
        <p class="bad" role="alert">
          {error}
        </p>
      )}
    </section>
  );
}
