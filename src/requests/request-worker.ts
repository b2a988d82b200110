// Requests in a worker process: what runs for each kind. An attempt renders the request, marks it as sent where that matters, sends it, and ends with the change
// that `outcome.ts` and `ifUnknown` lead to. The callback is enqueued by that same change, so a request ends once and is followed once.
import { createHash } from "node:crypto";
import type { RunnableKind } from "../job/contract.ts";
import { EndsWith } from "../job/contract.ts";
import { invalidInput } from "../job/enqueue.ts";
import { ErrorCode, type InterruptionReason, OutliveError, TerminalError, toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import { backoffMs, type JobDraft, type KindSettings, type Outcome } from "../job/job.ts";
import { encodeJson, type Json } from "../job/json.ts";
import type { JobKey } from "../job/limits.ts";
import { knownMark, sentMark, unknownSending } from "../job/requests.ts";
import { cutText } from "../job/text.ts";
import { type Clock, humanMs, type Random } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import type { Store } from "../stores/port.ts";
import type { RequestAttempt } from "../worker/run.ts";
import type { BlobBody, ResponseBlobs } from "./body.ts";
import { Breakers } from "./breakers.ts";
import { Connections } from "./connections.ts";
import type { AnyRequest, RequestFault, RequestResult, UnknownDecision } from "./contract.ts";
import { assertDescriptors } from "./descriptors.ts";
import { type Came, decide, MAX_RETRY_AFTER_MS, retryAfterMs } from "./outcome.ts";
import { Pacer } from "./pacer.ts";
import { nextHop, type Hop } from "./redirects.ts";
import { render, shownUrl } from "./rendered.ts";
import { Resolver } from "./resolver.ts";
import { Secrets, type SecretSource } from "./secrets.ts";
import { Sender } from "./sender.ts";
import type { Answer, NoAnswer, SendOptions, Wire } from "./wire.ts";

const MAX_SHOWN_BODY = 4_096;
/** How long a request waits whose store failed. */
const STORE_PAUSE_MS = 1_000;
/** How the attempt before ended if its job had ended with it. */
const RETRIED: readonly (Outcome | null)[] = ["failed", "succeeded", "cancelled"];

export interface RequestWorkerDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: Emitter;
  readonly secrets: SecretSource;
  /** Null: none was given to `open`. */
  readonly blobs: ResponseBlobs | null;
  readonly settingsOf: (contract: AnyRequest) => KindSettings;
  /** In place of the network, for tests. Omitted: the network. */
  readonly wire?: Wire;
  /** Name servers instead of the system's. Omitted: the system's. */
  readonly dnsServers?: readonly string[];
}

/** How a sending ended, with all hops that it took. */
interface Ended {
  readonly end: Answer | NoAnswer;
  readonly redirects: number;
  readonly sentAt: number;
  readonly durationMs: number;
  readonly host: string;
}

export class RequestWorker {
  readonly #deps: RequestWorkerDeps;
  readonly #secrets: Secrets;
  readonly #connections: Connections;
  readonly #sender: Sender;
  readonly #pacer = new Pacer();
  readonly #breakers = new Breakers();

  constructor(deps: RequestWorkerDeps) {
    this.#deps = deps;
    const mono = (): number => deps.clock.mono();
    this.#secrets = new Secrets(deps.secrets, mono);
    this.#connections = new Connections(new Resolver(mono, deps.dnsServers), this.#secrets);
    this.#sender = new Sender(mono);
  }

