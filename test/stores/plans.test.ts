// A worker's statements are planned once. SQLite plans some again whenever a value is bound (a bare `LIMIT ?` is one), which is twenty
// times the cost of a read that finds nothing and which nothing else would show.
import assert from "node:assert/strict";
import { DatabaseSync, type StatementSync } from "node:sqlite";
import { test } from "node:test";
import { wait } from "../../src/job/transitions.ts";
import { systemClock } from "../../src/platform/clock.ts";
import { draft, kind, names, roomFor, SETTLE, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/sqlite-stores.ts";

type Ask = NonNullable<Parameters<DatabaseSync["setAuthorizer"]>[0]>;

test("nothing that a worker and its maintenance ask again and again is planned again", async (t) => {
  let planned = 0;
  // SQLite asks the authorizer while it plans, and at no other time.
  const { value } = Object.getOwnPropertyDescriptor(DatabaseSync.prototype, "setAuthorizer")!;
  const setAuthorizer = value as (this: DatabaseSync, ask: Ask) => void;
  t.mock.method(DatabaseSync.prototype, "setAuthorizer", function (this: DatabaseSync, ask: Ask) {
    setAuthorizer.call(this, (...of) => (planned++, ask(...of)));
  });
  const store = await openStore(systemClock, ":memory:");
  t.after(() => store.close());
  await store.declare([kind("mail"), kind("sms")]);
  await store.register(workerRecord("w"));

  const round = async (n: number): Promise<void> => {
    await store.enqueue([draft(`many-${n}`), draft(`one-${n}`)]);
    const many = await store.turn("w", [], roomFor(1));
    const settled = many.claimed.map((job) => SETTLE.succeed(job));
    const one = await store.turn("w", settled, roomFor(n, ["mail"]));
    assert.deepEqual([many.claimed.length, one.claimed.length], [1, 1]);
    await store.turn(
      "w",
      one.claimed.map((job) => SETTLE.succeed(job)),
      roomFor(0),
    );
    await store.beat("w", { loopLagMs: n });
    assert.equal((await store.workers({})).length, 1);
    await store.workers({ after: "v", limit: n });
    await store.workers({ which: "leftBehind" });
    assert.deepEqual((await store.heldBy({ overdue: { marginMs: n }, limit: n })).jobs, []);
  };
  await round(1);
  const once = planned;
  assert.ok(once > 0);
  for (const n of [2, 3, 4]) await round(n);
  assert.equal(planned - once, 0);
});

test("finished workers that still hold jobs are found by the jobs that run, not by reading all finished workers", async (t) => {
  const { value } = Object.getOwnPropertyDescriptor(DatabaseSync.prototype, "prepare")!;
  const prepare = value as (this: DatabaseSync, sql: string) => StatementSync;
  let last: { readonly db: DatabaseSync; readonly sql: string } | undefined;
  t.mock.method(DatabaseSync.prototype, "prepare", function (this: DatabaseSync, sql: string) {
    last = { db: this, sql };
    return prepare.call(this, sql);
  });
  const store = await openStore(systemClock, ":memory:");
  t.after(() => store.close());
  await store.workers({ which: "leftBehind" });
  const plan = prepare.call(last!.db, `EXPLAIN QUERY PLAN ${last!.sql}`).all("", -1);
  const details = plan.map(({ detail }) => String(detail));
  assert.ok(details.includes("SEARCH w USING INTEGER PRIMARY KEY (rowid=?)"), details.join("\n"));
});

test("the list of jobs that a job waits for is read once, however many of them are its children", async (t) => {
  const { value } = Object.getOwnPropertyDescriptor(DatabaseSync.prototype, "prepare")!;
  const prepare = value as (this: DatabaseSync, sql: string) => StatementSync;
  const lists = new Map<string, DatabaseSync>();
  t.mock.method(DatabaseSync.prototype, "prepare", function (this: DatabaseSync, sql: string) {
    if (/FROM json_each\(\S*\) AS i\b/.test(sql)) lists.set(sql, this);
    return prepare.call(this, sql);
  });
  const store = await openStore(systemClock, ":memory:");
  t.after(() => store.close());
  await store.declare([kind("mail"), kind("sms")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft("parent")]);
  const [parent] = (await store.turn("w", [], roomFor(1, ["mail"]))).claimed;
  const children = names("child", 3);
  await store.write([
    { lease: parent!.lease, write: { type: "enqueue", drafts: children.map((id) => draft({ id, kind: "sms" })) } },
  ]);
  const view = { id: "parent", state: "running", counters: parent!.counters } as const;
  const change = wait(view, { step: "run.wait#1", forMs: null, until: { jobs: children } });
  await store.turn("w", [{ lease: parent!.lease, change }], roomFor(3, ["sms"]));
  await store.inspect.outcomes(children);
  assert.ok(lists.size >= 3, [...lists.keys()].join("\n"));
  for (const [sql, db] of lists) {
    const details = prepare
      .call(db, `EXPLAIN QUERY PLAN ${sql}`)
      .all()
      .map(({ detail }) => String(detail));
    assert.match(
      details.find((one) => /^(SCAN|SEARCH)/.test(one))!,
      /^SCAN i VIRTUAL TABLE/,
      `${sql}\n${details.join("\n")}`,
    );
  }
});
