// `commit` and `transaction` on SQLite: the user's rows are there if and only if the job succeeded, and nothing that a callback
// does harms the engine's own tables or the transactions of others.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { type Declared, type Engine, ErrorCode, job, OutliveError } from "../../src/index.ts";
import { sqlite, type SqliteTransaction } from "../../src/sqlite.ts";
import type { CommitForm } from "../../src/worker/run.ts";
import { untilState } from "../support/processes.ts";
import { AT_ONCE, memory, says } from "./engines.ts";

async function withLedger(t: TestContext, jobs: readonly Declared[]): Promise<Engine> {
  const engine = await memory(t, jobs);
  await engine.transaction(sqlite, (tx) => tx.exec("CREATE TABLE ledger (who TEXT PRIMARY KEY, n INTEGER)"));
  return engine;
}

function rows(engine: Engine): Promise<{ who: string; n: number }[]> {
  return engine.transaction(sqlite, (tx) =>
    tx.all<{ who: string; n: number }>("SELECT who, n FROM ledger ORDER BY who").map((row) => ({ ...row })),
  );
}

test("the user's rows and the job's success are one, and the callback's value is the job's result", async (t) => {
  const pay = job<number>("pay").handle(async (n, run) => {
    const answer = await run.commit(sqlite, (tx) => {
      const { changes } = tx.run("INSERT INTO ledger VALUES (?, ?)", run.id, n);
      return { changes, flag: tx.get<{ yes: number }>("SELECT ? AS yes", true)!.yes };
    });
    assert.deepEqual(answer, { changes: 1, flag: 1 });
  });
  const engine = await withLedger(t, [pay]);
  const { id } = await engine.enqueue(pay, 5);
  await engine.runUntilIdle();
  const { state, result } = (await engine.get(id))!;
  assert.deepEqual([state, result], ["succeeded", { changes: 1, flag: 1 }]);
  assert.deepEqual(await rows(engine), [{ who: id, n: 5 }]);
});

test("a callback that throws leaves none of its rows, and its own error reaches the handler", async (t) => {
  class Broke extends Error {}
  const seen: unknown[] = [];
  const pay = job<null>("pay", { retry: { attempts: 2, backoff: AT_ONCE } });
  pay.handle(async (_, run) => {
    await run
      .commit(sqlite, (tx) => {
        tx.run("INSERT INTO ledger VALUES (?, 1)", `${run.id}/${run.attempt}`);
        if (run.attempt === 1) throw new Broke("no money");
      })
      .catch((thrown: unknown) => {
        seen.push(thrown);
        throw thrown;
      });
  });
  const engine = await withLedger(t, [pay]);
  const { id } = await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  assert.ok(seen[0] instanceof Broke);
  assert.equal((await engine.get(id))?.state, "succeeded");
  assert.deepEqual(await rows(engine), [{ who: `${id}/2`, n: 1 }], "only those of the attempt that succeeded");
});

test("a handler may try another commit after one that failed", async (t) => {
  const pay = job<null>("pay").handle(async (_, run) => {
    await assert.rejects(
      run.commit(sqlite, () => {
        throw new Error("not so");
      }),
      /not so/,
    );
    await run.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger VALUES ('second', 2)"));
  });
  const engine = await withLedger(t, [pay]);
  const { id } = await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  assert.deepEqual([(await engine.get(id))?.state, await rows(engine)], ["succeeded", [{ who: "second", n: 2 }]]);
});

test("a result that JSON can't carry undoes the commit", async (t) => {
  const pay = job<null>("pay", { retry: { attempts: 1 } });
  pay.handle(async (_, run) => {
    await run.commit(sqlite, (tx) => {
      tx.run("INSERT INTO ledger VALUES ('x', 1)");
      return { at: new Date() } as unknown as string;
    });
  });
  const engine = await withLedger(t, [pay]);
  const { id } = await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.equal(state, "dead");
  assert.match(error!.message, /The result of job .* contains a Date at \$\.at/);
  assert.deepEqual(await rows(engine), []);
});

