// Which transactions of the user's own may have a session of the pool now. One session stays free for the engine: its turns, its
// enqueues, the writes of running attempts. Without that, commits that call `engine.enqueue` deadlock, and a worker whose commits are
// slow can't settle what has finished. Waiting transactions are served in order.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { CommitControl } from "../../worker/run.ts";

/** When to stop waiting: calls `stop` once with the reason. Returns how to call that off. */
export type WaitLimit = (stop: (reason: Error) => void) => () => void;

export function atMost(ms: number): WaitLimit {
  return (stop) => {
    const timer = setTimeout(() => stop(noSession(ms)), ms);
    return () => clearTimeout(timer);
  };
}

export function untilInterrupted(control: CommitControl): WaitLimit {
  return (stop) => control.onInterrupt(stop);
}

/** Every session was in use for that long. The job whose handler gets this pays nothing for it. */
export function noSession(waitedMs: number): OutliveError {
  return new OutliveError(
    ErrorCode.storeBusy,
    `Every connection of the pool was in use for ${waitedMs} ms.`,
    NO_SESSION_HINT,
    { waitedMs, costsAttempt: false },
  );
}

export const NO_SESSION_HINT =
  "Nothing was written. Make what your commits wait for shorter, use `tx.enqueue` instead of `engine.enqueue` inside them, or raise `postgres.connections` (the `max` of your own pool). Thrown by a handler, this costs its job nothing.";

interface Waiting {
  readonly enter: () => void;
}

export class SessionGate {
  readonly #room: number;
  #inside = 0;
  readonly #waiting: Waiting[] = [];

  private constructor(poolSize: number) {
    this.#room = Math.max(1, poolSize - 1);
  }

  /** Of this pool. Two stores may share a pool of the user's, and then share its gate. */
  static of(pool: object, poolSize: number): SessionGate {
    let gate = gates.get(pool);
    if (!gate) gates.set(pool, (gate = new SessionGate(poolSize)));
    return gate;
  }

  /** Resolves to how to leave. Rejects with the reason of `limit`. */
  async enter(limit: WaitLimit): Promise<() => void> {
    if (this.#inside < this.#room) this.#inside++;
    else await this.#wait(limit);
    let left = false;
    return () => {
      if (left) return;
      left = true;
      const next = this.#waiting.shift();
      // The place passes on.
      if (next) next.enter();
      else this.#inside--;
    };
  }

  #wait(limit: WaitLimit): Promise<void> {
    return new Promise((resolve, reject) => {
      const waiting: Waiting = {
        enter() {
          callOff();
          resolve();
        },
      };
      this.#waiting.push(waiting);
      const callOff = limit((reason) => {
        const at = this.#waiting.indexOf(waiting);
        if (at >= 0) this.#waiting.splice(at, 1);
        reject(reason);
      });
    });
  }
}

const gates = new WeakMap<object, SessionGate>();
