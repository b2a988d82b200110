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
import { type Answered, answeredBy, cameOf, shownBody, textOf } from "./answered.ts";
import type { BlobBody, ResponseBlobs } from "./body.ts";
import { Connections, type Dispatcher } from "./connections.ts";
import type { AnyRequest, ConnectionSettings, RequestSettings } from "./contract.ts";
import { assertDescriptors } from "./descriptors.ts";
import { KeyHealth } from "./key-health.ts";
import { decide } from "./outcome.ts";
import { Pacer } from "./pacer.ts";
import { nextHop, type Hop } from "./redirects.ts";
import { render, type Rendered, shownRequest } from "./rendered.ts";
import { type Ended, OneRequest, type RequestEndDeps } from "./request-end.ts";
import { Resolver } from "./resolver.ts";
import { Secrets, type SecretSource } from "./secrets.ts";
import { Sender } from "./sender.ts";
import type { Answer, NoAnswer, SendOptions, Wire } from "./wire.ts";

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

/** All hops of one sending. */
interface Trip {
  readonly options: SendOptions;
  readonly startMono: number;
  readonly deadlineMono: number;
  readonly sentAt: number;
}

export class RequestWorker {
  readonly #deps: RequestWorkerDeps;
  readonly #secrets: Secrets;
  readonly #connections: Connections;
  readonly #sender: Sender;
  readonly #pacer: Pacer;
  readonly #health: KeyHealth;
  readonly #optionsOf = new WeakMap<RequestSettings, SendOptions>();

  constructor(deps: RequestWorkerDeps) {
    this.#deps = deps;
    const mono = (): number => deps.clock.mono();
    this.#secrets = new Secrets(deps.secrets, mono);
    this.#pacer = new Pacer((task) => deps.clock.soon(task), mono);
    const opening = (): void => this.#pacer.opened();
    this.#connections = new Connections(new Resolver(mono, deps.dnsServers), this.#secrets, opening);
    this.#sender = new Sender(mono);
    this.#health = new KeyHealth(deps);
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

  #run(contract: AnyRequest, stored: Json, attempt: RequestAttempt): Promise<EndsWith> {
    const one = new OneRequest(this.#deps, contract, stored, attempt);
    const ending = this.#runOne(one, stored);
    // If the store fails, a request that may have been sent must not end as failed by that: the next attempt would take it for one whose outcome was known.
    return contract.request.ifUnknown === "resend" ? ending : ending.catch((thrown) => one.releasedBy(thrown));
  }

  /**
   * A plain request awaits once, its answer: what can be known at once (the parsed input, the rendered request, its dispatcher) is not awaited. Each
   * await less saves about half a microsecond, of 8 that the room itself costs a request.
   */
  async #runOne(one: OneRequest, stored: Json): Promise<EndsWith> {
    const { contract, attempt } = one;
    const { ifUnknown } = contract.request;
    const parsed = one.parsed();
    const input = parsed instanceof Promise ? await parsed : parsed;
    if (input instanceof OutliveError) return one.failed("refused", input, true);
    const sentBefore = attempt.job.steps.length === 0 ? null : unknownSending(attempt.job.steps);
    if (sentBefore !== null) {
      // That attempt ended on its own, whatever it knew, and a person has retried the request since: that is the decision to send it.
      const isRetried = RETRIED.includes(attempt.job.lastOutcome);
      const decided = isRetried ? await one.maySend(sentBefore) : await one.afterUnknown(sentBefore);
      if (decided !== null) return decided;
    }
    let marked = false;
    try {
      const rendering = this.#rendered(contract, input.value, attempt);
      const request = rendering instanceof Promise ? await rendering : rendering;
      const key = this.#keyOf(contract, stored);
      const dispatching = this.#dispatcher(contract);
      const dispatcher = dispatching instanceof Promise ? await dispatching : dispatching;
      const turn = this.#pacer.turn();
      if (turn) await turn;
      if (opensItsOwn(contract.request.connection)) this.#pacer.opened();
      if (attempt.abortedBy !== undefined) return await one.interrupted(attempt.abortedBy, false);
      if (ifUnknown !== "resend") {
        await this.#mark(attempt, ifUnknown, request);
        marked = true;
      }
      if (isAfterDeath(attempt)) this.#reportAgain(one, request);
      const trip = this.#begin(contract, attempt);
      // Redirects are followed as far as the kind allows.
      for (let hop: Hop = { request, redirects: 0 }; ;) {
        const end = await this.#send(dispatcher, hop, trip, attempt).ended;
        attempt.underWay = null;
        const next = end.is === "answer" ? nextHop(hop, end, contract.request, contract.name) : null;
        if (next !== null && "request" in next) {
          hop = next;
          continue;
        }
        const settling = this.#settle(one, this.#ended(next ?? end, hop, trip), marked, key);
        return settling instanceof Promise ? await settling : settling;
      }
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

  #begin({ request: settings }: AnyRequest, attempt: RequestAttempt): Trip {
    const { clock } = this.#deps;
    const startMono = clock.mono();
    const deadlineMono = startMono + settings.timeouts.totalMs;
    return { options: this.#options(settings, attempt), startMono, deadlineMono, sentAt: clock.now() };
  }

  /** Null: what stands in for the network needs none. */
  #dispatcher({ request: { connection } }: AnyRequest): Dispatcher | null | Promise<Dispatcher> {
    return this.#deps.wire ? null : (this.#connections.made(connection) ?? this.#connections.of(connection));
  }

  #send(dispatcher: Dispatcher | null, hop: Hop, trip: Trip, attempt: RequestAttempt): ReturnType<Wire> {
    const { options, deadlineMono } = trip;
    const sending =
      dispatcher === null
        ? this.#deps.wire!(hop, options, deadlineMono)
        : this.#sender.send(dispatcher, hop.request, options, deadlineMono);
    // Not a function: its context, and with it the request, stayed until the next full collection.
    attempt.underWay = sending;
    if (attempt.abortedBy !== undefined) sending.abort("aborted", attempt.abortedBy);
    return sending;
  }

