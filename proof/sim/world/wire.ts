// Between the engine and its store: every call of the port travels, takes time, and may get lost before it was applied or after.
// The store behind it is the real one. A dead process's calls are neither carried out nor answered.
import { type Call, observed, type Verb, wakesOthers, withVerbs } from "../../../src/stores/observed.ts";
import type { AttemptWrite, CondemnRequest, TurnAnswer, Store } from "../../../src/stores/port.ts";
import { MATTERS, type Witness } from "../oracle/witness.ts";
import type { WakeupHub } from "./wakeup-hub.ts";
import type { FaultKind, Faults } from "./faults.ts";
import type { SimProcess } from "./process.ts";
import type { SeededRandom } from "./random.ts";
import type { Scheduler } from "./scheduler.ts";
import { LEASE_MS, type Profile } from "./profile.ts";
import type { Thread } from "./thread.ts";
import type { Conditions } from "./conditions.ts";

/** What becomes of one call. */
interface Fate {
  readonly beforeMs: number;
  readonly afterMs: number;
  readonly lost: "request" | "answer" | null;
  /** How long the process is stopped in the middle of the call; 0: it is not. */
  readonly stalledMs: number;
  /** Whether the process is killed right before the call is applied, or right after. */
  readonly killed: "before" | "after" | null;
}

export interface WireDeps {
  readonly process: SimProcess;
  readonly thread: Thread;
  readonly scheduler: Scheduler;
  readonly profile: Profile;
  readonly conditions: Conditions;
  readonly faults: Faults;
  readonly witness: Witness;
  readonly wakeups: WakeupHub;
  /** Whether another process is there to take over while this process stands still. */
  readonly othersAwake: () => boolean;
  /** A recovery of this process's worker is on its way. Returns whether it wakes up meanwhile. */
  readonly aboutToRecover: (pid: number) => boolean;
  /** Jobs were given to this process, and it will not hear of it. */
  readonly claimLost: () => void;
}

/** A recovery of many jobs takes several transactions; here it does of a few. */
export function wire(real: Store, deps: WireDeps): Store {
  const random = deps.process.random.fork(`wire ${deps.thread.name}`);
  const store = withVerbs(real, {
    heldBy: (query) =>
      real.heldBy(
        "condemned" in query ? { ...query, limit: Math.min(query.limit, deps.profile.recoveryBatch) } : query,
      ),
  });
  const carried = observed(store, { around: (verb, args, call) => travel(deps, random, verb, args, call) });
  return withVerbs(carried, {
    // A process without its connection hears nothing and sends nothing.
    onWakeup: (listener) => deps.wakeups.hear(deps.thread, (what) => !deps.process.isCut && listener(what)),
    notify: (what) => deps.process.alive && !deps.process.isCut && deps.wakeups.send(what),
    close: async () => {},
  });
}

function travel(
  deps: WireDeps,
  random: SeededRandom,
  method: Verb,
  args: readonly unknown[],
  call: Call,
): Promise<unknown> {
  const { process, thread, witness, wakeups, conditions, scheduler } = deps;
  const fate = drawFate(deps, random, method, args);
  return new Promise((resolve, reject) => {
    const refuse = (why: string): void => {
      process.trouble(fate.afterMs + 1);
      later(thread, fate.afterMs + 1, () => reject(new Error(`${method}: ${why}`)));
    };
    // Drawn in a storm and struck in the calm would be a death with no process left to recover it.
    const strikes = (when: typeof fate.killed): boolean => fate.killed === when && !conditions.calm;
    const arrive = (): void => {
      if (fate.lost === "request") {
        witness.requestLost(process, method);
        return refuse("the request was lost");
      }
      if (process.isCut) return refuse("the connection was reset");
      if (scheduler.now < conditions.downUntil) return refuse("the store is down");
      if (strikes("before")) return process.kill("nemesis");
      const call_ = witness.asked(process, method, args);
      const { restarts } = conditions;
      call().then(
        (value) => {
          witness.answered(call_, value, fate.lost === "answer");
          const given = method === "turn" && (value as TurnAnswer).claimed.length > 0;
          if (given && fate.lost === "answer") deps.claimLost();
          if (wakesOthers(method, args, value)) wakeups.wake();
          const inDoubt = fate.lost === null && MATTERS.has(method);
          if (inDoubt) process.undelivered++;
          if (strikes("after")) process.kill("nemesis");
          if (!process.alive) return;
          later(thread, fate.afterMs, () => {
            if (inDoubt) process.undelivered--;
            if (fate.lost === "answer") return reject(new Error(`${method}: the answer was lost`));
            if (restarts === conditions.restarts) return resolve(value);
            witness.answerLost(call_, value);
            process.trouble(0);
            reject(new Error(`${method}: the store was restarted before it answered`));
          });
        },
        (thrown: unknown) => {
          witness.failed(call_, thrown);
          process.trouble(0);
          later(thread, fate.afterMs, () => reject(thrown instanceof Error ? thrown : new Error(String(thrown))));
        },
      );
    };
    if (!process.alive) return;
    if (fate.stalledMs > 0) process.pause(fate.stalledMs);
    later(thread, fate.stalledMs > 0 ? 0.01 : fate.beforeMs, arrive);
  });
}

