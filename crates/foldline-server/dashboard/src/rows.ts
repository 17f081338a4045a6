/** Sorting and filtering of the table. */

import type { Table } from './api';

export type Row = Table['rows'][number];

export interface Column {
  key: string;
  name: string;
  kind: 'text' | 'tokens' | 'count' | 'dollars' | 'time';
  value: (row: Row) => number | string;
}

export const COLUMNS: Column[] = [
  { key: 'label', name: 'name', kind: 'text', value: (row) => row.label || row.key },
  { key: 'last_at', name: 'last request', kind: 'time', value: (row) => row.last_at },
  { key: 'requests', name: 'requests', kind: 'count', value: (row) => row.totals.requests },
  { key: 'received_tokens', name: 'received', kind: 'tokens', value: (row) => row.totals.received_tokens },
  { key: 'sent_tokens', name: 'sent', kind: 'tokens', value: (row) => row.totals.sent_tokens },
  { key: 'input_tokens', name: "provider's count", kind: 'tokens', value: (row) => row.totals.input_tokens },
  { key: 'cache_read_tokens', name: 'read', kind: 'tokens', value: (row) => row.totals.cache_read_tokens },
  { key: 'creases', name: 'creases', kind: 'count', value: (row) => row.totals.creases },
  { key: 'unfolds', name: 'unfolds', kind: 'count', value: (row) => row.totals.unfolds },
  { key: 'billed_usd', name: 'billed', kind: 'dollars', value: (row) => row.totals.billed_usd },
  { key: 'net_usd', name: 'net', kind: 'dollars', value: (row) => row.totals.net_usd },
];

/** Returns the rows whose name contains the filter, sorted by a column. */
export function arrange(rows: Row[], sort: string, descending: boolean, filter: string): Row[] {
  const column = COLUMNS.find((it) => it.key === sort) ?? COLUMNS[0];
  const needle = filter.trim().toLowerCase();
  const kept = rows.filter((row) => `${row.label} ${row.key}`.toLowerCase().includes(needle));
  const sign = descending ? -1 : 1;
  return kept.sort((a, b) => {
    const [left, right] = [column?.value(a) ?? 0, column?.value(b) ?? 0];
    return sign * (typeof left === 'string' ? left.localeCompare(String(right)) : left - Number(right));
  });
}
