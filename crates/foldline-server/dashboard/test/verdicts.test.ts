import { expect, test } from 'vitest';
import type { RequestItem } from '../src/api';
import { hasVerdicts, verdictWords } from '../src/verdicts';

const request = (crease: boolean, verdict: string | null | undefined) =>
  ({
    crease: crease ? {} : null,
    provider_verdict: verdict === undefined ? null : { is_kept: verdict === null, reason: verdict },
  }) as RequestItem;

test('verdicts belong to the crease before them', () => {
  const first = request(true, 'messages_changed');
  const second = request(true, undefined);
  const third = request(true, undefined);
  const requests = [
    request(false, null),
    first,
    request(false, null),
    request(false, undefined),
    request(false, 'tools_changed'),
    second,
    request(false, null),
    third,
  ];
  expect(verdictWords(requests, first)).toBe('at the crease: messages_changed; since then: kept in 1 of 2');
  expect(verdictWords(requests, second)).toBe('since then: kept in 1 of 1');
  expect(verdictWords(requests, third)).toBe('');
  expect(hasVerdicts(requests)).toBe(true);
  expect(hasVerdicts([third])).toBe(false);
});
