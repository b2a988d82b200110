// Every option of `job()`, `batch()`, `request()` and `collection()`, once, in the form of settings.ts, and what holds for a kind that sets none.
import type { KindSettings } from "../job/job.ts";
import { durationMs } from "../job/time.ts";
import { CRASH_ACTIONS, isRecord, LONGEST, LONGEST_TIMER, type Setting, SETTINGS } from "./settings.ts";

/** The options of `job()`. */
export const KIND_OPTIONS = {
  input: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    // job() checks it, with an error of its own.
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of the input.",
  },
  output: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence:
      "The schema of what the handler returns. The result is checked before it is stored, and `engine.result` has its type.",
  },
  limits: {
    type: "code",
    default: null,
    takes: "an array of at most two limits",
    // job() checks each, with an error of its own.
    accepts: Array.isArray,
    otherwise: "none",
    sentence: "How many of its jobs with the same key may run at once, or start per period, across all workers.",
  },
  fair: {
    type: "code",
    default: null,
    takes: "a function (input) => text, or the name of one of the kind's limits",
    // job() checks it, with an error of its own.
    accepts: (value: unknown) => typeof value === "function" || typeof value === "string",
    otherwise: "jobs start by priority and age",
    sentence:
      "Jobs of different keys take turns: a key with one job waits for at most one round of the other keys, however much they have queued.",
  },
  timeout: {
    type: "duration",
    default: "15m",
    min: "10ms",
    max: LONGEST,
    or: "none",
    sentence:
      "How long an attempt may run. `run.heartbeat()` starts the time again. It is measured on the worker's monotonic clock, so changes of the wall clock do not matter.",
  },
  maxRuntime: {
    type: "duration",
    default: null,
    otherwise: "no cap",
    max: LONGEST,
    limit: 'not shorter than the timeout, and not with a timeout of "none"',
    sentence: "The longest that an attempt may run, even if it calls `run.heartbeat()`.",
  },
  grace: {
    type: "duration",
    default: "5s",
    max: LONGEST,
    sentence: "How long a handler may continue after the deadline or a cancel aborted its signal.",
  },
  "retry.attempts": {
    type: "integer",
    default: 10,
    min: 1,
    max: 1_000,
    sentence:
      "How many attempts may end with an error before the job is dead. Timeouts and crashes have their own limits, and a shutdown is not counted.",
  },
  "retry.timeouts": {
    type: "integer",
    default: 10,
    min: 1,
    max: 1_000,
    sentence: "How many attempts may pass their deadline before the job is dead.",
  },
  "retry.crashes": {
    type: "integer",
    default: null,
    otherwise: "`recovery.crashes`",
    min: 1,
    max: 1_000,
    sentence:
      "How many workers may die while the job is their only suspect, before it is quarantined. The job's first crash does not count.",
  },
  "retry.backoff": {
    type: "code",
    default: null,
    takes: '"exponential", "linear", { type, base, max, jitter }, or a function of failures and error',
    accepts: (value) => value === "exponential" || value === "linear" || typeof value === "function",
    otherwise: '"exponential"',
    sentence: "How long to wait after a failure.",
  },
  "retry.backoff.type": {
    type: "word",
    default: "exponential",
    words: ["exponential", "linear"],
    sentence: "How the delay grows after each failure: base, 2 base, 4 base, ... or base, 2 base, 3 base, ...",
  },
  "retry.backoff.base": { type: "duration", default: "1s", max: LONGEST, sentence: "The first delay." },
  "retry.backoff.max": {
    type: "duration",
    default: "1h",
    max: LONGEST,
    limit: "not shorter than `base`",
    sentence: "The longest delay.",
  },
  "retry.backoff.jitter": { type: "share", default: 0.5, sentence: "The share of the delay that is random." },
  onCrash: {
    type: "word",
    default: null,
    otherwise: "`recovery.onCrash`",
    words: CRASH_ACTIONS,
    sentence:
      'What recovery does when a worker dies with the job: "retry" queues it again and counts a crash, "requeue" queues it again and counts nothing, "fail" ends it.',
  },
  expires: {
    type: "duration",
    default: null,
    otherwise: "any time",
    min: "1ms",
    max: LONGEST,
    sentence:
      'How long a job may wait for its first attempt after it was due. Then it is cancelled, with the outcome "expired".',
  },
  retention: {
    type: "code",
    default: null,
    takes: 'a duration such as "30d", or { succeeded, dead, cancelled, quarantined } with a duration for each',
    // job() checks it, with an error of its own.
    accepts: (value) => typeof value === "string" || (typeof value === "object" && value !== null),
    otherwise: "`retention.finished`",
    sentence:
      "How long its finished jobs are kept: one duration for all, or one for each of succeeded, dead, cancelled and quarantined.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `batch()` in addition to those of `job()`. */
export const BATCH_OPTIONS = {
  row: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of a row. A row that does not match fails on its own, with its line number.",
  },
  context: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of the context, which all rows of a batch share.",
  },
  block: {
    type: "integer",
    default: 50,
    min: 1,
    max: 1_000,
    sentence:
      "The maximum number of rows in a block; a block is also limited to 256 KiB. A worker claims and settles a block as a whole. Use 1 for rows that take seconds.",
  },
  atOnce: { type: "integer", default: 1, min: 1, max: 1_000, sentence: "How many rows of a block run at once." },
  mark: {
    type: "word",
    default: "time",
    words: ["time", "row"],
    sentence:
      '"time": rows that ended are durable within 200 ms, so a kill repeats at most that much work. "row": the end of each row is durable before the next begins.',
  },
  blockFor: {
    type: "duration",
    default: "10s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence:
      "After this time a worker settles the rows that have ended and queues the rest of the block again, at no cost to it. So a deploy or another batch never waits for a long block.",
  },
  tolerate: {
    type: "code",
    default: null,
    takes: 'a number of rows, or a share such as "5%"',
    accepts: (value) => typeof value === "number" || typeof value === "string",
    otherwise: "any number",
    sentence:
      'How many rows may fail or be quarantined, as a number or a share such as "5%". If more do, the batch is aborted as failed; rows in flight may add to the number.',
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `request()`. What only code can make is checked there, with errors of its own. */
export const REQUEST_OPTIONS = {
  input: KIND_OPTIONS.input,
  grace: KIND_OPTIONS.grace,
  method: {
    type: "word",
    default: null,
    otherwise: "none, it must be set",
    words: ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "QUERY", "POST", "PATCH"],
    sentence: "The method.",
  },
  ifUnknown: {
    type: "word",
    default: null,
    otherwise: '"resend"; must be set for POST and PATCH',
    words: ["resend", "ask", "fail"],
    sentence:
      'What to do if the request was sent and its outcome is unknown, because its process died, the connection broke, it timed out, or a gateway answered 502 or 504: "resend" it, "ask" `onUnknown`, or "fail" it.',
  },
  send: {
    type: "code",
    default: null,
    takes: "a function of the input that returns the URL, headers and body",
    accepts: (value) => typeof value === "function",
    otherwise: "none, it must be set",
    sentence: "Builds the request from the input, in the worker, at each attempt. Only the input is stored.",
  },
  response: {
    type: "code",
    default: null,
    takes: '"text", "json", "bytes", "ignore", or a Standard Schema of JSON',
    accepts: () => true,
    otherwise: '"text"',
    sentence: "How the body of the response is read.",
  },
  maxResponse: {
    type: "code",
    default: null,
    takes: 'a size such as "512KB", from "1KB" to "1MB"; or { to: "blob", max: SIZE } for larger ones',
    accepts: (value) => typeof value === "string" || (typeof value === "object" && value !== null),
    otherwise: '"512KB"',
    sentence:
      "The maximum size of a response, both on the wire and decoded. A larger response fails the request, or goes to a blob.",
  },
  ok: {
    type: "code",
    default: null,
    takes: "a function of the status",
    accepts: (value) => typeof value === "function",
    otherwise: "200 to 299",
    sentence: "Which statuses count as success.",
  },
  "timeouts.connect": {
    type: "duration",
    default: "10s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "How long connecting may take.",
  },
  "timeouts.headers": {
    type: "duration",
    default: "60s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "From sending the request to the headers of the response.",
  },
  "timeouts.body": {
    type: "duration",
    default: "30s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "Between two chunks of the response body.",
  },
  "timeouts.total": {
    type: "duration",
    default: "2m",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "From the start of an attempt to the last byte of the response, including redirects.",
  },
  key: {
    type: "code",
    default: null,
    takes: "a function of the input that returns a text",
    accepts: (value) => typeof value === "function",
    otherwise: "the host of the URL",
    sentence: "Requests with the same key share limits, order, circuit breaker and pauses.",
  },
  "limit.inFlight": {
    type: "integer",
    default: null,
    otherwise: "any number",
    min: 1,
    max: 1e5,
    sentence: "How many requests of a key are in flight at once, across all workers.",
  },
  "limit.rate": {
    type: "code",
    default: null,
    takes: 'a number per second, minute or hour: "20/s", "100/m"',
    accepts: (value) => typeof value === "string",
    otherwise: "any number",
    sentence: "How many requests of a key start per second, minute or hour, across all workers.",
  },
  "limit.burst": {
    type: "integer",
    default: 1,
    min: 1,
    max: 1e5,
    sentence: "How many may start at once after an idle time.",
  },
  order: {
    type: "word",
    default: "none",
    words: ["none", "strict"],
    sentence:
      '"strict": the requests of a key are sent one after the other, in the order in which they were enqueued, each after the previous one has ended.',
  },
  fair: {
    type: "boolean",
    default: false,
    sentence: "Whether keys take turns, so a key with few requests does not wait behind one with many.",
  },
  "breaker.failures": {
    type: "integer",
    default: 5,
    min: 1,
    max: 1e6,
    sentence:
      "After this many consecutive failures of a key in one process, its circuit opens: no process sends to the key for a while.",
  },
  "breaker.pause": {
    type: "duration",
    default: "30s",
    min: "10ms",
    max: LONGEST_TIMER,
    sentence: "How long a circuit stays open at first. It doubles each further time, up to an hour.",
  },
  "disable.statuses": {
    type: "code",
    default: null,
    takes: "an array of statuses",
    accepts: Array.isArray,
    otherwise: "[410]",
    sentence: "After a response with one of these statuses, nothing is sent to the key until it is resumed.",
  },
  "disable.failures": {
    type: "integer",
    default: null,
    otherwise: "never",
    min: 1,
    max: 1e3,
    sentence: "After this many failures of one request, nothing is sent to its key until it is resumed.",
  },
  "disable.after": {
    type: "duration",
    default: null,
    otherwise: "never",
    max: LONGEST,
    sentence: "After a request has failed for this long, nothing is sent to its key until it is resumed.",
  },
  idempotency: {
    type: "code",
    default: null,
    takes: '"bare", "quoted", "off" or { header: NAME }',
    accepts: (value) => ["bare", "quoted", "off"].includes(value as string) || isRecord(value),
    otherwise: '"bare" for POST and PATCH, "off" for the others',
    sentence: "The header `idempotency-key`. Its value is the same whenever a request is sent again.",
  },
  "redirects.max": {
    type: "integer",
    default: 0,
    min: 0,
    max: 20,
    sentence: "How many redirects are followed. Each is checked like the first URL. With 0 a redirect is a failure.",
  },
  "redirects.sameOrigin": {
    type: "boolean",
    default: true,
    sentence: "Whether only redirects to the same origin are followed.",
  },
  addresses: {
    type: "code",
    default: null,
    takes: '"public", "any", or an array of hosts and CIDRs',
    accepts: (value) => value === "public" || value === "any" || Array.isArray(value),
    otherwise: '"public"',
    sentence:
      "Which addresses may be reached. Every address that a host name resolves to is checked, and so is every literal address; the address of the connection is checked again before anything is sent.",
  },
  protocols: {
    type: "code",
    default: null,
    takes: '["https:"] or ["http:", "https:"]',
    accepts: Array.isArray,
    otherwise: '["https:"]; with other `addresses` than "public" also "http:"',
    sentence: "The URL schemes that are allowed.",
  },
  http2: {
    type: "boolean",
    default: false,
    sentence: "Offers HTTP/2, with which 100 requests share a connection. Use it for thousands of requests to one API.",
  },
  proxy: {
    type: "code",
    default: null,
    takes: "the URL of an HTTP proxy, or { url, filters: true } if it checks addresses itself",
    accepts: (value) => typeof value === "string" || isRecord(value),
    otherwise: "none; the environment is not read",
    sentence:
      'Sends through an HTTP proxy. The proxy resolves host names, so with `addresses: "public"` you must confirm that it filters addresses (`filters: true`).',
  },
  tls: {
    type: "code",
    default: null,
    takes: "{ ca, cert, key }: your own certificate authorities as PEM, and a client certificate and key as secrets",
    accepts: isRecord,
    otherwise: "Node's certificate authorities",
    sentence:
      "Certificate authorities in addition to Node's, and a client certificate. Certificates are always verified.",
  },
  localAddress: {
    type: "name",
    default: "",
    pattern: /^[0-9a-fA-F.:]*$/,
    form: "an IP address",
    sentence: "The local address from which connections are made. Not allowed with `proxy`.",
  },
  "retry.attempts": KIND_OPTIONS["retry.attempts"],
  "retry.crashes": KIND_OPTIONS["retry.crashes"],
  "retry.backoff": KIND_OPTIONS["retry.backoff"],
  "retry.backoff.type": KIND_OPTIONS["retry.backoff.type"],
  "retry.backoff.base": KIND_OPTIONS["retry.backoff.base"],
  "retry.backoff.max": KIND_OPTIONS["retry.backoff.max"],
  "retry.backoff.jitter": KIND_OPTIONS["retry.backoff.jitter"],
  "retry.giveUpAfter": {
    type: "duration",
    default: null,
    otherwise: "never",
    max: LONGEST,
    sentence: "After this time since its first failure a request is not retried, however many attempts it has left.",
  },
  "retry.schedule": {
    type: "code",
    default: null,
    takes: "an array of durations",
    accepts: Array.isArray,
    otherwise: "the backoff",
    sentence:
      "How long to wait after each failure, in order. Without `attempts`, a request has one attempt more than this list has delays.",
  },
  "retry.statuses": {
    type: "code",
    default: null,
    takes: "an array of statuses",
    accepts: Array.isArray,
    otherwise: "none",
    sentence: "Statuses that are retried, in addition to 408, 425, 429, 500, 502, 503, 504 and 507.",
  },
} as const satisfies Readonly<Record<string, Setting>>;

