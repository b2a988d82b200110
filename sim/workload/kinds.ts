// The kinds of jobs of the simulated program and their handlers: money that moves, steps, failures, overdue work, children, and
// one that kills its process. Each process has contracts of its own, as each real one would.
import { job } from "../../src/contract.ts";
import { pause } from "../../src/core/clock.ts";
import type { AnyContract, JobContract } from "../../src/core/contract.ts";
import { TerminalError } from "../../src/core/errors.ts";
import { sqlite } from "../../src/stores/sqlite/transaction.ts";
import type { SimProcess } from "../world/process.ts";

export const TRANSFER = "transfer";
export const KIND_NAMES = [
  TRANSFER,
  "chain",
  "flaky",
  "tardy",
  "parent",
  "child",
  "poison",
  "blocker",
  "long",
] as const;
export type KindName = (typeof KIND_NAMES)[number];

/** What the oracle knows of a kind, from here and not from the store. */
export interface KindFacts {
  readonly limits: { readonly errors: number; readonly timeouts: number; readonly crashes: number };
  readonly graceMs: number;
  readonly timeoutMs: number;
  readonly poison: boolean;
}

const ORDINARY: KindFacts = {
  limits: { errors: 10, timeouts: 10, crashes: 3 },
  graceMs: 500,
  timeoutMs: 20_000,
  poison: false,
};
const FACTS: Readonly<Record<KindName, KindFacts>> = {
  transfer: ORDINARY,
  chain: ORDINARY,
  flaky: { ...ORDINARY, limits: { errors: 3, timeouts: 10, crashes: 3 } },
  tardy: { ...ORDINARY, timeoutMs: 800, limits: { errors: 10, timeouts: 2, crashes: 3 } },
  parent: ORDINARY,
  child: ORDINARY,
  poison: { ...ORDINARY, limits: { errors: 10, timeouts: 10, crashes: 2 }, poison: true },
  blocker: { ...ORDINARY, timeoutMs: 3_000 },
  long: { ...ORDINARY, timeoutMs: 60_000 },
};

export function kindFacts(kind: string): KindFacts {
  const facts = (FACTS as Readonly<Record<string, KindFacts>>)[kind];
  if (!facts) throw new Error(`no facts about the kind ${kind}`);
  return facts;
}

export interface Transfer {
  readonly source: number;
  readonly target: number;
  readonly amount: number;
}

/** Hears what `run.step` gave to a handler. */
export type StepCame = (job: string, step: string, result: string) => void;

/** The contracts of one process, with handlers that live and die with it. */
export function contractsFor(process: SimProcess, stepCame: StepCame): ReadonlyMap<string, AnyContract> {
  const random = process.random.fork("handlers");
  const { clock } = process.main;
  const work = (most: number): Promise<void> => pause(clock, random.between(1, most));
  const make = <In>(name: KindName): JobContract<In, In> => {
    const { limits, graceMs, timeoutMs } = FACTS[name];
    const backoff = { base: "50ms", max: "2s" } as const;
    const contract: unknown = job<null>(name, {
      timeout: `${timeoutMs}ms`,
      grace: `${graceMs}ms`,
      retry: { ...limits, backoff },
    });
    return contract as JobContract<In, In>;
  };

  const transfer = make<Transfer>(TRANSFER).handle(async ({ source, target, amount }, run) => {
    await work(random.chance(0.2) ? 4_000 : 400);
    await run.commit(sqlite, (tx) => {
      tx.run("UPDATE accounts SET balance = balance - ? WHERE id = ?", amount, source);
      tx.run("UPDATE accounts SET balance = balance + ? WHERE id = ?", amount, target);
      tx.run("INSERT INTO ledger VALUES (?, ?, ?, ?, ?)", run.id, run.attempt, source, target, amount);
    });
  });

  const chain = make<number>("chain").handle(async (length, run) => {
    const results: string[] = [];
    for (let i = 0; i < length; i++) {
      const kept = await run.step(`s${i}`, async () => {
        await work(300);
        return random.hex(4);
      });
      stepCame(run.id, `s${i}`, kept);
      results.push(kept);
      if (random.chance(0.2)) await run.heartbeat();
      if (random.chance(0.2)) await run.progress(i);
      if (random.chance(0.1)) await run.log(`did ${i}`);
      if (random.chance(0.1)) throw new Error("between two steps");
    }
    return results.join(" ");
  });

  const flaky = make<null>("flaky").handle(async () => {
    await work(200);
    if (random.chance(0.1)) throw new TerminalError("never");
    if (random.chance(0.5)) throw new Error("not this time");
  });

  // Longer than it may, deaf to its signal, and it still writes when it comes back.
  const tardy = make<null>("tardy").handle(async (_, run) => {
    await pause(clock, random.between(100, 2_500));
    await run.progress("late");
  });

  const child = make<null>("child").handle(() => work(100));

  const parent = make<number>("parent").handle(async (children, run) => {
    for (let i = 0; i < children; i++) {
      await work(100);
      await run.enqueue(child, null);
    }
  });

  const poison = make<null>("poison").handle(async () => {
    await work(300);
    process.kill("poison");
    await new Promise(() => {});
  });

  const blocker = make<number>("blocker").handle(async (ms) => {
    process.block(ms);
    await pause(clock, 1);
  });

  // Ends early only if it is told to.
  const long = make<null>("long").handle(async (_, run) => {
    await pause(clock, 24_000, run.signal);
    run.signal.throwIfAborted();
  });

  const all = [transfer, chain, flaky, tardy, parent, child, poison, blocker, long];
  return new Map(all.map((contract) => [contract.name, contract as unknown as AnyContract]));
}
