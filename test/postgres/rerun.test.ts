// From a death to the next run of its jobs on PostgreSQL: who is woken, and what the report says of the time it took.
import assert from "node:assert/strict";
import { test } from "node:test";
import { enqueue } from "../../src/postgres.ts";
import { withClient } from "../support/postgres.ts";
import { polledForAll } from "../support/polled.ts";
import { untilTrue } from "../support/processes.ts";
import { slow } from "./jobs.ts";
import { PostgresPlace } from "./place.ts";

/** No worker polls while a test runs: one that does not hear the wake-up does not wake. */
const poll = "10m";

test("what a full worker requeues wakes an idle one that would not have polled for minutes", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const detector = place.child({ concurrency: 1, poll });
  await detector.untilFact("working");
  const first = await engine.enqueue(slow, { ms: 600_000 });
  await detector.untilFact("started", { id: first.id });
  const victim = place.child({ concurrency: 1, poll });
  await victim.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await victim.untilFact("started", { id });
  const idle = place.child({ concurrency: 1, poll });
  await idle.untilFact("working");
  victim.kill();
  assert.equal((await idle.untilFact("started", { id }))["attempt"], 2);
});

test("a worker alone runs at once what its own maintenance has requeued", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const victim = place.child({ poll });
  await victim.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await victim.untilFact("started", { id });
  const other = place.child({ poll });
  await other.untilFact("working");
  victim.kill();
  assert.equal((await other.untilFact("started", { id }))["attempt"], 2);
});

test("neighbours of a frozen detector find a death by its lock, long before the detector's lease has expired", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const heartbeat = { interval: "1s", lease: "60s", probe: "100ms", sweep: "1s" } as const;
  const detector = place.child({ heartbeat, concurrency: 1 });
  await detector.untilFact("working");
  const first = await engine.enqueue(slow, { ms: 600_000 });
  await detector.untilFact("started", { id: first.id });
  const victim = place.child({ heartbeat });
  await victim.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await victim.untilFact("started", { id });
  const follower = place.child({ heartbeat });
  await follower.untilFact("working");
  detector.kill("SIGSTOP");
  victim.kill();
  assert.equal((await follower.untilFact("started", { id }))["attempt"], 2);
  const [incident] = await engine.incidents();
  assert.equal(incident!.how, "gone");
  const live = (await engine.workers()).filter(({ state }) => state === "live");
  assert.equal(live.length, 2, "nobody has called the frozen one dead");
});

test("the commit of one's own transaction wakes an idle worker; with wake: false, a rollback or a delay no wake-up is sent", async (t) => {
  const place = await PostgresPlace.shared(t);
  await place.engine();
  const { schema } = place;
  const idle = place.child({ poll });
  await idle.untilFact("working");
  await withClient(place.url, async (listener) => {
    const heard: string[] = [];
    listener.on("notification", ({ channel, payload }) => payload !== "proof" && heard.push(channel));
    await listener.query(`LISTEN "${schema}_bell"`);
    await withClient(place.url, async (client) => {
      const add = (options: Parameters<typeof enqueue>[3] = {}): ReturnType<typeof enqueue> =>
        enqueue(client, slow, { ms: 600_000 }, { schema, ...options });
      await client.query("BEGIN");
      await add();
      await client.query("ROLLBACK");
      await client.query("BEGIN");
      await add({ wake: false, delay: "1h" });
      await add({ delay: "1h" });
      await client.query("COMMIT");
      await client.query("BEGIN");
      const ids = [(await add()).id, (await add()).id, (await add()).id];
      await client.query("COMMIT");
      for (const id of ids) await idle.untilFact("started", { id });
    });
    await listener.query("SELECT 1");
    assert.deepEqual(heard, [`${schema}_bell`], "one wake-up for three jobs, and no other");
  });
});

test("a claim that was cut off before it noted that the job runs again leaves no open clock in the report", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const first = place.child();
  await first.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await first.untilFact("started", { id });
  first.kill();
  const second = place.child();
  await second.untilFact("started", { id, attempt: 2 });
  const [incident] = await engine.incidents();
  // As the claim left it, before the statement that comes after it.
  await place.query("UPDATE outlive.incident_jobs SET resumed_at = NULL");
  await place.query("UPDATE outlive.jobs SET incident = $1 WHERE id = $2", [incident!.id, id]);
  const [{ started_at: startedAt } = { started_at: "" }] = await place.query<{ started_at: string }>(
    "SELECT started_at FROM outlive.jobs WHERE id = $1",
    [id],
  );
  const resumed = async (): Promise<number | null> => (await engine.report(incident!.id))!.recoveredJobs[0]!.resumedAt;
  assert.equal(await resumed(), Number(startedAt), "derived from the job's own row");
  second.kill();
  const third = place.child();
  await third.untilFact("started", { id, attempt: 3 });
  assert.equal(await resumed(), Number(startedAt), "and noted by the recovery from the next death");
  const noted = await untilTrue(
    () => place.query<{ resumed_at: string | null }>("SELECT resumed_at FROM outlive.incident_jobs ORDER BY fence"),
    (rows) => rows.length === 2 && rows[1]!.resumed_at !== null,
    "the second incident's clock has stopped too",
  );
  assert.equal(noted[0]!.resumed_at, startedAt);
});

for (const [durability, setting] of [
  ["full", "on"],
  ["relaxed", "off"],
] as const)
  test(`with durability ${durability}, synchronous_commit is ${setting} for what the engine writes`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const engine = await place.engine({ durability });
    await place.query(`CREATE FUNCTION outlive.note_setting() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO outlive.ledger (job) VALUES (TG_OP || ' ' || current_setting('synchronous_commit')); RETURN NULL; END $$`);
    await place.query(
      "CREATE TRIGGER note AFTER INSERT OR UPDATE ON outlive.jobs FOR EACH STATEMENT EXECUTE FUNCTION outlive.note_setting()",
    );
    const { id } = await engine.enqueue(slow, { ms: 0 });
    const worker = await engine.start({ concurrency: 1 });
    await untilTrue(
      () => engine.get(id),
      (job) => job?.state === "succeeded",
      "it is settled",
    );
    await worker.stop({ grace: "0ms" });
    const seen = [...(await place.ledgerRows()).keys()].sort();
    assert.deepEqual(seen, [`INSERT ${setting}`, `UPDATE ${setting}`]);
  });

for (const kills of [false, true])
  test(`a job whose process was killed before its wake-up starts soon${kills ? ", also if the process that polls for all was killed" : ""}`, async (t) => {
    const place = await PostgresPlace.shared(t);
    const start = (kind: string, poll: "1h" | "1s") => place.child({ heartbeat: {}, only: [kind], poll });
    return polledForAll(t, { url: place.url, start, options: { postgres: { schema: place.schema } } }, kills);
  });
