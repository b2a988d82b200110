// One process polls for all. A wake-up is sent after the commit that made work ready, so a process that is killed in between does not send it: the elected
// process finds that work within a poll interval and wakes every worker. As long as its proofs arrive, idle workers poll seldom (worker/loop-state.ts);
// when it dies or stands still its proofs end, and until another process is elected every worker polls for itself.
import type { Clock } from "../job/time.ts";
import type { WorkerRow } from "../stores/liveness.ts";
import type { Store } from "../stores/port.ts";

/** How often the elected process shows that it polls. Each message wakes a session of every worker, so it is seldom. */
const PROOF_EVERY_MS = 16_000;
/** Where no wake-up is lost, how long the pause between two polls grows as long as nothing is written. */
const MAX_REST_MS = 20_000;
/** A poll that takes longer than this rests ten times as long, at most as long as idle workers that poll seldom. */
const SLOW_MS = 100;
const RESTS = 10;
const MAX_SLOW_REST_MS = 10_000;
/** All workers have just been woken, and each learns in its turn what is due next: with thousands of keys there is something every millisecond. */
const WOKEN_MS = 50;

export class ElectedPoll {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #everyMs: number;
  #provedMono = Number.NEGATIVE_INFINITY;
  #restMs: number;
  /** As the latest poll found it; null: not known. */
  changes: number | null = null;
  /** Nothing waits for a time (`Pending.isQuiet`). */
  isQuiet = false;

  constructor({ store, clock }: { readonly store: Store; readonly clock: Clock }, everyMs: number) {
    this.#store = store;
    this.#clock = clock;
    this.#everyMs = everyMs;
    this.#restMs = everyMs;
  }

  /** Wakes everyone if workers of these may find something to do. A proof follows only a poll that succeeded. Returns in how many ms to poll again. */
  async pass(workers: readonly WorkerRow[]): Promise<number> {
    const { upkeep, wakesSurely = false } = this.#store;
    if (!upkeep.pending) return this.#everyMs;
    const beganMono = this.#clock.mono();
    const { now, nextInMs, changes = null, isQuiet = false } = await upkeep.pending(kindsOf(workers));
    const hasChanged = changes === null || changes !== this.changes;
    this.changes = changes;
    this.isQuiet = isQuiet;
    if (now) this.#store.notify?.("wake");
    const mono = this.#clock.mono();
    if (mono - this.#provedMono >= PROOF_EVERY_MS) {
      this.#provedMono = mono;
      this.#store.notify?.("proof");
    }
    this.#restMs =
      wakesSurely && !hasChanged ? Math.max(this.#everyMs, Math.min(2 * this.#restMs, MAX_REST_MS)) : this.#everyMs;
    const tookMs = mono - beganMono;
    const slowMs = tookMs > SLOW_MS ? Math.min(tookMs * RESTS, MAX_SLOW_REST_MS) : 0;
    const least = now ? WOKEN_MS : 1;
    return Math.max(slowMs, Math.min(this.#restMs, Math.max(least, nextInMs ?? this.#restMs)));
  }

  /** Nothing was written for a while, and nothing waits for a time. */
  get rests(): boolean {
    return this.isQuiet && this.#restMs > this.#everyMs;
  }

  /** Something was written: the next pause is a short one. */
  wake(): void {
    this.#restMs = this.#everyMs;
  }

  /** Another process was elected. If it is this one again, it proves that at once. */
  rest(): void {
    this.#provedMono = Number.NEGATIVE_INFINITY;
    this.changes = null;
    this.isQuiet = false;
    this.#restMs = this.#everyMs;
  }
}

/** What workers that are at work run. */
function kindsOf(workers: readonly WorkerRow[]): readonly string[] {
  return [...new Set(workers.flatMap(({ state, kinds }) => (state === "live" ? kinds : [])))];
}
