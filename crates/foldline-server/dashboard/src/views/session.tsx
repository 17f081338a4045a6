/** What was folded, and give it back. */

import { useEffect, useRef, useState } from 'preact/hooks';
import { api, type Fold, type Original, type Pins, type RequestItem, type SessionDetail } from '../api';
import { Timeline } from '../charts';
import { BREAK_WORDS, bytes, clock, count, dollars, plural, tokens, trigger } from '../format';
import { Empty, Figure, Pending, Scroll, View } from '../parts';
import { hasVerdicts, verdictWords } from '../verdicts';
import { PinList, withPin } from './pins';

export function SessionView(props: {
  detail: SessionDetail | null;
  error: string | null;
  hasSessions: boolean;
  now: number;
  onDelete: () => void;
  onPins: (pins: Pins) => void;
}) {
  const { detail } = props;
  return (
    <View id="session" title="One session" question="What was folded, and what did it cost? Give it back.">
      {detail === null ? (
        props.hasSessions ? (
          <Pending error={props.error} />
        ) : (
          <Empty why="No session yet. When one exists, its requests, creases and folds are listed here." />
        )
      ) : (
        <Detail
          key={detail.session.id}
          detail={detail}
          now={props.now}
          onDelete={props.onDelete}
          onPins={props.onPins}
        />
      )}
    </View>
  );
}

