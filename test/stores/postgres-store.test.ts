// What the PostgreSQL store does beyond the port's specification: groups of enqueues, the user's own transactions, races between
// claims and recoveries on real sessions, and what it says of itself.
import assert from "node:assert/strict";
import { test } from "node:test";
import { job } from "../../src/engine/options.ts";
import { succeed } from "../../src/job/transitions.ts";
import { decideCrash } from "../../src/recovery/recover.ts";
import type { Room, Settlement } from "../../src/stores/port.ts";
import { enqueueIn, type PostgresTransaction } from "../../src/stores/postgres/transaction.ts";
import { draft, kind, names, recoverOnce, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, withClient } from "../support/postgres.ts";

const ROOM: Room = { total: 20, kinds: [{ kind: "mail", room: 20 }] };

async function stage(t: Parameters<typeof freshSchema>[0], connections = 1) {
  const fresh = await freshSchema(t);
  const stores = await Promise.all(Array.from({ length: connections }, () => openStore(fresh)));
  // Before the schema goes.
  t.after(() => Promise.all(stores.map((store) => store.close())));
  await stores[0]!.declare([kind("mail"), kind("sms")]);
  return { fresh, store: stores[0]!, stores };
}

test("enqueues of one turn of the event loop are one statement, and what comes meanwhile is the next", async (t) => {
  const { store } = await stage(t);
  await store.enqueue([draft("first")]);
  const before = (await store.inspect.health()).detail["groupCommits"] as number;
  const ids = names("j", 50);
  const answers = await Promise.all(ids.map((id) => store.enqueue([draft(id)])));
  assert.deepEqual(
    answers.flat(),
    ids.map((id) => ({ id, created: true })),
  );
  const { groupCommits, groupedWrites } = (await store.inspect.health()).detail;
  assert.equal((groupCommits as number) - before, 1);
  assert.equal(groupedWrites, 51);
});

test("a job that PostgreSQL does not take fails its own enqueue and no other", async (t) => {
  const { store } = await stage(t);
  const settled = await Promise.allSettled([
    store.enqueue([draft("a")]),
    store.enqueue([draft({ id: "b", priority: 2 ** 40 })]),
    store.enqueue([draft("c")]),
  ]);
  assert.deepEqual(
    settled.map(({ status }) => status),
    ["fulfilled", "rejected", "fulfilled"],
  );
  assert.deepEqual(
    [(await store.inspect.get("a"))?.state, await store.inspect.get("b"), (await store.inspect.get("c"))?.state],
    ["queued", null, "queued"],
  );
});

test("a kind whose number a restore gave to another one is looked up again: neither an enqueue nor a claim takes one for the other", async (t) => {
  const { fresh, store } = await stage(t);
  await store.enqueue([draft("a"), draft({ id: "b", kind: "sms" })]);
  await store.register(workerRecord("w"));
  const kinds = `"${fresh.schema}".kinds`;
  await fresh.query(`DELETE FROM ${kinds}`);
  await fresh.query(`INSERT INTO ${kinds} (id, name) OVERRIDING SYSTEM VALUE VALUES (1, 'sms'), (2, 'mail')`);
  await store.enqueue([draft("c"), draft({ id: "d", kind: "sms" })]);
  const found = await Promise.all(["c", "d"].map((id) => store.inspect.get(id)));
  assert.deepEqual(
    found.map((one) => one?.kind),
    ["mail", "sms"],
  );
  await store.declare([kind("mail"), kind("sms")]);
  const { claimed } = await store.turn("w", [], { ...ROOM, kinds: [{ kind: "sms", room: 20 }] });
  assert.deepEqual(
    claimed.map(({ lease }) => lease.jobId),
    ["a", "d"],
    "job a is of the kind that has its number now",
  );
});

