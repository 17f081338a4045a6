// A scripted provider of Anthropic Messages: it answers every prompt, and bills by prefix like the real one.
import { createServer } from 'node:http';

/** Starts the provider. Returns its address and a function that stops it. */
export function startUpstream() {
  const previous = new Map();
  const server = createServer((request, response) => {
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
      const body = Buffer.concat(chunks).toString();
      if (!request.url.startsWith('/v1/messages')) return send(response, 404, {});
      const parsed = JSON.parse(body);
      const prompt = JSON.stringify([parsed.system ?? '', parsed.tools ?? [], parsed.messages]).slice(0, -2);
      const key = JSON.stringify(parsed.messages[0]).slice(0, 200);
      const before = previous.get(key) ?? '';
      let common = 0;
      while (common < before.length && common < prompt.length && before[common] === prompt[common]) common += 1;
      previous.set(key, prompt);
      const tokens = (length) => Math.round(length / 4);
      send(response, 200, {
        id: 'msg_1',
        type: 'message',
        role: 'assistant',
        model: parsed.model,
        content: [{ type: 'text', text: 'ok' }],
        stop_reason: 'end_turn',
        usage: {
          input_tokens: 3,
          cache_read_input_tokens: tokens(common),
          cache_creation_input_tokens: tokens(prompt.length - common),
          output_tokens: 180,
        },
      });
    });
  });
  const send = (response, status, value) => {
    response.writeHead(status, { 'content-type': 'application/json' });
    response.end(JSON.stringify(value));
  };
  return new Promise((resolve) => {
    server.listen(0, '127.0.0.1', () => {
      resolve({ url: `http://127.0.0.1:${server.address().port}`, stop: () => server.close() });
    });
  });
}
