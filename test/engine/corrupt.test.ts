// What an engine does about texts in its store that are not what was stored: what is reported, what goes on, and what still can be read.
import assert from "node:assert/strict";
import type { DatabaseSync } from "node:sqlite";
import { test } from "node:test";
import { Registry } from "prom-client";
import { type Engine, ErrorCode, job } from "../../src/index.ts";
import type { JobContract } from "../../src/job/contract.ts";
import { attachMetrics } from "../../src/metrics.ts";
import { corruptRows } from "../../src/stores/sqlite/checksums.ts";
import { Database } from "../../src/stores/sqlite/database.ts";
import { cliOn } from "../support/cli.ts";
import { Place, untilState, untilTrue } from "../support/processes.ts";
import { AT_ONCE, raw } from "./engines.ts";

/** Two jobs, of which the first is damaged. */
async function twoNotes(engine: Engine, note: JobContract<number>, db: DatabaseSync): Promise<[string, string]> {
  const { id: broken } = await engine.enqueue(note, 1);
  const { id: fine } = await engine.enqueue(note, 2);
  db.prepare("UPDATE outlive_jobs SET input = '3' WHERE id = ?").run(broken);
  return [broken, fine];
}

test("a corrupt job never reaches its handler, is reported, logged and counted, and its slot goes to the next at once", async (t) => {
  const place = new Place(t);
  const ran: number[] = [];
  const note = job<number>("note").handle((n) => void ran.push(n));
  const engine = await place.engine({ jobs: [note], poll: "1h" });
  const registry = new Registry();
  attachMetrics(engine, { registry, only: "process" });
  const told: unknown[] = [];
  engine.on("job.quarantined", (event) => void told.push(event));
  const [broken, fine] = await twoNotes(engine, note, raw(t, place.path));
  await engine.start({ concurrency: 1 });
  await untilState(engine, fine, "succeeded");
  assert.deepEqual(ran, [2]);
  const reason = `corrupt: the stored input of job ${broken} does not match its checksum`;
  assert.deepEqual(told, [{ jobId: broken, kind: "note", reason }]);
  const { state, error } = (await engine.get(broken))!;
  assert.deepEqual([state, error?.code], ["quarantined", ErrorCode.corrupt]);
  assert.match(await registry.metrics(), /outlive_quarantined_total\{kind="note"\} 1\n/);
});

test("a step result that was damaged between two attempts quarantines the job before it runs again", async (t) => {
  const place = new Place(t);
  const db = raw(t, place.path);
  const attempts: number[] = [];
  const stepped = job<null>("stepped", { retry: { backoff: AT_ONCE } });
  stepped.handle(async (_, run) => {
    attempts.push(run.attempt);
    await run.step("render", () => "page");
    db.exec(`UPDATE outlive_steps SET result = '"cage"'`);
    throw new Error("again");
  });
  const engine = await place.engine({ jobs: [stepped] });
  const { id } = await engine.enqueue(stepped, null);
  await engine.start();
  await untilState(engine, id, "quarantined");
  assert.deepEqual(attempts, [1]);
  assert.deepEqual((await engine.get(id))?.corrupt, ["step render"]);
});

test("FR-070 a scan of all checksums names every job that does not match, and stops at its limit", async (t) => {
  const place = new Place(t);
  const note = job<number>("note").handle(async (n, run) => {
    await run.step("half", () => n / 2);
    return n;
  });
  const engine = await place.engine({ jobs: [note] });
  const ids: string[] = [];
  for (let n = 0; n < 4; n++) ids.push((await engine.enqueue(note, n)).id);
  await engine.start();
  for (const id of ids) await untilState(engine, id, "succeeded");
  await engine.close();
  const db = new Database({ path: place.path, readOnly: true });
  t.after(() => db.close());
  assert.deepEqual(corruptRows(db, 100), [], "all is sound");
  const other = raw(t, place.path);
  const change = (sql: string, id: string): void => void other.prepare(sql).run(id);
  change("UPDATE outlive_jobs SET input = CAST('0' AS BLOB) WHERE id = ?", ids[0]!);
  change("UPDATE outlive_jobs SET result = NULL WHERE id = ?", ids[1]!);
  change(
    "UPDATE outlive_steps SET result_sum = 9000000000000000000 WHERE job = (SELECT seq FROM outlive_jobs WHERE id = ?)",
    ids[2]!,
  );
  const found = [
    { jobId: ids[0], what: "input" },
    { jobId: ids[1], what: "result" },
    { jobId: ids[2], what: "step half" },
  ];
  assert.deepEqual(corruptRows(db, 100), found);
  assert.deepEqual(corruptRows(db, 2), found.slice(0, 2));
  assert.deepEqual(corruptRows(db, 100), found, "and can be asked again");
});

