// C9: a jump of the wall clock made every running job overdue at once: its work was fenced out and a timeout was counted.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { type Engine, open } from "../../src/index.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { block, compute, jobs, slow } from "../support/jobs.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { type ChildOptions, Place, untilTrue } from "../support/processes.ts";
import { attemptOf } from "../support/former-names.ts";

const HOUR = 3_600_000;
/** Sweeps fence out what is overdue, too. They come with every other heartbeat here. */
const heartbeat = { interval: "200ms", lease: "60s", probe: "50ms", sweep: "500ms" } as const;

function shifted(place: Place): ChildOptions & { readonly jump: (ms: number) => void } {
  const file = join(place.folder, "clock");
  return {
    heartbeat,
    execArgv: ["--import", fileURLToPath(new URL("./shifted-clock.ts", import.meta.url))],
    env: { OUTLIVE_TEST_CLOCK_FILE: file },
    jump: (ms) => writeFileSync(file, String(ms)),
  };
}

/** Every live worker has beaten `count` times from now on, and looked at the others as often. */
async function untilBeats(engine: Engine, count: number, workers: number): Promise<void> {
  const before = new Map((await engine.workers()).map(({ id, beats }) => [id, beats]));
  await untilTrue(
    () => engine.workers(),
    (rows) => rows.length >= workers && rows.every(({ id, beats }) => beats >= (before.get(id) ?? 0) + count),
    `${workers} workers have beaten ${count} times`,
  );
}

for (const [title, ms] of [
  ["C9: running jobs keep their time when the wall clock jumps ahead by an hour", HOUR],
  ["U: running jobs keep their time when the wall clock jumps back by an hour", -HOUR],
] as const)
  test(title, async (t) => {
    const place = new Place(t);
    const engine = await place.engine();
    const { jump, ...options } = shifted(place);
    const { id } = await engine.enqueue(slow, { ms: 60_000 });
    const owner = place.child(options);
    await owner.untilFact("started", { id });
    const other = place.child(options);
    await other.untilFact("working");
    await untilBeats(engine, 5, 2);
    jump(ms);
    await untilBeats(engine, 10, 2);
    // Who starts after the jump has not seen it, and can't confirm the time before.
    const late = place.child(options);
    await late.untilFact("working");
    await untilBeats(engine, 10, 3);
    const job = await engine.get(id);
    assert.deepEqual([job?.state, job && attemptOf(job), job?.counters.timeouts], ["running", 1, 0]);
    assert.deepEqual(await engine.incidents(), []);
  });

test("C9: a worker whose loop is blocked for a while when the clock jumps keeps its job and its process", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { jump, ...options } = shifted(place);
  const worker = place.child(options);
  await worker.untilFact("working");
  await untilBeats(engine, 2, 1);
  const { id } = await engine.enqueue(compute, { ms: 5_000 });
  await worker.untilFact("started", { id });
  jump(HOUR);
  await untilTrue(
    () => engine.get(id),
    (job) => job?.state !== "running",
    "the job has ended",
  );
  const job = await engine.get(id);
  assert.deepEqual([job?.state, job?.counters.crashes], ["succeeded", 0]);
  assert.deepEqual(await engine.incidents(), []);
});

test("U: running jobs keep their time when the clock of the PostgreSQL server is stepped by an hour", async (t) => {
  const url = await freshDatabase(t);
  await withClient(url, (client) => migrate(client, "outlive"));
  const place = new Place(t);
  const engine = await open(url, { jobs, logger: false });
  t.after(() => engine.close());
  const { id } = await engine.enqueue(slow, { ms: 60_000 });
  const owner = place.child({ heartbeat, url });
  await owner.untilFact("started", { id });
  const other = place.child({ heartbeat, url });
  await other.untilFact("working");
  await untilBeats(engine, 5, 2);
  await withClient(url, (client) =>
    client.query(`CREATE OR REPLACE FUNCTION outlive.now_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
      AS $$ SELECT floor(date_part('epoch', clock_timestamp()) * 1000)::bigint + ${HOUR} $$`),
  );
  await untilBeats(engine, 10, 2);
  const late = place.child({ heartbeat, url });
  await late.untilFact("working");
  await untilBeats(engine, 10, 3);
  const job = await engine.get(id);
  assert.deepEqual([job?.state, job && attemptOf(job), job?.counters.timeouts], ["running", 1, 0]);
});

test("U: a job that blocks its loop beyond its deadline still ends its process", async (t) => {
  const place = new Place(t);
  const engine = await place.engine();
  const { jump, ...options } = shifted(place);
  jump(HOUR);
  const { id } = await engine.enqueue(block, { ms: 30_000 });
  const worker = place.child(options);
  await worker.untilFact("started", { id });
  const { signal } = await worker.exited;
  assert.equal(signal, "SIGKILL");
  assert.match((await engine.workers())[0]?.lastWord ?? "", /^killed itself: job /);
});
