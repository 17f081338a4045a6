/** What did it cost in quality? */

import type { Quality } from '../api';
import { clock, count, plural } from '../format';
import { Command, Empty, Figure, Scroll, View } from '../parts';

export function QualityView(props: { quality: Quality; now: number }) {
  const it = props.quality;
  return (
    <View id="quality" title="Quality" question="Did the model miss what was folded?">
      {it.folds === 0 ? (
        <Empty why="Nothing has been folded yet, so nothing could be missed." />
      ) : (
        <>
          <dl class="figures">
            <Figure
              name="unfolds per 100 folds"
              value={it.unfolds_per_100_folds === null ? '–' : it.unfolds_per_100_folds.toFixed(1)}
              note={`${plural(it.unfolds, 'original')} requested back by models, of ${plural(it.folds, 'fold')}`}
            />
          </dl>
          {it.recent.length === 0 ? (
            <Empty why="No model has asked for an original: what it needed was still in its window. (Clients without tools cannot ask.)" />
          ) : (
            <Scroll label="Latest unfolds">
              <table class="data">
                <caption>Latest unfolds</caption>
                <thead>
                  <tr>
                    <th scope="col">time</th>
                    <th scope="col">tool</th>
                    <th scope="col">target</th>
                    <th scope="col" class="num">
                      tokens
                    </th>
                    <th scope="col">handle</th>
                  </tr>
                </thead>
                <tbody>
                  {it.recent.map((unfold) => (
                    <tr key={`${unfold.at}${unfold.handle}`}>
                      <td>{clock(unfold.at, props.now)}</td>
                      <td>{unfold.tool ?? '–'}</td>
                      <td class="target" title={unfold.target}>
                        {unfold.target}
                      </td>
                      <td class="num">{count(unfold.tokens)}</td>
                      <td>
                        <code>{unfold.handle}</code>
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </Scroll>
          )}
          <p class="muted">
            Edits and actions that would have missed something are measured on recordings:{' '}
            <Command text="foldline replay" />
          </p>
        </>
      )}
    </View>
  );
}
