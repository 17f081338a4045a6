/** What do sessions cost with folding, and without? */

import type { GroupName, Groups, SessionGroup } from '../api';
import { count, dollars, percent, ratio, tokens } from '../format';
import { Empty, Scroll, View } from '../parts';

/** Sessions of a group below which a difference may be chance. */
const MIN_SESSIONS = 100;

const NAMES: Record<GroupName, string> = { fold: 'folded', observe: 'only observed' };

/** A measure of a group, and its text. */
const MEASURES: [string, (group: SessionGroup) => string][] = [
  ['sessions', (it) => count(it.sessions)],
  ['requests', (it) => count(it.totals.requests)],
  ['requests per session', (it) => quotient(it.totals.requests, it.sessions, (value) => value.toFixed(1))],
  ['prompt tokens per request', (it) => quotient(it.totals.sent_tokens, it.totals.requests, tokens)],
  ['read from the cache', (it) => ratio(it.totals.cache_read_tokens, it.totals.input_tokens)],
  ['billed per request', (it) => quotient(it.totals.billed_usd, it.totals.priced_requests, dollars)],
  [
    'billed per session',
    (it) => (it.totals.priced_requests === 0 ? '–' : quotient(it.totals.billed_usd, it.sessions, dollars)),
  ],
  ['responses with an error', (it) => ratio(it.upstream_errors, it.totals.requests)],
  [
    'unfolds per 100 requests',
    (it) => quotient(100 * it.totals.unfolds, it.totals.requests, (value) => value.toFixed(1)),
  ],
];

function quotient(sum: number, whole: number, format: (value: number) => string): string {
  return whole > 0 ? format(sum / whole) : '–';
}

/** Returns true if sessions are assigned to groups, or were. */
export function isCompared(groups: Groups): boolean {
  return groups.observe_share !== '0%' || groups.groups.some((it) => it.sessions > 0);
}

/** Returns what folding changes in the bill of a request, as a sentence; none without a price in both groups. */
export function billedDifference(groups: Groups): string | null {
  const [fold, observe] = (['fold', 'observe'] as const).map((name) => {
    const totals = groups.groups.find((it) => it.group === name)?.totals;
    return totals === undefined || totals.priced_requests === 0 ? 0 : totals.billed_usd / totals.priced_requests;
  });
  if (!fold || !observe) return null;
  const change = fold / observe - 1;
  return `A request of a folded session was billed ${percent(Math.abs(change))} ${change <= 0 ? 'less' : 'more'} than one of a session that is only observed.`;
}

export function GroupsView(props: { groups: Groups }) {
  const { observe_share, groups } = props.groups;
  const sentence = billedDifference(props.groups);
  const isSmall = groups.some((it) => it.sessions < MIN_SESSIONS);
  return (
    <View id="groups" title="With and without" question="What do sessions cost with folding, and without?">
      {groups.every((it) => it.sessions === 0) ? (
        <Empty why={`${observe_share} of the sessions are only observed. No session has begun yet.`} />
      ) : (
        <>
          {sentence === null ? null : <p>{sentence}</p>}
          <Scroll label="Folded and observed sessions">
            <table class="data">
              <caption>
                Sessions since the start of the records; {observe_share} of new ones are only observed, chosen by a hash
              </caption>
              <thead>
                <tr>
                  <th scope="col">measure</th>
                  {groups.map((it) => (
                    <th scope="col" class="num" key={it.group}>
                      {NAMES[it.group]}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {MEASURES.map(([name, text]) => (
                  <tr key={name}>
                    <th scope="row">{name}</th>
                    {groups.map((it) => (
                      <td class="num" key={it.group}>
                        {text(it)}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
          {isSmall ? (
            <p class="muted">
              A group has fewer than {MIN_SESSIONS} sessions. Sessions differ much in length, so a difference may be
              chance.
            </p>
          ) : null}
        </>
      )}
    </View>
  );
}
