// `request()`: how users write the contract of a request. The options are checked by the table of settings.ts; what only code can make is checked here.
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { Named } from "../job/contract.ts";
import { assertKey } from "../job/enqueue.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Json, JsonOf } from "../job/json.ts";
import { jobKey, type JobKey, type LimitSettings } from "../job/limits.ts";
import type { IfUnknown } from "../job/requests.ts";
import { type Duration, durationMs } from "../job/time.ts";
import type { AddressRule } from "../requests/addresses.ts";
import {
  type AnyRequest,
  callbackKind,
  type CallbackKinds,
  type ConnectionSettings,
  isRequest,
  type Method,
  RequestContract,
  type RequestSettings,
  type Sent,
} from "../requests/contract.ts";
import type { Secret } from "../requests/secrets.ts";
import type { Wire } from "../requests/wire.ts";
import type { FetchOptions, RequestAttempt } from "../worker/run.ts";
import { check, refuse } from "./option-checks.ts";
import { job, kindChoice, limitSettings, type RetryOptions, schemaOf } from "./options.ts";
import { REQUEST_OPTIONS } from "./kind-options.ts";

export { isRequest };

/** A number of bytes: "64KB", "1MB", "2GB". */
export type Size = `${number}${"KB" | "MB" | "GB"}`;

/** How a request is retried. */
export interface RequestRetryOptions extends Pick<RetryOptions, "attempts" | "crashes" | "backoff"> {
  /** How long to wait after each failure, in order. Without `attempts`, a request has one attempt more than this list has delays. Default: the backoff. */
  readonly schedule?: readonly Duration[];
  /** After this time since its first failure a request is not retried, however many attempts it has left. Default: never; at most "3650d". */
  readonly giveUpAfter?: Duration;
  /** Statuses that are retried, in addition to 408, 425, 429, 500, 502, 503, 504 and 507. Default: none. */
  readonly statuses?: readonly number[];
}

