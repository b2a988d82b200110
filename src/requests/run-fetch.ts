// `run.fetch`: `fetch` inside a handler, as a step: the answer is kept, so a later attempt gets it without a second call. For SDKs that take a `fetch` (`new OpenAI({ fetch })`): their calls
// become crash-safe. The call holds its slot; the bodies are buffered, because the answer is stored and a call is known by what it sends.
import { createHash } from "node:crypto";
import { ErrorCode, OutliveError, TerminalError } from "../job/errors.ts";
import { durationMs } from "../job/time.ts";
import type { FetchOptions, RequestAttempt } from "../worker/run.ts";
import type { AddressRule } from "./addresses.ts";
import { textOf } from "./answered.ts";
import { Connections } from "./connections.ts";
import type { ConnectionSettings } from "./contract.ts";
import { decide } from "./outcome.ts";
import { checkedUrl, MAX_BODY, refused, type Rendered } from "./rendered.ts";
import { Resolver } from "./resolver.ts";
import { Secrets } from "./secrets.ts";
import { Sender } from "./sender.ts";
import { type Answer, endOf, type NoAnswer, type Wire } from "./wire.ts";

/** The largest answer that is kept: it is a step's result. */
const MAX_RESPONSE = 512 << 10;
const KIND = "run.fetch";
const mono = (): number => performance.now();
const connections = new Connections(new Resolver(mono), new Secrets({}, mono));
const sender = new Sender(mono);

interface KeptAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** In base64. */
  readonly body: string;
}

/**
 * A `fetch` whose calls are steps of this job. A call is known by its method, address and body, and by how many calls with the same content were answered before it: a later attempt finds it
 * whatever else was called. An answer after which the same call may be made again (429, 503) is returned and not kept. `wire`: in place of the network.
 */
export function fetchOf(
  run: RequestAttempt,
  { ifUnknown, addresses = "public", timeout = "10m" }: FetchOptions,
  wire?: Wire,
): typeof fetch {
  const totalMs = durationMs(timeout, "The timeout of run.fetch");
  const calls = (callsOf.get(run) ?? callsOf.set(run, new Calls(run)).get(run))!;
  return async (input, init) => {
    if (run.failsWith) throw run.failsWith;
    const request = new Request(input, init);
    const rendered = await renderedOf(request, addresses);
    const isUnsafe = request.method === "POST" || request.method === "PATCH";
    const once = isUnsafe && ifUnknown === "fail";
    const send = (): Promise<Answer | NoAnswer> =>
      sent(rendered, { addresses, totalMs, fresh: once }, [run.signal, request.signal], wire);
    const name = calls.take(rendered);
    let isKept = calls.isKept(name);
    try {
      if (isKept) return responseOf(await run.step(name, unreachable));
      const answer = await (once ? calls.sendOnce(name, rendered, send) : send());
      if (answer.is === "none") {
        request.signal.throwIfAborted();
        throw new TypeError(`fetch failed: ${answer.message}`);
      }
      isKept = fateOf(answer, once, rendered) === "keep";
      const { status, headers, body } = answer;
      const kept = { status, headers, body: (body as Buffer).toString("base64") };
      if (isKept) await (once ? calls.keepOnce(name, kept) : run.step(name, () => kept));
      return responseOf(kept);
    } finally {
      if (!isKept) calls.release(name);
    }
  };
}

function unreachable(): never {
  throw new Error("the step is kept");
}

/** What becomes of an answer: it is kept, or the same call may be made again, or nobody knows what was done. */
function fateOf(answer: Answer | NoAnswer, once: boolean, { idempotencyKey }: Rendered): "keep" | "again" | "unknown" {
  if (answer.is === "none") return once && answer.sent ? "unknown" : "again";
  const { status } = answer;
  const isTrouble = status >= 500 || status === 408;
  const came = { is: "answer", status, accepted: status < 400, retryAfterMs: null } as const;
  const { then } = once
    ? decide(came, "fail", { statuses: [] }, idempotencyKey !== null)
    : decide(came, "resend", { statuses: isTrouble ? [status] : [] }, idempotencyKey !== null);
  if (then === "retry") return "again";
  // A handler that gets a 500 calls again, and so do most SDKs.
  return then === "unknown" || (once && isTrouble) ? "unknown" : "keep";
}

