/** The HTTP API of the proxy: types of its answers, and calls. Definitions are in docs/reference/api.md. */

export type BreakCause = 'crease' | 'model_switch' | 'client_changed' | 'expired' | 'unknown';
export type Mode = 'fold' | 'observe' | 'off';

export interface Totals {
  requests: number;
  usage_requests: number;
  priced_requests: number;
  received_tokens: number;
  sent_tokens: number;
  would_send_tokens: number;
  input_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  fresh_tokens: number;
  output_tokens: number;
  billed_usd: number;
  saved_usd: number;
  crease_usd: number;
  unfold_usd: number;
  summary_usd: number;
  net_usd: number;
  net_share: number | null;
  would_net_usd: number;
  cold_avoided_usd: number;
  creases: number;
  cold_creases: number;
  folds: number;
  unfolds: number;
  breaks: Record<BreakCause, number>;
}

export interface Guarantee {
  name: 'fits' | 'valid' | 'stable' | 'recoverable';
  violations: number;
  meaning: string;
}

export interface Overview {
  version: string;
  mode: Mode;
  now: number;
  started_at: number;
  has_archive: boolean;
  state: { level: 'ok' | 'idle' | 'warn' | 'bad'; sentence: string };
  guarantees: Guarantee[];
  requests_since_start: number;
  internal_errors: { kind: string; count: number }[];
  upstream_errors: number;
  /** Whether the totals cover all of the journal, and how much of it they cover. */
  journal: { is_complete: boolean; share_read: number };
  totals: { today: Totals; week: Totals; all: Totals };
}

export interface WindowParts {
  window_tokens: number;
  budget_tokens: number;
  system_tokens: number;
  tools_tokens: number;
  user_tokens: number;
  folded_tokens: number;
  live_tokens: number;
  free_tokens: number;
  crease_in_tokens: number;
  crease_usd_at_most: number | null;
}

export interface Session {
  id: string;
  title: string;
  client: string;
  model: string;
  first_at: number;
  last_at: number;
  is_live: boolean;
  totals: Totals;
  window: WindowParts | null;
}

export interface Crease {
  trigger: 'over_budget' | 'profitable' | 'cold_cache';
  saved_tokens: number;
  price_usd: number;
  avoided_usd: number;
  request_point: number;
}

export interface RequestItem {
  at: number;
  session: string;
  model: string;
  status: number;
  overhead_ms: number;
  usage: boolean;
  received_tokens: number;
  sent_tokens: number;
  input_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  fresh_tokens: number;
  output_tokens: number;
  billed_usd: number;
  saved_usd: number;
  crease_usd: number;
  unfold_usd: number;
  summary_usd: number;
  net_usd: number;
  folds: number;
  unfolds: number;
  break: BreakCause | null;
  crease: Crease | null;
  /** What the provider reports about its cache, where it was asked. */
  provider_verdict: { is_kept: boolean; reason: string | null } | null;
}

export interface Fold {
  handle: string | null;
  tool: string | null;
  target: string;
  pass: string;
  tokens_before: number;
  tokens_after: number;
  marker: string;
  at: number;
  unfolds: number;
}

export interface SessionDetail {
  session: Session;
  requests: RequestItem[];
  folds: Fold[];
  pins: Pins;
}

/** What is never folded in a session. */
export interface Pins {
  tools: string[];
  targets: string[];
}

export interface Cache {
  requests: RequestItem[];
  totals: Totals;
}

export interface Quality {
  folds: number;
  unfolds: number;
  unfolds_per_100_folds: number | null;
  recent: { at: number; session: string; handle: string; tool: string | null; target: string; tokens: number }[];
}

export interface InventoryTool {
  name: string;
  server: string | null;
  tokens: number;
  calls: number;
  sessions: number;
  last_called_at: number | null;
}

export interface Inventory {
  clients: { client: string; requests: number; hint: string; tools: InventoryTool[] }[];
}

export type TableKey = 'session' | 'model' | 'client' | 'day';

