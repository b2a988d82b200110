// What a workload is: kinds of jobs with their facts, how its jobs are drawn, and its handlers. A new feature brings a file with
// one of these and one line in index.ts.
import { type Fair, job, type LimitOptions } from "../../../src/engine/options.ts";
import { type AnyContract, JobContract, type TypedRun } from "../../../src/job/contract.ts";
import type { AnyBatch } from "../../../src/batches/contract.ts";
import type { EnqueueOptions } from "../../../src/job/enqueue.ts";
import { TerminalError } from "../../../src/job/errors.ts";
import { type Clock, pause } from "../../../src/job/time.ts";
import type { AnyRequest } from "../../../src/requests/contract.ts";
import type { Wire } from "../../../src/requests/wire.ts";
import type { Database } from "../../../src/stores/sqlite/database.ts";
import type { SimProcess } from "../world/process.ts";
import type { SeededRandom } from "../world/random.ts";
import type { RowTold } from "./batches.ts";

/** What the oracle knows of a kind, from here and not from the store. */
export interface KindFacts {
  readonly limits: { readonly errors: number; readonly timeouts: number; readonly crashes: number };
  readonly graceMs: number;
  readonly timeoutMs: number;
  /** It kills its process whenever it runs. */
  readonly poison: boolean;
  /** What its jobs count against. Omitted: nothing. */
  readonly limited?: readonly LimitOptions[];
  /** Whose jobs take turns. Omitted: none. */
  readonly fair?: Fair;
  /** Its jobs belong to batches: `Workload.batches` makes what runs them. */
  readonly rows?: true;
}

export const ORDINARY: KindFacts = {
  limits: { errors: 10, timeouts: 10, crashes: 3 },
  graceMs: 500,
  timeoutMs: 20_000,
  poison: false,
};

/** One job as a workload wants it; id, priority and delay are drawn for it if it does not say them. */
export interface Wish {
  readonly kind: string;
  readonly input: unknown;
  readonly dedupeKey?: string;
  /** Instead of a dedupe key alone. */
  readonly dedupe?: Pick<EnqueueOptions, "dedupe" | "debounce" | "throttle">;
}

export interface Workload {
  readonly name: string;
  /** In which share of the seeds it is there. */
  readonly share: number;
  /** How many of the jobs are its own, next to the other workloads of the seed. */
  readonly weight: number;
  /** At most this many jobs of it in one history. */
  readonly most?: number;
  readonly kinds: Readonly<Record<string, KindFacts>>;
  wish(random: SeededRandom): Wish;
  /** By kind, for one process: they live and die with it. */
  handlers(tools: Tools): Readonly<Record<string, HandlerOf>>;
  /** Its kinds of batches, for one process. */
  batches?(tools: Tools): readonly AnyBatch[];
  /** The last look at the user's own rows: throws a Violation. */
  audit?(db: Database): void;
}

export type HandlerOf = (input: never, run: TypedRun) => Promise<unknown>;

export interface Tools {
  readonly process: SimProcess;
  readonly random: SeededRandom;
  readonly clock: Clock;
  /** Takes up to this many ms. */
  readonly work: (mostMs: number) => Promise<void>;
  /** Tells the oracle what `run.step` gave to a handler. */
  readonly stepCame: StepCame;
  /** Tells the oracle, from inside a `commit`, that the attempt succeeds by it. */
  readonly commits: (run: TypedRun) => void;
  readonly contract: (kind: string) => JobContract<unknown, unknown>;
  /** Tells the oracle what rows of batches do. */
  readonly rows: RowTold;
}

/** A handler began, how it ended, or that its `commit` is being written: it may succeed by that, and end later. */
export type Word = "began" | "returned" | "committed" | "threw" | "gave up";
/** An attempt, as its handler knows it. */
export type RunOf = Pick<TypedRun, "id" | "fence">;
export type HandlerTold = (run: RunOf, word: Word) => void;

export type StepCame = (run: RunOf, step: string, result: string) => void;

const NO_ROWS: RowTold = { began: () => {}, ended: () => {}, given: () => {} };

/** What one process knows: kinds of jobs, and kinds of batches. */
export interface Contracts {
  readonly jobs: ReadonlyMap<string, AnyContract>;
  readonly batches: ReadonlyMap<string, AnyBatch>;
  /** Kinds of requests, and what stands in place of the network. Omitted: none. */
  readonly requests?: { readonly kinds: ReadonlyMap<string, AnyRequest>; readonly wire: Wire };
}

/** The contracts of one process for these workloads. */
export function contractsFor(
  workloads: readonly Workload[],
  process: SimProcess,
  stepCame: StepCame,
  handlerTold: HandlerTold,
  rows: RowTold = NO_ROWS,
): Contracts {
  const batches = new Map<string, AnyBatch>();
  const contracts = new Map<string, AnyContract>();
  const random = process.random.fork("handlers");
  const { clock } = process.main;
  const tools: Tools = {
    process,
    random,
    clock,
    stepCame,
    rows,
    commits: (run) => handlerTold(run, "committed"),
    work: (mostMs) => pause(clock, random.between(1, mostMs)),
    contract: (kind) => contracts.get(kind) as unknown as JobContract<unknown, unknown>,
  };
  for (const workload of workloads) {
    const own = workload.handlers(tools);
    for (const batch of workload.batches?.(tools) ?? []) {
      batches.set(batch.name, batch);
      for (const contract of Object.values(batch.kinds)) contracts.set(contract.name, contract);
    }
    for (const [kind, facts] of Object.entries(workload.kinds)) {
      if (facts.rows) continue;
      const { settings, keysOf, fairOf } = checkedContract(kind, facts);
      const contract = new JobContract<never, never>(settings, null, null, null, keysOf, fairOf);
      contracts.set(kind, contract.handle(telling(own[kind]!, handlerTold)));
    }
  }
  return { jobs: contracts, batches };
}

/** The handler, and the oracle hears that it begins, and how it ended before the engine does. */
function telling(handler: HandlerOf, told: HandlerTold): HandlerOf {
  return async (input, run) => {
    told(run, "began");
    try {
      const result = await handler(input, run);
      told(run, "returned");
      return result;
    } catch (thrown) {
      told(run, thrown instanceof TerminalError ? "gave up" : "threw");
      throw thrown;
    }
  };
}

const checked = new Map<string, AnyContract>();

/** Through the same door as a user's options, once for each kind. */
export function checkedContract(kind: string, { limits, graceMs, timeoutMs, limited, fair }: KindFacts): AnyContract {
  const { errors: attempts, timeouts, crashes } = limits;
  let contract = checked.get(kind);
  if (!contract) {
    const retry = { attempts, timeouts, crashes, backoff: { base: "50ms", max: "2s" } } as const;
    const options = { timeout: `${timeoutMs}ms`, grace: `${graceMs}ms`, retry } as const;
    const keyed = { ...(limited && { limits: limited }), ...(fair !== undefined && { fair }) };
    contract = limited || fair !== undefined ? job<never>(kind, { ...options, ...keyed }) : job(kind, options);
    checked.set(kind, contract);
  }
  return contract;
}