  #ended(end: Answer | NoAnswer, { request, redirects }: Hop, { startMono, sentAt }: Trip): Ended {
    return { end, redirects, request, sentAt, durationMs: Math.round(this.#deps.clock.mono() - startMono) };
  }

  /** The options are those of the kind, and the same object for all its requests, unless large answers go to blobs of their own. */
  #options(settings: RequestSettings, attempt: RequestAttempt): SendOptions {
    const known = this.#optionsOf.get(settings);
    if (known) return known;
    const { timeouts, maxResponse, blobMax, response, connection } = settings;
    const ofKind = { timeouts, maxResponse, ignoreBody: response === "ignore", fresh: connection.fresh };
    const store = this.#deps.blobs;
    if (blobMax !== null && store !== null) return { ...ofKind, blobs: { store, key: blobKey(attempt), max: blobMax } };
    const options = { ...ofKind, blobs: null };
    this.#optionsOf.set(settings, options);
    return options;
  }

  /** An accepted answer is settled at once, unless its key has to know of it. */
  #settle(one: OneRequest, ended: Ended, marked: boolean, key: JobKey | null): EndsWith | Promise<EndsWith> {
    const { end } = ended;
    if (end.is === "none" || key !== null || !one.contract.request.ok(end.status))
      return this.#settleOther(one, ended, marked, key);
    this.#report(one, ended);
    return this.#respond(one, ended);
  }

  /** With the body as its kind reads it, unless that does not fit its schema. */
  #respond(one: OneRequest, ended: Ended): EndsWith | Promise<EndsWith> {
    const end = ended.end as Answer;
    const answered = answeredBy(one.contract, end);
    const respond = (it: Answered | Error): EndsWith =>
      it instanceof Error ? one.failed("schema", it, true, end.status, shownBody(end)) : one.responded(ended, it);
    return answered instanceof Promise ? answered.then(respond) : respond(answered);
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

  #reportAgain({ contract, attempt }: OneRequest, { url: { host } }: Rendered): void {
    const { id: jobId, attempt: number } = attempt;
    this.#deps.events.emit("request.sentAgain", { jobId, kind: contract.name, attempt: number, host });
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

  #keyOf({ keysOf, request }: AnyRequest, stored: Json): JobKey | null {
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

function blobKey(attempt: RequestAttempt): string {
  return `requests/${createHash("sha256").update(attempt.id).digest("hex").slice(0, 32)}/${attempt.attempt}`;
}
