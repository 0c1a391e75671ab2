// MCP server on the TypeScript SDK 1.x whose one tool, `research`, runs as a task of 2025-11-25 until it is cancelled.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

import { InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks/stores/in-memory.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { z } from 'zod';

import { listen, serverArgs } from './peer.mjs';

const args = serverArgs();
const taskStore = new InMemoryTaskStore();
const capabilities = { tools: {}, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } };
const server = new McpServer({ name: 'lab-ts1', version: '1.0.0' }, { capabilities, taskStore });
server.experimental.tasks.registerToolTask(
  'research',
  { description: 'Takes as long as it is let', inputSchema: { topic: z.string() }, execution: { taskSupport: 'required' } },
  {
    createTask: async (_input, extra) => ({ task: await extra.taskStore.createTask({ ttl: 60_000 }) }),
    getTask: async (_input, extra) => extra.taskStore.getTask(extra.taskId),
    getTaskResult: async (_input, extra) => extra.taskStore.getTaskResult(extra.taskId),
  },
);
const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID, enableJsonResponse: args.json });
await server.connect(transport);
listen(createServer((request, response) => transport.handleRequest(request, response)), args);
