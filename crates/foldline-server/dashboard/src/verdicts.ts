/** What providers report about their caches, per crease. */

import type { RequestItem } from './api';

/** Returns the verdicts from a crease up to the next one, in words; none if the provider was not asked. */
export function verdictWords(requests: RequestItem[], crease: RequestItem): string {
  const from = requests.indexOf(crease);
  const next = requests.findIndex((request, at) => at > from && request.crease !== null);
  const [own, ...rest] = requests.slice(from, next < 0 ? requests.length : next).map((it) => it.provider_verdict);
  const asked = rest.filter((verdict) => verdict !== null);
  const kept = asked.filter((verdict) => verdict.is_kept).length;
  const words: string[] = [];
  if (own) words.push(own.is_kept ? 'at the crease: kept' : `at the crease: ${own.reason ?? 'not kept'}`);
  if (asked.length > 0) words.push(`since then: kept in ${kept} of ${asked.length}`);
  return words.join('; ');
}

/** Returns true if the provider was asked about any request. */
export function hasVerdicts(requests: RequestItem[]): boolean {
  return requests.some((request) => request.provider_verdict !== null);
}
