// What an engine on PostgreSQL does about texts that are not what was stored: no handler gets them, they are named, and the rest goes on.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorCode, job, open } from "../../src/index.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilState } from "../support/processes.ts";
import { PostgresPlace } from "./place.ts";

test("an input that was changed behind the engine's back never reaches its handler, although it is still JSON", async (t) => {
  const place = await PostgresPlace.shared(t);
  const ran: number[] = [];
  const note = job<number>("note").handle((n) => void ran.push(n));
  const engine = await place.engine({ jobs: [note] });
  const told: unknown[] = [];
  engine.on("job.quarantined", (event) => void told.push(event));
  const { id: broken } = await engine.enqueue(note, 1);
  const { id: fine } = await engine.enqueue(note, 2);
  const [added] = await place.query<{ job_id: string }>("SELECT job_id FROM outlive.enqueue('note', '4')");
  const bySql = added!.job_id;
  await place.query(`UPDATE outlive.jobs SET input = '3' WHERE id IN ('${broken}', '${bySql}')`);
  assert.deepEqual((await engine.operator.integrity()).findings, [
    `job ${broken}: the stored input does not match its checksum`,
    `job ${bySql}: the stored input does not match its checksum`,
  ]);
  await engine.start({ concurrency: 1 });
  await untilState(engine, fine, "succeeded");
  await untilState(engine, bySql, "quarantined");
  assert.deepEqual(ran, [2]);
  const reason = `corrupt: the stored input of job ${broken} does not match its checksum`;
  assert.deepEqual(told[0], { jobId: broken, kind: "note", reason });
  const { state, error, corrupt, input } = (await engine.get(broken))!;
  assert.deepEqual([state, error?.code, corrupt, input], ["quarantined", ErrorCode.corrupt, ["input"], 3]);
});

test("a hash of an input that is another server's proves nothing: the checksum decides", async (t) => {
  const place = await PostgresPlace.shared(t);
  const ran: number[] = [];
  const note = job<number>("note").handle((n) => void ran.push(n));
  const engine = await place.engine({ jobs: [note] });
  const { id: fine } = await engine.enqueue(note, 1);
  const { id: broken } = await engine.enqueue(note, 2);
  const { id: hashed } = await engine.enqueue(note, 3);
  const [before] = await place.query<{ hashed: number }>("SELECT count(input_hash)::int AS hashed FROM outlive.jobs");
  assert.equal(before!.hashed, 3);
  await place.query("UPDATE outlive.jobs SET input_hash = input_hash # 1");
  await place.query(`UPDATE outlive.jobs SET input = '4' WHERE id = '${broken}'`);
  // Of a checksum that is gone, or can't be computed any more, the hash is left.
  await place.query(`UPDATE outlive.jobs SET input_hash = input_hash # 1, input_sum = '\\x00' WHERE id = '${hashed}'`);
  await engine.start({ concurrency: 1 });
  await untilState(engine, fine, "succeeded");
  await untilState(engine, broken, "quarantined");
  await untilState(engine, hashed, "succeeded");
  assert.deepEqual(ran, [1, 3]);
});

test("a step result that was changed between two attempts quarantines the job, and a changed result is shown", async (t) => {
  const place = await PostgresPlace.shared(t);
  const attempts: number[] = [];
  const stepped = job<null>("stepped", { retry: { backoff: { base: "10ms", max: "10ms" } } });
  stepped.handle(async (_, run) => {
    attempts.push(run.attempt);
    await run.step("render", () => "page");
    await place.query(`UPDATE outlive.steps SET result = '"cage"'`);
    throw new Error("again");
  });
  const sums = job<number>("sums").handle((n) => n + 1);
  const engine = await place.engine({ jobs: [stepped, sums] });
  const { id } = await engine.enqueue(stepped, null);
  const { id: sum } = await engine.enqueue(sums, 1);
  await engine.start();
  await untilState(engine, id, "quarantined");
  await untilState(engine, sum, "succeeded");
  assert.deepEqual(attempts, [1]);
  assert.deepEqual((await engine.get(id))?.corrupt, ["step render"]);
  assert.deepEqual((await engine.get(sum))?.corrupt, []);
  await place.query(`UPDATE outlive.jobs SET result = '3' WHERE id = '${sum}'`);
  assert.deepEqual((await engine.get(sum))?.corrupt, ["result"]);
  assert.deepEqual((await engine.operator.integrity()).findings, [
    `job ${sum}: the stored result does not match its checksum`,
    `job ${id}: the stored step render does not match its checksum`,
  ]);
});

test("jobs that were stored before there were checksums run, and are not called corrupt", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, async (client) => {
    await migrate(client, "outlive", 3);
    await client.query("SELECT outlive.enqueue('note', '7', id => 'old')");
    await assert.rejects(open(url, { logger: false }), {
      code: ErrorCode.schemaMissing,
      message: /has version 3; \d+ is needed/,
    });
    await migrate(client, "outlive");
  });
  const ran: number[] = [];
  const note = job<number>("note").handle((n) => void ran.push(n));
  const engine = await open(url, { jobs: [note], logger: false });
  t.after(() => engine.close());
  await engine.start();
  await untilState(engine, "old", "succeeded");
  assert.deepEqual(ran, [7]);
  assert.deepEqual((await engine.get("old"))?.corrupt, []);
  assert.deepEqual((await engine.operator.integrity()).findings, []);
  await engine.close();
});
