// A full disk: a definite error to the caller, nothing half-written, nothing lost, and it works again when there is room. The
// disk is real: a small tmpfs of the test's own, which only root may mount.
import assert from "node:assert/strict";
import { copyFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { ErrorCode, job, open, OutliveError } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { untilState, untilTrue } from "../support/processes.ts";
import { SmallDisk } from "../support/small-disk.ts";
import { forever, raw, says } from "./engines.ts";

const large = "x".repeat(100_000);

test("an enqueue on a full disk is refused with a code of its own, nothing is half-written, and it works again with room", async (t) => {
  const disk = new SmallDisk(t, "3m");
  const note = job<string>("note");
  const engine = await disk.engine([note]);
  const kept = [(await engine.enqueue(note, "before")).id];
  disk.fill();
  const refused = new Set<string>();
  // Small ones may still fit into what the files have reserved; large ones end that.
  for (let n = 0; n < 5; n++)
    await engine.enqueue(note, large, { id: `large-${n}` }).then(
      ({ id }) => kept.push(id),
      (thrown: unknown) => {
        says(ErrorCode.storeFull, "enqueueing", "Nothing was written. Free some disk space")(thrown);
        refused.add(`large-${n}`);
      },
    );
  assert.ok(refused.size > 0, "some were refused");
  const many = Array.from({ length: 20 }, (_, n) => engine.enqueue(note, large, { id: `many-${n}` }));
  for (const [n, one] of (await Promise.allSettled(many)).entries()) {
    if (one.status === "fulfilled") kept.push(one.value.id);
    else {
      says(ErrorCode.storeFull)(one.reason);
      refused.add(`many-${n}`);
    }
  }
  await assert.rejects(
    engine.enqueueMany(
      note,
      Array.from({ length: 50 }, () => large),
      { each: (_, n) => ({ id: `bulk-${n}` }) },
    ),
    says(ErrorCode.storeFull),
  );
  const stored = (await engine.list({ limit: 1000 })).jobs.map(({ id }) => id);
  assert.deepEqual(stored.toSorted(), kept.toSorted(), "what resolved is there, what was refused is not");
  assert.deepEqual({ ...raw(t, disk.path).prepare("PRAGMA integrity_check").get() }, { integrity_check: "ok" });

  disk.makeRoom();
  for (const id of refused.values().take(3))
    assert.deepEqual(await engine.enqueue(note, large, { id }), { id, created: true });
});

test("a running worker waits with what has ended until there is room again, and runs nothing twice", async (t) => {
  const disk = new SmallDisk(t, "4m");
  const starts: string[] = [];
  const gate = Promise.withResolvers<void>();
  const note = job<number>("note").handle(async (_, run) => {
    starts.push(run.id);
    await gate.promise;
    return large;
  });
  const engine = await disk.engine([note]);
  const failures: string[] = [];
  engine.on("store.failed", ({ doing, error, retryInMs }) => {
    assert.ok(retryInMs > 0, "it comes again by itself");
    failures.push(`${doing}: ${error.message}`);
  });
  await engine.enqueueMany(note, [1, 2, 3]);
  const worker = await engine.start();
  await untilTrue(
    () => starts.length,
    (n) => n === 3,
    "all are running",
  );
  disk.fill();
  gate.resolve();
  await untilTrue(
    () => failures.length,
    (n) => n >= 2,
    "the settlements were refused twice",
  );
  assert.match(failures[0]!, /^settling and claiming: .*Free some disk space/);
  assert.equal(worker.held, 3, "they are kept");
  assert.equal((await engine.counts())[0]?.running, 3, "and can be read meanwhile");
  disk.makeRoom();
  for (const id of starts) await untilState(engine, id, "succeeded");
  const { jobs } = await engine.list();
  assert.deepEqual(
    jobs.map(({ attempt, counters }) => [attempt, counters.errors, counters.interruptions]),
    [
      [1, 0, 0],
      [1, 0, 0],
      [1, 0, 0],
    ],
  );
  assert.equal(((await engine.get(starts[0]!))!.result as string).length, large.length);
  const { id } = await engine.enqueue(note, 4);
  await untilState(engine, id, "succeeded");
  assert.equal(starts.length, 4);
});

test("an open on a full disk says so, and succeeds when there is room", async (t) => {
  const disk = new SmallDisk(t, "1m");
  disk.fill();
  await assert.rejects(disk.engine([]), (thrown) => {
    assert.ok(thrown instanceof OutliveError, String(thrown));
    says(ErrorCode.storeFull)(thrown);
    return true;
  });
  disk.makeRoom();
  const note = job<number>("note");
  const engine = await disk.engine([note]);
  assert.equal((await engine.enqueue(note, 1)).created, true);
});

test(
  "an engine can be closed on a full disk, and the next open recovers at once what its worker could not release",
  {},
  async (t) => {
    const disk = new SmallDisk(t, "4m");
    const { promise: entered, resolve: enter } = Promise.withResolvers<void>();
    const note = job<null>("note").handle(() => {
      enter();
      return forever();
    });
    const engine = await disk.engine([note]);
    const { id } = await engine.enqueue(note, null);
    await engine.start();
    await entered;
    disk.fill();
    // What is reserved in the files already is used up first.
    const refused = Promise.allSettled(
      Array.from({ length: 5 }, () =>
        engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE IF NOT EXISTS t AS SELECT zeroblob(500000)")),
      ),
    );
    await engine.close({ grace: "0ms" });
    assert.ok((await refused).every(({ status }) => status === "rejected"));
    disk.makeRoom();
    const next = await disk.engine([note]);
    assert.equal((await next.get(id))?.state, "queued");
  },
);

test("a file on a full disk or on a read-only one says so when it is opened, and --read-only reads what is at rest there", async (t) => {
  const disk = new SmallDisk(t, "1m");
  const note = job<number>("note");
  const engine = await disk.engine([note]);
  const { id } = await engine.enqueue(note, 1);
  // What a crash leaves: the job is in the log only.
  const left = join(disk.folder, "left.db");
  for (const end of ["", "-wal"]) copyFileSync(`${disk.path}${end}`, `${left}${end}`);
  await engine.close();
  const said = (opening: Promise<unknown>): Promise<string> =>
    opening.then(
      () => "opened",
      (thrown: OutliveError) => `${thrown.code} ${thrown.what} ${thrown.hint}`,
    );

  disk.fill();
  assert.match(
    await said(open(disk.url)),
    /^STORE_FULL The disk of \S+ is full\. Nothing was changed\. Free some disk space/,
  );
  assert.match(await said(open(disk.url, { readOnly: true })), /^STORE_FULL The disk of \S+jobs\.db is full\./);
  disk.makeRoom();

  disk.remount("ro");
  assert.match(await said(open(disk.url)), /^STORE_READ_ONLY .*is on a disk that is mounted read-only\. .*--read-only/);
  const reader = await open(disk.url, { readOnly: true });
  assert.equal((await reader.get(id))?.input, 1);
  await reader.close();
  const unread = await said(open(`sqlite:${left}`, { readOnly: true }));
  assert.match(unread, /^STORE_READ_ONLY .*Copy both files to another disk/);
  disk.remount("rw");
});
