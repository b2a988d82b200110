// Requests in a worker process: what runs for each kind. An attempt renders the request, marks it as sent where that matters, sends it, and ends with the change
// that `outcome.ts` and `ifUnknown` lead to. The callback is enqueued by that same change, so a request ends once and is followed once.
import { createHash } from "node:crypto";
import type { EndsWith, RunnableKind } from "../job/contract.ts";
import { ErrorCode, OutliveError, TerminalError, toStoredError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Outcome } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import type { JobKey } from "../job/limits.ts";
import { knownMark, sentMark, unknownSending } from "../job/requests.ts";
import type { RequestAttempt } from "../worker/run.ts";
import { answeredBy, cameOf, shownBody, textOf } from "./answered.ts";
import type { BlobBody, ResponseBlobs } from "./body.ts";
import { Connections, type Dispatcher } from "./connections.ts";
import type { AnyRequest, ConnectionSettings, RequestSettings } from "./contract.ts";
import { assertDescriptors } from "./descriptors.ts";
import { KeyHealth } from "./key-health.ts";
import { decide } from "./outcome.ts";
import { Pacer } from "./pacer.ts";
import { render, type Rendered, shownRequest } from "./rendered.ts";
import { type Ended, OneRequest, type Parsed, type RequestEndDeps } from "./request-end.ts";
import { Resolver } from "./resolver.ts";
import { Secrets, type SecretSource } from "./secrets.ts";
import { Sender, Sending } from "./sender.ts";
import { SentAgain } from "./sent-again.ts";
import { Trip, type TripOwner } from "./trip.ts";
import { type Answer, endOf, type SendOptions, type Wire } from "./wire.ts";

/** How the attempt before ended if its job had ended with it. */
const RETRIED: readonly (Outcome | null)[] = ["failed", "succeeded", "cancelled"];

export interface RequestWorkerDeps extends RequestEndDeps {
  readonly events: Emitter;
  readonly secrets: SecretSource;
  /** Null: none was given to `open`. */
  readonly blobs: ResponseBlobs | null;
  /** In place of the network, for tests. Omitted: the network. */
  readonly wire?: Wire;
  /** Name servers instead of the system's. Omitted: the system's. */
  readonly dnsServers?: readonly string[];
}

/** What a handler of ours returns: the end, or what calls it when it is known. */
type Ending = EndsWith | Trip;

export class RequestWorker implements TripOwner {
  readonly #deps: RequestWorkerDeps;
  readonly #secrets: Secrets;
  readonly #connections: Connections;
  readonly #sender: Sender;
  readonly #pacer: Pacer;
  /** The marks of several turns may become durable in the same one. */
  readonly #afterMarks: Pacer;
  readonly #health: KeyHealth;
  readonly #sentAgain: SentAgain;
  readonly #optionsOf = new WeakMap<RequestSettings, SendOptions>();