test("texts with quotes, backslashes, braces and line breaks come back as they went in", async (t) => {
  const { store } = await stage(t);
  const input = JSON.stringify({ text: 'a "b" \\ {c} ,\n\t NULL \u0000 ü 🙂' });
  const odd = 'k"\\{},NULL';
  await store.enqueue([
    draft({ id: odd, dedupeKey: odd, input }),
    draft({ id: "null", dedupeKey: "NULL", input: '""' }),
  ]);
  assert.deepEqual((await store.inspect.get(odd))?.input, JSON.parse(input));
  assert.deepEqual((await store.inspect.get("null"))?.input, "");
  assert.deepEqual(await store.enqueue([draft({ id: "again", dedupeKey: odd })]), [{ id: odd, created: false }]);
});

test("transaction control in the callback is refused, and whatever else ends the transaction is noticed", async (t) => {
  const { store, fresh } = await stage(t);
  await fresh.query(`CREATE TABLE "${fresh.schema}".notes (text text)`);
  const insert = `INSERT INTO "${fresh.schema}".notes VALUES ('x')`;
  const attempts = ["BEGIN", " commit", "/* now */ ROLLBACK", "END", "start transaction", `${insert}; ROLLBACK; BEGIN`];
  for (const text of attempts) {
    await assert.rejects(
      store.transactions!.transact(async (tx: PostgresTransaction) => {
        await tx.query(insert);
        await tx.client.query(text);
      }),
      { code: "COMMIT_DENIED" },
      text,
    );
  }
  assert.deepEqual(await fresh.query(`SELECT * FROM "${fresh.schema}".notes`), []);
  const savepoint = async (tx: PostgresTransaction) => {
    await tx.query(insert);
    await tx.query("SAVEPOINT here");
    await assert.rejects(tx.query("SELECT nonsense"));
    await tx.query("ROLLBACK TO SAVEPOINT here");
  };
  await store.transactions!.transact(savepoint);
  assert.equal((await fresh.query(`SELECT * FROM "${fresh.schema}".notes`)).length, 1);
});

test("a callback that swallows the error of a statement has written nothing, and hears of it", async (t) => {
  const { store, fresh } = await stage(t);
  await fresh.query(`CREATE TABLE "${fresh.schema}".notes (text text)`);
  await store.enqueue([draft("a")]);
  await store.register(workerRecord("w"));
  const [claimed] = (await store.turn("w", [], ROOM)).claimed;
  const change = succeed({ id: "a", state: "running", counters: claimed!.counters }, null);
  const body = async (tx: PostgresTransaction) => {
    await tx.query(`INSERT INTO "${fresh.schema}".notes VALUES ('x')`);
    await tx.query("SELECT nonsense").catch(() => {});
  };
  await assert.rejects(
    store.transactions!.commit({ lease: claimed!.lease, change }, body, () => null),
    { code: "COMMIT_ROLLED_BACK" },
  );
  assert.deepEqual(await fresh.query(`SELECT * FROM "${fresh.schema}".notes`), []);
  assert.equal((await store.inspect.get("a"))?.state, "running");
});

test("a handle that is used after its callback has ended writes nothing", async (t) => {
  const { store } = await stage(t);
  const { value: kept } = await store.transactions!.transact(async (tx: PostgresTransaction) => ({ tx }));
  await assert.rejects(async () => kept.tx.query("SELECT 1"), { code: "COMMIT_DENIED" });
  await assert.rejects(kept.tx.enqueue(job("mail"), {}), { code: "COMMIT_DENIED" });
});

test("a job enqueued in the user's own transaction is there if that commits, and not if it rolls back", async (t) => {
  const { store, fresh } = await stage(t);
  let n = 0;
  const deps = { schema: fresh.schema, newId: () => `own-${++n}` };
  await withClient(fresh.url, async (client) => {
    for (const end of ["ROLLBACK", "COMMIT"]) {
      await client.query("BEGIN");
      await enqueueIn(deps, client, job("mail"), { end }, { id: end });
      assert.equal(await store.inspect.get(end), null);
      await client.query(end);
    }
    await assert.rejects(enqueueIn(deps, client, job("never.declared"), {}), { code: "KIND_UNKNOWN" });
  });
  assert.equal(await store.inspect.get("ROLLBACK"), null);
  assert.deepEqual((await store.inspect.get("COMMIT"))?.input, { end: "COMMIT" });
});

