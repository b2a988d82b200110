// How bad the world of one seed is: which faults it knows and how often they strike, how many processes there are, and whether
// locks prove anything. Drawn once per seed, so that seeds differ in kind and not only in detail.
import type { FaultKind } from "./faults.ts";
import type { SeededRandom } from "./random.ts";

export interface Profile {
  readonly workers: number;
  readonly concurrency: number;
  /** How many jobs a worker claims beyond its slots. */
  readonly ahead: number;
  readonly jobs: number;
  /** False: only leases decide who is dead. */
  readonly locksProve: boolean;
  /** The lock of a worker is its session on a server: it can be lost without a death. */
  readonly sessions: boolean;
  /** Whether the kernel of a host is asked about the processes there. */
  readonly processesProve: boolean;
  /** How many hosts the processes are spread over. Only a server has workers of several. */
  readonly hosts: 1 | 2;
  /** Which workloads the program has, by name. */
  readonly workloads: readonly string[];
  /** What the wire does to calls, as shares of them. */
  readonly requestLost: number;
  readonly answerLost: number;
  readonly slow: number;
  readonly slowMs: number;
  /** Share of fenced writes at which the whole process stands still, for longer than a lease, before they are applied. */
  readonly stall: number;
  /** Share of pauses that end at the worst moment: when another process has just got the work, or is about to take it. */
  readonly ambush: number;
  /** Share of a recovery's transactions after, or before, which its process is killed. */
  readonly killRecovery: number;
  /** How many jobs one transaction of a recovery takes: fewer, and it can be killed half-way. */
  readonly recoveryBatch: number;
  /** "relaxed": a loss of power takes what was not synced, acknowledged or not. */
  readonly durability: "full" | "relaxed";
  /** The file is empty at first, and this many of those who open it die while they migrate it. */
  readonly killMigration: number;
  /** Mean time between two acts of the nemesis, in ms. */
  readonly nemesisEveryMs: number;
  /** What the nemesis does, by weight. */
  readonly nemesis: Readonly<Record<Act, number>>;
  /** How long the faults last. */
  readonly faultsMs: number;
  /** 2: what has a dedupe key is sent by two producers at once. */
  readonly producers: 1 | 2;
  /** Whether a person cancels, retries and recovers. */
  readonly console: boolean;
  /** How often, on average. */
  readonly consoleEveryMs: number;
  /** So many jobs of each workload, by its name, instead of `jobs` drawn from all of them. */
  readonly jobsOf: Readonly<Record<string, number>> | null;
  /** Which figure of isolation is a law in this history (proof/sim/isolation.ts); null: none. */
  readonly isolation: "culprit" | "twoKills" | null;
}

export type Act = Extract<
  FaultKind,
  | "kill"
  | "killAll"
  | "pause"
  | "suspend"
  | "block"
  | "clockJump"
  | "hostClockJump"
  | "busy"
  | "fullDisk"
  | "storeRestart"
  | "powerLoss"
  | "deploy"
  | "cut"
  | "blockStore"
  | "restore"
>;

/** A nemesis that does nothing, to which one adds what it shall do. */
export const NO_ACTS: Readonly<Record<Act, number>> = {
  kill: 0,
  killAll: 0,
  pause: 0,
  suspend: 0,
  block: 0,
  clockJump: 0,
  hostClockJump: 0,
  busy: 0,
  fullDisk: 0,
  storeRestart: 0,
  powerLoss: 0,
  deploy: 0,
  cut: 0,
  blockStore: 0,
  restore: 0,
};

export const LEASE_MS = 3_000;
export const HEARTBEAT_MS = 1_000;
export const PROBE_MS = 2_500;
export const CONTACT_MS = 1_000;
export const SWEEP_MS = 10_000;

export function drawProfile(random: SeededRandom, drawWorkloads: (random: SeededRandom) => readonly string[]): Profile {
  /** The value if the seed knows this fault at all, else 0. */
  const some = (share: number, value: () => number): number => (random.chance(share) ? value() : 0);
  const lossy = random.chance(0.7);
  const killMigration = some(0.04, () => 1 + random.below(3));
  const powerLoss = killMigration > 0 ? 0 : some(0.15, () => random.pick([0.3, 1]));
  // Drawn apart, so that seeds of before tell the same histories as far as they can.
  const contact = random.fork("contact");
  const sessions = contact.chance(0.35);
  const restore = random.fork("restore");
  return {
    workers: random.pick([2, 2, 3, 4]),
    concurrency: random.pick([1, 2, 3, 4, 6]),
    ahead: random.fork("ahead").pick([0, 1, 3, 8]),
    jobs: 8 + random.below(17),
    locksProve: random.chance(0.8),
    sessions,
    processesProve: contact.chance(0.5),
    hosts: sessions && contact.chance(0.7) ? 2 : 1,
    workloads: drawWorkloads(random.fork("workloads")),
    requestLost: lossy ? some(0.6, () => random.pick([0.01, 0.03])) : 0,
    answerLost: lossy ? random.pick([0.01, 0.02, 0.05]) : 0,
    slow: some(0.7, () => random.pick([0.01, 0.05, 0.15])),
    slowMs: random.pick([20, 500, 1.4 * LEASE_MS]),
    stall: some(0.8, () => random.pick([0.005, 0.015, 0.04])),
    ambush: some(0.8, () => random.pick([0.5, 0.95])),
    killRecovery: some(0.3, () => random.pick([0.1, 0.4])),
    recoveryBatch: random.pick([1, 2, 1_000]),
    durability: powerLoss > 0 ? "relaxed" : "full",
    killMigration,
    nemesisEveryMs: random.pick([700, 1_500, 3_000]),
    nemesis: {
      kill: some(0.9, () => random.pick([1, 3])),
      killAll: some(0.4, () => 0.3),
      pause: some(0.8, () => random.pick([1, 2, 4])),
      block: some(0.4, () => 0.5),
      clockJump: some(0.3, () => 0.7),
      // After a loss of power it is not known what the clock said before it: see docs.
      hostClockJump: powerLoss > 0 ? 0 : some(0.15, () => 0.4),
      busy: some(0.3, () => 0.6),
      fullDisk: some(0.2, () => 0.4),
      storeRestart: some(0.2, () => 0.5),
      powerLoss,
      deploy: some(0.5, () => 0.7),
      suspend: random.fork("suspend").chance(0.3) ? 0.6 : 0,
      cut: sessions && contact.chance(0.8) ? contact.pick([1, 3]) : 0,
      blockStore: contact.chance(0.15) ? 0.4 : 0,
      // What is restored here is a file. A server notices a restore in its own way, which the SQLite store does not have.
      restore: powerLoss > 0 || sessions ? 0 : restore.chance(0.2) ? restore.pick([0.4, 1]) : 0,
    },
    faultsMs: 5_000 + random.below(9_000),
    producers: random.chance(0.5) ? 2 : 1,
    console: true,
    consoleEveryMs: 600,
    jobsOf: null,
    isolation: null,
  };
}
