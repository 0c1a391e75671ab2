// The client that the conformance suites drive, on the TypeScript SDK 2.x: it connects, logging in where it is told to,
// and calls every tool. Its last argument is the server's URL; the rest is in MCP_CONFORMANCE_*.

import { Client, StreamableHTTPClientTransport, UnauthorizedError } from '@modelcontextprotocol/client';

const url = new URL(process.argv.at(-1));
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');
const isModern = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION >= '2026';

// Where the user would be sent back to with the code: nobody listens there, the redirect is read instead.
const CALLBACK = 'http://localhost:3999/callback';
const stored = {};
const provider = {
  redirectUrl: CALLBACK,
  clientMetadataUrl: 'https://conformance-test.local/client-metadata.json',
  clientMetadata: {
    client_name: 'conformance-ts2',
    redirect_uris: [CALLBACK],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
  },
  clientInformation: () => (context.client_id ? { client_id: context.client_id, client_secret: context.client_secret } : stored.client),
  saveClientInformation: client => void (stored.client = client),
  tokens: () => stored.tokens,
  saveTokens: tokens => void (stored.tokens = tokens),
  codeVerifier: () => stored.verifier,
  saveCodeVerifier: verifier => void (stored.verifier = verifier),
  redirectToAuthorization: async page => {
    const answer = await fetch(page, { redirect: 'manual' });
    stored.callback = new URL(answer.headers.get('location')).searchParams;
  },
};

let transport;
async function connect() {
  const negotiation = isModern ? { versionNegotiation: { mode: { pin: '2026-07-28' } } } : {};
  const capabilities = { elicitation: { form: { applyDefaults: true } }, sampling: {}, roots: {} };
  const client = new Client({ name: 'conformance-ts2', version: '1.0.0' }, { capabilities, ...negotiation });
  client.setRequestHandler('elicitation/create', async () => ({ action: 'accept', content: {} }));
  const said = { role: 'assistant', model: 'none', content: { type: 'text', text: 'Paris' } };
  client.setRequestHandler('sampling/createMessage', async () => said);
  client.setRequestHandler('roots/list', async () => ({ roots: [{ uri: 'file:///work', name: 'work' }] }));
  transport = new StreamableHTTPClientTransport(url, { authProvider: provider });
  await client.connect(transport);
  return client;
}

// Logs in as often as it is asked to, but not for ever.
async function loggedIn(work) {
  for (let logins = 0; ; logins++) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof UnauthorizedError) || logins === 3) throw error;
      await transport.finishAuth(stored.callback);
    }
  }
}

const client = await loggedIn(connect);
const { tools } = await loggedIn(() => client.listTools());
const known = { a: 5, b: 3 };
const asked = new Map((context.toolCalls ?? []).map(call => [call.name, call.arguments]));
for (const { name, inputSchema } of tools) {
  const wanted = Object.keys(inputSchema.properties ?? {}).filter(key => key in known);
  const input = asked.get(name) ?? Object.fromEntries(wanted.map(key => [key, known[key]]));
  await loggedIn(() => client.callTool({ name, arguments: input })).catch(error => console.error(name, error));
}
await client.close();