  /** What a worker runs for this kind of request: the request itself. Its callbacks are ordinary jobs. */
  kind(contract: AnyRequest): RunnableKind {
    const { ifUnknown, blobMax } = contract.request;
    if (ifUnknown === "ask" && contract.callbacks.unknown.handler === null)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The request ${contract.name} has ifUnknown "ask" and nothing to ask.`,
        `Attach ${contract.name}.onUnknown(...) in the module that workers import, or use "resend" or "fail".`,
        { kind: contract.name },
      );
    if (contract.request.disable !== null && this.#deps.store.operate.pauseKey === undefined)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The request ${contract.name} disables endpoints, and a ${this.#deps.store.name} store can't pause single keys.`,
        "Remove `disable`, or use a store that can.",
        { kind: contract.name },
      );
    if (blobMax !== null && this.#deps.blobs === null)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The request ${contract.name} keeps large answers in blobs, and this worker has no blob store.`,
        'Pass one to open(), for instance `blobs: "./blobs"`.',
        { kind: contract.name },
      );
    return {
      settings: this.#deps.settingsOf(contract),
      parse: null,
      handler: (input: never, run) => this.#run(contract, input, run as RequestAttempt),
      keysOf: contract.keysOf,
      delayMs: contract.backoff,
    };
  }

  /** Throws if so many in flight are more than this process may have. */
  assertFits(inFlight: number): void {
    assertDescriptors(inFlight);
  }

  /** What is done when a callback has succeeded: its blob is deleted. Null: nothing. */
  settledOf({ request }: AnyRequest): RunnableKind["settled"] | null {
    const { blobs, events } = this.#deps;
    if (request.blobMax === null || blobs === null) return null;
    return ({ input, lease }, { to }) => {
      const { blob } = JSON.parse(input) as { blob: BlobBody | null };
      if (to !== "succeeded" || blob === null) return;
      blobs.delete([blob.blob]).catch((thrown: unknown) =>
        events.emit("store.failed", {
          doing: `deleting the blob of callback ${lease.jobId}`,
          error: toStoredError(thrown),
          retryInMs: 0,
        }),
      );
    };
  }

  async close(): Promise<void> {
    await this.#connections.close();
  }

  // ---- one attempt

  async #run(contract: AnyRequest, stored: Json, attempt: RequestAttempt): Promise<EndsWith> {
    const one = new OneRequest(this.#deps, contract, stored, attempt);
    try {
      return await this.#runOne(one, stored);
    } catch (thrown) {
      // The store failed. A request that may have been sent must not end as failed by that: the next attempt would take it for one whose outcome was known.
      if (contract.request.ifUnknown === "resend") throw thrown;
      return one.releasedBy(thrown);
    }
  }

  async #runOne(one: OneRequest, stored: Json): Promise<EndsWith> {
    const { contract, attempt } = one;
    const { ifUnknown } = contract.request;
    const input = await one.parsed();
    if (input instanceof OutliveError) return one.failed("refused", input, true);
    const sentBefore = unknownSending(attempt.job.steps);
    if (sentBefore !== null) {
      // That attempt ended on its own, whatever it knew, and a person has retried the request since: that is the decision to send it.
      const isRetried = RETRIED.includes(attempt.job.lastOutcome);
      const decided = isRetried ? await one.maySend(sentBefore) : await one.afterUnknown(sentBefore);
      if (decided !== null) return decided;
    }
    let marked = false;
    let ended: Ended;
    try {
      const hop = await this.#rendered(one, input.value, attempt);
      const key = this.#keyOf(contract, stored);
      await this.#pacer.turn();
      if (attempt.abortedBy !== undefined) return await one.interrupted(attempt.abortedBy, false);
      if (ifUnknown !== "resend") {
        const print = createHash("sha256")
          .update(`${hop.request.method} ${hop.request.url.href}\n`)
          .update(hop.request.body ?? "")
          .digest("base64url");
        const at = this.#deps.clock.now();
        await attempt.step(sentMark(ifUnknown, attempt.attempt), () => ({
          at,
          print,
          key: hop.request.idempotencyKey,
        }));
        marked = true;
      }
      ended = await this.#send(contract, hop, attempt);
      return await this.#settle(one, ended, marked, key);
    } catch (thrown) {
      // Before it was sent: `send`, a secret or the store failed.
      if (marked) throw thrown;
      if (attempt.abortedBy !== undefined) return await one.interrupted(attempt.abortedBy, false);
      if (thrown instanceof OutliveError && thrown.code === ErrorCode.requestRefused)
        return one.failed("refused", thrown, true);
      if (thrown instanceof TerminalError) return one.failed("refused", thrown, true);
      if (thrown instanceof OutliveError && thrown.code === ErrorCode.secretMissing)
        return one.failed("refused", thrown, false);
      if (thrown instanceof OutliveError) throw thrown;
      return one.failed("refused", thrown as Error, false);
    }
  }

  async #rendered({ contract }: OneRequest, input: never, attempt: RequestAttempt): Promise<Hop> {
    const sentAt = this.#deps.clock.now();
    const origin = {
      kind: contract.name,
      jobId: attempt.id,
      attempt: attempt.attempt,
      key: attempt.key("request"),
      sentAt,
    };
    const request = await render(contract.send(input), contract.request, this.#secrets, origin);
    return { request, redirects: 0 };
  }

  /** Sends it, and follows redirects as far as the kind allows. */
  async #send({ request: settings, name }: AnyRequest, first: Hop, attempt: RequestAttempt): Promise<Ended> {
    const { clock, blobs, wire } = this.#deps;
    const { timeouts, maxResponse, blobMax, response, connection } = settings;
    const startMono = clock.mono();
    const sentAt = clock.now();
    const deadlineMono = startMono + timeouts.totalMs;
    const options: SendOptions = {
      timeouts,
      maxResponse,
      ignoreBody: response === "ignore",
      blobs: blobMax !== null && blobs ? { store: blobs, key: blobKey(attempt), max: blobMax } : null,
      fresh: connection.fresh,
    };
    const dispatcher = wire ? null : await this.#connections.of(connection);
    let hop = first;
    for (;;) {
      const sending = wire
        ? wire(hop, options, deadlineMono)
        : this.#sender.send(dispatcher!, hop.request, options, deadlineMono);
      attempt.onAbort = (why) => sending.abort("aborted", why);
      if (attempt.abortedBy !== undefined) sending.abort("aborted", attempt.abortedBy);
      const end = await sending.ended;
      attempt.onAbort = null;
      const next = end.is === "answer" ? nextHop(hop, end, settings, name) : null;
      if (next === null || !("request" in next)) {
        const last = next ?? end;
        return {
          end: last,
          redirects: hop.redirects,
          host: hop.request.url.host,
          sentAt,
          durationMs: Math.round(clock.mono() - startMono),
        };
      }
      hop = next;
    }
  }

  async #settle(one: OneRequest, ended: Ended, marked: boolean, key: JobKey | null): Promise<EndsWith> {
    const { contract, attempt } = one;
    const { request } = contract;
    const { end } = ended;
    if (end.is === "none" && end.fault === "aborted") {
      if (marked && !end.sent) await attempt.step(knownMark(attempt.attempt), () => null);
      return one.interrupted(attempt.abortedBy ?? "shutdown", end.sent);
    }
    const came = cameOf(end, request.ok, this.#deps.clock.now());
    if (this.#deps.events.has("request.ended"))
      this.#deps.events.emit("request.ended", {
        jobId: attempt.id,
        kind: contract.name,
        attempt: attempt.attempt,
        host: ended.host,
        status: statusOf(end),
        fault: end.is === "none" ? end.fault : null,
        durationMs: ended.durationMs,
      });
    const decision = decide(came, request.ifUnknown, request.retry, request.idempotency !== null);
    let response: Answered | null = null;
    if (decision.then === "respond") {
      const answered = await answeredBy(contract, end as Answer);
      if (answered instanceof Error) return one.failed("schema", answered, true, statusOf(end), shownBody(end));
      response = answered;
    }
    if (key !== null) await this.#keyHealth(one, key, came, decision.then);
    switch (decision.then) {
      case "respond":
        return one.responded(ended, response!);
      case "unknown":
        return one.unknown(attempt.attempt, textOf(end));
      case "fail":
        return one.failed(decision.fault, new Error(textOf(end)), true, statusOf(end), shownBody(end));
      case "retry": {
        const { fault, waitMs, holdOffMs } = decision;
        if (marked) await attempt.step(knownMark(attempt.attempt), () => null);
        if (key !== null && holdOffMs !== null && holdOffMs > 0) await attempt.holdOff(key.limit, `${holdOffMs}ms`);
        return one.failed(fault, new Error(textOf(end)), false, statusOf(end), shownBody(end), waitMs);
      }
    }
  }

  // ---- keys: the circuit, and endpoints that are given up

  #keyOf({ keysOf, request }: AnyRequest, stored: Json): JobKey | null {
    return request.limit === null
      ? null
      : (keysOf?.(stored as never).find(({ limit }) => limit === request.limit) ?? null);
  }

  async #keyHealth({ contract, attempt }: OneRequest, key: JobKey, came: Came, then: string): Promise<void> {
    const { breaker, disable } = contract.request;
    const isDown = came.is === "unsent" || came.is === "cut" || (came.is === "answer" && came.status >= 500);
    const pauseMs = breaker === null ? null : this.#breakers.after(key.id, isDown, breaker);
    if (pauseMs !== null) {
      await attempt.holdOff(key.limit, `${pauseMs}ms`);
      this.#deps.events.emit("request.circuit", { kind: contract.name, key: key.key, pauseMs });
    }
    if (disable === null || then === "respond") return;
    const failures = attempt.job.counters.errors + 1;
    const isGone = came.is === "answer" && disable.statuses.includes(came.status);
    const now = this.#deps.clock.now();
    // The first failure of this request is kept with it, so that it is known how long it has failed, whichever process sends it.
    const since = disable.afterMs === null ? now : (await attempt.step("failing", () => ({ at: now }))).at;
    const isLong = disable.afterMs !== null && now - since >= disable.afterMs && now > since;
    const isSpent = isLong || (disable.failures !== null && failures >= disable.failures);
    if (!isGone && !isSpent) return;
    const reason = isGone
      ? `the endpoint answered ${(came as { status: number }).status}`
      : isLong
        ? `request ${attempt.id} has failed for ${humanMs(now - since)}`
        : `${failures} failures in a row of request ${attempt.id}`;
    const { operate } = this.#deps.store;
    if (operate.pauseKey === undefined) return;
    await operate.pauseKey(key, { reason: cutText(`disabled: ${reason}`, 255), forMs: null });
    this.#deps.events.emit("request.disabled", { kind: contract.name, key: key.key, reason });
  }
}