function later(thread: Thread, ms: number, task: () => void): void {
  if (ms > 0) thread.after(ms, task);
  else if (!thread.dead) task();
}

/** Writes under a fence: what a process that was stopped must not get through. The rarer ones are chosen more often. */
const STALLS: Readonly<Partial<Record<Verb, number>>> = { turn: 0.7, "transactions.commit": 10, write: 14 };
/** Nearly all of a chain's writes come before these, and who stands still at one of those does not come to them. */
const STALLS_AT: Readonly<Partial<Record<AttemptWrite["type"], number>>> = { progress: 30, log: 30, heartbeat: 30 };

function stallsAt(method: Verb, args: readonly unknown[]): number {
  if (method !== "write") return STALLS[method] ?? 0;
  const [first] = args[0] as Parameters<Store["write"]>[0];
  return (first && STALLS_AT[first.write.type]) ?? STALLS.write!;
}

/** The writes of a recovery, before and after each of which its process may be killed. */
const RECOVERS: ReadonlySet<Verb> = new Set(["condemn", "takeBack"]);

/** How long a recovery is on its way while its victim wakes up. */
const AMBUSH_MS = 50;

function drawFate(deps: WireDeps, random: SeededRandom, method: Verb, args: readonly unknown[]): Fate {
  const { profile, conditions, faults, process, thread } = deps;
  const draw = random.next();
  const travelMs = (): number => (random.chance(0.3) ? random.next() * 3 : 0);
  if (conditions.calm) return { beforeMs: travelMs(), afterMs: travelMs(), lost: null, stalledMs: 0, killed: null };
  const strikes = (kind: FaultKind): boolean => {
    const struck = faults.strikes(kind, `${thread.name} ${method}`);
    if (struck) process.trouble(0);
    return struck;
  };
  const slowMs = (): number => {
    const slow = random.chance(profile.slow);
    const ms = random.next() * (slow ? profile.slowMs : 3);
    if (slow && strikes("slow")) {
      process.trouble(ms);
      return ms;
    }
    return random.chance(0.3) ? ms % 3 : 0;
  };
  const ambushed =
    method === "condemn" && (args[0] as CondemnRequest).death.how === "silent"
      ? deps.aboutToRecover((args[0] as CondemnRequest).worker.pid)
      : false;
  const beforeMs = ambushed ? AMBUSH_MS : slowMs();
  const afterMs = slowMs();
  const stalledMs = LEASE_MS * random.between(1.3, 2.5);
  const stalled = random.chance(profile.stall * stallsAt(method, args)) && deps.othersAwake() && strikes("stall");
  const killed = RECOVERS.has(method) && random.chance(profile.killRecovery) && strikes("killRecovery");
  const lost =
    draw < profile.answerLost
      ? strikes("answerLost") && "answer"
      : draw < profile.answerLost + profile.requestLost && strikes("requestLost") && "request";
  return {
    beforeMs,
    afterMs,
    lost: lost || null,
    stalledMs: stalled ? stalledMs : 0,
    killed: killed ? (draw < 0.5 ? "before" : "after") : null,
  };
}