/** The options of a request, in addition to its method, its schemas and `send`. */
export interface RequestOptions<In = never> {
  /** The maximum size of a response, both on the wire and decoded. A larger response fails the request, or goes to a blob. Default: "512KB". */
  readonly maxResponse?:
    | Size
    | {
        /** Where a response larger than "512KB" goes. */
        readonly to: "blob";
        /** The maximum size there. */
        readonly max: Size;
      };
  /** Which statuses count as success. Default: 200 to 299. */
  readonly ok?: (status: number) => boolean;
  /** How long each part of a call may take. */
  readonly timeouts?: {
    /** How long connecting may take. Default "10s"; from "10ms" to "24d". */
    readonly connect?: Duration;
    /** From sending the request to the headers of the response. Default "60s"; from "10ms" to "24d". */
    readonly headers?: Duration;
    /** Between two chunks of the response body. Default "30s"; from "10ms" to "24d". */
    readonly body?: Duration;
    /** From the start of an attempt to the last byte of the response, including redirects. Default "2m"; from "10ms" to "24d". */
    readonly total?: Duration;
  };
  /** Requests with the same key share limits, order, circuit breaker and pauses. Default: the host of the URL. */
  readonly key?: (input: In) => string;
  /** How many requests of one key run at once, and at which rate. */
  readonly limit?: {
    /** How many requests of a key are in flight at once, across all workers. Default: any number; from 1 to 100000. */
    readonly inFlight?: number;
    /** How many requests of a key start per second, minute or hour, across all workers. Default: any number. */
    readonly rate?: `${number}/${"s" | "m" | "h"}`;
    /** How many may start at once after an idle time. Default 1; from 1 to 100000. */
    readonly burst?: number;
  };
  /** "strict": the requests of a key are sent one after the other, in the order in which they were enqueued, each after the previous one has ended. Default "none". */
  readonly order?: "none" | "strict";
  /** Whether keys take turns, so a key with few requests does not wait behind one with many. Default false. */
  readonly fair?: boolean;
  /** When a failing key is left alone for a while. */
  readonly breaker?: {
    /** After this many consecutive failures of a key in one process, its circuit opens: no process sends to the key for a while. Default 5; from 1 to 1000000. */
    readonly failures?: number;
    /** How long a circuit stays open at first. It doubles each further time, up to an hour. Default "30s"; from "10ms" to "24d". */
    readonly pause?: Duration;
  };
  /** When a failing key is switched off until a person resumes it. */
  readonly disable?: {
    /** After a response with one of these statuses, nothing is sent to the key until it is resumed. Default: [410]. */
    readonly statuses?: readonly number[];
    /** After this many failures of one request, nothing is sent to its key until it is resumed. Default: never; from 1 to 1000. */
    readonly failures?: number;
    /** After a request has failed for this long, nothing is sent to its key until it is resumed. Default: never; at most "3650d". */
    readonly after?: Duration;
  };
  /** The header `idempotency-key`. Its value is the same whenever a request is sent again. Default: "bare" for POST and PATCH, "off" for the others. */
  readonly idempotency?:
    | "bare"
    | "quoted"
    | "off"
    | {
        /** The name of another header. */
        readonly header: string;
      };
  /** Whether redirects are followed, and how many. */
  readonly redirects?: {
    /** How many redirects are followed. Each is checked like the first URL. With 0 a redirect is a failure. Default 0; from 0 to 20. */
    readonly max?: number;
    /** Whether only redirects to the same origin are followed. Default true. */
    readonly sameOrigin?: boolean;
  };
  /** Which addresses may be reached. Every address that a host name resolves to is checked, and so is every literal address; the address of the connection is checked again before anything is sent. Default: "public". */
  readonly addresses?: AddressRule;
  /** The URL schemes that are allowed. Default: ["https:"]; with other `addresses` than "public" also "http:". */
  readonly protocols?: readonly ("http:" | "https:")[];
  /** Offers HTTP/2, with which 100 requests share a connection. Use it for thousands of requests to one API. Default false. */
  readonly http2?: boolean;
  /** Sends through an HTTP proxy. The proxy resolves host names, so with `addresses: "public"` you must confirm that it filters addresses (`filters: true`). Default: none; the environment is not read. */
  readonly proxy?:
    | string
    | {
        /** The address of the proxy. */
        readonly url: string;
        /** Confirms that it filters addresses. */
        readonly filters: true;
      };
  /** Certificate authorities in addition to Node's, and a client certificate. Certificates are always verified. Default: Node's certificate authorities. */
  readonly tls?: {
    /** Certificate authorities in addition to Node's, in PEM. Default: none. */
    readonly ca?: string | readonly string[];
    /** The client certificate, in PEM. Default: none. */
    readonly cert?: Secret;
    /** Its private key, in PEM. Default: none. */
    readonly key?: Secret;
  };
  /** The local address from which connections are made. Not allowed with `proxy`. Default ""; an IP address. */
  readonly localAddress?: string;
  /** How long a handler may continue after the deadline or a cancel aborted its signal. Default "5s"; at most "3650d". */
  readonly grace?: Duration;
  /** How often a failed request is sent again, and when. */
  readonly retry?: RequestRetryOptions;
}

/** POST and PATCH must say what to do if it is unknown whether the other side has acted. */
type MethodOptions =
  | {
      /** The HTTP method. */
      readonly method: "POST" | "PATCH";
      /** What to do with a request that was sent and whose outcome is unknown. POST and PATCH must say it. Default: "resend". */
      readonly ifUnknown: IfUnknown;
    }
  | { readonly method: Exclude<Method, "POST" | "PATCH">; readonly ifUnknown?: IfUnknown };

/** How the body of a response is read; with a schema, as JSON that it checks. */
type ResponseOption = "text" | "json" | "bytes" | "ignore" | StandardSchemaV1;
/** What such a body is. */
type BodyOf<R> = R extends StandardSchemaV1
  ? StandardSchemaV1.InferOutput<R>
  : R extends "json"
    ? Json
    : R extends "bytes"
      ? Uint8Array
      : R extends "ignore"
        ? null
        : string;

/** The schema itself if its input is JSON by type; a message for the compiler if it is not. */
type JsonSchema<S extends StandardSchemaV1> = [StandardSchemaV1.InferInput<S>] extends [
  JsonOf<StandardSchemaV1.InferInput<S>>,
]
  ? S
  : { readonly "the input of a request is stored as JSON: no Date, Buffer, bigint, Map, Set or function in it": never };

