/** Is the proxy healthy? */

import type { Health } from '../api';
import { bytes, count, duration, plural } from '../format';
import { Empty, Figure, Scroll, View } from '../parts';

const EVIDENCE: Record<string, string> = {
  server_report: 'reported by the server',
  error_message: 'stated in an error',
  overflow: 'a prompt was refused',
  truncation: 'the server truncates prompts',
};

export function HealthView(props: { health: Health; now: number }) {
  const it = props.health;
  const milliseconds = (value: number | null) =>
    value === null ? '–' : `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ms`;
  return (
    <View id="health" title="Health" question="What does the proxy itself cost, and is it well?">
      <dl class="figures">
        <Figure
          name="overhead p50"
          value={milliseconds(it.overhead.p50_ms)}
          note="from the end of a request body to sending it"
        />
        <Figure
          name="overhead p99"
          value={milliseconds(it.overhead.p99_ms)}
          note={`of the latest ${plural(it.overhead.requests, 'request')}`}
        />
        <Figure
          name="archive"
          value={it.archive === null ? 'none' : it.archive.is_counted ? bytes(it.archive.bytes) : '\u2013'}
          note={
            it.archive === null
              ? 'originals are not stored; folds cannot be undone'
              : !it.archive.is_counted
                ? 'its originals are being counted'
                : `${plural(it.archive.originals, 'original')}${
                    it.archive.oldest_at === null
                      ? ''
                      : `, oldest ${duration((props.now - it.archive.oldest_at) / 1000)}`
                  }`
          }
        />
        <Figure name="version" value={it.version} note={`running for ${duration(it.uptime_seconds)}`} />
      </dl>
      <ul class="findings">
        {it.findings.map((finding) => (
          <li key={finding.text} class={finding.level}>
            {finding.text}
          </li>
        ))}
      </ul>
      {it.windows.length === 0 ? (
        <Empty why="No window was learned: the model table and the servers agree with what providers accept." />
      ) : (
        <Scroll label="Learned windows">
          <table class="data">
            <caption>Windows learned from providers</caption>
            <thead>
              <tr>
                <th scope="col">model</th>
                <th scope="col">provider</th>
                <th scope="col" class="num">
                  tokens
                </th>
                <th scope="col">evidence</th>
                <th scope="col">age</th>
                <th scope="col">expires in</th>
              </tr>
            </thead>
            <tbody>
              {it.windows.map((window) => (
                <tr key={`${window.upstream}${window.model}`}>
                  <td>{window.model}</td>
                  <td>{window.upstream}</td>
                  <td class="num">{count(window.tokens)}</td>
                  <td>{EVIDENCE[window.evidence] ?? window.evidence.replaceAll('_', ' ')}</td>
                  <td>{duration(window.age_seconds)}</td>
                  <td>{window.expires_in_seconds === null ? 'never' : duration(window.expires_in_seconds)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      <p class="muted">{it.upstreams.map((upstream) => `${upstream.name}: ${upstream.url}`).join(' · ')}</p>
    </View>
  );
}
