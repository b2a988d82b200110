// Batches of 0 to 40 rows in blocks of 1, 3 and 8: rows that work, that fail now and then or for good, that don't fit their schema, that commit, and
// that kill their worker. The submitter (actors/submitter.ts) brings them in, seals, aborts and retries; here are the rows and what runs them.
import { createHash } from "node:crypto";
import type { StandardSchemaV1 } from "@standard-schema/spec";
import { batch } from "../../../src/engine/batch.ts";
import type { AnyBatch, BatchEnded, Row, RowRun } from "../../../src/batches/contract.ts";
import type { BlobStore } from "../../../src/blobs/blob-store.ts";
import { doneKind, roundKind } from "../../../src/job/batches.ts";
import { TerminalError } from "../../../src/job/errors.ts";
import type { Run } from "../../../src/worker/run.ts";
import { sqlite } from "../../../src/stores/sqlite/transaction.ts";
import type { SeededRandom } from "../world/random.ts";
import { type KindFacts, ORDINARY, type Tools, type Workload } from "./workload.ts";

export const BATCHES = "batches";

export interface RowInput {
  readonly way: "works" | "commits" | "fails" | "gives up" | "kills" | "misfit";
  readonly number: number;
}

/** What one submitter wants with one batch. */
export interface Plan {
  /** Also the key of the batch. */
  readonly key: string;
  readonly kind: string;
  readonly rows: readonly RowInput[];
  /** append: opened, appended to piece by piece and sealed. */
  readonly way: "submit" | "append";
  readonly hold: boolean;
  /** When it is aborted, after it was there (virtual ms); null: it is not. */
  readonly abortAfterMs: number | null;
  /** How many rounds more it has if rows failed. */
  readonly retries: number;
  /** When its second round is aborted, after it was asked for (virtual ms): mostly before it has all of its rows. Null: it is not. */
  readonly abortRetryAfterMs: number | null;
}

/** What the handlers of rows tell the oracle. */
export interface RowTold {
  began(run: RowIn, line: number): void;
  ended(run: RowIn, line: number, how: "succeeded" | "failed"): void;
  /** A `done` got these files. */
  given(run: Pick<Run, "fence">, outputs: Outputs): void;
}

export type Outputs = BatchEnded["outputs"];

export type RowIn = Pick<RowRun, "id" | "fence" | "round" | "batch">;

/** The output files, and what the row of a line writes to each. */
export const FILES: Readonly<Record<string, (line: number, row: RowInput) => string | null>> = {
  "all.txt": (line, { number }) => `${line} ${number}\n`,
  "odd.txt": (line, { number }) => (number % 2 === 1 ? `${line}\n` : null),
};

const SIZES = [1, 3, 8] as const;
const FACTS: KindFacts = { ...ORDINARY, limits: { errors: 4, timeouts: 4, crashes: 2 }, rows: true };

function nameOf(size: number): string {
  return `batch-${size}`;
}

const FITS: StandardSchemaV1<RowInput, RowInput> = {
  "~standard": {
    version: 1,
    vendor: "sim",
    validate: (value) =>
      (value as RowInput).way === "misfit" ? { issues: [{ message: "a misfit" }] } : { value: value as RowInput },
  },
};

function contractOf(size: number): AnyBatch {
  const { limits, graceMs, timeoutMs } = FACTS;
  const { errors: attempts, timeouts, crashes } = limits;
  return batch(nameOf(size), {
    row: FITS as never,
    block: size,
    timeout: `${timeoutMs}ms`,
    grace: `${graceMs}ms`,
    retry: { attempts, timeouts, crashes, backoff: { base: "50ms", max: "2s" } },
    ...(size === 3 && { atOnce: 2 }),
    ...(size === 1 && { mark: "row" }),
  }) as unknown as AnyBatch;
}

function factsOf({ kinds }: AnyBatch, kind: "done" | "round"): KindFacts {
  const { limits, graceMs, timeoutMs } = kinds[kind].settings;
  return { limits, graceMs, timeoutMs: timeoutMs ?? Infinity, poison: false, rows: true };
}

