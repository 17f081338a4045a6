/** What would another policy have done? */

import { useEffect, useState } from 'preact/hooks';
import { api, type Policies } from '../api';
import { count, percent } from '../format';
import { Command, Empty, Scroll, View } from '../parts';

/** Interval at which a running comparison is read again. */
const POLL_MS = 2000;

export function PoliciesView(props: { policies: Policies }) {
  const [latest, setLatest] = useState<Policies | null>(null);
  const [error, setError] = useState<string | null>(null);
  const policies = latest ?? props.policies;
  const update = (answer: Promise<Policies>) =>
    answer.then(
      (read) => {
        setLatest(read);
        setError(null);
      },
      (reason: Error) => setError(reason.message),
    );
  useEffect(() => {
    if (policies.state !== 'running') return;
    const timer = setInterval(() => update(api.policies()), POLL_MS);
    return () => clearInterval(timer);
  }, [policies.state]);
  return (
    <View id="policies" title="Other policies" question="What would another policy have done?">
      {policies.state === 'done' ? <PolicyTable policies={policies} /> : null}
      {policies.state === 'running' ? (
        <p class="pending" role="status">
          Replaying recorded sessions; the numbers appear here.
        </p>
      ) : (
        <Empty why={policies.reason}>
          {policies.commands.map((command) => (
            <p key={command}>
              <Command text={command} />
            </p>
          ))}
          {policies.state === 'unavailable' ? null : (
            <p>
              <button type="button" onClick={() => update(api.comparePolicies())}>
                {policies.state === 'done' ? 'Compare again' : 'Compare policies'}
              </button>
            </p>
          )}
        </Empty>
      )}
      {error === null ? null : (
        <p class="bad" role="alert">
          {error}
        </p>
      )}
    </View>
  );
}

function PolicyTable(props: { policies: Policies }) {
  const { rows, sessions } = props.policies;
  return (
    <Scroll label="Policies">
      <table class="data">
        <caption>
          The last {count(sessions)} recorded sessions under each policy, in percent of no compaction; cost incl.
          retries adds a round trip for every action whose needed context is missing
        </caption>
        <thead>
          <tr>
            <th scope="col">policy</th>
            <th scope="col" class="num">
              tokens
            </th>
            <th scope="col" class="num">
              cost
            </th>
            <th scope="col" class="num">
              cost incl. retries
            </th>
            <th scope="col" class="num">
              needed context kept
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.policy} class={row.is_current ? 'current' : ''}>
              <td>
                {row.policy}
                {row.is_current ? ' (this proxy)' : ''}
              </td>
              <td class="num">{percent(row.tokens)}</td>
              <td class="num">{percent(row.cost)}</td>
              <td class="num">{percent(row.cost_with_retries)}</td>
              <td class="num">{percent(row.needed_context_kept)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