test("a callback that returns a promise is refused and its rows are rolled back", async (t) => {
  const late: unknown[] = [];
  const body = (async (tx: SqliteTransaction) => {
    tx.run("INSERT INTO ledger VALUES ('async', 1)");
    await Promise.resolve();
    try {
      tx.run("INSERT INTO ledger VALUES ('too late', 1)");
    } catch (thrown) {
      late.push(thrown);
    }
  }) as unknown as (tx: SqliteTransaction) => void;
  const seen: unknown[] = [];
  const pay = job<null>("pay", { retry: { attempts: 1 } });
  pay.handle(async (_, run) => {
    await run.commit(sqlite, body).catch((thrown: unknown) => {
      seen.push(thrown);
      throw thrown;
    });
  });
  const engine = await withLedger(t, [pay]);
  const { id } = await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  says(ErrorCode.commitAsync, "returned a promise", "Nothing was written")(seen[0]);
  await assert.rejects(engine.transaction(sqlite, body), says(ErrorCode.commitAsync));
  assert.deepEqual([(await engine.get(id))?.state, await rows(engine)], ["dead", []]);
  assert.equal(late.length, 2);
  for (const thrown of late) says(ErrorCode.commitAsync, "The transaction has ended")(thrown);
});

test("a promise that does not compile is the wrong form: the type says so", () => {
  const never = async (engine: Engine): Promise<void> => {
    // @ts-expect-error a synchronous store takes no asynchronous callback
    await engine.transaction(sqlite, async () => 1);
  };
  assert.equal(typeof never, "function");
});

test("the handle of a transaction is dead after its callback", async (t) => {
  const any = job<null>("any");
  const engine = await withLedger(t, [any]);
  const kept = await engine.transaction(sqlite, (tx) => ({ tx }));
  for (const use of [
    () => kept.tx.run("DELETE FROM ledger"),
    () => kept.tx.get("SELECT 1"),
    () => kept.tx.all("SELECT 1"),
    () => kept.tx.exec("DELETE FROM ledger"),
    () => kept.tx.enqueue(any, null),
  ])
    assert.throws(use, says(ErrorCode.commitAsync, "The transaction has ended"));
});

const denied = [
  "BEGIN",
  "COMMIT",
  "END",
  "ROLLBACK",
  "SAVEPOINT mine",
  "RELEASE outlive_user",
  "ROLLBACK TO outlive_user",
  "ATTACH ':memory:' AS other",
  "DETACH main",
  "PRAGMA synchronous = OFF",
  "PRAGMA journal_mode = DELETE",
  "PRAGMA writable_schema = 1",
  "INSERT INTO outlive_meta VALUES ('x', 1)",
  "UPDATE outlive_jobs SET state = 2",
  "DELETE FROM outlive_jobs",
  "REPLACE INTO outlive_meta VALUES ('epoch', 1)",
  "WITH one AS (SELECT 1) DELETE FROM outlive_jobs",
  "DROP TABLE outlive_jobs",
  "DROP INDEX outlive_jobs_ready",
  "ALTER TABLE outlive_jobs ADD COLUMN mine",
  "ALTER TABLE outlive_jobs RENAME TO mine",
  "CREATE INDEX mine ON outlive_jobs (state)",
  "CREATE TRIGGER mine AFTER UPDATE ON outlive_jobs BEGIN SELECT 1; END",
  "CREATE TRIGGER mine AFTER INSERT ON ledger BEGIN DELETE FROM outlive_jobs; END; INSERT INTO ledger VALUES ('t', 1)",
];

for (const sql of denied)
  test(`a callback can't: ${sql}`, async (t) => {
    const idle = job<null>("idle");
    const engine = await withLedger(t, [idle]);
    await engine.enqueue(idle, null);
    for (const way of ["exec", "run"] as const) {
      if (way === "run" && sql.includes("; END;")) continue;
      await assert.rejects(
        engine.transaction(sqlite, (tx) => {
          tx.run("INSERT INTO ledger VALUES ('before', 1)");
          if (way === "exec") tx.exec(sql);
          else tx.run(sql);
        }),
        (thrown) => thrown instanceof Error,
      );
    }
    assert.deepEqual(await rows(engine), [], "nothing of it was written");
    assert.equal((await engine.counts())[0]?.ready, 1, "the engine's tables are whole");
    assert.equal((await engine.enqueue(idle, null)).created, true, "and it goes on");
  });

