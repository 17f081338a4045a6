import { describe, expect, test } from 'vitest';
import { errorMessage, type Session, type Totals, type WindowParts } from '../src/api';
import { windowShares } from '../src/charts';
import { ago, bytes, dollars, duration, percent, plural, ratio, tokens } from '../src/format';
import { liveSessions, throttled } from '../src/live';
import { formatQuery, parseQuery } from '../src/query';
import { arrange, type Row } from '../src/rows';
import { withoutPin, withPin } from '../src/views/pins';

describe('numbers', () => {
  test('tokens have three significant digits', () => {
    expect([0, 999, 1000, 12_345, 123_456, 999_499, 999_500, 1_520_000, 2_500_000_000].map(tokens)).toEqual([
      '0',
      '999',
      '1.00k',
      '12.3k',
      '123k',
      '999k',
      '1.00M',
      '1.52M',
      '2.50B',
    ]);
    expect(tokens(-1500)).toBe('−1.50k');
  });
  test('dollars show cents, small amounts show more, and a loss has a sign', () => {
    expect([0, 0.004, 0.00002, 1.005, 1234.5, -0.25, 1e-9].map(dollars)).toEqual([
      '$0.00',
      '$0.0040',
      '$0.000020',
      '$1.01',
      '$1,234.50',
      '−$0.25',
      '$0.00',
    ]);
  });
  test('shares without a whole are a dash', () => {
    expect([percent(0.456), percent(0.043), percent(-0.2), percent(null), ratio(1, 0), ratio(1, 4)]).toEqual([
      '46 %',
      '4.3 %',
      '−20 %',
      '–',
      '–',
      '25 %',
    ]);
  });
  test('bytes, times and plurals', () => {
    expect([bytes(999), bytes(1500), bytes(2.5e9)]).toEqual(['999 B', '1.5 kB', '2.5 GB']);
    expect([ago(0, 1000), ago(0, 90_000), duration(7200), duration(3 * 86_400)]).toEqual([
      'now',
      '2 min ago',
      '2 h',
      '3 days',
    ]);
    expect([plural(1, 'fold'), plural(2000, 'fold')]).toEqual(['1 fold', '2,000 folds']);
  });
});

test('error bodies are read, other bodies are not', () => {
  expect(errorMessage('{"error":{"message":"no"}}')).toBe('no');
  expect(errorMessage('<html>')).toBeUndefined();
  expect(errorMessage('{"error":1}')).toBeUndefined();
});

test('the address keeps the state of the page, without defaults', () => {
  expect(formatQuery(parseQuery(''))).toBe('');
  const text = '?session=a%2Fb&by=model&since=30d&sort=-net_usd&filter=x+y';
  const query = parseQuery(text);
  expect(query).toEqual({
    session: 'a/b',
    by: 'model',
    since: '30d',
    sort: 'net_usd',
    descending: true,
    filter: 'x y',
  });
  expect(formatQuery(query)).toBe(text);
  expect(parseQuery('?by=nonsense').by).toBe('session');
});

const totals = (net: number) => ({ net_usd: net, requests: 1, priced_requests: 1 }) as Totals;
const row = (key: string, net: number): Row => ({ key, label: key, last_at: 0, totals: totals(net) });

test('rows are filtered and sorted', () => {
  const rows = [row('beta', 2), row('alpha', -1), row('gamma', 3)];
  expect(arrange([...rows], 'net_usd', true, '').map((it) => it.key)).toEqual(['gamma', 'beta', 'alpha']);
  expect(arrange([...rows], 'label', false, 'A').map((it) => it.key)).toEqual(['alpha', 'beta', 'gamma']);
  expect(arrange([...rows], 'net_usd', false, 'gam').map((it) => it.key)).toEqual(['gamma']);
});

test('a window bar never exceeds its width', () => {
  const parts: WindowParts = {
    window_tokens: 100,
    budget_tokens: 90,
    system_tokens: 10,
    tools_tokens: 20,
    user_tokens: 30,
    folded_tokens: 20,
    live_tokens: 40,
    free_tokens: 0,
    crease_in_tokens: 0,
    crease_usd_at_most: null,
  };
  const shares = windowShares(parts);
  expect(shares.reduce((sum, it) => sum + it.share, 0)).toBeCloseTo(1);
  expect(shares[1]?.from).toBeCloseTo(10 / 120);
});

test('live sessions are sorted, newest first', () => {
  const session = (id: string, last: number, live: boolean) => ({ id, last_at: last, is_live: live }) as Session;
  expect(
    liveSessions([session('a', 1, true), session('b', 2, false), session('c', 3, true)]).map((it) => it.id),
  ).toEqual(['c', 'a']);
});

test('refreshing is throttled, and the last change is not lost', async () => {
  let runs = 0;
  const run = throttled(() => {
    runs += 1;
  }, 20);
  for (let at = 0; at < 10; at += 1) run();
  expect(runs).toBe(1);
  await new Promise((resolve) => setTimeout(resolve, 60));
  expect(runs).toBe(2);
});

describe('pins', () => {
  const pins = { tools: ['todo_write'], targets: ['PLAN.md'] };
  test('a pin is added once', () => {
    expect(withPin(pins, 'targets', 'src/a.rs')).toEqual({ tools: ['todo_write'], targets: ['PLAN.md', 'src/a.rs'] });
    expect(withPin(pins, 'targets', 'PLAN.md')).toBe(pins);
    expect(withPin(pins, 'tools', '')).toBe(pins);
  });
  test('a pin is removed', () => {
    expect(withoutPin(pins, 'tools', 'todo_write')).toEqual({ tools: [], targets: ['PLAN.md'] });
  });
});
