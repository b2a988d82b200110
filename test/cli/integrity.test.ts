// `check --integrity` and `--repair` on sound, inconsistent and damaged files, `backup`, and `recover --restored` after one was restored.
import assert from "node:assert/strict";
import {
  closeSync,
  copyFileSync,
  existsSync,
  openSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import type { IntegrityReport, Repair } from "../../src/stores/store-parts.ts";
import { cli } from "../support/cli.ts";
import { disagree, disagreeing, flip, furnish, pageOf, rowsOn, zero } from "../support/damaged-file.ts";
import { slow, transfer } from "../support/jobs.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";

interface Checked {
  readonly ok: boolean;
  readonly findings: readonly { readonly level: string; readonly text: string }[];
  readonly integrity: IntegrityReport;
  readonly repair?: Repair;
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

test("check --repair rebuilds an index that disagrees with its table, and says so", async (t) => {
  const place = new Place(t);
  await disagreeing(place);
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

test("recover --restored requeues at once what a backup calls running, and is refused while a worker lives", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const worker = place.child();
  await worker.untilFact("started", { id });
  const refused = await cli(t, ["recover", "--restored", "--store", place.url], { cwd: place.folder });
  assert.equal(refused.code, 4);
  assert.match(refused.stderr, /is alive on this store/);

  // A backup in the middle of the work, restored on a machine without the lock files.
  await engine.close();
  worker.kill("SIGKILL");
  await worker.exited;
  const elsewhere = new Place(t);
  for (const suffix of ["", "-wal"]) copyFileSync(`${place.path}${suffix}`, `${elsewhere.path}${suffix}`);
  const copy = new DatabaseSync(elsewhere.path);
  copy.exec("UPDATE outlive_workers SET boot_id = 'of the other machine'");
  copy.close();
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

test("FR-057 FR-058 FR-067 check --repair --yes salvages a file that no engine can open: it prints the steps, what is lost, the recovery point, and recommends a backup", async (t) => {
  const place = new Place(t);
  await furnish(place);
  const page = pageOf(place.path, "outlive_jobs", "leaf");
  const gone = rowsOn(place.path, page);
  zero(place.path, page);
  flip(place.path, 1, 2, 5);
  const run = (...args: string[]) => cli(t, [...args, "--store", place.url], { cwd: place.folder });

  const failed = await run("check", "--integrity", "--json");
  assert.equal(failed.code, 1, failed.stderr);
  const { integrity } = JSON.parse(failed.stdout) as Checked;
  assert.deepEqual([integrity.verdict, integrity.depth, integrity.findings.length], ["FAILED", "full", 1]);
  assert.match(integrity.findings[0]!, /the file is not a database: its head is damaged/);

  const unsure = await run("check", "--repair");
  assert.equal(unsure.code, 1);
  assert.match(unsure.stdout, /outlive check --repair --yes/);
  assert.equal((await run("check", "--integrity")).code, 1, "without --yes nothing was salvaged");

  const mended = await run("check", "--repair", "--yes", "--json");
  assert.equal(mended.code, 0, mended.stdout);
  assert.match(mended.stderr, /^salvage: \d+ rows of \d+ tables were brought over/m);
  const { repair, findings } = JSON.parse(mended.stdout) as Checked;
  assert.equal(repair!.sound, true);
  assert.deepEqual(
    repair!.steps.map(({ step, ok }) => [step, ok]),
    [["salvage", true]],
  );
  assert.equal(repair!.salvage!.lost.length, gone.length);
  assert.ok(existsSync(repair!.salvage!.keptAs));
  const said = findings.map(({ text }) => text).join("\n");
  assert.match(said, /Make a backup now: outlive backup FILE/);
  assert.match(said, /recovery point \(the newest change that survived\): \d{4}-/);
  assert.match(said, /outlive_jobs: \d+ rows survived, \d+ are lost/);
  const after = await run("check", "--integrity", "--json");
  assert.equal((JSON.parse(after.stdout) as Checked).integrity.verdict, "PASSED");
});

test("check --repair is refused while a worker has the store open, and changes nothing", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueueMany(
    slow,
    Array.from({ length: 300 }, (_, ms) => ({ ms: 60_000 + ms })),
  );
  await engine.close();
  disagree(place.path);
  const worker = place.child();
  await worker.untilFact("working");
  const refused = await cli(t, ["check", "--repair", "--yes", "--store", place.url], { cwd: place.folder });
  assert.equal(refused.code, 1);
  assert.match(refused.stdout, /is open in another process\. Stop all workers/);
});

test("FR-070 check --integrity lists rows that contradict each other", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueueMany(
    slow,
    Array.from({ length: 3 }, (_, ms) => ({ ms })),
  );
  const [first] = (await engine.list()).jobs;
  await engine.close();
  const db = new DatabaseSync(place.path);
  db.prepare("UPDATE outlive_jobs SET state = 1, worker = 77, fence = 1 WHERE id = ?").run(first!.id);
  db.exec("UPDATE outlive_kinds SET jobs = 9 WHERE name = 'slow'");
  db.exec(
    "INSERT INTO outlive_history (job, at, event, from_state, to_state, actor, epoch, fence, reason) VALUES (4711, 1, 'fail', 1, 0, 'x', 1, 1, 'y')",
  );
  db.exec("INSERT INTO outlive_logs (job, at, fence, message) VALUES (4711, 1, 1, 'y')");
  db.close();
  writeFileSync(join(`${place.path}.outlive`, "nobody.lock"), "");
  const { stdout, code } = await cli(t, ["check", "--integrity", "--json", "--store", place.url], {
    cwd: place.folder,
  });
  assert.equal(code, 0, "the file is sound: these are warnings");
  const { integrity, findings } = JSON.parse(stdout) as Checked;
  assert.equal(integrity.verdict, "PASSED");
  assert.deepEqual(
    integrity.inconsistencies.map(({ what, names, count }) => [what, names, count]),
    [
      ["running-without-owner", [first!.id], 1],
      ["orphan-history", ["4711"], 1],
      ["orphan-logs", ["4711"], 1],
      ["counter-disagrees", ["slow"], 1],
      ["lock-without-worker", ["nobody.lock"], 1],
    ],
  );
  assert.ok(findings.some(({ level, text }) => level === "warning" && /9 kept, 3 there/.test(text)));
});

interface Pair {
  readonly id: string;
  readonly state: number;
  readonly epoch: number;
  readonly fence: number;
}

function pairs(path: string): Map<string, Pair> {
  const db = new DatabaseSync(path, { readOnly: true });
  const rows = db.prepare("SELECT id, state, epoch, fence FROM outlive_jobs").all() as unknown as Pair[];
  db.close();
  return new Map(rows.map((row) => [row.id, { ...row }]));
}

test("a backup under load, restored after every process was killed, loses nothing that it held, and no fence falls", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await place.ledger(engine);
  const total = 12_000;
  await engine.enqueueMany(
    transfer,
    Array.from({ length: total }, (_, n) => ({ n })),
  );
  const workers = [place.child({ concurrency: 5 }), place.child({ concurrency: 5 })];
  for (const worker of workers) await worker.untilFact("started");
  const copy = join(place.folder, "copy.db");
  const made = await engine.operator.backup(copy);
  assert.equal(made.file, copy);
  assert.equal(statSync(copy).mode & 0o777, 0o600);
  for (const worker of workers) worker.kill();
  await Promise.all(workers.map((worker) => worker.exited));
  await engine.close();

  const before = pairs(place.path);
  const held = pairs(copy);
  const unfinished = [...held.values()].filter(({ state }) => state < 2).length;
  assert.ok(unfinished > 0 && unfinished < total, `it was made in the middle: ${unfinished} of ${total} were left`);
  const highest = Math.max(...Array.from(before.values(), ({ epoch }) => epoch));
  for (const suffix of ["", "-wal", "-shm"]) rmSync(place.path + suffix, { force: true });
  renameSync(copy, place.path);
  const restored = await cli(t, ["recover", "--restored", "--json", "--store", place.url], { cwd: place.folder });
  assert.equal(restored.code, 0, restored.stderr);
  const next = await place.engine();
  place.child({ concurrency: 5 });
  await untilTrue(
    () => next.counts(),
    (counts) => counts.find(({ kind }) => kind === "transfer")!.succeeded === total,
    "all succeeded",
  );
  const rows = await place.ledgerRows(next);
  assert.deepEqual([rows.length, new Set(rows.map(({ job }) => job)).size], [total, total], "each exactly once");
  const fallen = [...pairs(place.path).values()].filter(
    ({ id, epoch, fence }) =>
      !(epoch === held.get(id)!.epoch && fence === held.get(id)!.fence && held.get(id)!.state === 2) &&
      epoch <= highest,
  );
  assert.deepEqual(fallen, [], "whatever ran again did so above every fence that was ever issued");
});

test("outlive backup refuses to overwrite a file unless --force is passed, and leaves nothing else behind", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  await engine.enqueue(slow, { ms: 1 });
  const copy = join(place.folder, "copy.db");
  writeFileSync(copy, "mine");
  const run = (...args: string[]) => cli(t, ["backup", copy, ...args, "--store", place.url], { cwd: place.folder });
  const refused = await run();
  assert.equal(refused.code, 4);
  assert.match(refused.stderr, /There is a file .*copy\.db already/);
  assert.equal(readFileSync(copy, "utf8"), "mine");
  const forced = await run("--force", "--json");
  assert.equal(forced.code, 0, forced.stderr);
  assert.equal((JSON.parse(forced.stdout) as { bytes: number }).bytes, statSync(copy).size);
  const db = new DatabaseSync(copy, { readOnly: true });
  assert.deepEqual({ ...db.prepare("SELECT count(*) AS n FROM outlive_jobs").get() }, { n: 1 });
  db.close();
  assert.deepEqual(
    readdirSync(place.folder).filter((name) => name.includes("partial")),
    [],
  );
});
