/** The page: reads the API, listens to events, and draws the views in order. */

import { useCallback, useEffect, useMemo, useRef, useState } from 'preact/hooks';
import {
  ApiError,
  api,
  type Cache,
  type Groups,
  type Health,
  type Inventory,
  type Overview,
  type Policies,
  type Quality,
  type Session,
  type SessionDetail,
  type Table,
} from './api';
import { type Connection, connect, MIN_REFRESH_MS, throttled } from './live';
import { Pending } from './parts';
import { formatQuery, type PageQuery, parseQuery } from './query';
import { CacheView } from './views/cache';
import { GroupsView, isCompared } from './views/groups';
import { HealthView } from './views/health';
import { InventoryView } from './views/inventory';
import { Login } from './views/login';
import { ModeSelect } from './views/mode';
import { PoliciesView } from './views/policies';
import { QualityView } from './views/quality';
import { Safety } from './views/safety';
import { Savings } from './views/savings';
import { SessionView } from './views/session';
import { TableView } from './views/table';
import { Windows } from './views/windows';

/** Everything that is read again when something changes. */
interface PageData {
  overview: Overview;
  sessions: Session[];
  cache: Cache;
  quality: Quality;
  inventory: Inventory;
  groups: Groups;
  policies: Policies;
  health: Health;
}

/** Time after which answers that change slowly, or cost the proxy more, are read again. */
const SLOW_REFRESH_MS = 10_000;

type SlowData = Pick<PageData, 'inventory' | 'groups' | 'policies' | 'health'> & { readAt: number };

async function readSlow(before: SlowData | null): Promise<SlowData> {
  if (before !== null && Date.now() - before.readAt < SLOW_REFRESH_MS) return before;
  const [inventory, groups, policies, health] = await Promise.all([
    api.inventory(),
    api.groups(),
    api.policies(),
    api.health(),
  ]);
  return { inventory, groups, policies, health, readAt: Date.now() };
}

async function readPage(slowBefore: SlowData | null): Promise<[PageData, SlowData]> {
  const [overview, { sessions }, cache, quality, slow] = await Promise.all([
    api.overview(),
    api.sessions(),
    api.cache(),
    api.quality(),
    readSlow(slowBefore),
  ]);
  const { readAt: _, ...answers } = slow;
  return [{ overview, sessions, cache, quality, ...answers }, slow];
}

const SECTIONS = [
  ['safety', 'State'],
  ['savings', 'Saved, net'],
  ['windows', 'Live sessions'],
  ['session', 'One session'],
  ['cache', 'Cache'],
  ['quality', 'Quality'],
  ['inventory', 'Carried for nothing'],
  ['table', 'Table'],
  ['groups', 'With and without'],
  ['policies', 'Other policies'],
  ['health', 'Health'],
] as const;