export const batches: Workload = {
  name: BATCHES,
  share: 0.2,
  // Its jobs are blocks, which no producer enqueues.
  weight: 0,
  kinds: Object.fromEntries(
    SIZES.flatMap((size) => {
      const contract = contractOf(size);
      return [
        [nameOf(size), FACTS],
        [doneKind(nameOf(size)), factsOf(contract, "done")],
        [roundKind(nameOf(size)), factsOf(contract, "round")],
      ];
    }),
  ),

  wish: () => {
    throw new Error("no job is drawn for batches");
  },
  handlers: () => ({}),

  batches: (tools) =>
    SIZES.map((size) => {
      const contract = contractOf(size);
      contract.handle((row: Row<RowInput>, run) => runRow(tools, row, run));
      contract.done(({ outputs }, run) => {
        tools.rows.given(run, outputs);
        return tools.work(50);
      });
      return contract;
    }),
};

async function runRow({ work, random, process, rows }: Tools, row: Row<RowInput>, run: RowRun): Promise<void> {
  const { input, line } = row;
  rows.began(run, line);
  for (const [file, textOf] of Object.entries(FILES)) {
    const text = textOf(line, input);
    if (text !== null) run.write(file, text);
  }
  await work(random.chance(0.1) ? 500 : 60);
  switch (input.way) {
    case "kills":
      process.kill("poison");
      return new Promise(() => {});
    case "fails":
      if (random.chance(0.4)) break;
      // By the last attempt of its block.
      rows.ended(run, line, "failed");
      throw new Error("not this time");
    case "gives up":
      rows.ended(run, line, "failed");
      throw new TerminalError("never");
    case "commits":
      // It may be applied although its answer never arrives.
      rows.ended(run, line, "succeeded");
      await row.commit(sqlite, (tx) =>
        tx.run("INSERT INTO committed_rows VALUES (?, ?, ?)", run.batch, run.round, line),
      );
      return;
    default:
  }
  rows.ended(run, line, "succeeded");
}

export function drawPlans(random: SeededRandom): readonly Plan[] {
  return Array.from({ length: 2 + random.below(3) }, (_, i) => drawPlan(random.fork(`plan ${i}`), i));
}

function drawPlan(random: SeededRandom, i: number): Plan {
  const count = random.pick([0, 1, 8, 8, 20, 40]);
  const killsAt = random.chance(0.3) ? random.below(Math.max(1, count)) : null;
  const rows = Array.from({ length: count }, (_, at): RowInput => {
    const way = random.weighted({ works: 14, commits: 3, fails: 3, "gives up": 1, misfit: 1 });
    return { way: at === killsAt ? "kills" : way, number: random.below(1_000_000) };
  });
  return {
    key: `plan-${i}`,
    kind: nameOf(random.pick(SIZES)),
    rows,
    way: random.pick(["submit", "submit", "append"]),
    hold: random.chance(0.25),
    abortAfterMs: random.chance(0.2) ? random.between(1, 4_000) : null,
    retries: random.pick([0, 0, 1, 2]),
    abortRetryAfterMs: random.chance(0.3) ? random.between(0, 400) : null,
  };
}

/** Blobs of all processes: they outlive them, and a restore of the store does not touch them. */
export class SimBlobs {
  readonly contents = new Map<string, string>();

  /** As one process has them: what batches use, and what a mutant does. */
  for(isAlive: () => boolean): BlobStore {
    const put: BlobStore["put"] = async (key, data) => {
      const parts: Uint8Array[] = [];
      for await (const part of data as AsyncIterable<Uint8Array>) parts.push(part);
      const bytes = Buffer.concat(parts);
      if (isAlive()) this.contents.set(key, bytes.toString("utf8"));
      return { size: bytes.length, sha256: createHash("sha256").update(bytes).digest("hex") };
    };
    const remove: BlobStore["delete"] = async (keys) => {
      if (isAlive()) for (const key of keys) this.contents.delete(key);
    };
    return { place: "the simulator", put, delete: remove } as BlobStore;
  }
}
