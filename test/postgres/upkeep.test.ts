// Upkeep waits for nobody for ever: a recovery that meets a lock gives up after two seconds, says so, and comes again.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { type EngineEvent, open } from "../../src/index.ts";
import { untilTrue } from "../support/processes.ts";
import { jobs, slow } from "./jobs.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

/** Holds the job's row in a session of its own while `work` goes on, until `letGo`. */
async function whileHeld(
  place: PostgresPlace,
  id: string,
  work: (letGo: () => Promise<void>) => Promise<void>,
): Promise<void> {
  const client = new pg.Client({ connectionString: place.url });
  await client.connect();
  try {
    await client.query("BEGIN");
    await client.query(`SELECT 1 FROM "${place.schema}".jobs WHERE id = $1 FOR UPDATE`, [id]);
    await work(async () => void (await client.query("ROLLBACK")));
  } finally {
    await client.end();
  }
}

const GAVE_UP = /canceling statement due to lock timeout.*Another session holds a lock/s;

test("a keeper that meets a lock on a dead worker's job gives up, tells it, and recovers once the lock is gone", async (t) => {
  const place = await PostgresPlace.shared(t);
  const engine = await place.engine();
  const dead = place.child();
  await dead.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await dead.untilFact("started", { id });
  const other = place.child();
  await other.untilFact("working");
  await whileHeld(place, id, async (letGo) => {
    dead.kill();
    const { error } = (await other.untilEvent("recovery.failed")) as { error: { message: string } };
    assert.match(error.message, GAVE_UP);
    assert.equal((await engine.get(id))!.fence, 1, "nothing was done by halves");
    assert.deepEqual(await engine.incidents(), []);
    await letGo();
    await other.untilFact("started", { id, attempt: 2 });
  });
  assert.equal((await engine.incidents()).length, 1);
});

test("on the user's own pool, whose sessions have no limit, a recovery by hand gives up as soon", async (t) => {
  const place = await PostgresPlace.shared(t);
  const pool = new pg.Pool({ connectionString: place.url, max: 2 });
  t.after(() => pool.end());
  const told: EngineEvent[] = [];
  await using engine = await open("postgres:", {
    jobs,
    logger: false,
    heartbeat: PATIENT,
    postgres: { schema: place.schema, pool },
    onEvent: (event) => void told.push(event),
  });
  const dead = place.child();
  await dead.untilFact("working");
  const { id } = await engine.enqueue(slow, { ms: 600_000 });
  await dead.untilFact("started", { id });
  await whileHeld(place, id, async (letGo) => {
    dead.kill();
    // Its lock is free a moment after its end, and a free lock is looked at twice.
    const failed = await untilTrue(
      async () => {
        await engine.recover();
        return told.find((event) => event.name === "recovery.failed");
      },
      (event) => event !== undefined,
      "a recovery gave up",
    );
    assert.match((failed as { error: { message: string } }).error.message, GAVE_UP);
    await letGo();
    await engine.recover();
  });
  assert.equal((await engine.get(id))!.state, "queued");
  const { rows } = await pool.query("SELECT current_setting('lock_timeout') AS held");
  assert.deepEqual(rows, [{ held: "0" }], "nothing is left in a session");
});
