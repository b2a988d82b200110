// A commit sends our own statements together with its BEGIN and its COMMIT, so they have to refuse what statements of their own would have refused.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import pg from "pg";
import { type Engine, job, type OutliveError } from "../../src/index.ts";
import { postgres, type PostgresTransaction } from "../../src/postgres.ts";
import { withClient } from "../support/postgres.ts";
import { untilState } from "../support/processes.ts";
import { PostgresPlace } from "./place.ts";

interface Fixture {
  readonly place: PostgresPlace;
  readonly engine: Engine;
  readonly id: string;
  /** What the commit of each attempt came to; null: it was committed. */
  readonly outcomes: (OutliveError | null)[];
}

/** A job whose first attempt runs `body` in its commit, and whose second one runs nothing in it. */
async function committing(t: TestContext, body: (tx: PostgresTransaction) => Promise<unknown>): Promise<Fixture> {
  const place = await PostgresPlace.shared(t);
  const outcomes: (OutliveError | null)[] = [];
  const pay = job<object>("pay", { retry: { backoff: { base: "1ms", max: "5ms" } } });
  pay.handle(async (_, run) => {
    try {
      await run.commit(postgres, async (tx) => {
        await tx.query(`SET LOCAL search_path = "${place.schema}"`);
        await tx.query("INSERT INTO ledger (job, n) VALUES ($1, $2)", [run.id, run.attempt]);
        const value = run.attempt === 1 ? await body(tx) : undefined;
        return typeof value === "string" ? value : undefined;
      });
      outcomes.push(null);
    } catch (thrown) {
      outcomes.push(thrown as OutliveError);
      throw thrown;
    }
  });
  const engine = await place.engine({ jobs: [pay] });
  const { id } = await engine.enqueue(pay, {});
  return { place, engine, id, outcomes };
}

async function ran({ place, engine, id }: Fixture): Promise<{ readonly ledger: readonly number[]; result: unknown }> {
  await engine.start({ concurrency: 1 });
  await untilState(engine, id, "succeeded");
  const rows = await place.query<{ n: number }>("SELECT n FROM outlive.ledger ORDER BY n");
  return { ledger: rows.map(({ n }) => n), result: (await engine.get(id))!.result };
}

test("the attempt is checked in the message of the BEGIN, and its success is written in that of the COMMIT", async (t) => {
  const fixture = await committing(t, async () => `it's a "value" with a \\ and a\nline`);
  const sent: string[] = [];
  const { value } = Object.getOwnPropertyDescriptor(pg.Client.prototype, "query")!;
  const query = value as (this: pg.Client, ...given: unknown[]) => unknown;
  const clients = new Map<pg.Client, string[]>();
  t.mock.method(pg.Client.prototype, "query", function (this: pg.Client, ...given: unknown[]) {
    const first = given[0] as string | { readonly text: string };
    const text = typeof first === "string" ? first : first.text;
    if (text.startsWith("BEGIN; EXECUTE")) clients.set(this, []);
    clients.get(this)?.push(text.replaceAll(/\(.*\)/gs, "(...)").replaceAll(/outlive_\d+/g, "outlive_n"));
    if (text.endsWith("COMMIT") && clients.has(this)) sent.push(...clients.get(this)!);
    return query.apply(this, given);
  });
  const { ledger, result } = await ran(fixture);
  assert.deepEqual(ledger, [1]);
  assert.equal(result, `it's a "value" with a \\ and a\nline`);
  assert.deepEqual(sent, [
    "BEGIN; EXECUTE outlive_n_in_text(...)",
    `SET LOCAL search_path = "${fixture.place.schema}"`,
    "INSERT INTO ledger (...)",
    "EXECUTE outlive_n_in_text(...); COMMIT",
  ]);
});

test("a result that is too long for that message is committed, too", async (t) => {
  const long = "é'\\".repeat(40_000);
  const { ledger, result } = await ran(await committing(t, async () => long));
  assert.deepEqual(ledger, [1]);
  assert.equal(result, long);
});

