/** The state of the page that is shared by its address: selected session, table, sorting, filter. */

import type { TableKey } from './api';

export interface PageQuery {
  session: string | null;
  by: TableKey;
  since: string;
  sort: string;
  descending: boolean;
  filter: string;
}

const KEYS: TableKey[] = ['session', 'model', 'client', 'day'];
const DEFAULT: PageQuery = { session: null, by: 'session', since: '7d', sort: 'last_at', descending: true, filter: '' };

/** Parses the query part of an address. Unknown values become defaults. */
export function parseQuery(search: string): PageQuery {
  const params = new URLSearchParams(search);
  const by = KEYS.find((key) => key === params.get('by')) ?? DEFAULT.by;
  const sort = params.get('sort') ?? DEFAULT.sort;
  return {
    session: params.get('session'),
    by,
    since: params.get('since') ?? DEFAULT.since,
    sort: sort.replace(/^-/, ''),
    descending: params.has('sort') ? sort.startsWith('-') : true,
    filter: params.get('filter') ?? '',
  };
}

/** Returns the query part of the address; defaults are left out. */
export function formatQuery(query: PageQuery): string {
  const params = new URLSearchParams();
  if (query.session !== null) params.set('session', query.session);
  if (query.by !== DEFAULT.by) params.set('by', query.by);
  if (query.since !== DEFAULT.since) params.set('since', query.since);
  if (query.sort !== DEFAULT.sort || !query.descending) params.set('sort', (query.descending ? '-' : '') + query.sort);
  if (query.filter !== '') params.set('filter', query.filter);
  const text = params.toString();
  return text === '' ? '' : `?${text}`;
}