test("a row whose texts are no longer JSON, or no longer texts, is shown and hides no other row", async (t) => {
  const place = new Place(t);
  const note = job<number>("note", { retry: { attempts: 1 } }).handle(() => assert.fail("broken"));
  const engine = await place.engine({ jobs: [note] });
  const { id } = await engine.enqueue(note, 1);
  await engine.enqueue(note, 2);
  await engine.start();
  await untilTrue(
    () => engine.counts(),
    ([one]) => one!.dead === 2,
    "both are dead",
  );
  raw(t, place.path)
    .prepare(
      "UPDATE outlive_jobs SET error = '{broken', input = CAST('{' AS BLOB), progress = 7, created_at = 9e18 WHERE id = ?",
    )
    .run(id);
  const { jobs } = await engine.list();
  assert.deepEqual(
    jobs.map(({ error }) => error?.name),
    ["AssertionError", "Unreadable"],
  );
  const shown = (await engine.get(id))!;
  assert.deepEqual([shown.input, shown.progress, shown.corrupt], ["{", 7, ["input"]]);
  assert.match(shown.error!.message, /the stored error is damaged: \{broken/);
  const { run } = cliOn(t, place.url);
  for (const args of [["jobs"], ["job", id], ["why", id]]) assert.equal((await run(...args)).code, 0, args.join(" "));
});

test("the commands say that a job is corrupt, why, and that letting it go again does not help", async (t) => {
  const place = new Place(t);
  const note = job<number>("note").handle(() => 1);
  const engine = await place.engine({ jobs: [note] });
  const db = raw(t, place.path);
  const [broken, fine] = await twoNotes(engine, note, db);
  const worker = await engine.start();
  await untilState(engine, broken, "quarantined");
  await untilState(engine, fine, "succeeded");
  await worker.stop();
  db.prepare("UPDATE outlive_jobs SET result = '2' WHERE id = ?").run(fine);
  const { run, json } = cliOn(t, place.url);
  const [story, result, why, list, status, jobs] = [
    await run("job", broken),
    await run("job", fine),
    await run("why", broken),
    await run("quarantine", "list"),
    await run("status"),
    await run("jobs"),
  ];
  assert.match(story.stdout, /\ncorrupt: input\. This is not what was stored/);
  assert.match(story.stdout, /quarantined: corrupt: the stored input .*does not match its checksum/);
  assert.match(result.stdout, /succeeded\ncorrupt: result\./);
  assert.match(why.stdout, /corrupt: the stored input .*\nNext: Enqueue it again with the right input/);
  assert.match(list.stdout, /corrupt: the stored input .*\nCorrupt ones: Enqueue it again/s);
  assert.match(status.stdout, /1 job is quarantined \(.* ago\): its stored data is damaged\./);
  assert.match(jobs.stdout, /quarantined .*Corrupt: the stored input/);
  const released = await run("quarantine", "release", broken);
  assert.deepEqual([released.code, released.stdout.split("\n")[0]], [0, "1 job released and queued again."]);
  assert.match(released.stdout, /the stored input does not match, so it will be quarantined again\. Enqueue it again/);
  await engine.start();
  await untilState(engine, broken, "quarantined");
  const retried = await json("retry", broken);
  assert.deepEqual(retried.value, {
    change: "retry",
    changed: 1,
    failed: 0,
    jobs: [{ id: broken, state: "queued", corrupt: ["input"] }],
  });
});