function blobKey(attempt: RequestAttempt): string {
  return `requests/${createHash("sha256").update(attempt.id).digest("hex").slice(0, 32)}/${attempt.attempt}`;
}

// ---- from what came to what is decided on

function cameOf(end: Answer | NoAnswer, ok: (status: number) => boolean, now: number): Came {
  if (end.is === "answer") {
    const { status, headers } = end;
    return {
      is: "answer",
      status,
      accepted: ok(status),
      retryAfterMs: retryAfterMs(headers["retry-after"], headers["date"], now),
    };
  }
  const { sent, fault, message, status } = end;
  if (fault === "refused" || fault === "too-large") return { is: "refused", fault, message };
  const how = fault === "timeout" ? "timeout" : "network";
  // A gateway's 502 with a body that was cut off is what its status says.
  if (status !== null && !ok(status) && status >= 400)
    return { is: "answer", status, accepted: false, retryAfterMs: null };
  return sent ? { is: "cut", fault: how, message } : { is: "unsent", fault: how, message };
}

function statusOf(end: Answer | NoAnswer): number | null {
  return end.status;
}

function textOf(end: Answer | NoAnswer): string {
  return end.is === "answer" ? `answered ${end.status}` : end.message;
}

function shownBody(end: Answer | NoAnswer): string | null {
  if (end.is === "none" || !Buffer.isBuffer(end.body)) return null;
  return cutText(end.body.subarray(0, MAX_SHOWN_BODY).toString("utf8"), MAX_SHOWN_BODY);
}