test("a backslash stays one where strings are not as the standard has them", async (t) => {
  const fixture = await committing(t, async (tx) => {
    await tx.query("SET LOCAL standard_conforming_strings = off");
    return "a \\ and an ' and \\'";
  });
  assert.deepEqual(await ran(fixture), { ledger: [1], result: "a \\ and an ' and \\'" });
});

for (const { what, body, code, says, ledger } of [
  {
    what: "changed the row of its own job",
    body: (tx: PostgresTransaction) => tx.query("UPDATE jobs SET fence = fence + 1"),
    code: "COMMIT_DENIED",
    says: /changed the row of job \S+ by its own statements/,
    ledger: [2],
  },
  {
    what: "went on after a statement that failed",
    body: (tx: PostgresTransaction) => tx.query("SELECT 1 / 0").catch(() => []),
    code: "COMMIT_ROLLED_BACK",
    says: /had failed before its end/,
    ledger: [2],
  },
  {
    what: "ended the transaction behind other statements",
    body: (tx: PostgresTransaction) => tx.client.query("SELECT 1; COMMIT"),
    code: "COMMIT_DENIED",
    says: /ended the engine's transaction itself/,
    // What it had written before is not undone.
    ledger: [1, 2],
  },
  {
    what: "ended the transaction and began another",
    body: (tx: PostgresTransaction) => tx.client.query("SELECT 1; ROLLBACK; BEGIN"),
    code: "COMMIT_DENIED",
    says: /ended the engine's transaction itself/,
    ledger: [2],
  },
])
  test(`a callback that ${what} does not complete its job`, async (t) => {
    const fixture = await committing(t, body);
    const { ledger: found } = await ran(fixture);
    assert.deepEqual(found, ledger);
    const [first, second] = fixture.outcomes;
    assert.match(first!.message, says);
    assert.equal(first!.code, code);
    assert.equal(second, null);
  });

test("a callback that removes prepared statements costs its own attempt, and the next one has another session", async (t) => {
  const fixture = await committing(t, (tx) => tx.query("DEALLOCATE ALL"));
  assert.deepEqual((await ran(fixture)).ledger, [2]);
  assert.equal(fixture.outcomes.length, 2);
  assert.match(fixture.outcomes[0]!.message, /prepared statement/);
});

test("a commit that waits for the row of its job is interrupted by the timeout, and its session ends", async (t) => {
  const place = await PostgresPlace.shared(t);
  const started = Promise.withResolvers<void>();
  const locked = Promise.withResolvers<void>();
  const rejected = Promise.withResolvers<unknown>();
  const pay = job<object>("pay", { timeout: "1s", retry: { backoff: { base: "1ms", max: "5ms" } } });
  pay.handle(async (_, run) => {
    if (run.attempt > 1) return;
    started.resolve();
    await locked.promise;
    await run
      .commit(postgres, () => assert.fail("its row is locked"))
      .catch((thrown: unknown) => {
        rejected.resolve(thrown);
        throw thrown;
      });
  });
  const engine = await place.engine({ jobs: [pay] });
  const { id } = await engine.enqueue(pay, {});
  await engine.start({ concurrency: 1 });
  await started.promise;
  await withClient(place.url, async (client) => {
    await client.query("BEGIN");
    await client.query(`SELECT 1 FROM "${place.schema}".jobs WHERE id = $1 FOR UPDATE`, [id]);
    locked.resolve();
    assert.match(String(await rejected.promise), /did not begin/);
    const waiting =
      "SELECT count(*)::int AS count FROM pg_stat_activity WHERE query LIKE 'BEGIN; EXECUTE%' AND pg_backend_pid() = ANY (pg_blocking_pids(pid))";
    const { rows } = await client.query<{ count: number }>(waiting);
    assert.equal(rows[0]!.count, 0);
    await client.query("ROLLBACK");
  });
  await untilState(engine, id, "succeeded");
});
