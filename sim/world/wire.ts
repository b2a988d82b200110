// Between the engine and its store: every call of the port travels, takes time, and may get lost before it was applied or after.
// The store behind it is the real one. A dead process's calls are neither carried out nor answered.
import type { Settlement, Store } from "../../src/core/store.ts";
import type { BellTower } from "./bell-tower.ts";
import type { SeededRandom } from "./random.ts";
import type { SimProcess } from "./process.ts";
import type { Thread } from "./thread.ts";
import { LEASE_MS, type Temper } from "./temper.ts";
import type { Witness } from "../oracle/witness.ts";

/** What becomes of one call. */
interface Fate {
  readonly beforeMs: number;
  readonly afterMs: number;
  readonly lost: "request" | "answer" | null;
  /** How long the process is stopped with the call in its hand; 0: it is not. */
  readonly stalledMs: number;
}

/** Faults can be ended, for all wires at once. */
export interface Weather {
  calm: boolean;
}

export interface WireDeps {
  readonly process: SimProcess;
  readonly thread: Thread;
  readonly temper: Temper;
  readonly weather: Weather;
  readonly witness: Witness;
  readonly tower: BellTower;
}

export type Method = Exclude<keyof Store, "name" | "onBell" | "close">;

/** What can make work ready for others; a turn does if something went back into the queue. */
const RINGS: ReadonlySet<Method> = new Set(["enqueue", "record", "recover", "cancel", "retry"]);

function rings(method: Method, args: readonly unknown[]): boolean {
  if (method !== "settleAndClaim") return RINGS.has(method);
  return (args[1] as readonly Settlement[]).some(({ change }) => change.to === "queued");
}

export function wire(store: Store, deps: WireDeps): Store {
  const random = deps.process.random.fork(`wire ${deps.thread.name}`);
  return new Proxy(store, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name, target);
      if (typeof member !== "function") return member;
      if (name === "onBell") return (listener: () => void) => deps.tower.hear(deps.thread, listener);
      if (name === "close") return async () => {};
      const call = member.bind(target) as (...args: unknown[]) => Promise<unknown>;
      return (...args: unknown[]) => travel(deps, random, name as Method, args, () => call(...args));
    },
  });
}

function travel(
  deps: WireDeps,
  random: SeededRandom,
  method: Method,
  args: readonly unknown[],
  call: () => Promise<unknown>,
): Promise<unknown> {
  const { process, thread, witness, tower } = deps;
  const fate = drawFate(deps, random, method);
  return new Promise((resolve, reject) => {
    const arrive = (): void => {
      if (fate.lost === "request") {
        witness.requestLost(process, method);
        return later(thread, fate.afterMs + 1, () => reject(new Error(`${method}: the request was lost`)));
      }
      const call_ = witness.asked(process, method, args);
      call().then(
        (value) => {
          witness.answered(call_, value, fate.lost === "answer");
          if (rings(method, args)) tower.ring();
          if (!process.alive) return;
          if (fate.afterMs > 0) process.undelivered++;
          later(thread, fate.afterMs, () => {
            if (fate.afterMs > 0) process.undelivered--;
            if (fate.lost === "answer") return reject(new Error(`${method}: the answer was lost`));
            resolve(value);
          });
        },
        (thrown: unknown) => {
          witness.failed(call_, thrown);
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
const STALLS: Readonly<Partial<Record<Method, number>>> = { settleAndClaim: 1, commit: 8, record: 4 };

function drawFate({ temper, weather }: WireDeps, random: SeededRandom, method: Method): Fate {
  const draw = random.next();
  const travelMs = (): number => (random.chance(0.3) ? random.next() * 3 : 0);
  if (weather.calm) return { beforeMs: travelMs(), afterMs: travelMs(), lost: null, stalledMs: 0 };
  const slowMs = (): number => (random.chance(temper.slow) ? random.next() * temper.slowMs : travelMs());
  const lost = draw < temper.answerLost ? "answer" : draw < temper.answerLost + temper.requestLost ? "request" : null;
  const stalled = random.chance(temper.stalled * (STALLS[method] ?? 0));
  const stalledMs = stalled ? LEASE_MS * random.between(1.1, 2) : 0;
  return { beforeMs: slowMs(), afterMs: slowMs(), lost, stalledMs };
}