export function App() {
  const [data, setData] = useState<PageData | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [needsToken, setNeedsToken] = useState(false);
  const [connection, setConnection] = useState<Connection>('connecting');
  const [query, setQuery] = useState<PageQuery>(() => parseQuery(location.search));
  const [detail, setDetail] = useState<SessionDetail | null>(null);
  const [detailError, setDetailError] = useState<string | null>(null);
  const [table, setTable] = useState<Table | null>(null);
  const [now, setNow] = useState(Date.now());
  const [version, setVersion] = useState(0);

  const [slowVersion, setSlowVersion] = useState(0);
  const slow = useRef<SlowData | null>(null);
  const retry = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);

  const load = useCallback(() => {
    const again = () => {
      clearTimeout(retry.current);
      retry.current = setTimeout(load, MIN_REFRESH_MS);
    };
    readPage(slow.current).then(
      ([read, readSlowly]) => {
        slow.current = readSlowly;
        setData(read);
        setSlowVersion(readSlowly.readAt);
        if (!read.overview.journal.is_complete) again();
        setError(null);
        setNeedsToken(false);
        setVersion((it) => it + 1);
      },
      (reason: Error) => {
        setNeedsToken(reason instanceof ApiError && (reason.status === 401 || reason.status === 403));
        setError(reason instanceof ApiError ? reason.message : 'The proxy does not answer. It may have stopped.');
        if (reason instanceof ApiError && reason.status === 503) again();
      },
    );
  }, []);
  const refresh = useMemo(() => throttled(load), [load]);

  useEffect(() => {
    load();
    const tick = setInterval(() => setNow(Date.now()), 5000);
    return () => {
      clearInterval(tick);
      clearTimeout(retry.current);
    };
  }, [load]);
  useEffect(() => (needsToken ? undefined : connect(setConnection, refresh)), [needsToken, refresh]);
  useEffect(() => {
    const onPop = () => setQuery(parseQuery(location.search));
    addEventListener('popstate', onPop);
    return () => removeEventListener('popstate', onPop);
  }, []);

  const changeQuery = useCallback((change: Partial<PageQuery>) => {
    setQuery((before) => {
      const after = { ...before, ...change };
      history.replaceState(null, '', `${location.pathname}${formatQuery(after)}${location.hash}`);
      return after;
    });
  }, []);
  const select = (id: string) => {
    changeQuery({ session: id });
    document.getElementById('session')?.scrollIntoView({ block: 'start' });
  };

  const selected = query.session ?? data?.sessions[0]?.id ?? null;
  const latest = useRef(selected);
  latest.current = selected;
  useEffect(() => {
    if (selected === null) {
      setDetail(null);
      return;
    }
    api.session(selected).then(
      (read) => {
        if (latest.current === selected) setDetail(read);
        setDetailError(null);
      },
      (reason: Error) => {
        setDetail(null);
        setDetailError(reason.message);
      },
    );
  }, [selected, version]);
  useEffect(() => {
    api.table(query.by, query.since).then(setTable, () => undefined);
  }, [query.by, query.since, slowVersion]);

  const hasGroups = data !== null && isCompared(data.groups);
  if (needsToken) return <Login message={error ?? ''} onDone={load} />;
  return (
    <>
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <Header overview={data?.overview ?? null} connection={connection} />
      <div class="frame">
        <nav aria-label="Sections">
          <ul>
            {SECTIONS.filter(([id]) => id !== 'groups' || hasGroups).map(([id, name]) => (
              <li key={id}>
                <a href={`#${id}`}>{name}</a>
              </li>
            ))}
          </ul>
        </nav>
        <main id="main">
          {error === null || data === null ? null : (
            <p class="banner bad" role="alert">
              {error} What follows was read earlier.
            </p>
          )}
          {data === null || data.overview.journal.is_complete ? null : (
            <p class="banner" role="status">
              Records were deleted, or written by another proxy: the totals are being added up again (
              {Math.floor(data.overview.journal.share_read * 100)} %). What follows are the totals of before.
            </p>
          )}
          {data === null ? (
            <Pending error={error} />
          ) : (
            <>
              <Safety overview={data.overview} />
              <Savings overview={data.overview} />
              <Windows sessions={data.sessions} now={now} selected={selected} onSelect={select} />
              <SessionView
                detail={detail}
                error={detailError}
                hasSessions={selected !== null}
                now={now}
                onPins={(pins) => setDetail((it) => (it === null ? null : { ...it, pins }))}
                onDelete={() => {
                  if (selected === null) return;
                  api.deleteSession(selected).then(
                    () => {
                      changeQuery({ session: null });
                      slow.current = null;
                      load();
                    },
                    (reason: Error) => setDetailError(reason.message),
                  );
                }}
              />
              <CacheView cache={data.cache} now={now} />
              <QualityView quality={data.quality} now={now} />
              <InventoryView inventory={data.inventory} now={now} />
              {table === null ? (
                <Pending error={null} />
              ) : (
                <TableView table={table} query={query} now={now} onQuery={changeQuery} />
              )}
              {hasGroups ? <GroupsView groups={data.groups} /> : null}
              <PoliciesView policies={data.policies} />
              <HealthView health={data.health} now={now} />
            </>
          )}
        </main>
      </div>
      <footer class="page-end">
        <p>
          Every number is defined in docs/reference/api.md, every term in docs/glossary.md. This page talks to this
          proxy only; request bodies are not stored, originals of folds are in the archive.
        </p>
      </footer>
    </>
  );
}

const CONNECTION_WORDS: Record<Connection, string> = {
  connecting: 'connecting',
  live: 'live',
  lost: 'connection lost',
};

function Header(props: { overview: Overview | null; connection: Connection }) {
  const { overview } = props;
  return (
    <header class="top">
      <h1>
        <svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true">
          <path d="M2 3h12v2H2zm0 8h12v2H2z" fill="currentColor" />
          <path d="M2 8l3-1.6 3 1.6 3-1.6L14 8" fill="none" stroke="currentColor" stroke-width="1.6" />
        </svg>
        foldline
      </h1>
      {overview === null ? null : <ModeSelect mode={overview.mode} hasArchive={overview.has_archive} />}
      <span class={`connection ${props.connection}`} role="status">
        {CONNECTION_WORDS[props.connection]}
      </span>
      {overview === null ? null : <span class="muted version">{overview.version}</span>}
    </header>
  );
}