/** Declares a kind of request: an HTTP call that is stored before it is sent, and outlives the process that sends it. */
export function request<
  S extends StandardSchemaV1 = StandardSchemaV1<Json>,
  R extends ResponseOption = "text",
  const Name extends string = string,
>(
  name: Name,
  options: RequestOptions<StandardSchemaV1.InferInput<S>> &
    MethodOptions & {
      /** The schema of the input. Default: any JSON. */
      readonly input?: S & JsonSchema<S>;
      /** Makes the request of the input, in the worker, at each attempt. Only the input is stored. */
      readonly send: (input: StandardSchemaV1.InferOutput<S>) => Sent;
      /** How the body of the answer is read. Default: "text". */
      readonly response?: R;
    },
): Named<RequestOf<S, R>, Name> {
  check(`request ${name}`, REQUEST_OPTIONS, options);
  const { method, send, retry = {}, grace } = options;
  refuse(method === undefined, `method of ${name}`, "is missing", 'Set it, for example method: "GET".');
  refuse(typeof send !== "function", `send of ${name}`, "is missing", "Pass (input) => ({ url, ... }).");
  const needsPolicy = method === "POST" || method === "PATCH";
  refuse(
    needsPolicy && options.ifUnknown === undefined,
    `ifUnknown of ${name}`,
    `is missing, and a ${method} may do its work twice`,
    'Say what to do if its outcome is unknown: "resend", "ask" or "fail".',
  );
  const ifUnknown = options.ifUnknown ?? "resend";
  const settings = requestSettings(name, options, ifUnknown);
  const { schedule, statuses: _, giveUpAfter: __, ...ofKind } = retry;
  const attempts = schedule === undefined ? ofKind.attempts : (ofKind.attempts ?? schedule.length + 1);
  const choice = kindChoice(name, {
    // The total timeout ends an attempt; this one is for a process that hangs.
    timeout: `${settings.timeouts.totalMs + ATTEMPT_MARGIN_MS}ms`,
    ...(grace !== undefined && { grace }),
    retry: { ...ofKind, ...(attempts !== undefined && { attempts }), timeouts: MAX_TIMEOUTS },
  });
  const limits = limitOf(name, options);
  const keyOf = (input: never): JobKey => requestKey(name, options, settings, input);
  const callbacks: CallbackKinds = {
    response: job(callbackKind(name, "response")) as never,
    error: job(callbackKind(name, "error")) as never,
    unknown: job(callbackKind(name, "unknown")) as never,
  };
  const contract: RequestOf<S, R> = new RequestContract(
    {
      ...choice.settings,
      onCrash: ifUnknown === "resend" ? "resend" : "marked",
      ...(limits && { keyed: [limits] }),
      ...(options.fair && { fair: true }),
    },
    schemaOf(options.input, `The input of request ${name}`),
    { ...settings, limit: limits?.name ?? null },
    send,
    callbacks,
    limits && ((input) => [keyOf(input)]),
    options.fair ? keyOf : null,
    choice.backoff,
  );
  return contract as Named<RequestOf<S, R>, Name>;
}

/** The contract that `request()` makes of these schemas. */
type RequestOf<S extends StandardSchemaV1, R extends ResponseOption> = RequestContract<
  StandardSchemaV1.InferInput<S>,
  StandardSchemaV1.InferOutput<S>,
  BodyOf<R>
>;

/** How much later than its total timeout an attempt is overdue. */
const ATTEMPT_MARGIN_MS = 30_000;
/** An attempt that its worker could not end is tried again, however often: its own errors are counted elsewhere. */
const MAX_TIMEOUTS = 1_000;
/** A key without a limit of its own has this one, so that it can be paused. */
const MANY = 100_000;

type AnyOptions = RequestOptions & {
  readonly method: Method;
  readonly response?: ResponseOption;
  readonly send: (input: never) => Sent;
};

