/** Server-sent events, and how they change what the page shows. */

import { api, type Session } from './api';

/** Shortest time between two readings of the same data. */
export const MIN_REFRESH_MS = 1000;

export type Connection = 'connecting' | 'live' | 'lost';

/** Opens the event stream. Returns a function that closes it. */
export function connect(onState: (state: Connection) => void, onChange: () => void): () => void {
  const source = new EventSource(api.eventsAddress);
  onState('connecting');
  source.onopen = () => onState('live');
  source.onerror = () => onState('lost');
  for (const name of ['request', 'session', 'reload', 'hello']) source.addEventListener(name, onChange);
  return () => source.close();
}

/** Returns a function that calls `run` at most once per interval, and once more after the last call. */
export function throttled(run: () => void, interval = MIN_REFRESH_MS): () => void {
  let last = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  return () => {
    const wait = last + interval - Date.now();
    if (wait <= 0) {
      last = Date.now();
      run();
    } else if (timer === undefined) {
      timer = setTimeout(() => {
        timer = undefined;
        last = Date.now();
        run();
      }, wait);
    }
  };
}

/** Returns the sessions that are live, newest first. */
export function liveSessions(sessions: Session[]): Session[] {
  return sessions.filter((session) => session.is_live).sort((a, b) => b.last_at - a.last_at);
}
