// Batches as conformance tests drive them: drafts with every field set, rows that say their line, and the few operations that every test is made of.
import assert from "node:assert/strict";
import {
  type BatchDraft,
  type BatchRow,
  blockId,
  type BlockDraft,
  decideBatch,
  doneDraft,
  doneKind,
  encodeBlock,
  type FailedRow,
  type RowSums,
} from "../../job/batches.ts";
import { FAIR, jobKey } from "../../job/limits.ts";
import type { Batches } from "../../stores/port.ts";
import { draft, type Fixture, type TestWorker, idsOf, kind, roomFor, SETTLE, type Specify } from "./fixture.ts";

export const ZERO: RowSums = { succeeded: 0, failed: 0, quarantined: 0, aborted: 0 };

/** Batches of one store, as tests ask for them. */
export class BatchFixture {
  readonly fixture: Fixture;
  readonly batches: Batches;

  constructor(fixture: Fixture, batches: Batches) {
    this.fixture = fixture;
    this.batches = batches;
  }

  /** An open batch of the kind `mail`. */
  async open(id: string, more: Partial<BatchDraft> = {}): Promise<BatchRow> {
    return (await this.batches.open(batchDraft(id, more))).batch;
  }

  /** A sealed batch with blocks of this many rows, numbered from 0. */
  async submit(id: string, sizes: readonly number[], more: Partial<BatchDraft> = {}): Promise<void> {
    await this.open(id, more);
    await this.batches.append(id, 1, blocksOf(id, sizes, more));
    assert.equal(await this.batches.seal(id, 1), "sealed");
  }

  async get(id: string): Promise<BatchRow> {
    const [batch] = await this.batches.get([id]);
    assert.ok(batch, `batch ${id} is in the store`);
    return batch;
  }

  /** The sums are the same before and after they were added up, and are those of the rows. */
  async sums(id: string): Promise<RowSums> {
    const { sums } = await this.get(id);
    await this.foldAll();
    assert.deepEqual((await this.get(id)).sums, sums);
    await this.assertConsistent();
    return sums;
  }

  async assertConsistent(): Promise<void> {
    const found = (await this.fixture.store.upkeep.inconsistencies?.()) ?? [];
    assert.deepEqual(
      found.filter(({ what }) => what === "batch-disagrees" || what === "block-without-job"),
      [],
    );
  }

  /** All that is to be decided, as often as anything new comes up. */
  async foldAll(limit = 100): Promise<ReadonlySet<string>> {
    const ids = new Set<string>();
    for (;;) {
      const before = ids.size;
      for (const id of await this.batches.fold(limit)) ids.add(id);
      if (ids.size === before) return ids;
    }
  }

  /** As a worker or the maintenance does it: adds up, decides and ends. Returns the batches that this call ended. */
  async settle(by: Batches = this.batches): Promise<readonly string[]> {
    const ended: string[] = [];
    for (const batch of await by.get(await by.fold(100))) {
      const to = decideBatch(batch);
      if (to === null) continue;
      if (to === "abort") await by.abort(batch.id);
      else {
        const end = { batch: batch.id, round: batch.round, from: batch.state, to, follow: [doneDraft(batch)] };
        if (await by.finish(end)) ended.push(batch.id);
      }
    }
    return ended;
  }

  async tendAll(limit = 100): Promise<void> {
    while (await this.batches.tend(limit));
  }

  /** Claims everything and lets it succeed. */
  async runAll(worker: TestWorker, kinds: readonly string[] = ["mail"]): Promise<readonly string[]> {
    const ids: string[] = [];
    for (;;) {
      const claimed = await worker.claim(roomFor(10, kinds));
      if (claimed.length === 0) return ids;
      ids.push(...idsOf(claimed));
      await worker.settle(...claimed.map((job) => SETTLE.succeed(job)));
    }
  }
}

export function batchDraft(id: string, more: Partial<BatchDraft> = {}): BatchDraft {
  const of = { kind: "mail", key: null, context: '{"tenant":"acme"}', priority: 0, blockRows: 5 };
  return { id, ...of, tolerance: null, held: false, ...more };
}

/** Blocks of rows whose lines go on from one block to the next, from line 1. */
export function blocksOf(
  batch: string,
  sizes: readonly number[],
  more: { readonly kind?: string; readonly round?: number; readonly from?: number } = {},
): BlockDraft[] {
  const { kind: of = "mail", round = 1, from = 0 } = more;
  let line = 1;
  return sizes.map((rows, at) => {
    const number = from + at;
    const lines = Array.from({ length: rows }, () => ({ line, input: JSON.stringify({ n: line++ }) }));
    const input = encodeBlock(batch, round, number, lines);
    return { number, job: draft({ id: blockId(batch, round, number), kind: of, input }), rows, rejected: [] };
  });
}

/** The same as `batch()` makes them: batches take turns. */
export function fairBlocks(...[batch, sizes, more]: Parameters<typeof blocksOf>): BlockDraft[] {
  const key = jobKey(FAIR, batch);
  return blocksOf(batch, sizes, more).map((block) => ({
    ...block,
    job: block.job && { ...block.job, keys: [key], fair: key.id },
  }));
}

export function failedRow(row: number, line: number, more: Partial<FailedRow> = {}): FailedRow {
  const error = { name: "Error", message: `line ${line} is wrong` };
  return { row, line, input: JSON.stringify({ n: line }), error, as: "failed", ...more };
}

/** A test of a store that has batches; where it has none, it is skipped. */
export function batchSpecifier(specify: Specify): (title: string, body: (on: BatchFixture) => Promise<void>) => void {
  return (title, body) =>
    specify(title, async (fixture) => {
      const { batches } = fixture.store;
      if (batches === undefined) return fixture.t.skip("this store has no batches");
      await fixture.declare(kind(doneKind("mail")));
      await body(new BatchFixture(fixture, batches));
    });
}
