// The proof of life on PostgreSQL against a real server: who is gone, who only lost a connection, and when nothing is proved.
import assert from "node:assert/strict";
import pg from "pg";
import { randomBytes } from "node:crypto";
import { test, type TestContext } from "node:test";
import { ErrorCode } from "../../src/job/errors.ts";
import { systemClock as clock, systemRandom as random } from "../../src/platform/clock.ts";
import type { WorkerRow } from "../../src/stores/liveness.ts";
import { DirectSession } from "../../src/stores/postgres/direct-session.ts";
import { AdvisoryLiveness, HOLD_MS, lockKey } from "../../src/stores/postgres/liveness.ts";
import { ownServer, sharedServer, withClient } from "../support/postgres.ts";
import { untilTrue } from "../support/processes.ts";

const schema = `t_${randomBytes(6).toString("hex")}`;
let workers = 0;

const CONTACT_MS = 250;

function processOn(t: TestContext, url: string, name?: string) {
  const holds: string[] = [];
  let isFrozen = false;
  const connect = async (): Promise<pg.Client> => {
    if (isFrozen) throw new Error("a frozen process does not connect");
    const client = new pg.Client({ connectionString: url, application_name: name });
    client.on("error", () => {});
    await client.connect();
    return client;
  };
  const session = new DirectSession({ connect, clock, random });
  t.after(() => session.close());
  const liveness = new AdvisoryLiveness({
    session,
    schema,
    clock,
    random,
    contactMs: CONTACT_MS,
    onHold: (why) => holds.push(why),
  });
  /** From now on a session that is ended does not come back. */
  const freeze = (): void => void (isFrozen = true);
  return { session, liveness, holds, freeze };
}

async function worker(t: TestContext, url: string, name?: string) {
  const process = processOn(t, url, name);
  const id = `w${++workers}`;
  const { evidence, drop } = await process.liveness.take(id);
  return {
    ...process,
    drop,
    row: { id, bootId: "elsewhere", leaseMs: 1_000, state: "live", lock: evidence } as WorkerRow,
  };
}

const killSession = (url: string, pid: number): Promise<unknown> =>
  withClient(url, (client) => client.query("SELECT pg_terminate_backend($1)", [pid]));

test("a worker that holds its lock is in contact, one whose connection stays away throughout `contact` is not", async (t) => {
  const url = await sharedServer();
  const one = await worker(t, url);
  const other = await worker(t, url);
  const watcher = processOn(t, url);
  assert.deepEqual(await watcher.liveness.probeAll([one.row, other.row]), ["held", "held"]);
  await one.session.close();
  const began = performance.now();
  assert.deepEqual(await watcher.liveness.probeAll([one.row, other.row]), ["unknown", "held"]);
  await untilTrue(
    () => watcher.liveness.probeAll([one.row, other.row]),
    ([lost, held]) => lost === "missing" && held === "held",
    "contact with the one is lost",
  );
  assert.ok(performance.now() - began >= 240, "not before `contact` has passed");
  assert.equal(await other.liveness.probe(other.row), "held", "its own lock");
});

test("a lock of another database, or none at all, proves nothing", async (t) => {
  const url = await sharedServer();
  const { row, session } = await worker(t, url);
  await session.close();
  const { liveness } = processOn(t, url);
  assert.equal(await liveness.probe({ ...row, lock: { ...row.lock, identity: "1" } }), "unknown");
  assert.equal(await liveness.probe({ ...row, lock: { name: null, identity: null } }), "unknown");
});