test("a recovery and a claim of the same worker that meet leave no job with a worker that is gone", async (t) => {
  const { stores, fresh } = await stage(t, 2);
  const [worker, maintenance] = stores as [(typeof stores)[0], (typeof stores)[0]];
  for (let round = 0; round < 40; round++) {
    const id = `w${round}`;
    await worker.enqueue(names(`r${round}-`, 20).map(draft));
    await worker.register(workerRecord(id));
    const row = (await maintenance.workers({})).find((each) => each.id === id)!;
    const request = {
      worker: row,
      death: { how: "gone", lastSeenAliveAt: null, detectedAt: 0, evidence: null },
      recovery: { id: `recovery-${round}`, startedAt: 0, by: "test", integrity: "NOT_CHECKED", summary: null },
      incident: `incident-${round}`,
      limit: 1_000,
      decide: decideCrash,
    } as const;
    const small = { ...ROOM, total: 2 };
    const claims = Array.from({ length: 8 }, () => worker.turn(id, [], small));
    const [recovered, ...turns] = await Promise.all([recoverOnce(maintenance, request), ...claims]);
    const claimed = turns.flatMap((turn) => turn.claimed.map(({ lease }) => lease.jobId));
    assert.deepEqual(recovered.jobs.map(({ jobId }) => jobId).toSorted(), claimed.toSorted());
    assert.equal((await worker.turn(id, [], small)).live, false);
  }
  assert.deepEqual(await fresh.query(`SELECT id FROM "${fresh.schema}".jobs WHERE state = 1`), []);
  assert.deepEqual(await worker.upkeep.integrity(), []);
});

test("FR-027 a job whose own row the server refuses is that job's failure: it is kept in the incident, and the others are recovered", async (t) => {
  const { store, fresh } = await stage(t);
  await store.enqueue(["a", "b", "c"].map(draft));
  await store.register(workerRecord("w"));
  await store.turn("w", [], ROOM);
  const jobs = `"${fresh.schema}".jobs`;
  await fresh.query(`ALTER TABLE ${jobs} ADD CONSTRAINT stuck CHECK (id <> 'b' OR state = 1)`);
  const [worker] = await store.workers({});
  const request = {
    worker: worker!,
    death: { how: "gone", lastSeenAliveAt: null, detectedAt: 0, evidence: null },
    recovery: { id: "recovery", startedAt: 0, by: "test", integrity: "NOT_CHECKED", summary: null },
    incident: "incident",
    limit: 1_000,
    decide: decideCrash,
  } as const;
  const told = (recovered: readonly { jobId: string; decision: string; success: boolean }[]): unknown =>
    recovered.map(({ jobId, decision, success }) => `${jobId} ${decision} ${success}`);
  const first = await recoverOnce(store, request);
  assert.deepEqual(told(first.jobs), ["a retry true", "b none false", "c retry true"]);
  assert.match(first.jobs[1]!.error!, /stuck/);
  assert.deepEqual(told((await store.inspect.incident("incident"))!.jobs), [
    "a retry true",
    "b none false",
    "c retry true",
  ]);
  assert.deepEqual(
    [(await store.inspect.get("b"))?.state, (await store.inspect.get("b"))?.history.length],
    ["running", 0],
  );
  await fresh.query(`ALTER TABLE ${jobs} DROP CONSTRAINT stuck`);
  const [left] = await store.workers({ which: "leftBehind" });
  const second = await recoverOnce(store, { ...request, worker: left!, incident: "another" });
  assert.deepEqual([second.incident, told(second.jobs)], ["incident", ["b retry true"]]);
});

