// What idle workers and the elected process ask of the server has a limit: next to a session that is idle in a transaction it could take as long as there are
// dead entries. Here a lock takes their place.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import pg from "pg";
import { idSource } from "../../src/job/enqueue.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { postgresStore } from "../../src/stores/postgres/store.ts";
import { kind, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { freshSchema, withClient } from "../support/postgres.ts";

const SESSIONS: Readonly<Record<string, (t: TestContext, url: string) => pg.Pool | undefined>> = {
  "on sessions of ours": () => undefined,
  "on the user's own pool": (t, url) => {
    const pool = new pg.Pool({ connectionString: url, max: 1 });
    t.after(() => pool.end());
    return pool;
  },
};

for (const [where, poolOf] of Object.entries(SESSIONS))
  test(`${where} a poll that takes too long is ended by the server and counts as one that found something, and the heartbeat is written`, async (t) => {
    const { url, schema } = await freshSchema(t);
    const pool = poolOf(t, url);
    const connection = await Connection.open({ schema, max: 1, maintenance: true, ...(pool ? { pool } : { url }) });
    const store = postgresStore({ connection, clock: systemClock, newId: idSource(systemClock, systemRandom) });
    t.after(() => store.close());
    await store.declare([kind("mail")]);
    await store.register(workerRecord("w"));
    const beat = async (pollMs = 10_000): Promise<unknown> => {
      const { live, pending } = await store.beat("w", { loopLagMs: 0, pollMs });
      return { live, pending };
    };
    const NOTHING = { now: false, nextInMs: null };
    const limit = async (): Promise<unknown> => connection.rows("SHOW statement_timeout");
    const before = await limit();
    assert.deepEqual(await beat(), { live: true, pending: NOTHING });
    await store.upkeep.pending!([]);
    await withClient(url, async (client) => {
      await client.query(`BEGIN; LOCK TABLE "${schema}".wakes`);
      const beats = async (): Promise<number> => Number((await store.workers({}))[0]!.beats);
      const former = await beats();
      assert.deepEqual(await beat(50), { live: true, pending: { now: true, nextInMs: null } });
      assert.equal(await beats(), former + 1, "the sign of life is written, once");
      assert.deepEqual(await store.upkeep.pending!(["mail"]), { now: true, nextInMs: null });
      const { rows } = await client.query("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = $1::regclass", [
        `"${schema}".wakes`,
      ]);
      assert.deepEqual(rows, [], "no statement is left behind");
      await client.query("ROLLBACK");
    });
    assert.deepEqual(await beat(), { live: true, pending: NOTHING });
    assert.deepEqual(await store.upkeep.pending!(["mail", "it's \\ $1"]), NOTHING);
    assert.deepEqual(await limit(), before);
  });