test("a heartbeat session that is killed alone comes back at once with its lock, and no worker is called dead", async (t) => {
  const url = await sharedServer();
  const one = await worker(t, url);
  const watcher = processOn(t, url);
  await watcher.liveness.probe(one.row);
  // A machine on which two looks find no lock because its holder took longer than that to come back has shown nothing: try again.
  await untilTrue(
    async () => {
      const { pid } = one.session.greeting!;
      let awayMs = 0;
      const since = performance.now();
      const off = one.session.onReturn(() => (awayMs = performance.now() - since));
      const looking = (async () => {
        const seen: string[] = [];
        while (awayMs === 0 || seen.length < 20) seen.push(await watcher.liveness.probe(one.row));
        return seen;
      })();
      await killSession(url, pid);
      const seen = await looking;
      off();
      assert.equal(await watcher.liveness.probe(one.row), "held");
      return awayMs > 200 ? "too slow" : seen.includes("missing") ? "called lost" : "left alone";
    },
    (said) => {
      assert.notEqual(said, "called lost");
      return said === "left alone";
    },
    "its session is back within 200 ms",
  );
});

test("a watcher whose own session was cut holds back before it calls anybody dead", async (t) => {
  const url = await sharedServer();
  const one = await worker(t, url);
  const watcher = processOn(t, url);
  assert.equal(await watcher.liveness.probe(one.row), "held");
  await one.session.close();
  await killSession(url, watcher.session.greeting!.pid);
  await untilTrue(
    () => watcher.liveness.probe(one.row).catch(() => "cut"),
    (probe) => probe === "unknown",
    "it looks again",
  );
  assert.equal(watcher.holds.at(-1), "the connection to the store was lost");
  const left = watcher.liveness.holdMs();
  assert.ok(left > 0 && left <= HOLD_MS);
  await untilTrue(
    () => watcher.liveness.probe(one.row),
    (probe) => probe === "missing",
    "after the hold it is gone",
  );
  assert.equal(watcher.liveness.holdMs(), 0);
});

test("one process looks for all, and another one does after its death", async (t) => {
  const url = await sharedServer();
  const all = [processOn(t, url), processOn(t, url), processOn(t, url)];
  const who = async (): Promise<number[]> => {
    const leads = await Promise.all(all.map(({ liveness }) => liveness.leads().catch(() => false)));
    return leads.flatMap((yes, at) => (yes ? [at] : []));
  };
  const [first] = await untilTrue(who, (leaders) => leaders.length === 1, "one leads");
  assert.deepEqual(await who(), [first], "and stays");
  await all[first!]!.session.close();
  const [next] = await untilTrue(who, (leaders) => leaders.length === 1, "another one leads");
  assert.notEqual(next, first);
});

test("the session of a worker that was recovered as silent is ended, so that it neither leads nor fills the server", async (t) => {
  const url = await sharedServer();
  const frozen = await worker(t, url);
  const { pid } = frozen.session.greeting!;
  frozen.freeze();
  const watcher = processOn(t, url);
  assert.equal(await watcher.liveness.evict({ ...frozen.row, state: "gone" }), false, "only what is still called live");
  assert.equal(await watcher.liveness.clean(frozen.row), false, "its session still holds its lock");
  assert.equal(await watcher.liveness.evict(frozen.row), true);
  assert.equal(await watcher.liveness.clean(frozen.row), true, "nothing of it is left");
  await untilTrue(
    () =>
      withClient(url, async (c) => (await c.query("SELECT 1 FROM pg_stat_activity WHERE pid = $1", [pid])).rowCount),
    (count) => count === 0,
    "its session is over",
  );
  assert.equal(await frozen.liveness.evict(frozen.row), false, "never its own");
  assert.equal(await frozen.liveness.clean(frozen.row), false, "never its own");
  const pooled = { ...frozen.row, lock: { name: null, identity: null } };
  assert.equal(await watcher.liveness.clean(pooled), true, "behind a pooler it had no lock");
});

