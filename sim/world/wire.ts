// Between the engine and its store: every call of the port travels, takes time, and may get lost before it was applied or after.
// The store behind it is the real one. A dead process's calls are neither carried out nor answered.
import type { Store } from "../../src/core/store.ts";
import type { SeededRandom } from "./random.ts";
import type { SimProcess } from "./process.ts";
import type { Thread } from "./thread.ts";
import type { Temper } from "./temper.ts";
import type { Witness } from "../oracle/witness.ts";

/** What becomes of one call. */
interface Fate {
  readonly beforeMs: number;
  readonly afterMs: number;
  readonly lost: "request" | "answer" | null;
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
}

export type Method = Exclude<keyof Store, "name" | "onBell" | "close">;

/** Answered from memory of the port itself; they do not travel. */
const STAYS: ReadonlySet<string | symbol> = new Set(["name", "onBell", "close"]);

export function wire(store: Store, deps: WireDeps): Store {
  const random = deps.process.random.fork(`wire ${deps.thread.name}`);
  return new Proxy(store, {
    get(target, name) {
      const member: unknown = Reflect.get(target, name, target);
      if (typeof member !== "function") return member;
      if (STAYS.has(name)) return member.bind(target);
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
  const { process, thread, witness } = deps;
  const fate = drawFate(deps, random);
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
          if (!process.alive) return;
          if (fate.afterMs > 0) process.undelivered++;
          later(thread, fate.afterMs, () => {
            if (fate.afterMs > 0) process.undelivered--;
            if (fate.lost === "answer") return reject(new Error(`${method}: the answer was lost`));
            witness.delivered(call_, value);
            resolve(value);
          });
        },
        (thrown: unknown) => {
          witness.failed(call_, thrown);
          later(thread, fate.afterMs, () => reject(thrown as Error));
        },
      );
    };
    if (process.alive) later(thread, fate.beforeMs, arrive);
  });
}

function later(thread: Thread, ms: number, task: () => void): void {
  if (ms > 0) thread.after(ms, task);
  else if (!thread.dead) task();
}

function drawFate({ temper, weather }: WireDeps, random: SeededRandom): Fate {
  const draw = random.next();
  const travelMs = (): number => (random.chance(0.3) ? random.next() * 3 : 0);
  if (weather.calm) return { beforeMs: travelMs(), afterMs: travelMs(), lost: null };
  const slowMs = (): number => (random.chance(temper.slow) ? random.next() * temper.slowMs : travelMs());
  const lost =
    draw < temper.answerLost ? "answer" : draw < temper.answerLost + temper.requestLost ? "request" : null;
  return { beforeMs: slowMs(), afterMs: slowMs(), lost };
}