function Detail(props: { detail: SessionDetail; now: number; onDelete: () => void; onPins: (pins: Pins) => void }) {
  const { session, requests, folds, pins } = props.detail;
  const pin = (fold: Fold) => {
    const changed =
      fold.target === '' ? withPin(pins, 'tools', fold.tool ?? '') : withPin(pins, 'targets', fold.target);
    if (changed !== pins) api.setPins(session.id, changed).then((saved) => props.onPins(saved.pins));
  };
  const [shown, setShown] = useState<Fold | null>(null);
  const it = session.totals;
  const creases = requests.filter((request) => request.crease !== null);
  const isCertified = hasVerdicts(requests);
  return (
    <>
      <h3 class="session-title">{session.title || session.id}</h3>
      <p class="muted">
        {session.client} · {session.model} · {clock(session.first_at, props.now)} to {clock(session.last_at, props.now)}{' '}
        · <code>{session.id}</code>
      </p>
      <dl class="figures">
        <Figure
          name="net"
          value={dollars(it.net_usd)}
          tone={it.net_usd < 0 ? 'bad' : undefined}
          note="saved minus creases, unfolds, summaries"
        />
        <Figure name="requests" value={count(it.requests)} />
        <Figure name="creases" value={count(it.creases)} note={`${dollars(it.crease_usd)} in rewritten cache`} />
        <Figure name="folds" value={count(it.folds)} note={`${plural(it.unfolds, 'unfold')} by the model`} />
      </dl>
      <Timeline requests={requests} />
      {creases.length === 0 ? (
        <Empty why="No crease yet: nothing had to be folded, and folding did not pay." />
      ) : (
        <Scroll label="Creases">
          <table class="data">
            <caption>Creases</caption>
            <thead>
              <tr>
                <th scope="col">time</th>
                <th scope="col">trigger</th>
                <th scope="col" class="num">
                  tokens saved per request
                </th>
                <th scope="col" class="num">
                  price
                </th>
                <th scope="col" class="num">
                  avoided
                </th>
                <th scope="col" class="num">
                  new folds
                </th>
                {isCertified ? <th scope="col">provider's verdict on its cached prefix</th> : null}
              </tr>
            </thead>
            <tbody>
              {creases.map((request) => (
                <CreaseRow
                  key={request.at}
                  request={request}
                  verdict={isCertified ? verdictWords(requests, request) : null}
                  now={props.now}
                />
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      {folds.length === 0 ? null : (
        <Scroll label="Folds">
          <table class="data folds">
            <caption>Folds, newest first: the original opens next to what the model sees</caption>
            <thead>
              <tr>
                <th scope="col">tool</th>
                <th scope="col">target</th>
                <th scope="col" class="num">
                  before
                </th>
                <th scope="col" class="num">
                  after
                </th>
                <th scope="col">pass</th>
                <th scope="col" class="num">
                  unfolds
                </th>
                <th scope="col">original</th>
                <th scope="col">pin</th>
              </tr>
            </thead>
            <tbody>
              {folds.map((fold, at) => (
                <tr key={`${fold.handle ?? ''}${at}`}>
                  <td>{fold.tool ?? '–'}</td>
                  <td class="target" title={fold.target}>
                    {fold.target}
                  </td>
                  <td class="num">{count(fold.tokens_before)}</td>
                  <td class="num">{count(fold.tokens_after)}</td>
                  <td>{fold.pass}</td>
                  <td class="num">{count(fold.unfolds)}</td>
                  <td>
                    {fold.handle === null ? (
                      <span class="muted">not archived</span>
                    ) : (
                      <button
                        type="button"
                        onClick={() => setShown(fold)}
                        aria-label={`Show the original of ${fold.tool ?? ''} ${fold.target}`}
                      >
                        show
                      </button>
                    )}
                  </td>
                  <td>
                    {fold.tool === null ? null : (
                      <button
                        type="button"
                        onClick={() => pin(fold)}
                        aria-label={`Never fold ${fold.target || fold.tool}`}
                      >
                        never fold
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
      <PinList session={session.id} pins={pins} onChange={props.onPins} />
      <details>
        <summary>All requests of this session</summary>
        <RequestTable requests={requests} now={props.now} />
      </details>
      <p class="actions">
        <button
          type="button"
          class="danger"
          onClick={() => {
            if (
              confirm(
                'Delete this session with its records and the originals that it stored? Markers in a conversation that goes on cannot be unfolded then.',
              )
            )
              props.onDelete();
          }}
        >
          Delete this session
        </button>
      </p>
      {shown === null ? null : <OriginalDialog fold={shown} onClose={() => setShown(null)} />}
    </>
  );
}

function CreaseRow(props: { request: RequestItem; verdict: string | null; now: number }) {
  const { crease, at, folds } = props.request;
  if (crease === null) return null;
  return (
    <tr>
      <td>{clock(at, props.now)}</td>
      <td>{trigger(crease.trigger)}</td>
      <td class="num">{count(crease.saved_tokens)}</td>
      <td class="num">{dollars(crease.price_usd)}</td>
      <td class="num">{crease.avoided_usd > 0 ? dollars(crease.avoided_usd) : '–'}</td>
      <td class="num">{count(folds)}</td>
      {props.verdict === null ? null : <td>{props.verdict || 'not asked'}</td>}
    </tr>
  );
}

/** The requests of a session or of all sessions as a table. */
export function RequestTable(props: { requests: RequestItem[]; now: number }) {
  return (
    <Scroll label="Requests">
      <table class="data">
        <thead>
          <tr>
            <th scope="col">time</th>
            <th scope="col">model</th>
            <th scope="col" class="num">
              status
            </th>
            <th scope="col" class="num">
              received
            </th>
            <th scope="col" class="num">
              sent
            </th>
            <th scope="col" class="num">
              read
            </th>
            <th scope="col" class="num">
              written
            </th>
            <th scope="col" class="num">
              fresh
            </th>
            <th scope="col" class="num">
              output
            </th>
            <th scope="col" class="num">
              billed
            </th>
            <th scope="col" class="num">
              net
            </th>
            <th scope="col">cache break</th>
            <th scope="col" class="num">
              overhead
            </th>
          </tr>
        </thead>
        <tbody>
          {[...props.requests].reverse().map((it, at) => (
            <tr key={it.at + at}>
              <td>{clock(it.at, props.now)}</td>
              <td>{it.model}</td>
              <td class={`num ${it.status >= 400 ? 'bad' : ''}`}>{it.status}</td>
              <td class="num">{tokens(it.received_tokens)}</td>
              <td class="num">{tokens(it.sent_tokens)}</td>
              <td class="num">{it.usage ? tokens(it.cache_read_tokens) : '–'}</td>
              <td class="num">{it.usage ? tokens(it.cache_write_tokens) : '–'}</td>
              <td class="num">{it.usage ? tokens(it.fresh_tokens) : '–'}</td>
              <td class="num">{it.usage ? tokens(it.output_tokens) : '–'}</td>
              <td class="num">{dollars(it.billed_usd)}</td>
              <td class={`num ${it.net_usd < 0 ? 'bad' : ''}`}>{dollars(it.net_usd)}</td>
              <td>{it.break === null ? '' : BREAK_WORDS[it.break]}</td>
              <td class="num">{it.overhead_ms.toFixed(1)} ms</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function OriginalDialog(props: { fold: Fold; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [original, setOriginal] = useState<Original | null>(null);
  const [error, setError] = useState<string | null>(null);
  const { handle, tool, target } = props.fold;
  useEffect(() => {
    dialog.current?.showModal();
    api.original(handle ?? '').then(setOriginal, (reason: Error) => setError(reason.message));
  }, [handle]);
  return (
    <dialog ref={dialog} class="original" aria-labelledby="original-title" onClose={props.onClose}>
      <header>
        <h3 id="original-title">
          {tool ?? 'Text'} {target}
        </h3>
        <button type="button" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </header>
      <p class="muted">
        <code>{handle}</code> · {count(props.fold.tokens_before)} tokens before, {count(props.fold.tokens_after)} after
        · pass {props.fold.pass} · {plural(props.fold.unfolds, 'unfold')}
        {original === null ? '' : ` · ${bytes(original.bytes)}`}
      </p>
      <div class="sides">
        <section aria-label="What the model sees">
          <h4>What the model sees</h4>
          <pre tabIndex={0}>{props.fold.marker || 'nothing: the part is removed'}</pre>
        </section>
        <section aria-label="Original">
          <h4>Original</h4>
          {original === null ? (
            <Pending error={error} />
          ) : (
            <pre tabIndex={0}>{original.is_text ? original.text : `${bytes(original.bytes)} that are not text`}</pre>
          )}
        </section>
      </div>
    </dialog>
  );
}
