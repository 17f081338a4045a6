/** Which session, model, client, day? */

import { api, type Table, type TableKey } from '../api';
import { ago, count, dollars, tokens } from '../format';
import { Empty, Scroll, View } from '../parts';
import type { PageQuery } from '../query';
import { arrange, COLUMNS, type Column, type Row } from '../rows';

const KEYS: [TableKey, string][] = [
  ['session', 'Session'],
  ['model', 'Model'],
  ['client', 'Client'],
  ['day', 'Day (UTC)'],
];
const PERIODS: [string, string][] = [
  ['1d', 'Today (UTC)'],
  ['7d', '7 days'],
  ['30d', '30 days'],
  ['all', 'All time'],
];
/** Rows that are drawn; the export has all. */
const MAX_ROWS = 200;

export function TableView(props: {
  table: Table;
  query: PageQuery;
  now: number;
  onQuery: (change: Partial<PageQuery>) => void;
}) {
  const { query, onQuery, table } = props;
  const rows = arrange([...table.rows], query.sort, query.descending, query.filter);
  const sort = (column: Column) =>
    onQuery({ sort: column.key, descending: query.sort === column.key ? !query.descending : column.kind !== 'text' });
  return (
    <View id="table" title="Table" question="Which session, model, client or day?">
      <div class="controls">
        <fieldset class="choice">
          <legend class="hidden">Rows</legend>
          {KEYS.map(([key, name]) => (
            <label key={key}>
              <input type="radio" name="by" checked={query.by === key} onChange={() => onQuery({ by: key })} />
              <span>{name}</span>
            </label>
          ))}
        </fieldset>
        <label class="field">
          Period{' '}
          <select value={query.since} onChange={(event) => onQuery({ since: event.currentTarget.value })}>
            {PERIODS.map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <label class="field">
          Filter{' '}
          <input
            type="search"
            value={query.filter}
            onInput={(event) => onQuery({ filter: event.currentTarget.value })}
          />
        </label>
        <span class="exports">
          <a href={api.tableAddress(query.by, query.since, 'csv')}>CSV</a>
          <a href={api.tableAddress(query.by, query.since, 'json')}>JSON</a>
        </span>
      </div>
      {rows.length === 0 ? (
        <Empty
          why={
            table.rows.length === 0
              ? 'No request in this period. Choose a longer one.'
              : `No row contains "${query.filter}". Clear the filter to see ${count(table.rows.length)} rows.`
          }
        />
      ) : (
        <Scroll label="Totals">
          <table class="data totals">
            <thead>
              <tr>
                {COLUMNS.map((column) => (
                  <th
                    key={column.key}
                    scope="col"
                    class={column.kind === 'text' ? '' : 'num'}
                    aria-sort={query.sort === column.key ? (query.descending ? 'descending' : 'ascending') : 'none'}
                  >
                    <button type="button" class="sort" onClick={() => sort(column)}>
                      {column.name}
                      {query.sort === column.key ? (query.descending ? ' ↓' : ' ↑') : ''}
                    </button>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, MAX_ROWS).map((row) => (
                <tr key={row.key}>
                  {COLUMNS.map((column) => (
                    <Cell key={column.key} column={column} row={row} by={table.by} now={props.now} onQuery={onQuery} />
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {rows.length > MAX_ROWS ? (
        <p class="muted">
          The first {count(MAX_ROWS)} of {count(rows.length)} rows; the exports contain all.
        </p>
      ) : null}
    </View>
  );
}

function Cell(props: {
  column: Column;
  row: Row;
  by: TableKey;
  now: number;
  onQuery: (change: Partial<PageQuery>) => void;
}) {
  const { column, row } = props;
  const value = column.value(row);
  if (typeof value === 'string') {
    return (
      <th scope="row" class="target" title={value}>
        {props.by === 'session' ? (
          <button type="button" class="link" onClick={() => props.onQuery({ session: row.key })}>
            {value}
          </button>
        ) : (
          value
        )}
      </th>
    );
  }
  const text = {
    tokens: () => tokens(value),
    count: () => count(value),
    dollars: () => (row.totals.priced_requests > 0 ? dollars(value) : '–'),
    time: () => ago(value, props.now),
    text: () => String(value),
  }[column.kind]();
  return <td class={`num ${column.kind === 'dollars' && value < 0 ? 'bad' : ''}`}>{text}</td>;
}
