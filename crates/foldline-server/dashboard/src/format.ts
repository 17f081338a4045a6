/** Numbers and times as text. */

const MINUS = '−';
const grouped = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

/** Returns a count with thousands separators. */
export function count(value: number): string {
  return grouped.format(value).replace('-', MINUS);
}

/** Returns tokens with three significant digits and a unit: 950, 12.4k, 1.52M. */
export function tokens(value: number): string {
  const size = Math.abs(value);
  const sign = value < 0 ? MINUS : '';
  if (size < 1000) return sign + String(Math.round(size));
  for (const [limit, unit] of [
    [999_500, 'k'],
    [999_500_000, 'M'],
    [Number.POSITIVE_INFINITY, 'B'],
  ] as const) {
    if (size < limit) {
      const scaled = size / (unit === 'k' ? 1e3 : unit === 'M' ? 1e6 : 1e9);
      return sign + scaled.toFixed(scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0) + unit;
    }
  }
  return sign;
}

/** Returns dollars in cents, with more digits below one cent; zero is $0.00. */
export function dollars(value: number): string {
  const size = Math.abs(value);
  const sign = value < 0 ? MINUS : '';
  const digits = size === 0 || size >= 0.01 ? 2 : size >= 0.0001 ? 4 : 6;
  const text = size.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return Number(text.replaceAll(',', '')) === 0 ? '$0.00' : `${sign}$${text}`;
}

/** Returns a share as a percentage. */
export function percent(share: number | null): string {
  if (share === null || !Number.isFinite(share)) return '–';
  const value = share * 100;
  const text = Math.abs(value) < 10 && value !== 0 ? value.toFixed(1) : value.toFixed(0);
  return `${text.replace('-', MINUS)} %`;
}

/** Returns a part of a whole as a percentage; a dash if there is no whole. */
export function ratio(part: number, whole: number): string {
  return whole > 0 ? percent(part / whole) : '–';
}

/** Returns bytes with a unit. */
export function bytes(value: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let size = value;
  let at = 0;
  while (size >= 999.5 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  return `${at === 0 || size >= 99.5 ? size.toFixed(0) : size.toFixed(1)} ${units[at]}`;
}

/** Returns the time between two moments in words. */
export function ago(at: number, now: number): string {
  const seconds = Math.max(0, Math.round((now - at) / 1000));
  if (seconds < 5) return 'now';
  return `${duration(seconds)} ago`;
}

/** Returns a number of seconds with one unit. */
export function duration(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} days`;
}

/** Returns the local time of day of a moment, with the date if it is not today. */
export function clock(at: number, now: number): string {
  const date = new Date(at);
  const time = date.toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
  const isToday = new Date(now).toDateString() === date.toDateString();
  return isToday ? time : `${date.toLocaleDateString('en-CA')} ${time}`;
}

/** Returns a word with its count: 1 request, 2 requests. */
export function plural(value: number, word: string): string {
  return `${count(value)} ${word}${value === 1 ? '' : 's'}`;
}

const TRIGGERS: Record<string, string> = {
  over_budget: 'over budget',
  profitable: 'profitable',
  cold_cache: 'cold cache, free',
};

/** Returns the trigger of a crease in words. */
export function trigger(name: string): string {
  return TRIGGERS[name] ?? name;
}

export const BREAK_WORDS: Record<string, string> = {
  crease: 'our crease',
  model_switch: 'model switch',
  client_changed: 'client changed history',
  expired: 'cache expired',
  unknown: 'unknown',
};
