// C22: what many callers write at once is one statement, bounded by count alone. 560 enqueues of 1 MiB made a text longer than V8
// allows: 559 of them failed with a bare RangeError, and a worker with as many results of 1 MiB could never settle them. The server
// is left out here: the texts are what matters, and half a gigabyte takes it a while.
import assert from "node:assert/strict";
import { test } from "node:test";
import { NO_COUNTERS } from "../../src/job/job.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { succeed } from "../../src/job/transitions.ts";
import type { Settlement } from "../../src/stores/port.ts";
import { Enqueuing, Kinds } from "../../src/stores/postgres/enqueue.ts";
import { Turns } from "../../src/stores/postgres/turn.ts";

const MIB = 1 << 20;
const COUNT = 560;
const large = JSON.stringify("x".repeat(MIB - 2));

/** Notes how long the longest value of each statement is. */
class Statements {
  readonly lengths: number[] = [];

  note(values: readonly unknown[] = []): void {
    this.lengths.push(Math.max(0, ...values.map((value) => (typeof value === "string" ? value.length : 0))));
  }

  assertBounded(): void {
    assert.ok(Math.max(...this.lengths) <= 32 * MIB, `the longest value has ${Math.max(...this.lengths)} characters`);
    assert.ok(this.lengths.length <= COUNT / 4, `${this.lengths.length} statements instead of groups`);
  }
}

test("C22: 560 enqueues of 1 MiB at once all succeed, in statements of bounded size", async () => {
  const statements = new Statements();
  const kinds = new Kinds();
  const session = {
    rows: async (sql: string, values?: readonly unknown[]) => {
      if (!sql.includes("outlive.add_jobs")) return [{ id: 1, name: "large" }];
      statements.note(values);
      return [{ added: null }];
    },
  };
  await kinds.learn(session as never, ["large"]);
  const enqueuing = new Enqueuing(session as never, kinds, { soon: setImmediate });
  const draft = { kind: "large", input: large, priority: 0, runAt: null, delayMs: 0, dedupeKey: null };
  const all = await Promise.allSettled(
    Array.from({ length: COUNT }, (_, n) => enqueuing.enqueue([{ ...draft, id: `job-${n}` }])),
  );
  const failed = all.flatMap((one) => (one.status === "rejected" ? [String(one.reason)] : []));
  assert.deepEqual({ failed: failed.length, first: failed[0] }, { failed: 0, first: undefined });
  assert.deepEqual(
    all.map((one) => (one as PromiseFulfilledResult<readonly { readonly id: string }[]>).value[0]!.id),
    Array.from({ length: COUNT }, (_, n) => `job-${n}`),
  );
  statements.assertBounded();
});

test("C22: a worker settles 560 results of 1 MiB that came at once, in statements of bounded size", async () => {
  const statements = new Statements();
  const connection = {
    rows: async (sql: string, values?: readonly unknown[]) => {
      statements.note(values);
      // The one row that is not a job: a live worker, everything settled, nothing claimed.
      const turn = { seq: null, id: ",,,*", fence: 1, epoch: 0, input: null };
      return sql.includes("taken AS") ? [turn] : [{ settled: "*", noted: 0 }];
    },
  };
  const parts = {
    connection,
    kinds: new Kinds(),
    workers: { known: () => 1, whyReplaced: async () => null },
    settling: {},
    clock: systemClock,
    inTwoFrom: 16,
  };
  const settlements = Array.from({ length: COUNT }, (_, row): Settlement => {
    const lease = { jobId: `job-${row}`, kind: "large", row, worker: "w", epoch: 0, fence: 1 };
    return { lease, change: succeed({ id: lease.jobId, state: "running", counters: NO_COUNTERS }, large) };
  });
  const turn = new Turns(parts as never).turn("w", settlements, { total: 0, kinds: [] });
  await assert.doesNotReject(turn);
  assert.deepEqual(
    (await turn).settled.map(({ is }) => is),
    settlements.map(() => "applied"),
  );
  statements.assertBounded();
});