// ---- the calls of one attempt

const callsOf = new WeakMap<RequestAttempt, Calls>();
const SENT = /^(fetch .+) sent#(\d+\.\d+)$/;

/** Written when the outcome of a sending is known, or was decided on: the call may be made again. */
function knownMark(name: string, sending: string): string {
  return `${name} known#${sending}`;
}

/** This attempt ended the job because the outcome of a call is unknown. */
function unknownMark(attempt: number): string {
  return `fetch unknown#${attempt}`;
}

class Calls {
  readonly #run: RequestAttempt;
  /** Those whose answer is kept, and those under way. */
  readonly #names = new Set<string>();
  #marked = 0;
  #earlier: Promise<void> | undefined;

  constructor(run: RequestAttempt) {
    this.#run = run;
  }

  /** `fetch POST api.example 9f86d081... 2`: the second answer to this call. The lowest number that is free, so a call that is made again takes the place of the one that failed. */
  take({ method, url, headers, body }: Rendered): string {
    const hash = createHash("sha256").update(`${method}\0${url.href}\0`);
    hash.update(withoutBoundary(body, headers["content-type"]));
    const call = `fetch ${`${method} ${url.host}`.slice(0, 100)} ${hash.digest("hex").slice(0, 32)}`;
    let number = 1;
    while (this.#names.has(`${call} ${number}`)) number++;
    const name = `${call} ${number}`;
    this.#names.add(name);
    return name;
  }

  release(name: string): void {
    this.#names.delete(name);
  }

  /** By an earlier attempt. */
  isKept(name: string): boolean {
    return this.#run.job.steps.some((step) => step.name === name);
  }

  /** It is durable that it may have been sent, before the first byte goes. Throws if it is not known what became of it, and then nothing more is sent. */
  async sendOnce(name: string, rendered: Rendered, send: () => Promise<Answer | NoAnswer>): Promise<Answer | NoAnswer> {
    const run = this.#run;
    await (this.#earlier ??= this.#decideEarlier());
    const sending = `${run.attempt}.${++this.#marked}`;
    await run.step(`${name} sent#${sending}`, () => null);
    const answer: Answer | NoAnswer = run.failsWith
      ? { is: "none", sent: false, fault: "aborted", message: run.failsWith.message, status: null }
      : await send();
    const fate = fateOf(answer, true, rendered);
    if (fate === "unknown") throw await this.#unknown(name, textOf(answer));
    if (fate === "again") await run.step(knownMark(name, sending), () => null);
    return answer;
  }

  /** What can't be kept must not be asked for again. */
  async keepOnce(name: string, answer: KeptAnswer): Promise<void> {
    try {
      await this.#run.step(name, () => answer);
    } catch (thrown) {
      throw await this.#unknown(name, "the response could not be stored", thrown);
    }
  }

  /**
   * Earlier attempts may have sent a call and ended before its response came. Any call of this attempt may be the same one with another body, so none is sent, unless a person has retried the job
   * since it ended for that: this is the decision to send them.
   */
  async #decideEarlier(): Promise<void> {
    const { steps, lastOutcome } = this.#run.job;
    const names = new Set(steps.map(({ name }) => name));
    const unknown = steps.flatMap((step) => {
      const [, name, sending] = SENT.exec(step.name) ?? [];
      if (name === undefined || sending === undefined) return [];
      return names.has(name) || names.has(knownMark(name, sending)) ? [] : [{ name, sending }];
    });
    if (unknown.length === 0) return;
    const isRetried = lastOutcome === "failed" && names.has(unknownMark(this.#run.attempt - 1));
    if (!isRetried) {
      const { name, sending } = unknown[0]!;
      const by = sending.split(".")[0];
      throw await this.#unknown(name, `attempt ${by} of the job sent it and ended before the response came`);
    }
    for (const { name, sending } of unknown) await this.#run.step(knownMark(name, sending), () => null);
  }

  /** Ends the attempt, and with it the job, also if the handler or its SDK catches what this returns and calls again. */
  async #unknown(call: string, why: string, cause?: unknown): Promise<Error> {
    const run = this.#run;
    if (run.failsWith) return run.failsWith;
    const error = new OutliveError(
      ErrorCode.requestUnknown,
      `The call ${JSON.stringify(call)} of job ${run.id} was sent, and its outcome is unknown: ${why}.`,
      'The job has ended, because its `ifUnknown` is "fail". Check what the other side has done; a retry of the job sends it again.',
      { jobId: run.id, call },
      { cause },
    );
    // At once: the SDK may call again while this is being written. Without the mark, the first retry by a person ends the job like this again.
    run.failsWith = new TerminalError(error.message, { cause: error });
    await run.step(unknownMark(run.attempt), () => null).catch(() => {});
    return run.failsWith;
  }
}

/** The boundary between the parts of a form is random: another one in each attempt. */
function withoutBoundary(body: Buffer | null, type = ""): Buffer | string {
  const [, boundary] = /^multipart\/.*;\s*boundary="?([^";]+)/i.exec(type) ?? [];
  return boundary === undefined || body === null ? (body ?? "") : body.toString("latin1").replaceAll(boundary, "");
}