test("of an earlier worker of the same process only the session that holds its lock is ended", async (t) => {
  const url = await sharedServer();
  const name = `outlive-${randomBytes(6).toString("hex")}`;
  const earlier = await worker(t, url, name);
  const watcher = processOn(t, url, name);
  const other = processOn(t, url, name);
  const pids = [(await watcher.session.greet()).pid, (await other.session.greet()).pid];
  earlier.freeze();
  assert.equal(await watcher.liveness.evict(earlier.row), true);
  assert.equal(await watcher.liveness.clean(earlier.row), true, "nothing of it is left");
  assert.equal(await watcher.liveness.evict(earlier.row), false, "no session holds its lock");
  const present = async ({ session }: typeof other): Promise<number> =>
    (await session.query<{ pid: number }>("SELECT pg_backend_pid() AS pid"))[0]!.pid;
  assert.deepEqual([await present(watcher), await present(other)], pids, "those that recover it are left alone");
});

test("two sessions of one process hold a lock together, so that one can hand over to the other", async (t) => {
  const url = await sharedServer();
  const one = await worker(t, url);
  const maintenance = processOn(t, url);
  await maintenance.session.hold(lockKey(schema, one.row.id));
  await one.drop(false);
  assert.equal(await processOn(t, url).liveness.probe(one.row), "held");
});

for (const [title, end] of [
  ["killed with all its processes", "kill"],
  ["stopped and started", "stop"],
] as const) {
  test(`the server is ${title}: every lock is gone, and no worker is called dead before the hold ends`, async (t) => {
    const server = await ownServer(t);
    await withClient(server.url(), (c) => c.query("SELECT pg_sleep(0)"));
    const one = await worker(t, server.url());
    const dead = await worker(t, server.url());
    const watcher = processOn(t, server.url());
    await untilTrue(
      () => watcher.liveness.probeAll([one.row, dead.row]),
      (probes) => probes.every((probe) => probe === "held"),
      "both live",
    );
    await server[end]();
    await dead.session.close();
    await server.start();
    const seen: string[] = [];
    await untilTrue(
      async () => {
        const probes = await watcher.liveness.probeAll([one.row, dead.row]).catch(() => ["away", "away"]);
        seen.push(probes[0]!);
        return probes[1];
      },
      (probe) => probe === "missing",
      "the one that did not come back is gone",
    );
    assert.ok(!seen.includes("missing"), "who came back was never called dead");
    assert.ok(watcher.holds.includes("the store restarted"));
    const age = await withClient(server.url(), (c) =>
      c.query<{ ms: number }>(
        "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float8 * 1000 AS ms",
      ),
    );
    assert.ok(age.rows[0]!.ms >= HOLD_MS, `called dead when the server was ${age.rows[0]!.ms} ms old`);
  });
}

test("one process of the server crashes and takes all sessions with it: a watcher that is new here holds back too", async (t) => {
  const server = await ownServer(t);
  const url = server.url();
  const victim = await worker(t, url);
  await untilTrue(
    () =>
      withClient(
        url,
        async (c) => (await c.query("SELECT clock_timestamp() - pg_postmaster_start_time() > '6s' AS old")).rows[0].old,
      ),
    (old) => old === true,
    "the server has been up for longer than the hold",
  );
  process.kill(victim.session.greeting!.pid, "SIGKILL");
  await victim.session.close();
  const watcher = processOn(t, url);
  const probe = await untilTrue(
    () => watcher.liveness.probe(victim.row).catch(() => "away"),
    (said) => said !== "away",
    "the server is back",
  );
  assert.equal(probe, "unknown");
  assert.deepEqual(watcher.holds, ["the store restarted"]);
});

test("a worker whose connection is lost while it takes its lock fails with an error of ours, which says what to do", async () => {
  const lost = async (): Promise<never> => {
    throw new Error("Connection terminated unexpectedly");
  };
  const greets = async () => ({ database: 1, pooled: false });
  for (const session of [
    { hold: lost, greet: greets },
    { hold: async () => true, greet: lost },
  ]) {
    const liveness = new AdvisoryLiveness({ session, schema, clock, random } as never);
    await assert.rejects(liveness.take("w"), {
      code: ErrorCode.storeUnreachable,
      message: /taking the lock of a worker/,
    });
  }
});
