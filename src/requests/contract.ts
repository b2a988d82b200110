// The contract of a request: what is stored, how it is rendered at each sending, and what follows its end. Safe to import anywhere; made by `request()`
// (engine/request.ts), which checks the options. A request is a kind of job, so everything that takes a job takes it.
import { JobContract, type TypedRun } from "../job/contract.ts";
import { invalidInput } from "../job/enqueue.ts";
import { ErrorCode, OutliveError, type StoredError } from "../job/errors.ts";
import type { KindSettings } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import type { JobKey } from "../job/limits.ts";
import type { IfUnknown } from "../job/requests.ts";
import type { StandardSchemaV1 } from "@standard-schema/spec";
import type { AddressRule } from "./addresses.ts";
import type { BlobBody } from "./body.ts";
import type { RetryPolicy } from "./outcome.ts";
import type { Secret } from "./secrets.ts";
import type { Signer } from "./sign.ts";

/** The methods that a request may use. */
export type Method = "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "QUERY" | "POST" | "PATCH";

/** What is sent. Made by `send` at each attempt and never stored. */
export interface Sent {
  /** The address: http or https, without user and password. */
  readonly url: string | URL;
  /** Headers by name. Values are ASCII texts or secrets. Headers of the connection itself are refused. Default: none. */
  readonly headers?: Readonly<Record<string, string | Secret>>;
  /** Added to the query of the URL. Default: nothing. */
  readonly query?: Readonly<Record<string, string | number | boolean | Secret>>;
  /** The body as JSON. At most one of `json`, `form` and `body`. */
  readonly json?: unknown;
  /** The body as the fields of a form. */
  readonly form?: Readonly<Record<string, string>>;
  /** The body as it is. */
  readonly body?: string | Uint8Array;
  /** Signs it: `standardWebhooks(secret("NAME"))`, or your own function. Default: no signature. */
  readonly sign?: Signer;
}

/** The response, as `onResponse` gets it. */
export interface ResponseOf<In = Json, Body = Json> {
  /** The status code. */
  readonly status: number;
  /** By name in lower case. The values of a name that came twice are joined by a comma; `set-cookie` is not kept. */
  readonly headers: Readonly<Record<string, string>>;
  /** The body; null if it is in a blob, or if the kind ignores it. */
  readonly body: Body;
  /** Where a large body is, until this callback has succeeded; null: it is in `body`. */
  readonly blob: BlobBody | null;
  /** The input of the request. */
  readonly input: In;
  /** The id of the request, which is the id of its job. */
  readonly requestId: string;
  /** How often it was claimed, up to this response. */
  readonly attempts: number;
  /** When it was sent, in milliseconds since 1970. */
  readonly sentAt: number;
  /** How long the response took, in milliseconds. */
  readonly durationMs: number;
  /** How many redirects were followed. */
  readonly redirects: number;
}

/** Why a request ended without an accepted response. */
export type RequestFault =
  | "status"
  | "network"
  | "timeout"
  | "unknown"
  | "refused"
  | "too-large"
  | "schema"
  | "disabled";

/** What `onError` gets. */
export interface RequestFailure<In = Json> {
  /** What kind of failure it was. */
  readonly is: RequestFault;
  /** What happened, in words. */
  readonly message: string;
  /** The status code; null: there was no response. */
  readonly status: number | null;
  /** The beginning of the response's body as text, at most 4 KB; null: there was none. */
  readonly body: string | null;
  /** The request's input. */
  readonly input: In;
  /** The id of the request, which is the id of its job. */
  readonly requestId: string;
  /** How often it was sent. */
  readonly attempts: number;
}

/** What `onUnknown` gets: a request that was sent, and whose outcome is not known. */
export interface UnknownOutcome<In = Json> {
  /** The request's input. */
  readonly input: In;
  /** The id of the request, which is the id of its job. */
  readonly requestId: string;
  /** The attempt that was sent. */
  readonly attempt: number;
  /** When it was sent, in milliseconds since 1970. */
  readonly sentAt: number;
  /** Why its outcome is unknown, in words. */
  readonly message: string;
  /** The idempotency key that it was sent with; null: none. */
  readonly idempotencyKey: string | null;
}

/** What `onUnknown` decides: send it again, fail it, or use this as its response. */
export type UnknownDecision =
  | "resend"
  | "fail"
  | {
      /** The status code. */
      readonly status: number;
      /** The body. */
      readonly body: Json;
    };

/** How long each part of a call may take, in ms. */
export interface Timeouts {
  /** The connection. */
  readonly connectMs: number;
  /** The headers of the response. */
  readonly headersMs: number;
  /** Its body. */
  readonly bodyMs: number;
  /** All together. */
  readonly totalMs: number;
}

/** How the connections of a kind are made. Kinds with equal settings share theirs. */
export interface ConnectionSettings {
  readonly addresses: AddressRule;
  readonly connectMs: number;
  readonly http2: boolean;
  /** Each request has a connection of its own, so that a connection that the server closed does not make an outcome unknown. */
  readonly fresh: boolean;
  readonly proxy: string | null;
  readonly ca: readonly string[];
  readonly cert: Secret | null;
  readonly key: Secret | null;
  readonly localAddress: string | null;
}

