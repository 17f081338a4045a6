/** What is in the window right now? */

import type { Session } from '../api';
import { WindowBar, WindowLegend } from '../charts';
import { ago, dollars, plural, tokens } from '../format';
import { liveSessions } from '../live';
import { Command, Empty, View } from '../parts';

export function Windows(props: {
  sessions: Session[];
  now: number;
  selected: string | null;
  onSelect: (id: string) => void;
}) {
  const live = liveSessions(props.sessions).filter((it) => it.window !== null);
  return (
    <View id="windows" title="Live sessions" question="What is in the window right now?">
      {live.length === 0 ? (
        <Empty
          why={
            props.sessions.length === 0
              ? 'No session yet: a session appears with its first request.'
              : 'No session is live: none had a request in the last 10 minutes. Older sessions are in the table below.'
          }
        >
          {props.sessions.length === 0 ? (
            <p>
              To see one without any setup: <Command text="foldline demo --open" />
            </p>
          ) : null}
        </Empty>
      ) : (
        <>
          <WindowLegend />
          <ul class="sessions">
            {live.map((it) => (
              <LiveSession
                key={it.id}
                session={it}
                now={props.now}
                isSelected={it.id === props.selected}
                onSelect={props.onSelect}
              />
            ))}
          </ul>
        </>
      )}
    </View>
  );
}

function LiveSession(props: { session: Session; now: number; isSelected: boolean; onSelect: (id: string) => void }) {
  const it = props.session;
  const parts = it.window;
  if (parts === null) return null;
  const used = parts.budget_tokens - parts.free_tokens;
  const price = parts.crease_usd_at_most === null ? '' : `, at most ${dollars(parts.crease_usd_at_most)}`;
  return (
    <li class={props.isSelected ? 'selected' : ''}>
      <button type="button" class="session-line" aria-pressed={props.isSelected} onClick={() => props.onSelect(it.id)}>
        <strong>{it.title || it.id.slice(0, 12)}</strong>
        <span class="muted">
          {it.client} · {it.model} · {plural(it.totals.requests, 'request')} · {ago(it.last_at, props.now)}
        </span>
      </button>
      <WindowBar parts={parts} />
      <p class="window-note">
        <span>
          {tokens(used)} of {tokens(parts.budget_tokens)} tokens
        </span>
        <span>
          next forced crease in {tokens(parts.crease_in_tokens)} tokens{price}
        </span>
        <span class={it.totals.net_usd < 0 ? 'bad' : ''}>net {dollars(it.totals.net_usd)}</span>
      </p>
    </li>
  );
}
