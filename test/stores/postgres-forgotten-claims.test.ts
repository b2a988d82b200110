// A busy worker does not wait until its claims are on disk, and a server that dies forgets what is not. Then the jobs are queued as
// before, and the attempts that ran under the forgotten claims can neither write nor be taken for later ones.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { idSource } from "../../src/job/enqueue.ts";
import type { ClaimedJob, JobInfo } from "../../src/job/job.ts";
import { succeed } from "../../src/job/transitions.ts";
import { systemClock, systemRandom } from "../../src/platform/clock.ts";
import type { Room, Settlement, Store } from "../../src/stores/port.ts";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { migrate } from "../../src/stores/postgres/migrate.ts";
import { postgresStore } from "../../src/stores/postgres/store.ts";
import { draft, kind, names, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { ownServer, type PostgresServer, withClient } from "../support/postgres.ts";

const ROOM: Room = { total: 20, kinds: [{ kind: "mail", room: 20 }] };
const NONE: Room = { total: 0, kinds: [] };

const success = ({ lease, counters }: ClaimedJob): Settlement => ({
  lease,
  change: succeed({ id: lease.jobId, state: "running", counters }, null),
});

/** A server whose log is written by nothing but our own commits, and a worker with 20 successes to settle and 40 jobs to claim. */
async function stage(t: TestContext) {
  const server = await ownServer(t, { settings: { wal_writer_delay: "10s", autovacuum: "off" } });
  const url = server.url();
  await withClient(url, (client) => migrate(client, "outlive"));
  const connection = await Connection.open({ url, schema: "outlive" });
  const store = postgresStore({ connection, clock: systemClock, newId: idSource(systemClock, systemRandom) });
  t.after(() => store.close());
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue(names("j", 60).map((id) => draft(id)));
  const first = (await store.turn("w", [], ROOM)).claimed.map(success);
  return { server, store, first };
}

/** Both lose what was in the server's memory; the second leaves the postmaster and its start time as they were. */
const CRASHES: Readonly<Record<string, (server: PostgresServer) => Promise<void>>> = {
  "a server that is killed": async (server) => {
    await server.kill();
    await server.start();
  },
  "a server of which one process is killed": async (server) => {
    const { rows } = await withClient(server.url(), (client) =>
      client.query<{ pid: number }>("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"),
    );
    // A session that waits hears of the crash; before that, no call may be answered.
    await withClient(server.url(), async (client) => {
      const ended = client.query("SELECT pg_sleep(60)").then(
        () => assert.fail("the server did not crash"),
        () => {},
      );
      process.kill(rows[0]!.pid, "SIGKILL");
      await ended;
    });
  },
};

for (const [who, crash] of Object.entries(CRASHES))
  test(`a claim that ${who} forgets is void: its job is queued, its fence is never given again, its writes are refused`, async (t) => {
    const { server, store, first } = await stage(t);
    await store.turn("w", first, NONE);
    await stopLogWriter(server.url());
    // What is settled already is settled by nothing that would be flushed, and the claim next to it is not either.
    const { claimed } = await store.turn("w", first, ROOM);
    assert.equal(claimed.length, 20);
    assert.equal((await store.inspect.get(claimed[0]!.lease.jobId))?.state, "running");
    await crash(server);
    const forgotten = claimed[0]!.lease;
    const { state, attempt: fence } = await whenBack(store, forgotten.jobId);
    assert.deepEqual([state, fence], ["queued", 0], "the server has forgotten the claim");
    assert.equal((await store.turn("w", [success(claimed[0]!)], NONE)).settled[0]?.is, "stale");
    const again = (await store.turn("w", [], ROOM)).claimed;
    assert.deepEqual(
      again.map(({ lease }) => lease.jobId),
      claimed.map(({ lease }) => lease.jobId),
    );
    for (const { lease } of again) assert.ok(lease.epoch > forgotten.epoch, `${lease.epoch} > ${forgotten.epoch}`);
    const answers = (await store.turn("w", [...claimed, ...again].map(success), NONE)).settled;
    assert.deepEqual(
      answers.map(({ is }) => is),
      [...claimed.map(() => "stale"), ...again.map(() => "applied")],
    );
  });

test("a claim next to a settlement is on disk with the next thing that is written under it", async (t) => {
  const { server, store, first } = await stage(t);
  await stopLogWriter(server.url());
  const { claimed } = await store.turn("w", first, ROOM);
  const { lease } = claimed[0]!;
  await store.write([{ lease, write: { type: "step", name: "charge", result: "1" } }]);
  await server.kill();
  await server.start();
  const { state, epoch, attempt: fence } = await whenBack(store, lease.jobId);
  assert.deepEqual([state, epoch, fence], ["running", lease.epoch, lease.fence]);
});

async function whenBack(store: Store, id: string): Promise<JobInfo> {
  for (;;) {
    const found = await store.inspect.get(id).catch(() => null);
    if (found) return found;
  }
}

/** The process that writes the log in the background, stopped in its tracks; it dies with its server. */
async function stopLogWriter(url: string): Promise<void> {
  const { rows } = await withClient(url, (client) =>
    client.query<{ pid: number }>("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"),
  );
  process.kill(rows[0]!.pid, "SIGSTOP");
}
