// Generated sessions: agents that read files, run tests and edit, and send their whole conversation at every step.

// Task, client, model, steps, and the name of the session, by which it is assigned to the observed ones.
const TASKS = [
  ['Make the importer skip rows without an id, and add a test.', 'claude-cli/2.1.299', 'claude-opus-4-6', 70],
  ['Why does the nightly report run twice on Sundays?', 'claude-cli/2.1.299', 'claude-sonnet-4-5', 16, 'sunday-report'],
  ['Rename the setting retry_limit to max_retries everywhere.', 'my-agent/1.4', 'claude-haiku-4-5', 9],
];

const TOOLS = [
  ['read_file', 'Reads a file.'],
  ['run_tests', 'Runs the tests of a package and returns their output.'],
  ['edit_file', 'Replaces a text in a file.'],
  ['mcp__tracker__create_ticket', `Creates a ticket. ${'Fields are documented at length. '.repeat(60)}`],
  ['mcp__tracker__search_tickets', `Searches tickets. ${'The query language has many operators. '.repeat(40)}`],
  ['mcp__browser__screenshot', `Takes a screenshot of a page. ${'Options are many. '.repeat(30)}`],
].map(([name, description]) => ({
  name,
  description,
  input_schema: { type: 'object', properties: { path: { type: 'string' } } },
}));

/** Returns the lines of a generated source file. */
function source(seed, lines) {
  const text = Array.from(
    { length: lines },
    (_, at) => `    let value_${seed}_${at} = parse_row(&rows[${at}], column_${(seed * 7 + at) % 13})?;`,
  );
  return `pub fn step_${seed}(rows: &[Row]) -> Result<()> {\n${text.join('\n')}\n}\n`;
}

function round(at) {
  const tool = ['read_file', 'read_file', 'run_tests', 'edit_file'][at % 4];
  const path = `src/import/step_${at % 9}.rs`;
  const output =
    tool === 'run_tests'
      ? Array.from({ length: 60 }, (_, test) => `test import::case_${at}_${test} ... ok`).join('\n')
      : source(at, tool === 'edit_file' ? 6 : 90);
  const id = `toolu_${at}`;
  return [
    {
      role: 'assistant',
      content: [
        { type: 'text', text: `Step ${at}: looking at ${path}.` },
        { type: 'tool_use', id, name: tool, input: { path } },
      ],
    },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: output }] },
  ];
}

/** Sends the generated sessions through the proxy. */
export async function runAgents(proxy) {
  for (const [task, agent, model, steps, session] of TASKS) {
    const messages = [{ role: 'user', content: task }];
    for (let at = 0; at <= steps; at += 1) {
      const response = await fetch(`${proxy}/v1/messages`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          'user-agent': agent,
          'x-api-key': 'generated',
          ...(session === undefined ? {} : { 'x-foldline-session': session }),
        },
        body: JSON.stringify({
          model,
          max_tokens: 1000,
          system: 'You are a careful engineer. '.repeat(80),
          tools: TOOLS,
          messages,
        }),
      });
      if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
      await response.text();
      messages.push(...round(at));
    }
  }
}
