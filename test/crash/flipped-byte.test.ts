// One byte of the file flips between two runs, as a disk does it. The pages are still sound to SQLite; only the checksum knows.
import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { transfer } from "../support/jobs.ts";
import { Place, untilTrue } from "../support/processes.ts";

test("FR-069 one flipped byte in one input costs that job, which is quarantined as corrupt; the 999 others succeed", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  const ids: string[] = [];
  const inputs = Array.from({ length: 1_000 }, (_, n) => ({ n: 100_000 + n }));
  await engine.enqueueMany(transfer, inputs, { onBatch: (batch) => ids.push(...batch.map(({ id }) => id)) });
  await engine.close();
  // A five becomes a four: still JSON, still an input of the kind, but not the one that was enqueued.
  flipByte(place.path, '{"n":100555}', 11);
  const db = new DatabaseSync(place.path);
  assert.equal(Object.values(db.prepare("PRAGMA integrity_check").get()!)[0], "ok", "SQLite sees nothing");
  db.close();

  const worker = place.child({ concurrency: 20 });
  await worker.untilFact("working");
  const again = await place.engine();
  const [counts] = await untilTrue(
    async () => (await again.counts()).filter(({ kind }) => kind === "transfer"),
    ([one]) => one!.succeeded + one!.quarantined === ids.length,
    "all are over",
  );
  assert.deepEqual([counts?.succeeded, counts?.quarantined], [999, 1]);
  const broken = (await again.get(ids[555]!))!;
  assert.deepEqual([broken.state, broken.lastOutcome, broken.corrupt], ["quarantined", "corrupt", ["input"]]);
  assert.match(broken.history[0]!.reason, /^corrupt: the stored input of job .* does not match its checksum/);
  const rows = await place.ledgerRows(again);
  assert.deepEqual(
    new Set(rows.map(({ job }) => job)),
    new Set(ids.filter((id) => id !== broken.id)),
    "it wrote nothing",
  );
  assert.equal(rows.length, 999);
});

/** Flips the lowest bit of one byte of a text that is in the file exactly once. */
function flipByte(path: string, text: string, at: number): void {
  const bytes = readFileSync(path);
  const place = bytes.indexOf(text);
  assert.ok(place > 0 && bytes.indexOf(text, place + 1) === -1, "the text is in the file once");
  bytes[place + at - 1]! ^= 1;
  writeFileSync(path, bytes);
}
