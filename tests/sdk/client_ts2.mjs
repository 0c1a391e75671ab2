// MCP client on the TypeScript SDK 2.x: `--mode legacy` starts with `initialize` (the SDK's default), `auto` discovers
// 2026-07-28, `pin` speaks it unasked.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

import { accept, bridge, clientArgs, onprogress, runClient } from './peer.mjs';

const args = clientArgs(['auto', 'legacy', 'pin']);
const negotiation = {
  auto: { versionNegotiation: { mode: 'auto' } },
  legacy: {},
  pin: { versionNegotiation: { mode: { pin: '2026-07-28' } } },
}[args.mode];

await runClient(args, async () => {
  const capabilities = { elicitation: { form: {} } };
  const client = new Client({ name: 'agent-ts2', version: '1.0.0' }, { capabilities, ...negotiation });
  client.setRequestHandler('elicitation/create', accept);
  const Transport = args.url.endsWith('/sse') ? SSEClientTransport : StreamableHTTPClientTransport;
  const lines = bridge(args.url);
  const transport = lines ? new StdioClientTransport(lines) : new Transport(new URL(args.url));
  await client.connect(transport);
  return {
    revision: client.getNegotiatedProtocolVersion(),
    list: async signal => (await client.listTools(undefined, { signal })).tools.map(tool => tool.name),
    call: (name, input, signal) =>
      client.callTool({ name, arguments: input }, { signal, onprogress, timeout: 600_000 }),
    close: async () => {
      if (args.mode === 'legacy') await transport.terminateSession?.();
      await client.close();
    },
  };
});
