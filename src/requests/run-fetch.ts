// `run.fetch`: `fetch` inside a handler, as a step: the answer is kept, so a later attempt gets it without a second call. For SDKs that take a `fetch` (`new OpenAI({ fetch })`): their calls
// become crash-safe. The call holds its slot; the body is buffered, because it is stored.
import { ErrorCode, OutliveError, TerminalError } from "../job/errors.ts";
import { knownMark, sentMark, unknownSending } from "../job/requests.ts";
import { durationMs } from "../job/time.ts";
import type { FetchOptions, RequestAttempt } from "../worker/run.ts";
import type { AddressRule } from "./addresses.ts";
import { Connections } from "./connections.ts";
import { Resolver } from "./resolver.ts";
import { Secrets } from "./secrets.ts";
import { Sender } from "./sender.ts";
import type { Answer, NoAnswer, Wire } from "./wire.ts";

/** The largest answer that is kept: it is a step's result. */
const MAX_RESPONSE = 512 << 10;
const mono = (): number => performance.now();
const connections = new Connections(new Resolver(mono), new Secrets({}, mono));
const sender = new Sender(mono);

interface KeptAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** In base64. */
  readonly body: string;
}

/** How many calls each attempt has made. */
const calls = new WeakMap<RequestAttempt, number>();

/**
 * A `fetch` whose calls are steps of this job, named by their order: `fetch 1`, `fetch 2`, ... An answer of 5xx or 429 is returned and not kept, so that the SDK or the next attempt may try
 * again. `wire`: in place of the network.
 */
export function fetchOf(
  run: RequestAttempt,
  { ifUnknown, addresses = "public", timeout = "10m" }: FetchOptions,
  wire?: Wire,
): typeof fetch {
  const totalMs = durationMs(timeout, "The timeout of run.fetch");
  return async (input, init) => {
    const count = (calls.get(run) ?? 0) + 1;
    calls.set(run, count);
    const name = `fetch ${count}`;
    const request = new Request(input, init);
    const isUnsafe = request.method === "POST" || request.method === "PATCH";
    const marks = isUnsafe && ifUnknown === "fail";
    let passed: Answer | null = null;
    const work = async (): Promise<KeptAnswer> => {
      if (marks) await mark(run, name);
      const answer = await send(request, addresses, totalMs, run.signal, wire);
      if (answer.is === "none") {
        if (marks && answer.sent) throw await unknown(run, name, answer.message);
        if (marks) await forget(run, name, run.attempt);
        throw new TypeError(`fetch failed: ${answer.message}`);
      }
      if (answer.status >= 500 || answer.status === 429) {
        passed = answer;
        if (marks) await forget(run, name, run.attempt);
        throw new NotKept();
      }
      return { status: answer.status, headers: answer.headers, body: (answer.body as Buffer).toString("base64") };
    };
    try {
      return responseOf(await run.step(name, work));
    } catch (thrown) {
      if (!(thrown instanceof NotKept) || passed === null) throw thrown;
      const { status, headers, body } = passed as Answer;
      return responseOf({ status, headers, body: (body as Buffer).toString("base64") });
    }
  };
}

/** An answer that is handed out and not kept. */
class NotKept extends Error {}

/** Before the first byte goes. An attempt that finds the mark of an earlier one, and not that its outcome is known, does not know what became of it. */
async function mark(run: RequestAttempt, name: string): Promise<void> {
  const { steps, lastOutcome } = run.job;
  const own = steps
    .filter((step) => step.name.startsWith(`${name} `))
    .map((step) => ({ ...step, name: step.name.slice(name.length + 1) }));
  const sentBy = unknownSending(own);
  if (sentBy !== null) {
    // The attempt before this one ended the job for it, and a person has retried the job since: that is the decision to send it.
    const isRetried = lastOutcome === "failed" && own.some((step) => step.name === unknownMark(run.attempt - 1));
    if (!isRetried)
      throw await unknown(run, name, `attempt ${sentBy} of the job sent it and ended before the response came`);
    await forget(run, name, sentBy);
  }
  await run.step(`${name} ${sentMark("fail", run.attempt)}`, () => null);
}

/** The outcome of what was sent is known, or was decided on, and it may be sent again. */
function forget(run: RequestAttempt, name: string, sentBy: number): Promise<null> {
  return run.step(`${name} ${knownMark(sentBy)}`, () => null);
}

/** The attempt ends the job because the outcome is unknown. */
function unknownMark(attempt: number): string {
  return `unknown#${attempt}`;
}

async function unknown(run: RequestAttempt, name: string, why: string): Promise<TerminalError> {
  await run.step(`${name} ${unknownMark(run.attempt)}`, () => null);
  const error = new OutliveError(
    ErrorCode.requestUnknown,
    `The call ${JSON.stringify(name)} of job ${run.id} was sent, and its outcome is unknown: ${why}.`,
    'The job has ended, because its `ifUnknown` is "fail". Check what the other side has done; a retry of the job sends it again.',
    { jobId: run.id, call: name },
  );
  return new TerminalError(error.message, { cause: error });
}

async function send(
  request: Request,
  addresses: AddressRule,
  totalMs: number,
  signal: AbortSignal,
  wire: Wire | undefined,
): Promise<Answer | NoAnswer> {
  const body = request.body === null ? null : Buffer.from(await request.arrayBuffer());
  const headers = Object.fromEntries(request.headers);
  delete headers["content-length"];
  headers["accept-encoding"] ??= "gzip, br, zstd";
  const connection = {
    addresses,
    connectMs: 10_000,
    http2: false,
    fresh: false,
    proxy: null,
    ca: [],
    cert: null,
    key: null,
    localAddress: null,
  };
  const timeouts = { connectMs: 10_000, headersMs: totalMs, bodyMs: totalMs, totalMs };
  const url = new URL(request.url);
  const rendered = { url, method: request.method, headers, body, idempotencyKey: null };
  const options = { timeouts, maxResponse: MAX_RESPONSE, ignoreBody: false, blobs: null, fresh: false };
  const sending = wire
    ? wire({ request: rendered, redirects: 0 }, options, mono() + totalMs)
    : sender.send(await connections.of(connection), rendered, options, mono() + totalMs);
  const stop = (): void => sending.abort("aborted", "the call was aborted");
  for (const one of [signal, request.signal]) {
    if (one.aborted) stop();
    one.addEventListener("abort", stop, { once: true });
  }
  try {
    return await sending.ended;
  } finally {
    for (const one of [signal, request.signal]) one.removeEventListener("abort", stop);
  }
}

function responseOf({ status, headers, body }: KeptAnswer): Response {
  const given = new Headers(headers);
  // The body is decoded.
  for (const name of ["content-encoding", "content-length", "transfer-encoding"]) given.delete(name);
  const empty = status === 204 || status === 205 || status === 304;
  return new Response(empty ? null : Buffer.from(body, "base64"), { status, headers: given });
}
