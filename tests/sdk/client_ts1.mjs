// MCP client on the TypeScript SDK 1.x: `initialize`, up to 2025-11-25.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';

import { accept, bridge, clientArgs, onprogress, runClient } from './peer.mjs';

const args = clientArgs(['legacy']);

await runClient(args, async () => {
  const client = new Client({ name: 'agent-ts1', version: '1.0.0' }, { capabilities: { elicitation: {} } });
  client.setRequestHandler(ElicitRequestSchema, accept);
  const Transport = args.url.endsWith('/sse') ? SSEClientTransport : StreamableHTTPClientTransport;
  const lines = bridge(args.url);
  const transport = lines ? new StdioClientTransport(lines) : new Transport(new URL(args.url));
  await client.connect(transport);
  return {
    revision: transport.protocolVersion ?? transport._protocolVersion,
    list: async signal => (await client.listTools(undefined, { signal })).tools.map(tool => tool.name),
    call: (name, input, signal) =>
      client.callTool({ name, arguments: input }, undefined, { signal, onprogress, timeout: 600_000 }),
    close: async () => {
      await transport.terminateSession?.();
      await client.close();
    },
  };
});