export interface RequestSettings {
  readonly method: Method;
  readonly ifUnknown: IfUnknown;
  readonly response: "text" | "json" | "bytes" | "ignore" | StandardSchemaV1;
  readonly maxResponse: number;
  /** Larger answers go to a blob, up to this many bytes; null: they are an error. */
  readonly blobMax: number | null;
  readonly ok: (status: number) => boolean;
  readonly timeouts: Timeouts;
  readonly retry: RetryPolicy;
  readonly idempotency: { readonly header: string; readonly quoted: boolean } | null;
  readonly redirects: { readonly max: number; readonly sameOrigin: boolean };
  readonly protocols: readonly string[];
  readonly connection: ConnectionSettings;
  /** The limit that its keys belong to; null: it has no key. */
  readonly limit: string | null;
  readonly breaker: { readonly failures: number; readonly pauseMs: number } | null;
  readonly disable: {
    readonly afterMs: number | null;
    readonly failures: number | null;
    readonly statuses: readonly number[];
  } | null;
}

/** By which a request is known, also if the program's copy of outlive is not the command line's. */
const REQUEST = Symbol.for("outlive.request");

type Callback = JobContract<never, never, unknown>;

export interface CallbackKinds {
  readonly response: Callback;
  readonly error: Callback;
  readonly unknown: Callback;
}

/** The result of a request. */
export interface RequestResult {
  /** The status code. */
  readonly status: number;
  /** The size of the response's body in bytes. */
  readonly bytes: number;
  /** How long the response took, in milliseconds. */
  readonly durationMs: number;
}

/** A kind of request, made by `request()`. */
export class RequestContract<In = unknown, Out = In, Body = Json> extends JobContract<In, Out, RequestResult> {
  readonly [REQUEST] = true;
  /** @internal Its options, checked and with their defaults. */
  readonly request: RequestSettings;
  /** @internal Makes the request of an input. */
  readonly send: (input: never) => Sent;
  /** @internal The kinds of its callbacks, each a job of its own. */
  readonly callbacks: CallbackKinds;

  /** @internal */
  constructor(
    kind: KindSettings,
    schema: StandardSchemaV1<In, Out> | null,
    request: RequestSettings,
    send: (input: never) => Sent,
    callbacks: CallbackKinds,
    keysOf: ((input: never) => readonly JobKey[]) | null,
    fairOf: ((input: never) => JobKey) | null,
    backoff: ((failures: number, error: StoredError) => number) | null,
  ) {
    super(kind, schema, backoff, null, keysOf, fairOf);
    this.request = request;
    this.send = send;
    this.callbacks = callbacks;
  }

  /** A request has no handler: it is sent. */
  override handle(): never {
    throw new OutliveError(
      ErrorCode.optionInvalid,
      `${this.name} is a request and can't have a handler.`,
      "Use onResponse(), onError() and onUnknown() for what follows it.",
      { kind: this.name },
    );
  }

  /** Runs when an accepted response came: a separate job, written in the transaction that ends the request. Call it once. */
  onResponse(handler: (response: ResponseOf<Out, Body>, run: TypedRun) => void | Promise<void>): this {
    this.callbacks.response.handle(async (stored: ResponseOf<Json, Json>, run: TypedRun) => {
      const { response } = this.request;
      const inBlob = stored.blob !== null;
      const body = inBlob || response === "ignore" ? null : await this.#bodyOf(stored.body);
      await handler({ ...stored, body: body as Body, input: await this.#inputOf(stored.input) }, run);
    });
    return this;
  }

  /** Runs when the request has failed for good: a separate job, written in the transaction that ends the request. Call it once. */
  onError(handler: (failure: RequestFailure<Out>, run: TypedRun) => void | Promise<void>): this {
    this.callbacks.error.handle(async (stored: RequestFailure, run: TypedRun) => {
      // An input that its schema refused is shown as it is.
      const input = await this.#inputOf(stored.input).catch(() => stored.input as Out);
      await handler({ ...stored, input }, run);
    });
    return this;
  }

  /** Decides about a request that was sent and whose outcome is not known (`ifUnknown: "ask"`): a separate job, for which the request waits. Call it once. */
  onUnknown(
    handler: (unknown: UnknownOutcome<Out>, run: TypedRun) => UnknownDecision | Promise<UnknownDecision>,
  ): this {
    this.callbacks.unknown.handle(async (stored: UnknownOutcome, run: TypedRun) =>
      handler({ ...stored, input: await this.#inputOf(stored.input) }, run),
    );
    return this;
  }

  async #inputOf(stored: Json): Promise<Out> {
    return this.schema === null ? (stored as Out) : ((await checked(this.schema, stored, this.name)) as Out);
  }

  async #bodyOf(stored: Json): Promise<unknown> {
    const { response } = this.request;
    if (response === "bytes") return new Uint8Array(Buffer.from(stored as string, "base64"));
    return typeof response === "string" ? stored : checked(response, stored, `the answer of ${this.name}`);
  }
}

async function checked(schema: StandardSchemaV1, value: unknown, what: string): Promise<unknown> {
  const result = await schema["~standard"].validate(value);
  if (result.issues) throw invalidInput(what, result.issues);
  return result.value;
}

export type AnyRequest = RequestContract<never, never, unknown>;

export function isRequest(value: unknown): value is AnyRequest {
  return typeof value === "object" && value !== null && REQUEST in value;
}

export function callbackKind(name: string, which: keyof CallbackKinds): string {
  return `${name}.${which}`;
}
