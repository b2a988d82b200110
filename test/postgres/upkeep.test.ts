// A recovery by hand leaves out what another session holds, reports it, and leaves nothing in the sessions of a user's pool.
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

test("on the user's own pool a recovery by hand leaves it out as soon, and nothing is left in a session", async (t) => {
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
    // The kernel may need a moment to end it.
    await untilTrue(
      async () => {
        await engine.operator.recover();
        return told.find((event) => event.name === "recovery.waits");
      },
      (event) => event !== undefined,
      "a recovery left it out",
    );
    assert.equal((await engine.get(id))!.state, "running");
    await letGo();
    await engine.operator.recover();
  });
  assert.equal((await engine.get(id))!.state, "queued");
  const { rows } = await pool.query(
    `SELECT current_setting('lock_timeout') AS lock, current_setting('idle_in_transaction_session_timeout') AS idle,
       current_setting('application_name') AS name`,
  );
  assert.deepEqual(rows, [{ lock: "0", idle: "0", name: "" }]);
});
