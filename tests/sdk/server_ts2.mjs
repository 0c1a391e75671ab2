// MCP server on the TypeScript SDK 2.x: 2026-07-28, and 2025-era clients with sessions, on one URL.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import { McpServer, acceptedContent, createMcpHandler, inputRequired } from '@modelcontextprotocol/server';
import { StdioServerTransport, serveStdio } from '@modelcontextprotocol/server/stdio';
import { z } from 'zod';

import { listen, listenForLines, logTo, logged, said, serverArgs, slow } from './peer.mjs';

const args = serverArgs();
const log = logTo(args.log);

// What every session is told of `echo`, and by which of its tools.
let says = 'Says the text back';
const echoes = new Set();

function bank() {
  const server = new McpServer({ name: 'bank-ts2', version: '1.0.0' });
  const tool = (name, description, fields, body) =>
    server.registerTool(name, { description, inputSchema: z.object(fields) }, (input, ctx) =>
      logged(log, name, input, ctx.mcpReq.signal, () => body(input, ctx)),
    );

  echoes.add(tool('echo', says, { text: z.string() }, ({ text }) => text));
  tool('add', 'Adds two numbers', { a: z.number(), b: z.number() }, ({ a, b }) => String(a + b));
  tool('slow', 'Takes its time', { seconds: z.number() }, ({ seconds }, ctx) => slow(seconds, ctx.mcpReq.signal));
  tool('wire_transfer', 'Moves money', { amount: z.number() }, ({ amount }) => `transferred ${amount}`);
  tool('big', 'Answers with that many KiB of text', { kib: z.number() }, ({ kib }) => 'x'.repeat(kib * 1024));

  tool('turn', 'Says something else of echo from now on', { says: z.string() }, input => {
    says = input.says;
    for (const echo of echoes) echo.update({ description: says });
    return 'turned';
  });

  // Not through `logged`: the first round ends with a question instead of a text.
  const description = 'Asks the user before it answers';
  server.registerTool('ask', { description, inputSchema: z.object({}) }, (input, ctx) => {
    log('ask', input, 'start');
    if (acceptedContent(ctx.mcpReq.inputResponses, 'ok')) {
      log('ask', input, 'end');
      return said('accept');
    }
    const requestedSchema = { type: 'object', properties: { ok: { type: 'boolean' } } };
    return inputRequired({ inputRequests: { ok: inputRequired.elicit({ message: 'may I?', requestedSchema }) } });
  });

  tool('progress', 'Reports each step, then answers', { steps: z.number() }, async ({ steps }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let step = 1; progressToken !== undefined && step <= steps; step++) {
      const params = { progressToken, progress: step, total: steps };
      await ctx.mcpReq.notify({ method: 'notifications/progress', params });
    }
    return `${steps} steps`;
  });

  return server;
}

const options = { legacy: 'reject', ...(args.json ? { responseMode: 'json' } : {}) };
const modern = toNodeHandler(createMcpHandler(bank, options));

// The SDK's own fallback for 2025-era clients is stateless and cannot ask them anything; so they get sessions.
const sessions = new Map();

async function legacy(request, response) {
  let transport = sessions.get(request.headers['mcp-session-id']);
  if (!transport) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      enableJsonResponse: args.json,
      onsessioninitialized: fresh => sessions.set(fresh, transport),
      onsessionclosed: gone => sessions.delete(gone),
    });
    await bank().connect(transport);
  }
  await transport.handleRequest(request, response);
}

const isModern = request => request.headers['mcp-protocol-version'] === '2026-07-28';
const http = createServer((request, response) => (isModern(request) ? modern : legacy)(request, response));
if (args.lines) listenForLines(socket => serveStdio(bank, { transport: new StdioServerTransport(socket, socket) }), args);
else listen(http, args);
