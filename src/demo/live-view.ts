// What is known while a run goes on, read from the engine a few times a second, for the screen and for progress lines.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../index.ts";
import type { Fleet, PlaceState } from "../torture/fleet.ts";
import { type Percentiles, percentiles, type Recovery, RecoveryTimes } from "../torture/recovery-times.ts";

export interface WorkerView {
  readonly number: number;
  readonly state: PlaceState;
  readonly pid: number;
  readonly held: number;
  readonly deaths: number;
  readonly sinceMs: number;
}

export interface View {
  readonly elapsedMs: number;
  readonly ready: number;
  readonly running: number;
  readonly succeeded: number;
  readonly quarantined: number;
  readonly perSecond: number;
  /** Successes per second, one for each reading, the latest last. */
  readonly rates: readonly number[];
  readonly workers: readonly WorkerView[];
  readonly kills: number;
  readonly poisoned: number;
  readonly recovered: number;
  readonly lastRecovery: Recovery | null;
  readonly recoveryMs: Percentiles;
  readonly zombies: number;
  readonly rejected: number;
  readonly events: readonly DemoEvent[];
}

export interface DemoEvent {
  readonly atMs: number;
  readonly text: string;
  readonly mood: "bad" | "good" | "plain";
}

const READ_EVERY_MS = 200;
/** Readings over which the present rate is an average. */
const RATE_READINGS = 5;

export class LiveView {
  readonly fleet: Fleet;
  readonly #events: DemoEvent[] = [];
  readonly #recoveries: RecoveryTimes;
  readonly #engine: Engine;
  readonly #began = performance.now();
  readonly #samples: { readonly at: number; readonly succeeded: number }[] = [];
  readonly #rates: number[] = [];
  readonly #zombies = new Set<string>();
  #refused = 0;
  #poisoned = 0;

  constructor(engine: Engine, fleet: Fleet) {
    this.#engine = engine;
    this.fleet = fleet;
    this.#recoveries = new RecoveryTimes(engine);
  }

  note(text: string, mood: DemoEvent["mood"] = "plain"): DemoEvent {
    const event = { atMs: performance.now() - this.#began, text, mood };
    this.#events.push(event);
    return event;
  }

  /** A job killed the worker of this place. */
  poisoned(place: number): DemoEvent {
    this.#poisoned++;
    return this.note(`worker ${place} was killed by the job it ran`, "bad");
  }

  /** A write of a worker that does not own the job any more. */
  refusedWrite(workerId: string): void {
    this.#refused++;
    this.#zombies.add(workerId);
  }

  /** Reads again and again until `signal`. */
  async watch(signal: AbortSignal, seen: (view: View) => void): Promise<void> {
    while (!signal.aborted) {
      seen(await this.read());
      await pause(READ_EVERY_MS, undefined, { signal }).catch(() => {});
    }
  }

  async read(): Promise<View> {
    const [counts, rows] = await Promise.all([this.#engine.counts(), this.#engine.workers()]);
    const sum = (of: (kind: (typeof counts)[number]) => number): number =>
      counts.reduce((total, kind) => total + of(kind), 0);
    const succeeded = sum((kind) => kind.succeeded);
    const recoveries = await this.#recoveries.of(this.fleet.kills);
    const now = Date.now();
    return {
      elapsedMs: performance.now() - this.#began,
      ready: sum((kind) => kind.ready + kind.delayed),
      running: sum((kind) => kind.running),
      succeeded,
      quarantined: sum((kind) => kind.quarantined),
      perSecond: this.#rate(succeeded),
      rates: this.#rates,
      workers: this.fleet.places().map(({ number, state, pid, deaths, sinceAt, workerId }) => ({
        number,
        state,
        pid,
        deaths,
        sinceMs: now - sinceAt,
        held: rows.find((row) => row.id === workerId)?.heldCount ?? 0,
      })),
      kills: this.fleet.kills.length,
      poisoned: this.#poisoned,
      recovered: recoveries.reduce((total, { jobs, waiting }) => total + jobs - waiting.length, 0),
      lastRecovery: recoveries.findLast(({ backMs }) => backMs !== null) ?? null,
      recoveryMs: percentiles(recoveries.map(({ backMs }) => backMs)),
      zombies: this.#zombies.size,
      rejected: this.#refused,
      events: this.#events,
    };
  }

  #rate(succeeded: number): number {
    const at = performance.now();
    const before = this.#samples.at(-1);
    this.#samples.push({ at, succeeded });
    if (before) this.#rates.push(((succeeded - before.succeeded) / (at - before.at)) * 1_000);
    const recent = this.#rates.slice(-RATE_READINGS);
    return recent.length === 0 ? 0 : recent.reduce((a, b) => a + b, 0) / recent.length;
  }
}
