/** The form that asks for a token. */

import { useState } from 'preact/hooks';
import { api } from '../api';

export function Login(props: { message: string; onDone: () => void }) {
  const [token, setToken] = useState('');
  const [error, setError] = useState('');
  return (
    <main class="login">
      <h1>foldline</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          api.login(token).then(props.onDone, (reason: Error) => setError(reason.message));
        }}
      >
        <label>
          Token of this proxy
          <input
            type="password"
            autocomplete="current-password"
            required
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </label>
        <button type="submit">Open the dashboard</button>
        <p role="alert" class="bad">
          {error}
        </p>
      </form>
      <p class="muted">
        {props.message}. The token is kept in a cookie that scripts cannot read. You see only what belongs to its
        tenant.
      </p>
    </main>
  );
}
