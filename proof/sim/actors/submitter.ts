// A process that submits batches, aborts and retries them. Killed anywhere, the next one starts each submission again with the same key and the same
// rows. What it knows of a batch it reads from the store each time: no answer of before is relied on.
import type { AnyBatch } from "../../../src/batches/contract.ts";
import type { BatchInfo } from "../../../src/batches/batch-client.ts";
import type { Engine } from "../../../src/engine/engine.ts";
import { hasEnded } from "../../../src/job/batches.ts";
import { whyStoreReplaced } from "../../../src/job/errors.ts";
import { pause } from "../../../src/job/time.ts";
import type { Plan } from "../workloads/batches.ts";
import type { SimProcess } from "../world/process.ts";
import type { SeededRandom } from "../world/random.ts";

/** What is left to do. It outlives the processes that do it. */
export class PlanBook {
  readonly plans: readonly Plan[];
  #left: Set<Plan>;
  readonly #aborted = new Set<Plan>();
  #losses = 0;

  constructor(plans: readonly Plan[]) {
    this.plans = plans;
    this.#left = new Set(plans);
  }

  get left(): readonly Plan[] {
    return [...this.#left];
  }

  /** How often the store went back: what was heard before counts no more. */
  get losses(): number {
    return this.#losses;
  }

  done(plan: Plan, losses: number): void {
    if (losses === this.#losses) this.#left.delete(plan);
  }

  aborted(plan: Plan): void {
    this.#aborted.add(plan);
  }

  isAborted(plan: Plan): boolean {
    return this.#aborted.has(plan);
  }

  wentBack(): void {
    this.#losses++;
    this.#left = new Set(this.plans);
    this.#aborted.clear();
  }
}

export async function submitAll(
  process: SimProcess,
  engine: Engine,
  batches: ReadonlyMap<string, AnyBatch>,
  book: PlanBook,
): Promise<void> {
  const random = process.random.fork("submitter");
  const { clock } = process.main;
  await Promise.all(
    book.plans.map(async (plan, i) => {
      const own = random.fork(`plan ${i}`);
      await pause(clock, own.next() * 1_500);
      for (;;) {
        const { losses } = book;
        try {
          if (await pursue(engine, batches.get(plan.kind)!, plan, book, own, clock)) book.done(plan, losses);
        } catch (thrown) {
          if (whyStoreReplaced(thrown) !== null) throw thrown;
          // Refused, or lost on the way: it starts again from what is in the store.
        }
        await pause(clock, own.between(20, 400));
        while (!book.left.includes(plan)) {
          if (book.left.length === 0) return;
          await pause(clock, 500);
        }
      }
    }),
  );
}

/** One way through the plan. Returns whether nothing is left to do. */
async function pursue(
  engine: Engine,
  contract: AnyBatch,
  plan: Plan,
  book: PlanBook,
  random: SeededRandom,
  clock: SimProcess["main"]["clock"],
): Promise<boolean> {
  const { key, hold, rows, way, retries, abortAfterMs, abortRetryAfterMs } = plan;
  const options = { key, hold } as const;
  let id: string;
  if (way === "submit") ({ id } = await engine.submit(contract, rows as never, options));
  else {
    const open = await engine.openBatch(contract, options);
    id = open.id;
    const { state, round, rows: there } = await mustGet(engine, id);
    if (state === "open" && round === 1) {
      const piece = rows.slice(there.total, there.total + 1 + random.below(12));
      if (piece.length > 0) await open.append(piece as never);
      if (abortAfterMs === null && there.total + piece.length < rows.length) return false;
      if (there.total + piece.length === rows.length) await open.seal();
    }
  }
  if (abortAfterMs !== null && !book.isAborted(plan)) {
    await pause(clock, abortAfterMs);
    await engine.abortBatch(id);
    book.aborted(plan);
  }
  const { state, round, rows: sums } = await mustGet(engine, id);
  if (!hasEnded(state)) return false;
  if (round > retries || sums.failed + sums.quarantined === 0) return true;
  await engine.retryBatch(id);
  if (abortRetryAfterMs !== null && round === 1) {
    await pause(clock, abortRetryAfterMs);
    await engine.abortBatch(id);
  }
  return false;
}

async function mustGet(engine: Engine, id: string): Promise<BatchInfo> {
  const info = await engine.batch(id);
  if (info === null) throw new Error(`batch ${id} is gone`);
  return info;
}