// ---- one call

async function renderedOf(request: Request, addresses: AddressRule): Promise<Rendered> {
  const protocols = addresses === "public" ? ["https:"] : ["http:", "https:"];
  const url = checkedUrl(request.url, { protocols, connection: connectionOf(addresses, false) }, KIND);
  const headers = Object.fromEntries(request.headers);
  delete headers["content-length"];
  headers["accept-encoding"] ??= "gzip, br, zstd";
  const { method } = request;
  return { url, method, headers, body: await bodyOf(request), idempotencyKey: headers["idempotency-key"] ?? null };
}

async function bodyOf({ body }: Request): Promise<Buffer | null> {
  if (body === null) return null;
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body) {
    bytes += chunk.length;
    if (bytes > MAX_BODY)
      throw refused(KIND, `its body has more than ${MAX_BODY} bytes`, "Upload it elsewhere and send its address.");
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** `fresh`: what must not be sent twice gets a connection of its own, because one that the other side closes at that moment leaves the outcome unknown. */
function connectionOf(addresses: AddressRule, fresh: boolean): ConnectionSettings {
  const none = { http2: false, proxy: null, ca: [], cert: null, key: null, localAddress: null };
  return { ...none, addresses, fresh, connectMs: 10_000 };
}

async function sent(
  request: Rendered,
  { addresses, totalMs, fresh }: { addresses: AddressRule; totalMs: number; fresh: boolean },
  signals: readonly AbortSignal[],
  wire: Wire | undefined,
): Promise<Answer | NoAnswer> {
  const timeouts = { connectMs: 10_000, headersMs: totalMs, bodyMs: totalMs, totalMs };
  const options = { timeouts, maxResponse: MAX_RESPONSE, ignoreBody: false, blobs: null, fresh };
  const sending = wire
    ? wire({ request, redirects: 0 }, options, mono() + totalMs)
    : sender.send(await connections.of(connectionOf(addresses, fresh)), request, options, mono() + totalMs);
  const stop = (): void => sending.abort("aborted", "the call was aborted");
  for (const one of signals) {
    if (one.aborted) stop();
    one.addEventListener("abort", stop, { once: true });
  }
  try {
    return await endOf(sending);
  } finally {
    for (const one of signals) one.removeEventListener("abort", stop);
  }
}

function responseOf({ status, headers, body }: KeptAnswer): Response {
  const given = new Headers(headers);
  // The body is decoded.
  for (const name of ["content-encoding", "content-length", "transfer-encoding"]) given.delete(name);
  const empty = status === 204 || status === 205 || status === 304;
  return new Response(empty ? null : Buffer.from(body, "base64"), { status, headers: given });
}
