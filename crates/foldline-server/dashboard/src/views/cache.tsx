/** Did the cache hold? */

import type { BreakCause, Cache } from '../api';
import { CacheChart } from '../charts';
import { BREAK_WORDS, count, plural, ratio, tokens } from '../format';
import { Empty, Figure, View } from '../parts';
import { RequestTable } from './session';

const ADVICE: Record<BreakCause, string> = {
  crease: 'decided and priced by foldline; listed with its price in the session',
  model_switch: 'each model has its own cache',
  client_changed: 'the client edited, compacted or reordered what it had sent before',
  expired: 'more time passed than the provider keeps a cache; folding is free at that moment',
  unknown: 'nothing here explains it: eviction or routing at the provider',
};

export function CacheView(props: { cache: Cache; now: number }) {
  const { requests, totals } = props.cache;
  const withUsage = requests.filter((it) => it.usage);
  const causes = Object.keys(ADVICE) as BreakCause[];
  const breaks = causes.map((cause): [BreakCause, number] => [cause, totals.breaks[cause]]);
  const all = breaks.reduce((sum, [, times]) => sum + times, 0);
  return (
    <View id="cache" title="Cache" question="Did the provider's cache hold?">
      {withUsage.length === 0 ? (
        <Empty
          why={
            requests.length === 0
              ? 'No request yet.'
              : 'No response has reported its usage. Streams of Chat Completions report it only if the client sets stream_options.include_usage.'
          }
        />
      ) : (
        <>
          <dl class="figures">
            <Figure
              name="read"
              value={tokens(totals.cache_read_tokens)}
              note={`${ratio(totals.cache_read_tokens, totals.input_tokens)} of reported prompt tokens, 7 days`}
            />
            <Figure
              name="written"
              value={tokens(totals.cache_write_tokens)}
              note={ratio(totals.cache_write_tokens, totals.input_tokens)}
            />
            <Figure
              name="fresh"
              value={tokens(totals.fresh_tokens)}
              note={ratio(totals.fresh_tokens, totals.input_tokens)}
            />
            <Figure
              name="breaks"
              value={count(all)}
              note={`in ${plural(totals.usage_requests, 'request')} with reported usage`}
            />
          </dl>
          <CacheChart requests={[...requests].reverse()} />
          <table class="data breaks">
            <caption>Cache breaks by cause, 7 days</caption>
            <thead>
              <tr>
                <th scope="col">cause</th>
                <th scope="col" class="num">
                  breaks
                </th>
                <th scope="col">meaning</th>
              </tr>
            </thead>
            <tbody>
              {breaks.map(([cause, times]) => (
                <tr key={cause}>
                  <th scope="row">{BREAK_WORDS[cause]}</th>
                  <td class="num">{count(times)}</td>
                  <td>{ADVICE[cause]}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <details>
            <summary>The latest {plural(requests.length, 'request')}</summary>
            <RequestTable requests={[...requests].reverse()} now={props.now} />
          </details>
        </>
      )}
    </View>
  );
}