function requestSettings(name: string, options: AnyOptions, ifUnknown: IfUnknown): Omit<RequestSettings, "limit"> {
  const { timeouts = {}, retry = {}, redirects = {}, breaker, disable, response = "text" } = options;
  const ms = (which: "connect" | "headers" | "body" | "total"): number =>
    durationMs(timeouts[which] ?? REQUEST_OPTIONS[`timeouts.${which}`].default, `timeouts.${which} of ${name}`);
  const { maxResponse, blobMax } = sizesOf(name, options.maxResponse);
  return {
    method: options.method,
    ifUnknown,
    response:
      typeof response === "string"
        ? responseWord(name, response)
        : schemaOf(response, `The response of request ${name}`)!,
    maxResponse,
    blobMax,
    ok: options.ok ?? ((status) => status >= 200 && status < 300),
    timeouts: { connectMs: ms("connect"), headersMs: ms("headers"), bodyMs: ms("body"), totalMs: ms("total") },
    retry: {
      statuses: retry.statuses ?? [],
      scheduleMs:
        retry.schedule === undefined ? null : retry.schedule.map((one) => durationMs(one, `retry.schedule of ${name}`)),
      giveUpAfterMs:
        retry.giveUpAfter === undefined ? null : durationMs(retry.giveUpAfter, `retry.giveUpAfter of ${name}`),
    },
    idempotency: idempotencyOf(name, options),
    redirects: {
      max: redirects.max ?? REQUEST_OPTIONS["redirects.max"].default,
      sameOrigin: redirects.sameOrigin ?? REQUEST_OPTIONS["redirects.sameOrigin"].default,
    },
    protocols: options.protocols ?? ((options.addresses ?? "public") === "public" ? ["https:"] : ["http:", "https:"]),
    connection: connectionOf(name, options, ifUnknown, ms("connect")),
    breaker:
      breaker === undefined
        ? null
        : {
            failures: breaker.failures ?? REQUEST_OPTIONS["breaker.failures"].default,
            pauseMs: durationMs(breaker.pause ?? REQUEST_OPTIONS["breaker.pause"].default, `breaker.pause of ${name}`),
          },
    disable:
      disable === undefined
        ? null
        : {
            statuses: disable.statuses ?? [410],
            failures: disable.failures ?? null,
            afterMs: disable.after === undefined ? null : durationMs(disable.after, `disable.after of ${name}`),
          },
  };
}

function connectionOf(name: string, options: AnyOptions, ifUnknown: IfUnknown, connectMs: number): ConnectionSettings {
  const { addresses = "public", proxy, tls = {}, localAddress } = options;
  const filters = typeof proxy === "object" && proxy.filters === true;
  refuse(
    proxy !== undefined && addresses === "public" && !filters,
    `proxy of ${name}`,
    "resolves names itself, so the addresses can't be checked here",
    'Use a proxy that checks them and confirm it, proxy: { url, filters: true }, or use addresses: "any".',
  );
  refuse(
    proxy !== undefined && localAddress !== undefined && localAddress !== "",
    `localAddress of ${name}`,
    "is set together with `proxy`, which makes the connections",
    "Omit one of them.",
  );
  const ca = tls.ca === undefined ? [] : typeof tls.ca === "string" ? [tls.ca] : tls.ca;
  return {
    addresses,
    connectMs,
    http2: options.http2 ?? REQUEST_OPTIONS.http2.default,
    fresh: ifUnknown !== "resend",
    proxy: proxy === undefined ? null : typeof proxy === "string" ? proxy : proxy.url,
    ca,
    cert: tls.cert ?? null,
    key: tls.key ?? null,
    localAddress: localAddress ?? null,
  };
}

function responseWord(name: string, word: string): "text" | "json" | "bytes" | "ignore" {
  refuse(
    !["text", "json", "bytes", "ignore"].includes(word),
    `response of ${name}`,
    `is ${JSON.stringify(word)}`,
    'Use "text", "json", "bytes", "ignore", or a schema.',
  );
  return word as "text";
}

const UNITS = { KB: 1 << 10, MB: 1 << 20, GB: 1 << 30 } as const;
const DEFAULT_RESPONSE = 512 << 10;

function sizeOf(what: string, size: Size): number {
  const [, number, unit] = /^(\d+(?:\.\d+)?)(KB|MB|GB)$/.exec(String(size)) ?? [];
  const bytes = unit === undefined ? Number.NaN : Math.round(Number(number) * UNITS[unit as keyof typeof UNITS]);
  refuse(
    !(bytes >= 1_024),
    what,
    `is ${JSON.stringify(size)}`,
    'Use a size of at least "1KB", such as "64KB" or "1MB".',
  );
  return bytes;
}

