// How bad the world of one seed is: how often calls are lost or slow, how often processes are killed or stopped, how many there
// are, and whether locks prove anything. Drawn once per seed, so that seeds differ in kind and not only in detail.
import type { SeededRandom } from "./random.ts";

export interface Temper {
  readonly workers: number;
  readonly concurrency: number;
  readonly jobs: number;
  /** False: only leases decide who is dead. */
  readonly locksProve: boolean;
  /** Share of store calls whose request never arrives. */
  readonly requestLost: number;
  /** Share of store calls that are applied and whose answer never arrives. */
  readonly answerLost: number;
  /** Share of store calls that take long, and how long at most. */
  readonly slow: number;
  readonly slowMs: number;
  /** Share of fenced writes at which the whole process stands still, for longer than a lease, before they are applied. */
  readonly stalled: number;
  /** Mean time between two acts of the nemesis, in ms. */
  readonly nemesisEveryMs: number;
  /** What the nemesis does, by weight. */
  readonly nemesis: Readonly<Record<Act, number>>;
  readonly poison: boolean;
  /** How long the faults last. */
  readonly faultsMs: number;
}

export type Act = "kill" | "killAll" | "pause" | "block" | "deploy" | "killProducer" | "killConsole";

export const LEASE_MS = 4_000;
export const HEARTBEAT_MS = 1_000;
export const PROBE_MS = 1_000;
export const SWEEP_MS = 10_000;

export function drawTemper(random: SeededRandom): Temper {
  const lossy = random.chance(0.7);
  return {
    workers: random.pick([2, 2, 3, 4]),
    concurrency: random.pick([1, 2, 3, 4, 6]),
    jobs: 12 + random.below(22),
    locksProve: random.chance(0.8),
    requestLost: lossy ? random.pick([0, 0.01, 0.03]) : 0,
    answerLost: lossy ? random.pick([0.01, 0.02, 0.05]) : 0,
    slow: random.pick([0.01, 0.05, 0.2]),
    slowMs: random.pick([20, 500, 1.4 * LEASE_MS]),
    stalled: random.pick([0, 0.003, 0.01]),
    nemesisEveryMs: random.pick([700, 1_500, 3_000]),
    nemesis: {
      kill: random.pick([1, 3]),
      killAll: random.pick([0, 0.3]),
      pause: random.pick([1, 2, 4]),
      block: random.pick([0, 0.5]),
      deploy: random.pick([0, 0.7]),
      killProducer: 0.3,
      killConsole: 0.2,
    },
    poison: random.chance(0.4),
    faultsMs: 8_000 + random.below(12_000),
  };
}
