// A large settlement that hands over slots is two statements at the same time: what becomes of the attempts if only one of them comes to its end.
import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { idSource } from "../../src/job/enqueue.ts";
import { jobKey } from "../../src/job/limits.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { postgresStore } from "../../src/stores/postgres/store.ts";
import { WakeupChannel } from "../../src/stores/postgres/wakeup.ts";
import { draft, kind, names, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const KEYS = 200;

test("a settlement in two statements of which one fails is repeated: each attempt is settled once, and each slot is handed over", async (t) => {
  const ends: (() => Promise<unknown>)[] = [];
  t.after(async () => {
    for (const end of ends) await end();
  });
  const url = await freshDatabase({ after: (then) => void ends.unshift(then) });
  await withClient(url, (client) => migrate(client, "outlive"));
  const connection = await Connection.open({ url, schema: "outlive" });
  const newId = idSource(systemClock, systemRandom);
  const wakeup = new WakeupChannel(connection, systemClock);
  const store = postgresStore({ connection, clock: systemClock, newId, wakeup });
  ends.unshift(() => store.close());
  const others = [new pg.Client({ connectionString: url }), new pg.Client({ connectionString: url })] as const;
  for (const one of others) await one.connect();
  ends.unshift(() => Promise.all(others.map((one) => one.end())));
  const [locker, look] = others;

  await store.declare([kind("mail", { keyed: [limit("tenant", { running: 1 })] })]);
  await store.register(workerRecord("w"));
  const keys = names("key", KEYS);
  for (const round of [1, 2, 3])
    await store.enqueue(keys.map((key) => draft({ id: `${round}-${key}`, keys: [jobKey("tenant", key)] })));
  const ended = new Set<string>();
  const turn = async (claimed: Awaited<ReturnType<typeof store.turn>>["claimed"]) => {
    const answer = await store.turn(
      "w",
      claimed.map((job) => SETTLE.succeed(job)),
      roomFor(KEYS),
    );
    for (const { lease } of claimed) ended.add(lease.jobId);
    return answer;
  };
  const claimAll = async (first: Awaited<ReturnType<typeof store.turn>>["claimed"]) => {
    const claimed = [...first];
    while (claimed.length < KEYS) claimed.push(...(await turn([])).claimed);
    return claimed;
  };

  const first = await claimAll([]);
  // This one hands over all slots, so the next settlement is two statements.
  const second = await claimAll((await turn(first)).claimed);
  const last = Math.max(...second.map(({ lease }) => lease.row));
  await locker.query("BEGIN");
  await locker.query("SELECT 1 FROM outlive.jobs WHERE seq = $1 FOR UPDATE", [last]);
  const interrupted = turn(second);
  interrupted.catch(() => {});
  const waiting = await untilTrue(
    async () =>
      (
        await look.query<{ pid: number }>(
          "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
      ).rows,
    (rows) => rows.length === 1,
    "one half waits for the lock",
  );
  const succeeded = async (): Promise<number> =>
    (await look.query<{ n: number }>("SELECT count(*)::int AS n FROM outlive.jobs WHERE state = 2")).rows[0]!.n;
  await untilTrue(succeeded, (count) => count === KEYS + KEYS / 2, "the other half is committed");
  await look.query("SELECT pg_terminate_backend($1)", [waiting[0]!.pid]);
  await assert.rejects(interrupted);
  await locker.query("ROLLBACK");

  const again = await turn(second);
  const answers = again.settled.map(({ is }) => is);
  assert.deepEqual([KEYS / 2, KEYS / 2], [count(answers, "repeated"), count(answers, "applied")]);
  const third = await claimAll(again.claimed);
  await turn(third);
  assert.equal(await succeeded(), 3 * KEYS);
  assert.equal(ended.size, 3 * KEYS);
});

function count(answers: readonly string[], is: string): number {
  return answers.filter((one) => one === is).length;
}