/** The options of `collection()` in addition to those of `job()`. */
export const COLLECTION_OPTIONS = {
  input: {
    type: "code",
    default: null,
    takes: "a Standard Schema (zod, valibot, arktype and others make them)",
    accepts: () => true,
    otherwise: "any JSON",
    sentence: "The schema of the input that `request`, `done` and `abandoned` receive.",
  },
  series: {
    type: "code",
    default: null,
    takes: "a list of 1 to 100 different names, each of 1 to 100 letters, digits, - and _",
    accepts: (value) =>
      Array.isArray(value) &&
      value.length >= 1 &&
      value.length <= 100 &&
      new Set(value).size === value.length &&
      value.every((name) => typeof name === "string" && /^[A-Za-z0-9_-]{1,100}$/.test(name)),
    otherwise: "none, it must be set",
    sentence:
      "The names of its series, 1 to 100. Each series has its own number of parts; parts of other series are refused.",
  },
  "message.max": {
    type: "code",
    default: null,
    takes: 'a number of bytes from 1 to 512000000, or a text such as "16MB"',
    accepts: (value) => isBytes(value, 512e6),
    otherwise: "16MB",
    sentence: "The maximum size of a part, at most 512 MB. A larger part is refused; a larger message is parked.",
  },
  memory: {
    type: "code",
    default: null,
    takes: 'a number of bytes from 1 to 64000000000, or a text such as "256MB"',
    accepts: (value) => isBytes(value, 64e9),
    otherwise: "256MB",
    sentence:
      "How many bytes of messages one process holds in memory, at most 64 GB and at least `message.max`. The broker keeps the others.",
  },
  "abandonAfter.idle": {
    type: "duration",
    default: "1h",
    min: "10ms",
    max: "3650d",
    sentence: "A collection that gets no part for this long is abandoned.",
  },
  "abandonAfter.total": {
    type: "duration",
    default: "7d",
    min: "10ms",
    max: "3650d",
    sentence: "A collection that is not complete this long after it was opened is abandoned.",
  },
  keep: {
    type: "duration",
    default: "7d",
    max: "3650d",
    sentence: "How long the parts and blobs of a collection are kept after it has ended.",
  },
  queues: {
    type: "word",
    default: "shared",
    words: ["shared", "per-collection"],
    sentence:
      'With a broker: "shared" queues for all collections of the kind, or "per-collection" ones named transaction-ID-header and transaction-ID-payload. If the broker is killed, a queue that is less than a second old can lose confirmed messages.',
  },
} as const satisfies Readonly<Record<string, Setting>>;