const leaks = [
  {
    what: "a temporary trigger on the engine's tables",
    body: (tx: SqliteTransaction) =>
      tx.exec("CREATE TEMP TRIGGER mine AFTER UPDATE ON outlive_jobs BEGIN SELECT RAISE(ROLLBACK, 'no'); END"),
  },
  {
    what: "a new table under the engine's own prefix",
    body: (tx: SqliteTransaction) => tx.exec("CREATE TABLE outlive_batches (mine)"),
  },
  {
    what: "writing to the engine's tables by a trigger that is younger than a kept statement",
    body: (tx: SqliteTransaction) => {
      tx.run("INSERT INTO ledger VALUES (?, 1)", "first");
      tx.exec("CREATE TRIGGER mine AFTER INSERT ON ledger BEGIN DELETE FROM outlive_jobs; END");
      tx.run("INSERT INTO ledger VALUES (?, 1)", "second");
    },
  },
];

for (const { what, body } of leaks)
  test(`a callback can't do this either: ${what}`, async (t) => {
    const engine = await withLedger(t, []);
    await assert.rejects(engine.transaction(sqlite, body));
  });

test("what a callback may do: read the engine's tables and pragmas, and make tables, triggers and indexes of its own", async (t) => {
  const idle = job<null>("idle");
  const engine = await withLedger(t, [idle]);
  await engine.enqueue(idle, null);
  const seen = await engine.transaction(sqlite, (tx) => {
    tx.exec("CREATE TABLE audit (who TEXT); CREATE INDEX audit_who ON audit (who)");
    tx.exec("CREATE TRIGGER audited AFTER INSERT ON ledger BEGIN INSERT INTO audit VALUES (new.who); END");
    tx.run("INSERT INTO ledger VALUES ('ada', 1)");
    return {
      jobs: tx.get<{ n: number }>("SELECT count(*) AS n FROM outlive_jobs")!.n,
      synchronous: tx.get<{ synchronous: number }>("PRAGMA synchronous")!.synchronous,
      audit: tx.get<{ who: string }>("SELECT who FROM audit")!.who,
    };
  });
  assert.deepEqual(seen, { jobs: 1, synchronous: 2, audit: "ada" });
});

test("many commits of one turn share one transaction, and one that fails harms only itself", async (t) => {
  const entered: (() => void)[] = [];
  const pay = job<{ n: number }>("pay", { retry: { attempts: 1 } });
  pay.handle(async ({ n }, run) => {
    await new Promise<void>((resolve) => {
      entered.push(resolve);
      if (entered.length === 20) for (const enter of entered) enter();
    });
    await run.commit(sqlite, (tx) => {
      tx.run("INSERT INTO ledger VALUES (?, ?)", `job ${n}`, n);
      if (n === 7) throw new Error("not this one");
      if (n === 8) tx.run("INSERT INTO ledger VALUES (?, ?)", `job ${n}`, n); // breaks the primary key
    });
  });
  const engine = await withLedger(t, [pay]);
  await engine.enqueueMany(
    pay,
    Array.from({ length: 20 }, (_, n) => ({ n })),
  );
  const groups: number[] = [];
  engine.on(
    "job.succeeded",
    () => void engine.health().then(({ store }) => groups.push(store["lastGroupCommit"] as number)),
  );
  const [counts] = await engine.runUntilIdle({ concurrency: 20 });
  assert.deepEqual([counts?.succeeded, counts?.dead], [18, 2]);
  assert.ok(Math.max(...groups) >= 20, "all twenty were in one group");
  const written = (await rows(engine)).map(({ n }) => n).toSorted((a, b) => a - b);
  assert.deepEqual(
    written,
    Array.from({ length: 20 }, (_, n) => n).filter((n) => n !== 7 && n !== 8),
  );
});