  constructor(deps: RequestWorkerDeps) {
    this.#deps = deps;
    const mono = (): number => deps.clock.mono();
    this.#secrets = new Secrets(deps.secrets, mono);
    const soon = (task: () => void): void => deps.clock.soon(task);
    this.#pacer = new Pacer(soon, mono);
    this.#afterMarks = new Pacer(soon, mono);
    const opening = (): void => this.#pacer.opened();
    this.#connections = new Connections(new Resolver(mono, deps.dnsServers), this.#secrets, opening);
    this.#sender = new Sender(mono);
    this.#health = new KeyHealth(deps);
    this.#sentAgain = new SentAgain(deps);
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
        `The request ${contract.name} keeps large responses in blobs, and this worker has no blob store.`,
        'Pass one to open(), for instance `blobs: "./blobs"`.',
        { kind: contract.name },
      );
    if (blobMax !== null && contract.callbacks.response.handler === null)
      throw new OutliveError(
        ErrorCode.optionInvalid,
        `The request ${contract.name} keeps large responses in blobs, and nothing reads or deletes them.`,
        `Attach ${contract.name}.onResponse(...) in the module that workers import: a blob is deleted when that has succeeded.`,
        { kind: contract.name },
      );
    return {
      settings: this.#deps.settingsOf(contract),
      parse: null,
      handler: (input: never, run) => this.#run(contract, input, run as RequestAttempt),
      keysOf: contract.keysOf,
      isOpening: () => this.#pacer.isBehind,
      delayMs: contract.backoff,
    };
  }

  /** Loads what these kinds send with, so that the first request after a death elsewhere does not wait for it. */
  prepare(contracts: Iterable<AnyRequest>): void {
    if (this.#deps.wire) return;
    for (const { request } of contracts) this.#connections.prepare(request.connection);
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

  #run(contract: AnyRequest, stored: Json, attempt: RequestAttempt): Ending | Promise<EndsWith> {
    const one = new OneRequest(this.#deps, contract, stored, attempt);
    return contract.request.ifUnknown === "resend" ? this.#runOne(one) : this.#runGuarded(one);
  }

  /** If the store fails, a request that may have been sent must not end as failed by that: the next attempt would take it for one whose outcome was known. */
  async #runGuarded(one: OneRequest): Promise<EndsWith> {
    try {
      return await this.#runOne(one);
    } catch (thrown) {
      return one.releasedBy(thrown);
    }
  }

  /**
   * A plain request awaits nothing: what can be known at once (the parsed input, the rendered request, its dispatcher) is not awaited, and its answer calls it
   * (trip.ts).
   */
  #runOne(one: OneRequest): Ending | Promise<EndsWith> {
    const parsed = one.parsed();
    if (parsed instanceof Promise || one.attempt.job.steps.length > 0) return this.#runLater(one, parsed);
    return this.#send(one, parsed);
  }

  async #runLater(one: OneRequest, parsed: Parsed | Promise<Parsed>): Promise<EndsWith> {
    const { attempt } = one;
    const input = await parsed;
    const sentBefore = unknownSending(attempt.job.steps);
    if (sentBefore !== null && !(input instanceof OutliveError)) {
      // That attempt ended on its own, whatever it knew, and a person has retried the request since: that is the decision to send it.
      const isRetried = RETRIED.includes(attempt.job.lastOutcome);
      const decided = isRetried ? await one.maySend(sentBefore) : await one.afterUnknown(sentBefore);
      if (decided !== null) return decided;
    }
    return this.#send(one, input);
  }

  #send(one: OneRequest, input: Parsed): Ending | Promise<EndsWith> {
    if (input instanceof OutliveError) return one.failed("refused", input, true);
    const { contract, attempt } = one;
    try {
      const request = this.#rendered(contract, input.value, attempt);
      if (request instanceof Promise || contract.request.ifUnknown !== "resend") return this.#sendLater(one, request);
      const dispatcher = this.#dispatcher(contract);
      if (dispatcher instanceof Promise) return this.#sendLater(one, request);
      const turn = this.#pacer.turn();
      if (turn) return this.#sendLater(one, request, turn);
      this.#opens(contract);
      return this.#begin(one, request, dispatcher, this.#keyOf(one), false);
    } catch (thrown) {
      return this.#unsent(one, thrown);
    }
  }

  async #sendLater(one: OneRequest, rendering: Rendered | Promise<Rendered>, turn?: Promise<void>): Promise<EndsWith> {
    const { contract, attempt } = one;
    const { ifUnknown } = contract.request;
    let marked = false;
    try {
      const request = await rendering;
      const key = this.#keyOf(one);
      const dispatcher = await this.#dispatcher(contract);
      const wait = turn ?? this.#pacer.turn();
      if (wait) await wait;
      // At once, before anything else is awaited: by then the others that need no turn would have begun, too.
      this.#opens(contract);
      if (ifUnknown !== "resend" && attempt.abortedBy === undefined) {
        await this.#mark(attempt, ifUnknown, request);
        marked = true;
        const open = this.#afterMarks.turn();
        if (open) await open;
        this.#afterMarks.opened();
      }
      return await this.#begin(one, request, dispatcher, key, marked);
    } catch (thrown) {
      if (marked) throw thrown;
      return this.#unsent(one, thrown);
    }
  }

  /** Before it was sent: `send`, a secret or the store failed. */
  async #unsent(one: OneRequest, thrown: unknown): Promise<EndsWith> {
    const { abortedBy } = one.attempt;
    if (abortedBy !== undefined) return one.interrupted(abortedBy, false);
    if (thrown instanceof OutliveError && thrown.code === ErrorCode.requestRefused)
      return one.failed("refused", thrown, true);
    if (thrown instanceof TerminalError) return one.failed("refused", thrown, true);
    if (thrown instanceof OutliveError && thrown.code === ErrorCode.secretMissing)
      return one.failed("refused", thrown, false);
    if (thrown instanceof OutliveError) throw thrown;
    return one.failed("refused", thrown as Error, false);
  }

  #rendered(contract: AnyRequest, input: never, attempt: RequestAttempt): Rendered | Promise<Rendered> {
    const { request, name: kind } = contract;
    const { id: jobId, attempt: number } = attempt;
    const key = request.idempotency === null ? null : attempt.key("request");
    const origin = { kind, jobId, attempt: number, key, sentAt: this.#deps.clock.now() };
    return render(contract.send(input), request, this.#secrets, origin);
  }

  /** Makes durable that this attempt may have been sent, before the first byte goes. */
  async #mark(attempt: RequestAttempt, policy: "ask" | "fail", request: Rendered): Promise<void> {
    const at = this.#deps.clock.now();
    await attempt.step(sentMark(policy, attempt.attempt), () => ({ at, key: request.idempotencyKey }));
  }

  #begin(
    one: OneRequest,
    request: Rendered,
    dispatcher: Dispatcher | null,
    key: JobKey | null,
    marked: boolean,
  ): Ending | Promise<EndsWith> {
    const { contract, attempt } = one;
    if (attempt.abortedBy !== undefined && !marked) return one.interrupted(attempt.abortedBy, false);
    if (isAfterDeath(attempt))
      this.#sentAgain.report({
        jobId: attempt.id,
        kind: contract.name,
        attempt: attempt.attempt,
        host: request.url.host,
      });
    const { clock } = this.#deps;
    const options = this.#options(contract.request, attempt);
    const plan = { dispatcher, options, startMono: clock.mono(), sentAt: clock.now(), marked, key };
    return new Trip(this, one, plan, { request, redirects: 0 });
  }

  /** Counts the connection that it is about to open. Connections that are shared are counted when they are opened. */
  #opens({ request: { connection } }: AnyRequest): void {
    if (opensItsOwn(connection)) this.#pacer.opened();
  }

  /** Null: what stands in for the network needs none. */
  #dispatcher({ request: { connection } }: AnyRequest): Dispatcher | null | Promise<Dispatcher> {
    return this.#deps.wire ? null : (this.#connections.made(connection) ?? this.#connections.of(connection));
  }

  // ---- what its trips call

  mono(): number {
    return this.#deps.clock.mono();
  }

  send(trip: Trip): void {
    const { one, plan, hop } = trip;
    const { dispatcher, options } = plan;
    const { attempt } = one;
    const deadlineMono = plan.startMono + options.timeouts.totalMs;
    const sending =
      dispatcher === null
        ? this.#deps.wire!(hop, options, deadlineMono)
        : this.#sender.send(dispatcher, hop.request, options, deadlineMono);
    // Not a function: its context, and with it the request, stayed until the next full collection.
    attempt.underWay = sending;
    if (attempt.abortedBy !== undefined) sending.abort("aborted", attempt.abortedBy);
    if (sending instanceof Sending) sending.tell(trip);
    else void endOf(sending).then((end) => trip.ended(end));
  }

  async caught({ one, plan }: Trip, thrown: unknown): Promise<EndsWith> {
    if (plan.marked) throw thrown;
    return this.#unsent(one, thrown);
  }

  /** An accepted answer is settled at once, unless its key has to know of it. */
  settle({ one, plan: { marked, key } }: Trip, ended: Ended): EndsWith | Promise<EndsWith> {
    const { end } = ended;
    if (end.is === "none" || key !== null || !one.contract.request.ok(end.status))
      return this.#settleOther(one, ended, marked, key);
    this.#report(one, ended);
    return this.#respond(one, ended);
  }

  // ----

  /** The options are those of the kind, and the same object for all its requests, unless large answers go to blobs of their own. */
  #options(settings: RequestSettings, attempt: RequestAttempt): SendOptions {
    const known = this.#optionsOf.get(settings);
    if (known) return known;
    const { timeouts, maxResponse, blobMax, response, connection, ok } = settings;
    const ofKind = { timeouts, maxResponse, ignoreBody: response === "ignore", fresh: connection.fresh };
    const store = this.#deps.blobs;
    if (blobMax !== null && store !== null) {
      const unused = Array.from({ length: unusedBlobs(attempt) }, (_, before) => blobKey(attempt, before + 1));
      if (unused.length > 0) store.delete(unused).catch(() => {});
      return { ...ofKind, blobs: { store, key: blobKey(attempt), max: blobMax, accepts: ok } };
    }
    const options = { ...ofKind, blobs: null };
    this.#optionsOf.set(settings, options);
    return options;
  }

  /** With the body as its kind reads it, unless that does not fit its schema. */
  #respond(one: OneRequest, ended: Ended): EndsWith | Promise<EndsWith> {
    const answered = answeredBy(one.contract, ended.end as Answer);
    return answered instanceof Promise
      ? answered.then((it) => one.respondedWith(ended, it))
      : one.respondedWith(ended, answered);
  }

  async #settleOther(one: OneRequest, ended: Ended, marked: boolean, key: JobKey | null): Promise<EndsWith> {
    const { contract, attempt } = one;
    const { request } = contract;
    const { end } = ended;
    if (end.is === "none" && end.fault === "aborted") {
      if (marked && !end.sent) await attempt.step(knownMark(attempt.attempt), () => null);
      return one.interrupted(attempt.abortedBy ?? "shutdown", end.sent);
    }
    const came = cameOf(end, request.ok, this.#deps.clock.now());
    this.#report(one, ended);
    const decision = decide(came, request.ifUnknown, request.retry, request.idempotency !== null);
    if (key !== null) await this.#health.after(one, key, came, decision.then);
    const text = (): string => `${shownRequest(ended.request)}: ${textOf(end)}`;
    switch (decision.then) {
      case "respond":
        return this.#respond(one, ended);
      case "unknown":
        return one.unknown(attempt.attempt, text());
      case "fail":
        return one.failed(decision.fault, new Error(text()), true, end.status, shownBody(end));
      case "retry": {
        const { fault, waitMs, holdOffMs } = decision;
        if (marked) await attempt.step(knownMark(attempt.attempt), () => null);
        if (key !== null && holdOffMs !== null && holdOffMs > 0) await attempt.holdOff(key.limit, `${holdOffMs}ms`);
        return one.failed(fault, new Error(text()), await one.isGivenUp(), end.status, shownBody(end), waitMs);
      }
    }
  }

  #report({ contract, attempt }: OneRequest, { end, request, durationMs }: Ended): void {
    const { events } = this.#deps;
    if (!events.has("request.ended")) return;
    events.emit("request.ended", {
      jobId: attempt.id,
      kind: contract.name,
      attempt: attempt.attempt,
      host: request.url.host,
      request: shownRequest(request),
      status: end.status,
      fault: end.is === "none" ? end.fault : null,
      durationMs,
    });
  }

  #keyOf({ contract: { keysOf, request }, stored }: OneRequest): JobKey | null {
    return request.limit === null
      ? null
      : (keysOf?.(stored as never).find(({ limit }) => limit === request.limit) ?? null);
  }
}

function isAfterDeath({ job: { lastOutcome } }: RequestAttempt): boolean {
  return lastOutcome === "crashed" || lastOutcome === "lost";
}

/** Whether each request opens a connection: always, or as far as is known here, because undici connects to the proxy itself. */
function opensItsOwn({ fresh, proxy }: ConnectionSettings): boolean {
  return fresh || proxy !== null;
}

const MAX_UNUSED = 100;

/**
 * How many attempts right before this one may have put an answer in a blob that nothing refers to: they died before their settlement, or are tried again.
 * Counters begin again when a person retries a request that had ended, so none of these attempts was its end.
 */
function unusedBlobs({ attempt, job: { lastOutcome, counters } }: RequestAttempt): number {
  const { errors, crashes, timeouts } = counters;
  const wasTheEnd = RETRIED.includes(lastOutcome) && errors === 0;
  return Math.min(attempt - 1, MAX_UNUSED, Math.max(errors + crashes + timeouts, wasTheEnd ? 0 : 1));
}

function blobKey({ id, attempt }: RequestAttempt, before = 0): string {
  return `requests/${createHash("sha256").update(id).digest("hex").slice(0, 32)}/${attempt - before}`;
}
