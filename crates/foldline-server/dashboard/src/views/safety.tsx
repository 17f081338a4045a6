/** Is it working, and is it safe? */

import type { Overview } from '../api';
import { count, plural } from '../format';
import { Command, Empty, View } from '../parts';

export function Safety(props: { overview: Overview }) {
  const it = props.overview;
  const faults = it.internal_errors.reduce((sum, error) => sum + error.count, 0);
  return (
    <View id="safety" title="State" question="Is it working, and is it safe?">
      <p class={`sentence ${it.state.level}`} role="status">
        {it.state.sentence}
      </p>
      {it.requests_since_start === 0 && it.totals.all.requests === 0 ? (
        <Empty why="No request has come through this proxy yet. Point an agent at it, or start one with its own proxy:">
          <p>
            <Command text={`ANTHROPIC_BASE_URL=${location.origin} claude`} />
          </p>
          <p>
            <Command text={`OPENAI_BASE_URL=${location.origin}/v1 your-agent`} />
          </p>
        </Empty>
      ) : null}
      <ul class="lights">
        {it.guarantees.map((guarantee) => (
          <li key={guarantee.name} class={guarantee.violations === 0 ? 'ok' : 'bad'}>
            <span class="light" aria-hidden="true" />
            <strong>{guarantee.name}</strong>
            <span class="violations">
              {guarantee.violations === 0 ? 'no violation' : plural(guarantee.violations, 'violation')} since start
            </span>
            <small>{guarantee.meaning}</small>
          </li>
        ))}
      </ul>
      <p class="muted facts">
        {plural(it.requests_since_start, 'request')} since start, {plural(faults, 'internal error')}
        {faults > 0
          ? ` (${it.internal_errors.map((error) => `${error.kind} ${count(error.count)}`).join(', ')}; the client's own request was sent)`
          : ''}
        , {plural(it.upstream_errors, 'error')} from providers.
      </p>
    </View>
  );
}