test("workers on many sessions drain kinds together: every job once, none left, and the counts agree", async (t) => {
  const { stores, store } = await stage(t, 4);
  const ids = names("j", 600);
  await store.enqueue(ids.map((id, i) => draft({ id, kind: i % 3 === 0 ? "sms" : "mail", priority: i % 5 })));
  const room: Room = { total: 7, kinds: ["mail", "sms"].map((name) => ({ kind: name, room: 5 })) };
  const ran: string[] = [];
  await Promise.all(
    stores.map(async (each, i) => {
      await each.register(workerRecord(`w${i}`));
      let finished: Settlement[] = [];
      for (let empty = 0; empty < 5;) {
        const { claimed, settled } = await each.turn(`w${i}`, finished, room);
        assert.ok(settled.every(({ is }) => is === "applied"));
        ran.push(...claimed.map(({ lease }) => lease.jobId));
        finished = claimed.map(({ lease, counters }) => ({
          lease,
          change: succeed({ id: lease.jobId, state: "running", counters }, null),
        }));
        empty = claimed.length === 0 ? empty + 1 : 0;
      }
    }),
  );
  assert.deepEqual(ran.toSorted(), [...ids].toSorted());
  const counts = await store.inspect.counts();
  assert.deepEqual(
    counts.map(({ kind: name, succeeded, ready, running }) => [name, succeeded, ready, running]),
    [
      ["mail", 400, 0, 0],
      ["sms", 200, 0, 0],
    ],
  );
  assert.deepEqual(await store.upkeep.integrity(), []);
  await store.purge({ finishedOlderThanMs: 1e9, incidentsOlderThanMs: 1e9, limit: 10_000 });
  assert.deepEqual(await store.inspect.counts(), counts);
});

test("rows that contradict each other are found, each in a sentence", async (t) => {
  const { store, fresh } = await stage(t);
  await store.enqueue(["a", "b", "c"].map(draft));
  const jobs = `"${fresh.schema}".jobs`;
  await fresh.query(`UPDATE ${jobs} SET state = 1, fence = 1, worker = 99 WHERE id = 'a'`);
  await fresh.query(`UPDATE ${jobs} SET lane = 0 WHERE id = 'b'`);
  await fresh.query(`DELETE FROM ${jobs} WHERE id = 'c'`);
  await fresh.query(`UPDATE "${fresh.schema}".job_ids SET id = 'x' WHERE id = 'b'`);
  assert.deepEqual(await store.upkeep.integrity(), [
    "job a runs, but its worker 99 has no row",
    "job b is delayed, but has no time at which it becomes ready",
    "job b can't be found by its id",
    "the id c is taken, but job 3 is not there",
    "kind mail counts 3 jobs and has 2",
  ]);
  assert.deepEqual(await store.upkeep.repair(), await store.upkeep.integrity());
});

test("the session that holds up ours is named, and none is when none of ours waits", async (t) => {
  const { store, fresh } = await stage(t);
  await store.enqueue([draft("a")]);
  assert.equal(await store.inspect.writer(), null);
  await withClient(fresh.url, async (client) => {
    await client.query("SET application_name = 'a careless program'; BEGIN");
    await client.query(`SELECT 1 FROM "${fresh.schema}".jobs FOR UPDATE`);
    const waiting = store.operate.cancel("a", "operator");
    let holder = await store.inspect.writer();
    while (holder === null) holder = await store.inspect.writer();
    assert.match(holder.command, /^a careless program: SELECT 1/);
    await client.query("ROLLBACK");
    assert.deepEqual(await waiting, { is: "applied", state: "cancelled" });
  });
});

test("idle workers that come at the same moment for suspects that may not run together get one each, as long as there are any", async (t) => {
  const { fresh, stores } = await stage(t, 6);
  const ids = names("alone", stores.length);
  await stores[0]!.enqueue(ids.map((id) => draft(id)));
  await fresh.query(`UPDATE "${fresh.schema}".jobs SET crashes = 2, together = 1, lane = 2`);
  await Promise.all(stores.map((store, i) => store.register(workerRecord(`w${i}`))));
  const idle: Room = { ...ROOM };
  // Everybody's connection is open and knows its kinds: what follows is one race.
  await Promise.all(stores.map((store, i) => store.turn(`w${i}`, [], { ...idle, total: 0 })));
  const answers = await Promise.all(stores.map((store, i) => store.turn(`w${i}`, [], idle)));
  assert.deepEqual(
    answers.flatMap(({ claimed }) => claimed.map(({ lease, together }) => `${lease.jobId} ${together}`)).sort(),
    ids.map((id) => `${id} 1`),
  );
});