function isBytes(value: unknown, max: number): boolean {
  const number = typeof value === "string" && /^\d+(\.\d+)?[KMG]B$/.test(value) ? bytesIn(value) : value;
  return typeof number === "number" && Number.isFinite(number) && number >= 1 && number <= max;
}

function bytesIn(text: string): number {
  const exponent = { K: 3, M: 6, G: 9 }[text.at(-2) as "K" | "M" | "G"];
  return Number(text.slice(0, -2)) * 10 ** exponent;
}

/** The settings of a kind that sets no option. */
export const KIND_DEFAULTS: Omit<KindSettings, "name"> = {
  timeoutMs: durationMs(KIND_OPTIONS.timeout.default, "timeout"),
  maxRuntimeMs: KIND_OPTIONS.maxRuntime.default,
  graceMs: durationMs(KIND_OPTIONS.grace.default, "grace"),
  limits: {
    errors: KIND_OPTIONS["retry.attempts"].default,
    timeouts: KIND_OPTIONS["retry.timeouts"].default,
    crashes: SETTINGS["recovery.crashes"].default,
  },
  backoff: {
    type: KIND_OPTIONS["retry.backoff.type"].default,
    baseMs: durationMs(KIND_OPTIONS["retry.backoff.base"].default, "backoff.base"),
    maxMs: durationMs(KIND_OPTIONS["retry.backoff.max"].default, "backoff.max"),
    jitter: KIND_OPTIONS["retry.backoff.jitter"].default,
  },
  onCrash: SETTINGS["recovery.onCrash"].default,
};
