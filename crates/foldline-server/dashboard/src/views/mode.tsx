/** The mode of the proxy for this tenant, and a control that changes it. */

import { useEffect, useState } from 'preact/hooks';
import { api, type Mode } from '../api';

const MODES: Record<Mode, string> = {
  fold: 'fold: requests are folded',
  observe: 'observe: requests pass unchanged and are measured',
  off: 'off: requests pass unchanged',
};

/** Without an archive nothing can be folded. */
export function ModeSelect(props: { mode: Mode; hasArchive: boolean }) {
  const [mode, setMode] = useState(props.mode);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => setMode(props.mode), [props.mode]);
  const change = (chosen: Mode) =>
    api.setMode(chosen).then(
      (answer) => {
        setMode(answer.mode);
        setError(null);
      },
      (reason: Error) => {
        setMode(props.mode);
        setError(reason.message);
      },
    );
  return (
    <label class="mode">
      <span class="muted">mode</span>{' '}
      <select value={mode} onChange={(event) => change(event.currentTarget.value as Mode)}>
        {(Object.keys(MODES) as Mode[]).map((it) => (
          <option key={it} value={it} title={MODES[it]} disabled={it === 'fold' && !props.hasArchive}>
            {it}
          </option>
        ))}
      </select>
      {error === null ? null : (
        <span class="bad" role="alert">
          {error}
        </span>
      )}
    </label>
  );
}
