/** What did it save, net? */

import { useState } from 'preact/hooks';
import type { Overview, Totals } from '../api';
import { count, dollars, percent, plural, ratio, tokens } from '../format';
import { Empty, Figure, View } from '../parts';

const PERIODS = [
  ['today', 'Today (UTC)'],
  ['week', '7 days'],
  ['all', 'All time'],
] as const;

export function Savings(props: { overview: Overview }) {
  const [period, setPeriod] = useState<'today' | 'week' | 'all'>('week');
  const totals = props.overview.totals[period];
  return (
    <View id="savings" title="Saved, net" question="What did it save, after everything it cost?">
      <fieldset class="choice">
        <legend class="hidden">Period</legend>
        {PERIODS.map(([key, name]) => (
          <label key={key}>
            <input type="radio" name="period" checked={period === key} onChange={() => setPeriod(key)} />
            <span>{name}</span>
          </label>
        ))}
      </fieldset>
      {totals.requests === 0 ? (
        <Empty why="No request in this period. Choose a longer one, or send a request through the proxy." />
      ) : (
        <Money totals={totals} mode={props.overview.mode} />
      )}
    </View>
  );
}

function Money(props: { totals: Totals; mode: string }) {
  const it = props.totals;
  const isPriced = it.priced_requests > 0;
  const less = it.received_tokens - it.sent_tokens;
  const wouldSave = it.would_send_tokens > 0;
  return (
    <div class="money">
      <div class="headline">
        {isPriced ? (
          <>
            <p class={`big ${it.net_usd < 0 ? 'bad' : ''}`}>
              {dollars(it.net_usd)} <small>{it.net_usd < 0 ? 'lost, net' : 'saved, net'}</small>
            </p>
            <p class="muted">
              {percent(it.net_share)} of the {dollars(it.billed_usd + it.net_usd)} that{' '}
              {plural(it.priced_requests, 'request')} with a known price would have cost without foldline.
            </p>
          </>
        ) : (
          <>
            <p class="big">
              {tokens(less)} <small>prompt tokens not sent</small>
            </p>
            <p class="muted">
              {ratio(less, it.received_tokens)} of the {tokens(it.received_tokens)} prompt tokens received. No dollars:
              the model has no price, or no response reported its usage.
            </p>
          </>
        )}
        {wouldSave ? (
          <p class="would">
            Observe mode: folding would have sent {tokens(it.would_send_tokens)} tokens and saved{' '}
            <strong class={it.would_net_usd < 0 ? 'bad' : ''}>{dollars(it.would_net_usd)}</strong> net. Nothing was
            changed.
          </p>
        ) : null}
      </div>
      {isPriced ? (
        <table class="sum">
          <caption class="hidden">How the net saving is computed</caption>
          <tbody>
            <tr>
              <th scope="row">folded tokens at the tier really billed</th>
              <td>{dollars(it.saved_usd)}</td>
            </tr>
            <tr>
              <th scope="row">
                − creases ({count(it.creases)}, of which {count(it.cold_creases)} free on a cold cache)
              </th>
              <td>{dollars(-it.crease_usd)}</td>
            </tr>
            <tr>
              <th scope="row">− unfolds ({count(it.unfolds)})</th>
              <td>{dollars(-it.unfold_usd)}</td>
            </tr>
            <tr>
              <th scope="row">− summaries</th>
              <td>{dollars(-it.summary_usd)}</td>
            </tr>
            <tr class="total">
              <th scope="row">= net</th>
              <td class={it.net_usd < 0 ? 'bad' : ''}>{dollars(it.net_usd)}</td>
            </tr>
          </tbody>
        </table>
      ) : null}
      <dl class="figures">
        <Figure name="received" value={tokens(it.received_tokens)} note="prompt tokens from clients, our count" />
        <Figure
          name="sent"
          value={tokens(it.sent_tokens)}
          note={`prompt tokens to providers, our count; ${ratio(less, it.received_tokens)} less`}
        />
        <Figure
          name="provider's count"
          value={tokens(it.input_tokens)}
          note={`prompt tokens reported by ${count(it.usage_requests)} of ${plural(it.requests, 'response')}`}
        />
        <Figure
          name="read from cache"
          value={ratio(it.cache_read_tokens, it.input_tokens)}
          note="of the prompt tokens that providers report"
        />
        <Figure
          name="billed"
          value={isPriced ? dollars(it.billed_usd) : '–'}
          note="reported usage at list prices, output included"
        />
        <Figure
          name="cold cache"
          value={isPriced ? dollars(it.cold_avoided_usd) : '–'}
          note="rewriting avoided when conversations came back after their cache expired; part of the saving"
        />
      </dl>
    </div>
  );
}