export interface Table {
  by: TableKey;
  rows: { key: string; label: string; last_at: number; totals: Totals }[];
}

export type GroupName = 'fold' | 'observe';

export interface SessionGroup {
  group: GroupName;
  sessions: number;
  upstream_errors: number;
  totals: Totals;
}

/** Sessions that are folded, next to those that are only observed. */
export interface Groups {
  observe_share: string;
  groups: SessionGroup[];
}

export interface Policies {
  state: 'unavailable' | 'ready' | 'running' | 'done';
  reason: string;
  commands: string[];
  sessions: number;
  rows: {
    policy: string;
    is_current: boolean;
    tokens: number;
    cost: number;
    cost_with_retries: number;
    needed_context_kept: number;
  }[];
}

export interface Health {
  version: string;
  uptime_seconds: number;
  overhead: { p50_ms: number | null; p99_ms: number | null; requests: number };
  /** None without an archive. A large one is counted in the background. */
  archive:
    | { is_counted: true; bytes: number; originals: number; oldest_at: number | null }
    | { is_counted: false }
    | null;
  windows: {
    model: string;
    upstream: string;
    tokens: number;
    evidence: string;
    age_seconds: number;
    expires_in_seconds: number | null;
  }[];
  upstreams: { name: string; url: string }[];
  findings: { level: 'ok' | 'warn'; text: string }[];
}

export interface Original {
  handle: string;
  tool: string | null;
  arguments: string | null;
  tokens: number;
  bytes: number;
  is_text: boolean;
  text: string;
}

/** An answer with an error status. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const BASE = 'api/v1/';

async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = { accept: 'application/json' };
  if (method !== 'GET') headers['x-foldline-request'] = '1';
  if (body !== undefined) headers['content-type'] = 'application/json';
  const response = await fetch(BASE + path, {
    method,
    headers,
    credentials: 'same-origin',
    body: body === undefined ? null : JSON.stringify(body),
  });
  const text = await response.text();
  if (!response.ok) throw new ApiError(response.status, errorMessage(text) ?? response.statusText);
  return (text === '' ? {} : JSON.parse(text)) as T;
}

/** Returns the message of an error body, if it has one. */
export function errorMessage(text: string): string | undefined {
  try {
    const message: unknown = JSON.parse(text)?.error?.message;
    return typeof message === 'string' ? message : undefined;
  } catch {
    return undefined;
  }
}

const segment = encodeURIComponent;

export const api = {
  overview: () => call<Overview>('GET', 'overview'),
  sessions: () => call<{ sessions: Session[] }>('GET', 'sessions?limit=50'),
  session: (id: string) => call<SessionDetail>('GET', `sessions/${segment(id)}`),
  cache: () => call<Cache>('GET', 'cache?limit=120'),
  quality: () => call<Quality>('GET', 'quality'),
  inventory: () => call<Inventory>('GET', 'inventory'),
  table: (by: TableKey, since: string) => call<Table>('GET', `table?by=${by}&since=${segment(since)}`),
  tableAddress: (by: TableKey, since: string, format: 'csv' | 'json') =>
    `${BASE}table?by=${by}&since=${segment(since)}&format=${format}&download=1`,
  groups: () => call<Groups>('GET', 'groups?since=all'),
  policies: () => call<Policies>('GET', 'policies'),
  comparePolicies: () => call<Policies>('POST', 'policies'),
  health: () => call<Health>('GET', 'health'),
  original: (handle: string) => call<Original>('GET', `originals/${segment(handle)}`),
  setMode: (mode: Mode) => call<{ mode: Mode }>('PUT', 'mode', { mode }),
  setPins: (id: string, pins: Pins) => call<{ pins: Pins }>('PUT', `sessions/${segment(id)}/pins`, pins),
  deleteSession: (id: string) => call<Record<string, never>>('DELETE', `sessions/${segment(id)}`),
  login: (token: string) => call<Record<string, never>>('POST', 'login', { token }),
  logout: () => call<Record<string, never>>('POST', 'logout'),
  eventsAddress: `${BASE}events`,
};