function sizesOf(name: string, given: AnyOptions["maxResponse"]): Pick<RequestSettings, "maxResponse" | "blobMax"> {
  const what = `maxResponse of ${name}`;
  if (given === undefined) return { maxResponse: DEFAULT_RESPONSE, blobMax: null };
  if (typeof given === "object") return { maxResponse: DEFAULT_RESPONSE, blobMax: sizeOf(what, given.max) };
  const maxResponse = sizeOf(what, given);
  refuse(
    maxResponse > UNITS.MB,
    what,
    "is more than a callback's input can hold",
    'Use { to: "blob", max: SIZE } for large responses.',
  );
  return { maxResponse, blobMax: null };
}

function idempotencyOf(name: string, { idempotency, method }: AnyOptions): RequestSettings["idempotency"] {
  const form = idempotency ?? (method === "POST" || method === "PATCH" ? "bare" : "off");
  if (form === "off") return null;
  if (typeof form === "object") {
    refuse(
      !/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/.test(form.header),
      `idempotency of ${name}`,
      "names no header",
      "Use the name of a header.",
    );
    return { header: form.header.toLowerCase(), quoted: false };
  }
  return { header: "idempotency-key", quoted: form === "quoted" };
}

// ---- keys

/** The limit that a request's key belongs to; null: it has no key. */
function limitOf(
  name: string,
  options: Pick<RequestOptions, "key" | "limit" | "order" | "fair" | "breaker" | "disable">,
): LimitSettings | null {
  const { key, limit, order, fair, breaker, disable } = options;
  if (!key && !limit && order !== "strict" && !fair && !breaker && !disable) return null;
  const [, count, unit] = limit?.rate === undefined ? [] : (/^(\d+(?:\.\d+)?)\/([smh])$/.exec(limit.rate) ?? []);
  refuse(
    limit?.rate !== undefined && unit === undefined,
    `limit.rate of ${name}`,
    `is ${JSON.stringify(limit?.rate)}`,
    'Use a number per second, minute or hour: "20/s", "100/m", "1000/h".',
  );
  return limitSettings(name, {
    name,
    running: limit?.inFlight ?? MANY,
    ...(unit !== undefined && { rate: Number(count), per: `1${unit as "s"}` }),
    ...(limit?.burst !== undefined && { burst: limit.burst }),
    ...(order === "strict" && { order }),
  });
}

function requestKey(name: string, { key, send }: AnyOptions, _: unknown, input: never): JobKey {
  const text = key === undefined ? hostOf(name, send, input) : key(input);
  assertKey(text, `The key of a ${name} request`);
  return jobKey(name, text);
}

function hostOf(name: string, send: AnyOptions["send"], input: never): string {
  const url = URL.parse(String(send(input).url));
  if (url !== null && url.host !== "") return url.host;
  throw new OutliveError(
    ErrorCode.inputInvalid,
    `A ${name} request has no URL to take its host from.`,
    "Nothing was enqueued. Correct the input, or set `key`.",
    { kind: name },
  );
}

// ---- what an engine does with them

/** The `fetch` of an attempt. What sends is loaded at the first call: most handlers make none. */
export function runFetch(attempt: RequestAttempt, options: FetchOptions, wire: Wire | undefined): typeof fetch {
  const { ifUnknown } = options ?? {};
  refuse(
    ifUnknown !== "resend" && ifUnknown !== "fail",
    "ifUnknown of run.fetch",
    `is ${JSON.stringify(ifUnknown)}`,
    'Say what to do if a POST was sent and its outcome is unknown: run.fetch({ ifUnknown: "resend" }) or "fail".',
  );
  let made: typeof fetch | undefined;
  return async (input, init) => {
    const { fetchOf } = await import("../requests/run-fetch.ts");
    made ??= fetchOf(attempt, options, wire);
    return made(input, init);
  };
}

/** The kinds that a request stands for. */
export function kindsOfRequest(one: AnyRequest): readonly object[] {
  return [one, ...Object.values(one.callbacks)];
}

export function requestsOf(jobs: readonly object[]): ReadonlyMap<string, AnyRequest> {
  return new Map(jobs.filter(isRequest).map((one) => [one.name, one]));
}
export type { Wire } from "../requests/wire.ts";
