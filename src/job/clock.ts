// The port for time, chance and turn-taking. Core has no clock, timer or randomness of its own, so that the simulator can
// give it all three from one seed.

/** A timer that can be called off. Calling it off twice, or after it fired, does nothing. */
export type CallOff = () => void;

export interface Clock {
  /** Wall clock in ms. Jumps; only for what people read and for what the store's own host compares with itself. */
  now(): number;
  /** Monotonic clock in ms, the same for all threads of the process. Never compared with another process's. */
  mono(): number;
  /** Runs `task` after `ms` (at most 2^31-1, longer waits are rows in the store). */
  after(ms: number, task: () => void): CallOff;
  /** Runs `task` when everything that is already due in this turn has run: the edge at which group commits are cut. */
  soon(task: () => void): void;
}

export interface Random {
  /** Uniform in [0, 1). */
  next(): number;
  /** `count` random bytes as lower-case hex. */
  hex(count: number): string;
}

/** Resolves after `ms`, or at once when `signal` aborts. Never rejects. */
export function pause(clock: Clock, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const callOff = clock.after(ms, done);
    signal?.addEventListener("abort", done, { once: true });
    function done(): void {
      callOff();
      signal?.removeEventListener("abort", done);
      resolve();
    }
  });
}
