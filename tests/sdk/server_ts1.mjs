// MCP server on the TypeScript SDK 1.x: up to 2025-11-25, with sessions.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { SSEServerTransport } from '@modelcontextprotocol/sdk/server/sse.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { ElicitResultSchema } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

import { listen, listenForLines, logTo, logged, serverArgs, slow } from './peer.mjs';

const args = serverArgs();
const log = logTo(args.log);

// What every session is told of `echo`, and by which of its tools.
let says = 'Says the text back';
const echoes = new Set();

function bank() {
  const server = new McpServer({ name: 'bank-ts1', version: '1.0.0' });
  const tool = (name, description, inputSchema, body) =>
    server.registerTool(name, { description, inputSchema }, (input, extra) =>
      logged(log, name, input, extra.signal, () => body(input, extra)),
    );

  echoes.add(tool('echo', says, { text: z.string() }, ({ text }) => text));
  tool('add', 'Adds two numbers', { a: z.number(), b: z.number() }, ({ a, b }) => String(a + b));
  tool('slow', 'Takes its time', { seconds: z.number() }, ({ seconds }, { signal }) => slow(seconds, signal));
  tool('wire_transfer', 'Moves money', { amount: z.number() }, ({ amount }) => `transferred ${amount}`);
  tool('big', 'Answers with that many KiB of text', { kib: z.number() }, ({ kib }) => 'x'.repeat(kib * 1024));

  tool('turn', 'Says something else of echo from now on', { says: z.string() }, input => {
    says = input.says;
    for (const echo of echoes) echo.update({ description: says });
    return 'turned';
  });

  tool('ask', 'Asks the user before it answers', {}, async (_input, extra) => {
    const requestedSchema = { type: 'object', properties: { ok: { type: 'boolean' } } };
    const question = { method: 'elicitation/create', params: { mode: 'form', message: 'may I?', requestedSchema } };
    return (await extra.sendRequest(question, ElicitResultSchema)).action;
  });

  tool('progress', 'Reports each step, then answers', { steps: z.number() }, async ({ steps }, extra) => {
    const progressToken = extra._meta?.progressToken;
    for (let step = 1; progressToken !== undefined && step <= steps; step++) {
      const params = { progressToken, progress: step, total: steps };
      await extra.sendNotification({ method: 'notifications/progress', params });
    }
    return `${steps} steps`;
  });

  return server;
}

const sessions = new Map();

async function transportFor(id) {
  const known = sessions.get(id);
  if (known || id) return known;
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    enableJsonResponse: args.json,
    onsessioninitialized: fresh => sessions.set(fresh, transport),
    onsessionclosed: gone => sessions.delete(gone),
  });
  await bank().connect(transport);
  return transport;
}

// HTTP+SSE (2024-11-05): a stream for each session, and messages POSTed by its id.
async function overSse(request, response) {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname === '/sse') {
    const transport = new SSEServerTransport('/messages', response);
    sessions.set(transport.sessionId, transport);
    response.on('close', () => sessions.delete(transport.sessionId));
    await bank().connect(transport);
    return;
  }
  const transport = sessions.get(url.searchParams.get('sessionId'));
  if (url.pathname === '/messages' && transport) await transport.handlePostMessage(request, response);
  else response.writeHead(404).end();
}

const http = createServer(async (request, response) => {
  if (args.sse) return overSse(request, response);
  const transport = await transportFor(request.headers['mcp-session-id']);
  if (transport) {
    await transport.handleRequest(request, response);
  } else {
    const error = { code: -32001, message: 'Session not found' };
    response.writeHead(404, { 'content-type': 'application/json' });
    response.end(JSON.stringify({ jsonrpc: '2.0', id: null, error }));
  }
});
if (args.lines) listenForLines(socket => bank().connect(new StdioServerTransport(socket, socket)), args);
else listen(http, args);
