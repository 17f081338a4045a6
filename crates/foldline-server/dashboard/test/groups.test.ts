import { expect, test } from 'vitest';
import type { GroupName, SessionGroup, Totals } from '../src/api';
import { billedDifference, isCompared } from '../src/views/groups';

const group = (name: GroupName, sessions: number, billed_usd: number, priced_requests: number): SessionGroup => ({
  group: name,
  sessions,
  upstream_errors: 0,
  totals: { billed_usd, priced_requests } as Totals,
});
const compared = (fold: SessionGroup, observe: SessionGroup) => ({ observe_share: '20%', groups: [fold, observe] });

test('the bill of a request is compared, also when folding costs more', () => {
  const less = compared(group('fold', 8, 4, 100), group('observe', 2, 2, 25));
  expect(billedDifference(less)).toContain('billed 50 % less than');
  const more = compared(group('fold', 8, 12, 100), group('observe', 2, 2, 25));
  expect(billedDifference(more)).toContain('billed 50 % more than');
});

test('without a price in both groups there is no sentence', () => {
  expect(billedDifference(compared(group('fold', 8, 4, 100), group('observe', 0, 0, 0)))).toBeNull();
  expect(billedDifference(compared(group('fold', 8, 0, 0), group('observe', 2, 2, 25)))).toBeNull();
});

test('the view is shown while sessions are assigned, and where some were', () => {
  const [none, some] = [group('fold', 0, 0, 0), group('observe', 1, 0, 0)];
  expect(isCompared({ observe_share: '0%', groups: [none, none] })).toBe(false);
  expect(isCompared({ observe_share: '20%', groups: [none, none] })).toBe(true);
  expect(isCompared({ observe_share: '0%', groups: [none, some] })).toBe(true);
});