test("INSERT OR ROLLBACK in one of several commits of one turn fails that one, with its own code, and no other", async (t) => {
  const entered: (() => void)[] = [];
  const errors: unknown[] = [];
  const pay = job<{ n: number }>("pay", { retry: { attempts: 1 } });
  pay.handle(async ({ n }, run) => {
    await new Promise<void>((resolve) => {
      entered.push(resolve);
      if (entered.length === 5) for (const enter of entered) enter();
    });
    await run
      .commit(sqlite, (tx) => {
        tx.run("INSERT OR ROLLBACK INTO ledger VALUES (?, ?)", n === 2 ? "taken" : `job ${n}`, n);
      })
      .catch((thrown: unknown) => {
        errors.push(thrown);
        throw thrown;
      });
  });
  const engine = await withLedger(t, [pay]);
  await engine.transaction(sqlite, (tx) => void tx.run("INSERT INTO ledger VALUES ('taken', -1)"));
  await engine.enqueueMany(
    pay,
    Array.from({ length: 5 }, (_, n) => ({ n })),
  );
  const [counts] = await engine.runUntilIdle({ concurrency: 5 });
  assert.deepEqual([counts?.succeeded, counts?.dead], [4, 1]);
  assert.equal(errors.length, 1);
  says(ErrorCode.commitRolledBack, "ON CONFLICT ROLLBACK")(errors[0]);
  assert.deepEqual(
    (await rows(engine)).map(({ n }) => n).toSorted((a, b) => a - b),
    [-1, 0, 1, 3, 4],
  );
});

test("INSERT OR ROLLBACK in a transaction leaves the enqueues of its turn alone", async (t) => {
  const idle = job<number>("idle");
  const engine = await withLedger(t, [idle]);
  await engine.transaction(sqlite, (tx) => void tx.run("INSERT INTO ledger VALUES ('taken', -1)"));
  const [before, broken, after] = await Promise.allSettled([
    engine.enqueue(idle, 1),
    engine.transaction(sqlite, (tx) => {
      tx.enqueue(idle, 99);
      tx.run("INSERT OR ROLLBACK INTO ledger VALUES ('taken', 1)");
    }),
    engine.enqueue(idle, 2),
  ]);
  assert.deepEqual([before.status, broken.status, after.status], ["fulfilled", "rejected", "fulfilled"]);
  const { jobs } = await engine.list();
  assert.equal(jobs.length, 2);
});

test("tx.enqueue in a transaction adds the job with the rows or not at all", async (t) => {
  const idle = job<{ n: number }>("idle");
  const engine = await withLedger(t, [idle]);
  const first = await engine.transaction(sqlite, (tx) => {
    tx.run("INSERT INTO ledger VALUES ('a', 1)");
    const one = tx.enqueue(idle, { n: 1 }, { dedupeKey: "k", priority: 3 });
    assert.deepEqual(tx.enqueue(idle, { n: 2 }, { dedupeKey: "k" }), { id: one.id, created: false });
    return one;
  });
  assert.equal((await engine.get(first.id))?.priority, 3);
  await assert.rejects(
    engine.transaction(sqlite, (tx) => {
      tx.enqueue(idle, { n: 3 });
      tx.run("INSERT INTO ledger VALUES ('a', 1)");
    }),
    (thrown) => {
      assert.ok(thrown instanceof Error);
      assert.match(thrown.message, /UNIQUE constraint failed/);
      return true;
    },
  );
  assert.equal((await engine.list()).jobs.length, 1);
  assert.deepEqual(await rows(engine), [{ who: "a", n: 1 }]);
});

test("tx.enqueue wakes the worker, in a transaction and in a commit", async (t) => {
  const child = job<null>("child").handle(() => {});
  const parent = job<null>("parent").handle(async (_, run) => {
    await run.commit(sqlite, (tx) => tx.enqueue(child, null, { id: "of-commit" }).id);
  });
  const engine = await memory(t, [parent, child], { poll: "1h" });
  await engine.start();
  await engine.transaction(sqlite, (tx) => {
    tx.enqueue(parent, null);
    tx.enqueue(child, null, { id: "of-transaction" });
  });
  await untilState(engine, "of-transaction", "succeeded");
  await untilState(engine, "of-commit", "succeeded");
});