/** The body as it is kept for the callback. */
interface Answered {
  readonly body: Json;
  readonly blob: Json;
}

async function answeredBy({ request }: AnyRequest, { body }: Answer): Promise<Answered | Error> {
  const blob = null;
  if (!Buffer.isBuffer(body)) return { body: null, blob: { ...body } };
  const { response } = request;
  if (response === "ignore") return { body: null, blob };
  if (response === "bytes") return { body: body.toString("base64"), blob };
  const text = body.toString("utf8");
  if (response === "text") return { body: text, blob };
  let value: unknown;
  try {
    value = JSON.parse(text);
    encodeJson(value, "The answer");
  } catch (thrown) {
    return new Error(`the answer is not JSON that can be kept: ${(thrown as Error).message}`);
  }
  if (response === "json") return { body: value as Json, blob };
  const checked = await response["~standard"].validate(value);
  if (checked.issues)
    return new Error(
      `the answer does not fit its schema: ${checked.issues
        .slice(0, 5)
        .map(({ message }) => message)
        .join("; ")}`,
    );
  // What is stored is the schema's input; the callback gets its output.
  return { body: value as Json, blob };
}

/** One request in one attempt, and the changes with which it may end. */
class OneRequest {
  readonly contract: AnyRequest;
  readonly attempt: RequestAttempt;
  readonly #deps: RequestWorkerDeps;
  readonly #stored: Json;

  constructor(deps: RequestWorkerDeps, contract: AnyRequest, stored: Json, attempt: RequestAttempt) {
    this.#deps = deps;
    this.contract = contract;
    this.#stored = stored;
    this.attempt = attempt;
  }

