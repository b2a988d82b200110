// One request in one attempt, and the changes with which it may end: answered, failed, interrupted, unknown. Each is decided once and carries what follows it, so a
// request ends once and is followed once.
import { createHash } from "node:crypto";
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { EndsWith } from "../job/contract.ts";
import { invalidInput } from "../job/enqueue.ts";
import { type InterruptionReason, type OutliveError, toStoredError } from "../job/errors.ts";
import { backoffMs, type JobDraft, type KindSettings } from "../job/job.ts";
import { encodeJson, type Json } from "../job/json.ts";
import { knownMark, sentMark } from "../job/requests.ts";
import { cutText } from "../job/text.ts";
import type { Clock, Random } from "../job/time.ts";
import * as transitions from "../job/transitions.ts";
import type { Store } from "../stores/port.ts";
import type { RequestAttempt } from "../worker/run.ts";
import { type Answered, shownBody } from "./answered.ts";
import type { AnyRequest, RequestFault, RequestResult, UnknownDecision } from "./contract.ts";
import { MAX_RETRY_AFTER_MS } from "./outcome.ts";
import type { Rendered } from "./rendered.ts";
import type { Answer, NoAnswer } from "./wire.ts";

/** How long a request waits whose store failed. */
const STORE_PAUSE_MS = 1_000;

export interface RequestEndDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly random: Random;
  readonly settingsOf: (contract: AnyRequest) => KindSettings;
}

/** How a sending ended, with all hops that it took. */
export interface Ended {
  readonly end: Answer | NoAnswer;
  readonly redirects: number;
  readonly sentAt: number;
  readonly durationMs: number;
  /** What was sent last. */
  readonly request: Pick<Rendered, "method" | "url">;
}

export type Parsed = { readonly value: never } | OutliveError;

function parsedBy(name: string, result: StandardSchemaV1.Result<unknown>): Parsed {
  return result.issues ? invalidInput(name, result.issues) : { value: result.value as never };
}

export class OneRequest {
  readonly contract: AnyRequest;
  readonly attempt: RequestAttempt;
  readonly #deps: RequestEndDeps;
  readonly stored: Json;

  constructor(deps: RequestEndDeps, contract: AnyRequest, stored: Json, attempt: RequestAttempt) {
    this.#deps = deps;
    this.contract = contract;
    this.stored = stored;
    this.attempt = attempt;
  }

  /** The stored input through the schema: at once, unless the schema takes its time. */
  parsed(): Parsed | Promise<Parsed> {
    const { schema, name } = this.contract;
    if (!schema) return { value: this.stored as never };
    const checked = schema["~standard"].validate(this.stored);
    return checked instanceof Promise ? checked.then((result) => parsedBy(name, result)) : parsedBy(name, checked);
  }

  // ---- an accepted answer

  /** With what came, or with why that is not accepted. */
  respondedWith(ended: Ended, answered: Answered | Error): EndsWith {
    const end = ended.end as Answer;
    if (answered instanceof Error) return this.failed("schema", answered, true, end.status, shownBody(end));
    const { redirects, sentAt, durationMs } = ended;
    const { body, blob } = answered;
    const { status, wireBytes: bytes } = end;
    const result = { status, bytes, durationMs };
    if (this.contract.callbacks.response.handler === null) return this.#succeeded(result);
    const { headers } = end;
    return this.#respond({ status, headers, body, blob, sentAt, durationMs, redirects }, result);
  }

  #succeeded(result: RequestResult): EndsWith {
    return new EndsWith(transitions.succeed(this.#view, stored(result)));
  }

  #respond(
    given: {
      readonly status: number;
      readonly headers: Answer["headers"];
      readonly body: Json;
      readonly blob: Json;
      readonly sentAt: number;
      readonly durationMs: number;
      readonly redirects: number;
    },
    result: RequestResult,
  ): EndsWith {
    if (this.contract.callbacks.response.handler === null) return this.#succeeded(result);
    try {
      const change = transitions.succeed(this.#view, stored(result));
      return new EndsWith({ ...change, follow: [this.#draft("response", { ...given, ...this.#common })] });
    } catch (thrown) {
      return this.failed("too-large", thrown as Error, true, given.status);
    }
  }

  // ---- failures

  #failingSince: Promise<number> | undefined;

  /** The first failure of this request. Kept with it, so that it is known how long it has failed, whichever process sends it. */
  failingSince(): Promise<number> {
    const now = this.#deps.clock.now();
    return (this.#failingSince ??= this.attempt.step("failing", () => ({ at: now })).then(({ at }) => at));
  }

  /** Whether it has failed for so long that it is not tried again. */
  async isGivenUp(): Promise<boolean> {
    const { giveUpAfterMs } = this.contract.request.retry;
    if (giveUpAfterMs === null) return false;
    return this.#deps.clock.now() - (await this.failingSince()) >= giveUpAfterMs;
  }

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
      return this.unknown(this.attempt.attempt, "its worker stopped while it waited for the response");
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
      input: this.stored,
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
    return { input: this.stored, requestId: this.attempt.id, attempts: this.attempt.attempt };
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

/** `JSON.stringify` of three whole numbers takes eight times as long. */
function stored({ status, bytes, durationMs }: RequestResult): string {
  return `{"status":${status},"bytes":${bytes},"durationMs":${durationMs}}`;
}

function faultName(is: RequestFault): string {
  return `Request${is
    .split("-")
    .map((part) => part[0]!.toUpperCase() + part.slice(1))
    .join("")}`;
}