test("tx.enqueue of a kind that was not passed to open is refused as enqueue refuses it", async (t) => {
  const known = job<number>("note", { retry: { attempts: 3 } });
  const twin = job<string>("note");
  const engine = await memory(t, [known]);
  await assert.rejects(
    engine.transaction(sqlite, (tx) => tx.enqueue(twin, "not what the handler expects").id),
    says(ErrorCode.kindUnknown),
  );
});

test("tx.enqueue of a kind that no program declared is an error, and nothing of the transaction is written", async (t) => {
  const stranger = job<null>("stranger");
  const engine = await withLedger(t, []);
  await assert.rejects(
    engine.transaction(sqlite, (tx) => {
      tx.run("INSERT INTO ledger VALUES ('a', 1)");
      tx.enqueue(stranger, null);
    }),
    says(ErrorCode.kindUnknown, '"stranger"'),
  );
  assert.deepEqual(await rows(engine), []);
});

test("the form of another store is an error that says which one fits", async (t) => {
  const postgres: CommitForm<SqliteTransaction, "sync"> = { store: "postgres", mode: "sync" };
  const pay = job<null>("pay", { retry: { attempts: 1 } });
  pay.handle(async (_, run) => {
    await run.commit(postgres, () => {});
  });
  const engine = await memory(t, [pay]);
  const { id } = await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.equal(state, "dead");
  assert.match(error!.message, /called commit in the form of postgres, but the open store is sqlite/);
  await assert.rejects(
    engine.transaction(postgres, () => 1),
    says(ErrorCode.commitForm, "postgres", 'Import the form from "outlive/sqlite"'),
  );
});

test("what a handler does after its commit is refused, and what it then returns or throws changes nothing", async (t) => {
  const late: unknown[] = [];
  const pay = job<null>("pay").handle(async (_, run) => {
    await run.commit(sqlite, () => "committed");
    for (const again of [
      () => run.step("late", () => 1),
      () => run.log("late"),
      async () => await run.commit(sqlite, (tx) => void tx.run("INSERT INTO ledger VALUES ('late', 1)")),
    ])
      await again().catch((thrown: unknown) => late.push(thrown));
    throw new Error("after the commit");
  });
  const engine = await withLedger(t, [pay]);
  const { id } = await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  const { state, result, steps, counters } = (await engine.get(id))!;
  assert.deepEqual([state, result, steps, counters.errors], ["succeeded", "committed", [], 0]);
  assert.equal(late.length, 3);
  for (const thrown of late) says(ErrorCode.stale, id)(thrown);
  assert.deepEqual(await rows(engine), []);
});

test("commit after the end rejects, it does not throw before there is a promise", async (t) => {
  const { promise, resolve } = Promise.withResolvers<unknown>();
  const pay = job<null>("pay").handle(async (_, run) => {
    await run.commit(sqlite, () => 1);
    try {
      run.commit(sqlite, () => 2).catch(() => resolve("rejected"));
    } catch {
      resolve("thrown");
    }
  });
  const engine = await memory(t, [pay]);
  await engine.enqueue(pay, null);
  await engine.runUntilIdle();
  assert.equal(await promise, "rejected");
});

test("an error of the user's own SQL carries SQLite's, so that a program can tell which it was", async (t) => {
  const engine = await withLedger(t, []);
  const twice = (): Promise<unknown> =>
    engine.transaction(sqlite, (tx) => tx.run("INSERT INTO ledger VALUES ('a', 1)").changes);
  await twice();
  await assert.rejects(twice(), (thrown) => {
    const of = (thrown instanceof OutliveError ? thrown.cause : thrown) as { errcode: number; message: string };
    assert.equal(of.errcode & 0xff, 19);
    assert.match(of.message, /UNIQUE constraint failed: ledger\.who/);
    return true;
  });
});