  /** The stored input through the schema. */
  async parsed(): Promise<{ readonly value: never } | OutliveError> {
    const { schema, name } = this.contract;
    if (!schema) return { value: this.#stored as never };
    const checked = await schema["~standard"].validate(this.#stored);
    return checked.issues ? invalidInput(name, checked.issues) : { value: checked.value };
  }

  // ---- an accepted answer

  responded({ end, redirects, sentAt, durationMs }: Ended, { body, blob }: Answered): EndsWith {
    const { status, headers, wireBytes: bytes } = end as Answer;
    return this.#respond(
      { status, headers: { ...headers }, body, blob, sentAt, durationMs, redirects },
      { status, bytes, durationMs },
    );
  }

  #respond(
    given: {
      readonly status: number;
      readonly headers: Json;
      readonly body: Json;
      readonly blob: Json;
      readonly sentAt: number;
      readonly durationMs: number;
      readonly redirects: number;
    },
    result: RequestResult,
  ): EndsWith {
    let follow: JobDraft[] = [];
    try {
      if (this.contract.callbacks.response.handler !== null)
        follow = [this.#draft("response", { ...given, ...this.#common })];
    } catch (thrown) {
      return this.failed("too-large", thrown as Error, true, given.status);
    }
    return new EndsWith({
      ...transitions.succeed(this.#view, JSON.stringify(result)),
      ...(follow.length > 0 && { follow }),
    });
  }

  // ---- failures

  /** Tried again, or dead with its callback. */
  failed(
    is: RequestFault,
    thrown: Error,
    terminal: boolean,
    status: number | null = null,
    body: string | null = null,
    waitMs: number | null = null,
  ): EndsWith {
    const { job } = this.attempt;
    const settings = this.#deps.settingsOf(this.contract);
    const error = { ...toStoredError(thrown), name: faultName(is) };
    const failures = job.counters.errors + 1;
    const { scheduleMs } = this.contract.request.retry;
    const own = this.contract.backoff ? this.contract.backoff(failures, error) : null;
    const usual = scheduleMs
      ? scheduleMs[Math.min(failures, scheduleMs.length) - 1]!
      : backoffMs(settings.backoff, failures, this.#deps.random.next());
    const delayMs = Math.min(Math.max(own ?? usual, waitMs ?? 0), MAX_RETRY_AFTER_MS);
    return this.#withError(
      transitions.fail(this.#view, settings, error, delayMs, terminal),
      is,
      thrown.message,
      status,
      body,
    );
  }

  #withError(
    change: transitions.Change,
    is: RequestFault,
    message: string,
    status: number | null,
    body: string | null,
  ): EndsWith {
    if (change.to !== "dead" || this.contract.callbacks.error.handler === null) return new EndsWith(change);
    const failure = { is, message: cutText(message, 2_000), status, body, ...this.#common };
    return new EndsWith({ ...change, follow: [this.#draft("error", failure)] });
  }

  /** The attempt was asked to stop. */
  interrupted(why: InterruptionReason, sent: boolean): EndsWith | Promise<EndsWith> {
    const { ifUnknown } = this.contract.request;
    if (why === "cancelled") return new EndsWith(transitions.endCancelled(this.#view, "cancelled while it was sent"));
    // The next attempt finds the mark, if this one was sent.
    if (why === "lease-lost") return new EndsWith(transitions.release(this.#view, "its worker lost the lease"));
    if (sent && ifUnknown !== "resend")
      return this.unknown(this.attempt.attempt, "its worker stopped while it waited for the answer");
    if (why === "timeout") return this.failed("timeout", new Error("the attempt passed its deadline"), false);
    return new EndsWith(
      transitions.release(
        this.#view,
        sent ? "its worker shut down; it is sent again" : "its worker shut down before it was sent",
      ),
    );
  }

  // ---- unknown outcomes

  /** It was sent, and nobody knows what became of it. */
  async unknown(sentBy: number, why: string): Promise<EndsWith> {
    const { ifUnknown, idempotency } = this.contract.request;
    const { attempt } = this;
    if (ifUnknown === "fail")
      return this.failed("unknown", new Error(`it was sent, and its outcome is unknown: ${why}`), true);
    const id = unknownId(attempt.id, sentBy);
    const mark = attempt.job.steps.find(({ name }) => name === sentMark("ask", sentBy));
    const sent = mark?.result ? (JSON.parse(mark.result) as { at: number; key: string | null }) : null;
    const asked = {
      attempt: sentBy,
      sentAt: sent?.at ?? this.#deps.clock.now(),
      message: cutText(why, 2_000),
      idempotencyKey: sent?.key ?? (idempotency ? attempt.key("request") : null),
      input: this.#stored,
      requestId: attempt.id,
    };
    await attempt.enqueue(this.contract.callbacks.unknown as never, asked as never, { id } as never);
    return this.#waitFor(id, sentBy);
  }

  /** An earlier attempt was sent, and its process ended before it knew. Null: it may be sent now. */
  async afterUnknown(sentBy: number): Promise<EndsWith | null> {
    const { attempt } = this;
    if (this.contract.request.ifUnknown === "resend") return null;
    if (this.contract.request.ifUnknown === "fail") return this.unknown(sentBy, "its worker died or lost contact");
    const id = unknownId(attempt.id, sentBy);
    const [outcome] = await this.#deps.store.inspect.outcomes([id]);
    switch (outcome?.state ?? "missing") {
      case "missing":
        return this.unknown(sentBy, "its worker died or lost contact");
      case "queued":
      case "running":
        return this.#waitFor(id, sentBy);
      case "succeeded":
        break;
      default:
        return this.failed(
          "unknown",
          new Error(`it was sent, its outcome is unknown, and the job ${id} that was asked is ${outcome!.state}`),
          true,
        );
    }
    const decision = (outcome!.result === null ? null : JSON.parse(outcome!.result)) as UnknownDecision | null;
    if (decision === "resend") return this.maySend(sentBy);
    if (typeof decision === "object" && decision !== null && Number.isInteger(decision.status)) {
      const { status, body } = decision;
      const given = {
        status,
        headers: {},
        body: body ?? null,
        blob: null,
        sentAt: this.#deps.clock.now(),
        durationMs: 0,
        redirects: 0,
      };
      return this.#respond(given, { status, bytes: 0, durationMs: 0 });
    }
    return this.failed("unknown", new Error("it was sent, its outcome is unknown, and onUnknown failed it"), true);
  }

  /** Runs again soon, at no cost. What was sent is found by its mark. */
  releasedBy(thrown: unknown): EndsWith {
    const { message } = toStoredError(thrown);
    return new EndsWith(
      transitions.release(this.#view, `it could not be settled: ${cutText(message, 300)}`, STORE_PAUSE_MS),
    );
  }

  /** The earlier sending is decided on, and that is durable before another one. */
  async maySend(sentBy: number): Promise<null> {
    return this.attempt.step(knownMark(sentBy), () => null);
  }

  #waitFor(id: string, sentBy: number): EndsWith {
    return new EndsWith(
      transitions.wait(this.#view, { step: `run.wait#${sentBy}`, forMs: null, until: { jobs: [id] } }),
    );
  }

  // ----

  get #view(): transitions.JobView {
    return transitions.runningView(this.attempt.job);
  }

  get #common(): { readonly input: Json; readonly requestId: string; readonly attempts: number } {
    return { input: this.#stored, requestId: this.attempt.id, attempts: this.attempt.attempt };
  }

  /** The id is made of the request and its attempt: the same change decided twice adds one job. */
  #draft(which: "response" | "error", input: unknown): JobDraft {
    const { name } = this.contract.callbacks[which];
    return {
      id: followId(this.attempt.id, which, this.attempt.attempt),
      kind: name,
      input: encodeJson(input, `What follows request ${this.attempt.id}`),
      priority: 0,
      runAt: null,
      delayMs: 0,
      dedupeKey: null,
    };
  }
}

/** The id of the callback of a request. */
export function followId(id: string, which: "response" | "error", attempt: number): string {
  return `${cutId(id)}.${which}.${attempt}`;
}

function unknownId(id: string, sentBy: number): string {
  return `${cutId(id)}.unknown.${sentBy}`;
}

/** Ids have at most 255 characters. */
function cutId(id: string): string {
  return id.length <= 220 ? id : `${id.slice(0, 180)}~${createHash("sha256").update(id).digest("hex").slice(0, 32)}`;
}

function faultName(is: RequestFault): string {
  return `Request${is
    .split("-")
    .map((part) => part[0]!.toUpperCase() + part.slice(1))
    .join("")}`;
}

export { shownUrl };
