// What is known while it runs, read from the engine a few times a second: for the screen, for progress lines, and for the one
// who waits until everything has ended.
import { setTimeout as pause } from "node:timers/promises";
import type { Engine } from "../index.ts";
import { zombies, rejectedWrites } from "./facts.ts";
import type { Fleet, PlaceState } from "./fleet.ts";
import { type Percentiles, percentiles, Recoveries, type Recovery } from "./recoveries.ts";

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
  /** Successes per second, one for each look, the latest last. */
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

const LOOK_MS = 200;
/** Looks over which the present rate is an average. */
const RATE_LOOKS = 5;

export class Observer {
  view: View | null = null;
  readonly events: DemoEvent[] = [];
  readonly recoveries: Recoveries;
  readonly #engine: Engine;
  readonly #fleet: Fleet;
  readonly #began = performance.now();
  readonly #samples: { readonly at: number; readonly succeeded: number }[] = [];
  readonly #rates: number[] = [];

  constructor(engine: Engine, fleet: Fleet) {
    this.#engine = engine;
    this.#fleet = fleet;
    this.recoveries = new Recoveries(engine);
  }

  note(text: string, mood: DemoEvent["mood"] = "plain"): DemoEvent {
    const event = { atMs: performance.now() - this.#began, text, mood };
    this.events.push(event);
    return event;
  }

  /** Looks again and again until `signal`. */
  async watch(signal: AbortSignal, seen: (view: View) => void): Promise<void> {
    while (!signal.aborted) {
      seen(await this.look());
      await pause(LOOK_MS, undefined, { signal }).catch(() => {});
    }
  }

  async look(): Promise<View> {
    const [counts, rows] = await Promise.all([this.#engine.counts(), this.#engine.workers()]);
    const sum = (of: (kind: (typeof counts)[number]) => number): number =>
      counts.reduce((total, kind) => total + of(kind), 0);
    const succeeded = sum((kind) => kind.succeeded);
    const recoveries = await this.recoveries.of(this.#fleet.kills);
    const now = Date.now();
    this.view = {
      elapsedMs: performance.now() - this.#began,
      ready: sum((kind) => kind.ready + kind.delayed),
      running: sum((kind) => kind.running),
      succeeded,
      quarantined: sum((kind) => kind.quarantined),
      perSecond: this.#rate(succeeded),
      rates: this.#rates,
      workers: this.#fleet.places.map(({ number, state, pid, deaths, sinceAt, workerId }) => ({
        number,
        state,
        pid,
        deaths,
        sinceMs: now - sinceAt,
        held: rows.find((row) => row.id === workerId)?.heldCount ?? 0,
      })),
      kills: this.#fleet.kills.length,
      poisoned: this.#fleet.poisoned,
      recovered: recoveries.reduce((total, { jobs, waiting }) => total + jobs - waiting.length, 0),
      lastRecovery: recoveries.findLast(({ backMs }) => backMs !== null) ?? null,
      recoveryMs: percentiles(recoveries),
      zombies: await zombies(this.#engine),
      rejected: await rejectedWrites(this.#engine),
      events: this.events,
    };
    return this.view;
  }

  #rate(succeeded: number): number {
    const at = performance.now();
    const before = this.#samples.at(-1);
    this.#samples.push({ at, succeeded });
    if (before) this.#rates.push(((succeeded - before.succeeded) / (at - before.at)) * 1_000);
    const recent = this.#rates.slice(-RATE_LOOKS);
    return recent.length === 0 ? 0 : recent.reduce((a, b) => a + b, 0) / recent.length;
  }
}
