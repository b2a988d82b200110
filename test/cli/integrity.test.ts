// `check --integrity` on a sound and on a damaged file, and `recover --restored` after a backup was put back.
import assert from "node:assert/strict";
import { copyFileSync, closeSync, openSync, statSync, writeSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { cli } from "../support/cli.ts";
import { slow } from "../support/jobs.ts";
import { Place, untilState } from "../support/processes.ts";

interface Checked {
  readonly ok: boolean;
  readonly findings: readonly { readonly level: string; readonly text: string }[];
}

test("check --integrity passes a sound file, and fails a damaged one with exit code 1", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueueMany(
    slow,
    Array.from({ length: 3_000 }, (_, ms) => ({ ms })),
  );
  await engine.close();
  const sound = await cli(t, ["check", "--integrity", "--json", "--store", place.url], { cwd: place.folder });
  assert.equal(sound.code, 0, sound.stderr);
  assert.ok((JSON.parse(sound.stdout) as Checked).findings.some(({ text }) => text.startsWith("integrity PASSED")));

  const { size } = statSync(place.path);
  const file = openSync(place.path, "r+");
  // In the middle of the file: pages of jobs and their indexes, not the schema.
  writeSync(file, Buffer.alloc(4_096, 0xa5), 0, 4_096, Math.floor(size / 2 / 4_096) * 4_096);
  closeSync(file);
  const damaged = await cli(t, ["check", "--integrity", "--json", "--store", place.url], { cwd: place.folder });
  assert.equal(damaged.code, 1);
  const { ok, findings } = JSON.parse(damaged.stdout) as Checked;
  assert.equal(ok, false);
  assert.ok(
    findings.some(
      ({ level, text }) => level === "error" && /integrity FAILED with \d+ finding|STORE|malformed/.test(text),
    ),
    damaged.stdout,
  );
});

test("check --repair makes an index anew that disagrees with its table, and says so", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueueMany(
    slow,
    Array.from({ length: 300 }, (_, ms) => ({ ms })),
  );
  await engine.close();
  // As a bug in a file system would leave it: rows that the index does not know of.
  const db = new DatabaseSync(place.path, { enableDoubleQuotedStringLiterals: true, defensive: false });
  db.exec("PRAGMA writable_schema = ON");
  db.exec("UPDATE sqlite_schema SET sql = sql || ' AND seq > 100' WHERE name = 'outlive_jobs_ready'");
  db.close();
  const other = new DatabaseSync(place.path, { defensive: false });
  other.exec("REINDEX outlive_jobs_ready");
  other.exec("PRAGMA writable_schema = ON");
  other.exec("UPDATE sqlite_schema SET sql = replace(sql, ' AND seq > 100', '') WHERE name = 'outlive_jobs_ready'");
  other.close();
  const wrong = await cli(t, ["check", "--integrity", "--json", "--store", place.url], { cwd: place.folder });
  assert.equal(wrong.code, 1, wrong.stdout);
  const mended = await cli(t, ["check", "--repair", "--json", "--store", place.url], { cwd: place.folder });
  assert.equal(mended.code, 0, mended.stdout);
  assert.ok((JSON.parse(mended.stdout) as Checked).findings.some(({ text }) => /all were repaired/.test(text)));
  const after = await cli(t, ["check", "--integrity", "--json", "--store", place.url], { cwd: place.folder });
  assert.ok((JSON.parse(after.stdout) as Checked).findings.some(({ text }) => text.startsWith("integrity PASSED")));
  const reopened = await place.engine();
  assert.equal((await reopened.counts()).find(({ kind }) => kind === "slow")?.ready, 300);
});

test("recover --restored puts back at once what a backup calls running, and is refused while a worker lives", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const worker = place.child();
  await worker.untilFact("started", { id });
  const refused = await cli(t, ["recover", "--restored", "--store", place.url], { cwd: place.folder });
  assert.equal(refused.code, 4);
  assert.match(refused.stderr, /is alive on this store/);

  // A backup in the middle of the work, put back on a machine without the lock files.
  await engine.close();
  worker.kill("SIGKILL");
  await worker.exited;
  const elsewhere = new Place(t);
  for (const suffix of ["", "-wal"]) copyFileSync(`${place.path}${suffix}`, `${elsewhere.path}${suffix}`);
  const nobody = await cli(t, ["recover", "--json", "--store", elsewhere.url], { cwd: elsewhere.folder });
  assert.deepEqual(JSON.parse(nobody.stdout), { report: null }, "without the word nothing is proved");
  const restored = await cli(t, ["recover", "--restored", "--json", "--store", elsewhere.url], {
    cwd: elsewhere.folder,
  });
  assert.equal(restored.code, 0, restored.stderr);
  const { report } = JSON.parse(restored.stdout) as { report: { by: string; recoveredJobs: { jobId: string }[] } };
  assert.deepEqual([report.by, report.recoveredJobs.map(({ jobId }) => jobId)], ["restored", [id]]);
  const there = await elsewhere.engine();
  await untilState(there, id, "queued");
});
