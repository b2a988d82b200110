// Workers are killed again and again while the WAL is being checkpointed without pause. Nothing that was acknowledged may be
// missing, nothing may be there twice, and the file must be sound.
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { transfer } from "../support/jobs.ts";
import { Child, Place, untilTrue } from "../support/processes.ts";

test("FR-009 FR-010 NFR-005 IT-003 workers killed during checkpoints leave a sound file and every transfer exactly once", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  const ids: string[] = [];
  await engine.enqueueMany(
    transfer,
    Array.from({ length: 2_000 }, (_, n) => ({ n })),
    {
      onBatch: (batch) => ids.push(...batch.map(({ id }) => id)),
    },
  );
  for (const stopAfter of [1, 20, 60, 120, 200, 300]) {
    const child = withCheckpoints(t, place);
    await untilTrue(
      () => child.facts.filter(({ fact }) => fact === "started").length,
      (n) => n >= stopAfter,
      `${stopAfter} started`,
    );
    child.kill();
    await child.exited;
  }
  const last = place.child();
  await last.untilFact("working");
  await untilTrue(
    () => engine.counts(),
    (counts) => counts.find(({ kind }) => kind === "transfer")!.succeeded === ids.length,
    "all succeeded",
  );
  const rows = await place.ledgerRows(engine);
  assert.equal(rows.length, ids.length, "as many rows as jobs");
  assert.deepEqual(new Set(rows.map(({ job }) => job)), new Set(ids), "one for each");
  last.kill();
  await last.exited;
  await engine.close();
  const db = new DatabaseSync(place.path);
  assert.equal(Object.values(db.prepare("PRAGMA integrity_check").get()!)[0], "ok");
  db.close();
});

function withCheckpoints(t: { after(fn: () => void): void }, place: Place): Child {
  const support = (name: string): string => fileURLToPath(new URL(`../support/${name}`, import.meta.url));
  const child = new Child(
    fork(support("worker-process.ts"), [place.url, JSON.stringify({ concurrency: 5 })], {
      execArgv: ["--disable-warning=ExperimentalWarning", "--import", support("checkpoint-loop.ts")],
      env: { ...process.env, OUTLIVE_CHECKPOINT: place.path },
      stdio: ["ignore", "inherit", "pipe", "ipc"],
    }),
  );
  t.after(() => child.kill());
  return child;
}
