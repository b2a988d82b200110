// `client.result`: waits for the end of jobs by reading their rows. A wake-up or the passing of time only says when to read again, so nothing is
// missed if a job was faster than its waiter, and a waiter that restarts asks again by the id. All calls of one client share one poll.
import { ErrorCode, OutliveError } from "../job/errors.ts";
import { isTerminal } from "../job/job.ts";
import type { Json } from "../job/json.ts";
import { type CallOff, type Clock, humanMs } from "../job/time.ts";
import type { JobOutcome } from "../job/waits.ts";
import type { Store } from "../stores/port.ts";

/** The pause between two reads grows from the first to the second while nothing ends. */
const FIRST_POLL_MS = 10;
const MAX_POLL_MS = 500;

interface Waiter {
  readonly id: string;
  /** The job has ended, or is not there. */
  settle(outcome: JobOutcome): void;
  fail(error: Error): void;
}

export class Results {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #waiters = new Set<Waiter>();
  #pollMs = FIRST_POLL_MS;
  #timer: CallOff | undefined;
  #reading = false;
  #unlisten: (() => void) | undefined;

  constructor(store: Store, clock: Clock) {
    this.#store = store;
    this.#clock = clock;
  }

  /** The result of a job that succeeds. Rejects if it ends otherwise, is not there, or does not end in time. */
  wait(id: string, timeoutMs: number | null): Promise<Json> {
    return new Promise((resolve, reject) => {
      let callOff: CallOff | undefined;
      const done = (): void => {
        callOff?.();
        this.#waiters.delete(waiter);
        if (this.#waiters.size === 0) this.#rest();
      };
      const waiter: Waiter = {
        id,
        settle(outcome) {
          done();
          if (outcome.state === "succeeded")
            resolve(outcome.result === null ? null : (JSON.parse(outcome.result) as Json));
          else reject(noResult(outcome));
        },
        fail(error) {
          done();
          reject(error);
        },
      };
      this.#waiters.add(waiter);
      if (timeoutMs !== null) callOff = this.#clock.after(timeoutMs, () => waiter.fail(tooLate(id, timeoutMs)));
      this.#unlisten ??= this.#store.onWakeup((what) => what === "wake" && this.#soon(0));
      this.#pollMs = FIRST_POLL_MS;
      this.#soon(0);
    });
  }

  /** How these jobs ended, or their state when the time is up, in the order of the ids. */
  async ended(ids: readonly string[], timeoutMs: number | null): Promise<readonly JobOutcome[]> {
    const found = new Map<string, JobOutcome>();
    const end = Promise.withResolvers<void>();
    const waiters = [...new Set(ids)].map((id): Waiter => {
      const waiter: Waiter = {
        id,
        settle: (outcome) => {
          found.set(id, outcome);
          this.#waiters.delete(waiter);
          if (found.size === waiters.length) end.resolve();
        },
        fail: (error) => end.reject(error),
      };
      return waiter;
    });
    if (waiters.length === 0) return [];
    for (const waiter of waiters) this.#waiters.add(waiter);
    const callOff = timeoutMs === null ? undefined : this.#clock.after(timeoutMs, () => end.resolve());
    this.#unlisten ??= this.#store.onWakeup((what) => what === "wake" && this.#soon(0));
    this.#pollMs = FIRST_POLL_MS;
    this.#soon(0);
    try {
      await end.promise;
    } finally {
      callOff?.();
      for (const waiter of waiters) this.#waiters.delete(waiter);
      if (this.#waiters.size === 0) this.#rest();
    }
    if (found.size < waiters.length)
      for (const outcome of await this.#store.inspect.outcomes(ids)) found.set(outcome.id, outcome);
    return ids.map((id) => found.get(id)!);
  }

  /** The client is closed. */
  close(): void {
    for (const waiter of this.#waiters)
      waiter.fail(
        new OutliveError(
          ErrorCode.closed,
          `The client was closed while it waited for the result of job ${waiter.id}.`,
          "The job continues. Connect again and ask for its result by its id.",
          { jobId: waiter.id },
        ),
      );
    this.#rest();
  }

  #rest(): void {
    this.#timer?.();
    this.#timer = undefined;
    this.#unlisten?.();
    this.#unlisten = undefined;
  }

  #soon(ms: number): void {
    this.#timer?.();
    this.#timer = this.#clock.after(ms, () => void this.#read());
  }

  async #read(): Promise<void> {
    if (this.#reading || this.#waiters.size === 0) return;
    this.#reading = true;
    const asked = [...this.#waiters];
    try {
      const outcomes = await this.#store.inspect.outcomes([...new Set(asked.map(({ id }) => id))]);
      const byId = new Map(outcomes.map((outcome) => [outcome.id, outcome]));
      let ended = 0;
      for (const waiter of asked) {
        const outcome = byId.get(waiter.id)!;
        if (outcome.state !== "missing" && !isTerminal(outcome.state)) continue;
        ended++;
        waiter.settle(outcome);
      }
      this.#pollMs = ended > 0 ? FIRST_POLL_MS : Math.min(MAX_POLL_MS, this.#pollMs * 2);
    } catch (thrown) {
      for (const waiter of asked) waiter.fail(thrown as Error);
    } finally {
      this.#reading = false;
    }
    if (this.#waiters.size > 0) this.#soon(this.#pollMs);
  }
}

function noResult({ id, state, error }: JobOutcome): OutliveError {
  const [what, hint] =
    state === "missing"
      ? ["is not in the store", "Check the id; finished jobs are deleted after their retention."]
      : [
          `is ${state}${error === null ? "" : `: ${error.message.replace(/\.$/, "")}`}`,
          `It has no result. See why: outlive why ${id}`,
        ];
  return new OutliveError(ErrorCode.noResult, `Job ${id} ${what}.`, hint, { jobId: id, state, error });
}

function tooLate(id: string, timeoutMs: number): OutliveError {
  return new OutliveError(
    ErrorCode.noResult,
    `Job ${id} did not end within ${humanMs(timeoutMs)}.`,
    "It continues. Ask again for its result by its id.",
    { jobId: id, timeoutMs, state: "unfinished" },
  );
}
