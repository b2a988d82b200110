// The connection is lost at the COMMIT itself, before the server got it or before its answer came back: the client can't tell which, so
// the server is asked. The caller gets the true result, and the rows are there once or not at all.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { type Engine, job, type JobContract, open, type OutliveError } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { untilState } from "../support/processes.ts";
import { type CommitProxy, commitProxy } from "./commit-proxy.ts";
import { PATIENT, PostgresPlace } from "./place.ts";

const MARK = "INSERT INTO ledger";

interface Fixture extends AsyncDisposable {
  readonly place: PostgresPlace;
  readonly proxy: CommitProxy;
  readonly engine: Engine;
  /** How the `commit` of each attempt ended. */
  readonly told: { readonly attempt: number; readonly value?: unknown; readonly thrown?: OutliveError }[];
  readonly pay: JobContract<object, object>;
}

async function fixture(t: TestContext): Promise<Fixture> {
  const place = await PostgresPlace.shared(t);
  const proxy = await commitProxy(t, place.url, MARK);
  const told: Fixture["told"] = [];
  const pay = job<object>("pay", { retry: { backoff: { base: "1ms", max: "5ms" } } });
  pay.handle(async (_, run) => {
    try {
      const value = await run.commit(postgres, async (tx) => {
        await tx.query(`SET LOCAL search_path = "${place.schema}"`);
        await tx.query(`${MARK} (job, n) VALUES ($1, $2)`, [run.id, run.attempt]);
        return run.attempt;
      });
      told.push({ attempt: run.attempt, value });
    } catch (thrown) {
      told.push({ attempt: run.attempt, thrown: thrown as OutliveError });
      throw thrown;
    }
  });
  const engine = await open(proxy.url, {
    jobs: [pay],
    logger: false,
    heartbeat: PATIENT,
    postgres: { schema: place.schema },
  });
  return { place, proxy, engine, told, pay, [Symbol.asyncDispose]: () => engine.close({ grace: "0ms" }) };
}

/** A transaction of the user's own: one row and one job. */
function book({ engine, place, pay }: Fixture, n: number): Promise<string> {
  return engine.transaction(postgres, async (tx) => {
    await tx.query(`SET LOCAL search_path = "${place.schema}"`);
    await tx.query(`${MARK} (job, n) VALUES ('mine', $1)`, [n]);
    return (await tx.enqueue(pay, {})).id;
  });
}

const ledger = ({ place }: Fixture): Promise<{ job: string; n: number }[]> =>
  place.query<{ job: string; n: number }>("SELECT job, n FROM outlive.ledger ORDER BY n");

test("the answer to a commit is lost: the job has succeeded, its row is there once, and commit resolves in the attempt", async (t) => {
  await using scened = await fixture(t);
  const { engine, proxy, told, pay } = scened;
  proxy.cutAt("before its answer");
  await engine.start();
  const { id } = await engine.enqueue(pay, {});
  await untilState(engine, id, "succeeded");
  assert.equal(proxy.cuts(), 1);
  const found = (await engine.get(id))!;
  assert.deepEqual([found.attempt, found.counters.errors, found.counters.crashes], [1, 0, 0]);
  assert.deepEqual(await ledger(scened), [{ job: id, n: 1 }]);
  await engine.close();
  assert.deepEqual(told, [{ attempt: 1, value: 1 }]);
});

test("a commit never reaches the server: nothing was written, commit rejects, the attempt fails, and the next one commits", async (t) => {
  await using scened = await fixture(t);
  const { engine, proxy, told, pay } = scened;
  proxy.cutAt("before COMMIT");
  await engine.start();
  const { id } = await engine.enqueue(pay, {});
  await untilState(engine, id, "succeeded");
  assert.equal(proxy.cuts(), 1);
  const found = (await engine.get(id))!;
  assert.deepEqual([found.attempt, found.counters.errors, found.counters.crashes], [2, 1, 0]);
  assert.deepEqual(await ledger(scened), [{ job: id, n: 2 }]);
  await engine.close();
  assert.equal(told.length, 2);
  assert.equal(told[0]!.thrown!.code, "STORE_FAILED");
  assert.match(
    told[0]!.thrown!.message,
    new RegExp(
      `while job ${id} was committed; the server says that the commit did not happen\\. Nothing was written\\.`,
    ),
  );
  assert.deepEqual(told[1], { attempt: 2, value: 2 });
});

test("the answer to the commit of engine.transaction is lost: it resolves as if it were not, and all is there once", async (t) => {
  await using scened = await fixture(t);
  const { engine, proxy } = scened;
  proxy.cutAt("before its answer");
  const id = await book(scened, 7);
  assert.equal(proxy.cuts(), 1);
  assert.deepEqual(await ledger(scened), [{ job: "mine", n: 7 }]);
  assert.equal((await engine.get(id))!.state, "queued");
});

test("the commit of engine.transaction never reaches the server: it is refused, nothing is there, and it can be run again", async (t) => {
  await using scened = await fixture(t);
  const { engine, proxy } = scened;
  proxy.cutAt("before COMMIT");
  await assert.rejects(book(scened, 7), (thrown: OutliveError) => {
    assert.equal(thrown.code, "STORE_FAILED");
    assert.match(
      thrown.message,
      /the server says that the commit did not happen\. Nothing was written; run it again\./,
    );
    return true;
  });
  assert.equal(proxy.cuts(), 1);
  assert.deepEqual(await ledger(scened), []);
  assert.deepEqual(
    (await engine.counts()).map(({ ready }) => ready),
    [0],
  );
  await book(scened, 8);
  assert.deepEqual(await ledger(scened), [{ job: "mine", n: 8 }]);
});
