/** What is carried for nothing? */

import type { Inventory } from '../api';
import { ago, count, plural, tokens } from '../format';
import { Empty, Scroll, View } from '../parts';

export function InventoryView(props: { inventory: Inventory; now: number }) {
  const clients = props.inventory.clients.filter((it) => it.tools.length > 0);
  return (
    <View id="inventory" title="Carried for nothing" question="Which tools fill every prompt, and are never called?">
      {clients.length === 0 ? (
        <Empty why="No client has sent tools yet. Tools and MCP servers are listed here with their tokens and calls." />
      ) : (
        clients.map((client) => <Client key={client.client} client={client} now={props.now} />)
      )}
    </View>
  );
}

function Client(props: { client: Inventory['clients'][number]; now: number }) {
  const { client, requests, hint, tools } = props.client;
  const all = tools.reduce((sum, tool) => sum + tool.tokens, 0);
  const unused = tools.filter((tool) => tool.calls === 0);
  const wasted = unused.reduce((sum, tool) => sum + tool.tokens, 0);
  const sorted = [...tools].sort((a, b) => Number(a.calls > 0) - Number(b.calls > 0) || b.tokens - a.tokens);
  return (
    <>
      <h3>{client}</h3>
      <p>
        {plural(unused.length, 'tool')} of {count(tools.length)} never called: <strong>{tokens(wasted)}</strong> of{' '}
        {tokens(all)} tokens in each of {plural(requests, 'request')}.
      </p>
      {unused.length === 0 ? null : <p class="muted">{hint}</p>}
      <Scroll label={`Tools of ${client}`}>
        <table class="data">
          <thead>
            <tr>
              <th scope="col">tool</th>
              <th scope="col">MCP server</th>
              <th scope="col" class="num">
                tokens
              </th>
              <th scope="col" class="num">
                calls
              </th>
              <th scope="col" class="num">
                sessions
              </th>
              <th scope="col">last call</th>
            </tr>
          </thead>
          <tbody>
            {sorted.map((tool) => (
              <tr key={tool.name}>
                <td>{tool.name}</td>
                <td>{tool.server ?? ''}</td>
                <td class="num">{count(tool.tokens)}</td>
                <td class="num">{tool.calls === 0 ? <strong>never</strong> : count(tool.calls)}</td>
                <td class="num">{count(tool.sessions)}</td>
                <td>{tool.last_called_at === null ? '' : ago(tool.last_called_at, props.now)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </>
  );
}
