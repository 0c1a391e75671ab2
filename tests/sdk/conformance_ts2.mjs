// What the conformance suites ask a server for, of data/conformance.json, on the TypeScript SDK 2.x: 2026-07-28, and 2025-era
// clients with sessions, on one URL.

import { randomBytes, randomUUID } from 'node:crypto';
import { readFileSync, realpathSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { NodeStreamableHTTPServerTransport, toNodeHandler } from '@modelcontextprotocol/node';
import {
  ProtocolError,
  ProtocolErrorCode,
  Server,
  createMcpHandler,
  createRequestStateCodec,
  inputRequired,
  inputResponse,
} from '@modelcontextprotocol/server';

import { listen, serverArgs } from './peer.mjs';

const args = serverArgs();
const { tools, prompts, resources, template } = JSON.parse(
  readFileSync(join(dirname(realpathSync(import.meta.filename)), '../data/conformance.json')),
);
const codec = createRequestStateCodec({ key: randomBytes(32) });

// `{name}` in a text of the fixture is what the client has given under that name.
const fill = (value, given) =>
  JSON.parse(JSON.stringify(value), (_, text) =>
    typeof text === 'string' ? text.replace(/\{(\w+)\}/g, (whole, name) => given[name] ?? whole) : text,
  );

const needs = { 'elicitation/create': 'elicitation', 'sampling/createMessage': 'sampling', 'roots/list': 'roots' };

// What is to be said of an answer, or undefined when there is none.
function answered(responses, key) {
  const view = inputResponse(responses, key);
  if (view.kind === 'sampling') return view.result.content.text;
  if (view.kind === 'roots') return view.roots.map(root => root.uri).join(' ');
  if (view.kind !== 'elicit') return undefined;
  const content = Object.values(view.content ?? {});
  return content.length === 1 ? String(content[0]) : `action=${view.action}, content=${JSON.stringify(view.content ?? {})}`;
}

// The next round of questions, or the result with all that was answered.
async function answer(entry, input, ctx) {
  const state = ctx.mcpReq.requestState() ?? { round: 0, given: {} };
  const given = { ...input, ...state.given };
  let { round } = state;
  let asked = entry.rounds?.[round];
  if (asked && ctx.mcpReq.inputResponses) {
    const answers = Object.keys(asked).map(key => [key, answered(ctx.mcpReq.inputResponses, key)]);
    if (answers.every(([, said]) => said !== undefined)) {
      Object.assign(given, Object.fromEntries(answers));
      round += 1;
      asked = entry.rounds[round];
    }
  }
  if (asked) {
    const able = ctx.mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'] ?? {};
    const wanted = Object.entries(asked).filter(([, { method }]) => !entry.supported || needs[method] in able);
    const inputRequests = fill(Object.fromEntries(wanted), given);
    const requestState = entry.state ? { requestState: await codec.mint({ round, given }, ctx) } : {};
    return inputRequired({ inputRequests, ...requestState });
  }
  for (const line of entry.logs ?? []) {
    await ctx.mcpReq.log('info', line);
    await sleep(50);
  }
  const progressToken = ctx.mcpReq._meta?.progressToken;
  for (const progress of entry.progress ?? []) {
    const params = { progressToken, progress, total: 100 };
    if (progressToken !== undefined) await ctx.mcpReq.notify({ method: 'notifications/progress', params });
    await sleep(50);
  }
  return fill(entry.result, given);
}

function find(kind, name) {
  const entry = Object.hasOwn(kind, name) ? kind[name] : undefined;
  if (!entry) throw new ProtocolError(ProtocolErrorCode.InvalidParams, `${name} is unknown`);
  return entry;
}

function fixture() {
  const capabilities = {
    tools: { listChanged: true },
    prompts: {},
    resources: { subscribe: true },
    completions: {},
    logging: {},
  };
  const options = { capabilities, requestState: { verify: codec.verify } };
  const server = new Server({ name: 'conformance-ts2', version: '1.0.0' }, options);
  const on = (method, handler) => server.setRequestHandler(method, handler);
  on('tools/list', () => ({
    tools: Object.entries(tools).map(([name, { description, inputSchema }]) => ({ name, description, inputSchema })),
  }));
  on('tools/call', ({ params }, ctx) => answer(find(tools, params.name), params.arguments, ctx));
  on('prompts/list', () => ({
    prompts: Object.entries(prompts).map(([name, prompt]) => ({
      name,
      description: prompt.description,
      arguments: prompt.arguments.map(argument => ({ name: argument, required: true })),
    })),
  }));
  on('prompts/get', ({ params }, ctx) => answer(find(prompts, params.name), params.arguments, ctx));
  on('resources/list', () => ({
    resources: Object.entries(resources).map(([uri, { mimeType }]) => ({ uri, name: uri, description: uri, mimeType })),
  }));
  on('resources/templates/list', () => ({
    resourceTemplates: [{ uriTemplate: template.uri, name: 'template', mimeType: template.mimeType }],
  }));
  on('resources/read', ({ params: { uri } }) => {
    const id = uri.match(/^test:\/\/template\/([^/]+)\/data$/)?.[1];
    if (id) return { contents: [{ uri, mimeType: template.mimeType, text: template.text.replaceAll('ID', id) }] };
    if (!Object.hasOwn(resources, uri)) {
      throw new ProtocolError(ProtocolErrorCode.InvalidParams, 'Resource not found', { uri });
    }
    return { contents: [{ uri, ...resources[uri] }] };
  });
  on('resources/subscribe', () => ({}));
  on('resources/unsubscribe', () => ({}));
  on('completion/complete', () => ({ completion: { values: ['paris', 'park', 'party'], total: 3, hasMore: false } }));
  return server;
}

const modern = toNodeHandler(createMcpHandler(fixture, { legacy: 'reject' }));
const sessions = new Map();

async function legacy(request, response) {
  const id = request.headers['mcp-session-id'];
  let transport = sessions.get(id);
  if (id && !transport) return response.writeHead(404).end();
  if (!transport) {
    transport = new NodeStreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: fresh => sessions.set(fresh, transport),
      onsessionclosed: gone => sessions.delete(gone),
    });
    await fixture().connect(transport);
  }
  await transport.handleRequest(request, response);
}

// From 2026-07-28 on every request names its revision, and none has a session. What names none at all is for the new
// handler to refuse, unless it is an `initialize`, which comes without.
const revision = request => request.headers['mcp-protocol-version'];
const isLegacy = request => request.headers['mcp-session-id'] || !revision(request) || revision(request) < '2026';

listen(createServer((request, response) => (isLegacy(request) ? legacy : modern)(request, response)), args);
