// What the TypeScript peers share: the log of received calls, and the script a client runs.
// Nothing here imports an SDK, so that both generations of it can use this file.

import { appendFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

// Not process.stdout: what that still buffers is lost at process.exit.
export function say(line) {
  let bytes = Buffer.from(JSON.stringify(line) + '\n');
  while (bytes.length > 0) {
    try {
      bytes = bytes.subarray(writeSync(1, bytes));
    } catch (error) {
      // An SDK's stdio transport has looked at process.stdout, and so a full pipe does not block.
      if (error.code !== 'EAGAIN') throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

// --- servers ---

export function serverArgs() {
  const { values } = parseArgs({
    options: {
      host: { type: 'string', default: '127.0.0.1' },
      port: { type: 'string', default: '0' },
      log: { type: 'string' },
      json: { type: 'boolean', default: false },
      sse: { type: 'boolean', default: false },
      lines: { type: 'boolean', default: false },
    },
  });
  return { ...values, port: Number(values.port) };
}

// One JSON line per phase of a received tool call, in nanoseconds of the monotonic clock.
export function logTo(path) {
  return (tool, args, phase) => {
    if (path) {
      const line = { at_ns: Number(process.hrtime.bigint()), tool, args, phase };
      appendFileSync(path, JSON.stringify(line) + '\n');
    }
  };
}

// Runs the body of a tool between `start` and `end`, or `cancelled` when the signal says so.
export async function logged(log, tool, args, signal, body) {
  log(tool, args, 'start');
  try {
    const text = await body();
    signal.throwIfAborted();
    log(tool, args, 'end');
    return said(text);
  } catch (error) {
    log(tool, args, 'cancelled');
    throw error;
  }
}

export async function slow(seconds, signal) {
  await sleep(seconds * 1000, undefined, { signal });
  return `slept ${seconds} s`;
}

export function said(text) {
  return { content: [{ type: 'text', text }] };
}

export function listen(http, { host, port }) {
  http.listen(port, host, () => say({ listening: http.address().port }));
}

// Lines over TCP: `serve` takes each connection.
export function listenForLines(serve, args) {
  listen(
    createServer(socket => {
      socket.on('error', () => {});
      serve(socket);
    }),
    args,
  );
}

// --- clients ---

// What `socat` does between a client that speaks over stdin and stdout, and the server of a `tcp:` URL.
const BRIDGE = `
  const [host, port] = process.argv.slice(1);
  const conn = require('node:net').connect({ host, port: Number(port), allowHalfOpen: true });
  conn.on('error', () => process.exit(1));
  process.stdin.pipe(conn);
  conn.pipe(process.stdout);
  conn.on('end', () => process.exit(0));
`;

// How to start such a bridge; undefined for any other URL.
export function bridge(url) {
  const { protocol, hostname, port } = new URL(url);
  return protocol === 'tcp:' ? { command: process.execPath, args: ['-e', BRIDGE, hostname, port] } : undefined;
}

export function clientArgs(modes) {
  const { values } = parseArgs({
    options: {
      url: { type: 'string' },
      script: { type: 'string' },
      timeout: { type: 'string', default: '20' },
      mode: { type: 'string', default: modes[0] },
    },
  });
  if (!values.url || !values.script || !modes.includes(values.mode)) {
    throw new Error(`usage: --url URL --script JSON [--timeout SECONDS] [--mode ${modes.join('|')}]`);
  }
  return { ...values, timeout: Number(values.timeout), steps: JSON.parse(values.script) };
}

export const accept = async () => ({ action: 'accept', content: { ok: true } });

// What servers say of their progress.
const told = [];
export const onprogress = ({ message }) => message && told.push(message);

export function textOf(result) {
  return (result.content ?? []).filter(block => block.type === 'text').map(block => block.text).join('');
}

function errorOf(error, late) {
  if (late || error?.name === 'TimeoutError') {
    return { type: 'timeout', code: null, message: 'no answer before the deadline' };
  }
  const kind = typeof error?.code === 'number' ? 'protocol' : (error?.name ?? 'Error');
  const cause = error?.cause?.message ? `: ${error.cause.message}` : '';
  return { type: kind, code: error?.code ?? null, message: String(error?.message ?? error) + cause };
}

// Lines of stdin, kept until somebody waits for them. Opened by the first wait, so that it keeps nobody alive.
let lines;
async function nextLine() {
  lines ??= createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  return (await lines.next()).value ?? '';
}

function before(seconds, work) {
  const late = sleep(seconds * 1000, undefined, { ref: false }).then(() => {
    throw Object.assign(new Error('late'), { name: 'TimeoutError' });
  });
  return Promise.race([work, late]);
}

async function runStep(head, op, step, timeout, session) {
  const started = performance.now();
  const outcome = { ok: true, is_error: false, text: '', error: null };
  const signal = AbortSignal.timeout(timeout * 1000);
  try {
    if (op === 'list') {
      outcome.text = (await before(timeout, session.list(signal))).join(' ');
    } else if (op === 'call' || op === 'together') {
      const result = await before(timeout, session.call(step.tool, step.args ?? {}, signal));
      outcome.is_error = result.isError ?? false;
      outcome.text = textOf(result);
    } else if (op === 'sleep') {
      await sleep(step.seconds * 1000);
    } else if (op === 'wait_line') {
      outcome.text = await before(timeout, nextLine());
    } else {
      throw new Error(`unknown op ${op}`);
    }
  } catch (error) {
    Object.assign(outcome, { ok: false, is_error: true, error: errorOf(error, signal.aborted) });
  }
  say({ ...head, ...outcome, told, ms: Math.round(performance.now() - started) });
}

// Connects, runs the steps and prints one line for each; leaves no way to hang.
// `connect` answers { revision, list(signal), call(tool, args, signal), close() }.
export async function runClient(args, connect) {
  let session;
  try {
    session = await before(args.timeout, connect());
    say({ connected: true, revision: session.revision });
  } catch (error) {
    say({ connected: false, error: errorOf(error) });
    say({ done: true });
    process.exit(0);
  }
  for (const [index, step] of args.steps.entries()) {
    const calls = step.op === 'together' ? step.calls : [step];
    const timeout = step.timeout ?? args.timeout;
    await Promise.all(
      calls.map((call, part) => runStep({ step: index, op: step.op, part }, step.op, call, timeout, session)),
    );
  }
  say({ done: true });
  await before(2, session.close()).catch(() => {});
  process.exit(0);
}
