/** Charts as plain SVG. Each has a text alternative, and a table with the same numbers is next to it. */

import type { RequestItem, WindowParts } from './api';
import { BREAK_WORDS, count, dollars, tokens, trigger } from './format';

const PARTS = [
  ['system', 'system', 'system_tokens'],
  ['tools', 'tools', 'tools_tokens'],
  ['user', 'user', 'user_tokens'],
  ['folded', 'folded', 'folded_tokens'],
  ['live', 'live', 'live_tokens'],
  ['free', 'free', 'free_tokens'],
] as const;

/** Returns the parts of a window as shares of its budget, in order, together at most 1. */
export function windowShares(parts: WindowParts): { name: string; tokens: number; from: number; share: number }[] {
  const whole = Math.max(
    1,
    parts.budget_tokens,
    PARTS.slice(0, 5).reduce((sum, [, , key]) => sum + parts[key], 0),
  );
  let from = 0;
  return PARTS.map(([, name, key]) => {
    const share = Math.max(0, parts[key]) / whole;
    const start = from;
    from += share;
    return { name, tokens: parts[key], from: start, share };
  });
}

/** The window of a session: what fills it, and how much is free. */
export function WindowBar(props: { parts: WindowParts }) {
  const shares = windowShares(props.parts);
  const text = shares.map((it) => `${it.name} ${tokens(it.tokens)}`).join(', ');
  return (
    <svg class="window-bar" viewBox="0 0 1000 20" preserveAspectRatio="none" role="img" aria-label={`Window: ${text}`}>
      {shares.map((it) => (
        <rect key={it.name} class={`fill-${it.name}`} x={it.from * 1000} y={0} width={it.share * 1000} height={20}>
          <title>{`${it.name}: ${count(it.tokens)} tokens`}</title>
        </rect>
      ))}
    </svg>
  );
}

/** The meaning of the colors of a window bar. */
export function WindowLegend() {
  return (
    <ul class="legend" aria-label="Colors of the window bars">
      {PARTS.map(([key, name]) => (
        <li key={key}>
          <i class={`swatch fill-${key}`} />
          {name}
        </li>
      ))}
    </ul>
  );
}

const WIDTH = 1000;
const HEIGHT = 160;
/** A chart has room for at least this many bars, so that a few are not wide blocks. */
const MIN_BARS = 40;

/** Requests of a session: tokens received and sent, with creases. */
export function Timeline(props: { requests: RequestItem[] }) {
  const items = props.requests;
  const top = Math.max(1, ...items.map((it) => it.received_tokens));
  const step = WIDTH / Math.max(items.length, MIN_BARS);
  const height = (value: number) => (value / top) * (HEIGHT - 14);
  const creases = items.filter((it) => it.crease !== null).length;
  const label = `${items.length} requests, largest prompt ${tokens(top)} tokens as received, ${creases} creases`;
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {items.map((it, at) => (
          <g key={it.at + at}>
            <title>{timelineTitle(it)}</title>
            <rect
              class="fill-received"
              x={at * step}
              y={HEIGHT - height(it.received_tokens)}
              width={Math.max(step - 1.5, 1)}
              height={height(it.received_tokens)}
            />
            <rect
              class="fill-sent"
              x={at * step}
              y={HEIGHT - height(it.sent_tokens)}
              width={Math.max(step - 1.5, 1)}
              height={height(it.sent_tokens)}
            />
            {it.crease === null ? null : (
              <rect class="fill-crease" x={at * step} y={0} width={Math.max(step - 1.5, 2)} height={8} />
            )}
          </g>
        ))}
      </svg>
      <figcaption>
        <ul class="legend">
          <li>
            <i class="swatch fill-received" />
            received, not sent
          </li>
          <li>
            <i class="swatch fill-sent" />
            sent
          </li>
          <li>
            <i class="swatch fill-crease" />
            crease
          </li>
        </ul>
        <span class="muted">one bar per request; full height {tokens(top)} tokens</span>
      </figcaption>
    </figure>
  );
}

function timelineTitle(it: RequestItem): string {
  const crease = it.crease === null ? '' : `; crease (${trigger(it.crease.trigger)}) ${dollars(it.crease.price_usd)}`;
  return `${count(it.received_tokens)} received, ${count(it.sent_tokens)} sent${crease}`;
}

/** Requests by cache tier, with breaks. */
export function CacheChart(props: { requests: RequestItem[] }) {
  const items = props.requests.filter((it) => it.usage);
  const top = Math.max(1, ...items.map((it) => it.input_tokens));
  const step = WIDTH / Math.max(items.length, MIN_BARS);
  const height = (value: number) => (value / top) * (HEIGHT - 14);
  const read = items.reduce((sum, it) => sum + it.cache_read_tokens, 0);
  const all = items.reduce((sum, it) => sum + it.input_tokens, 0);
  const label = `${items.length} requests, ${tokens(read)} of ${tokens(all)} prompt tokens read from the cache`;
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        {items.map((it, at) => {
          const tiers = [
            ['read', it.cache_read_tokens],
            ['write', it.cache_write_tokens],
            ['fresh', it.fresh_tokens],
          ] as const;
          let below = 0;
          return (
            <g key={it.at + at}>
              <title>
                {`${tokens(it.cache_read_tokens)} read, ${tokens(it.cache_write_tokens)} written, ${tokens(it.fresh_tokens)} fresh` +
                  (it.break === null ? '' : `; break: ${BREAK_WORDS[it.break]}`)}
              </title>
              {tiers.map(([name, value]) => {
                below += value;
                return (
                  <rect
                    key={name}
                    class={`fill-${name}`}
                    x={at * step}
                    y={HEIGHT - height(below)}
                    width={Math.max(step - 1.5, 1)}
                    height={height(value)}
                  />
                );
              })}
              {it.break === null ? null : (
                <rect
                  class={it.break === 'crease' ? 'fill-crease' : 'fill-break'}
                  x={at * step}
                  y={0}
                  width={Math.max(step - 1.5, 2)}
                  height={8}
                />
              )}
            </g>
          );
        })}
      </svg>
      <figcaption>
        <ul class="legend">
          {['read', 'write', 'fresh', 'crease', 'break'].map((name) => (
            <li key={name}>
              <i class={`swatch fill-${name}`} />
              {name === 'write'
                ? 'written'
                : name === 'crease'
                  ? 'break by our crease'
                  : name === 'break'
                    ? 'other break'
                    : name}
            </li>
          ))}
        </ul>
        <span class="muted">newest on the right; full height {tokens(top)} tokens</span>
      </figcaption>
    </figure>
  );
}
