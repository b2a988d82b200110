// `tx.submit`: a batch that is there if and only if the user's own transaction commits, on SQLite and on PostgreSQL; and submitters of the same key.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { type Declared, batch, type Engine, type Submitted, TerminalError } from "../../src/index.ts";
import { postgres } from "../../src/postgres.ts";
import { sqlite } from "../../src/sqlite.ts";
import { MAX_ROWS_IN_TRANSACTION } from "../../src/job/submit.ts";
import { memory, says } from "../engine/engines.ts";
import { PostgresPlace } from "../postgres/place.ts";
import { untilTrue } from "../support/processes.ts";

function standard(issueOf: (value: unknown) => string | null, isAsync = false) {
  const validate = (value: unknown): { value: unknown } | { issues: { message: string }[] } => {
    const message = issueOf(value);
    return message === null ? { value } : { issues: [{ message }] };
  };
  return {
    "~standard": {
      version: 1,
      vendor: "test",
      validate: isAsync ? async (value: unknown) => validate(value) : validate,
    },
  } as const;
}

/** Kinds of their own for each test: a kind has one handler. */
function kinds() {
  const ran: unknown[] = [];
  const ends: string[] = [];
  const numbers = batch("numbers", {
    block: 4,
    row: standard((value) => (typeof value === "number" ? null : "it is not a number")),
    context: standard((value) => (value === null || typeof value === "string" ? null : "it is not a name")),
  });
  numbers.handle(({ input }) => {
    if (input === 13) throw new TerminalError("13");
    ran.push(input);
  });
  numbers.done(({ id, rows }) => void ends.push(`${id} ${rows.succeeded} ${rows.failed}`));
  const slow = batch("slow", { row: standard(() => null, true) });
  slow.handle(({ input }) => void ran.push(input));
  return { numbers, slow, ran, ends };
}

interface Tx {
  submit(kind: object, rows: Iterable<unknown>, options?: object): Submitted | Promise<Submitted>;
}

/** The same test on both stores: `submit` and what else is in the transaction, which fails if `fails`. */
interface On {
  readonly engine: Engine;
  readonly within: (body: (tx: Tx) => Promise<Submitted> | Submitted, fails?: boolean) => Promise<Submitted>;
  /** Works until this many batches have ended, and what follows their ends has run. */
  readonly untilEnded: (ends: readonly string[], count: number) => Promise<void>;
}

const STORES: Readonly<Record<string, (t: TestContext, jobs: readonly Declared[]) => Promise<On>>> = {
  async sqlite(t, jobs) {
    const engine = await memory(t, jobs);
    return {
      engine,
      untilEnded: () => engine.runUntilIdle().then(() => {}),
      within: (body, fails = false) =>
        engine.transaction(sqlite, (tx) => {
          const submitted = body(tx) as Submitted;
          if (fails) throw new Error("rolled back");
          return submitted;
        }),
    };
  },
  async postgres(t, jobs) {
    const place = await PostgresPlace.shared(t);
    const engine = await place.engine({ jobs });
    return {
      engine,
      async untilEnded(ends, count) {
        await engine.start();
        await untilTrue(
          () => ends.length,
          (ended) => ended >= count,
          `${count} batches have ended`,
        );
      },
      within: (body, fails = false) =>
        engine.transaction(postgres, async (tx) => {
          const submitted = await body(tx);
          if (fails) throw new Error("rolled back");
          return submitted;
        }),
    };
  },
};

const upTo = (last: number): number[] => Array.from({ length: last }, (_, n) => n + 1);

for (const [store, open] of Object.entries(STORES)) {
  test(`${store}: a batch of a transaction is there when that commits, whole and sealed, and its rows run`, async (t) => {
    const { numbers, slow, ran, ends } = kinds();
    const { engine, within, untilEnded } = await open(t, [numbers, slow]);
    const submitted = await within((tx) => tx.submit(numbers, [...upTo(14), "x"], { context: "acme", key: "k" }));
    assert.deepEqual({ ...submitted, id: "" }, { id: "", rows: 15, alreadyThere: 0, created: true });
    const info = (await engine.batch(submitted.id))!;
    assert.deepEqual([info.state, info.rows.total, info.context, info.key], ["sealed", 15, "acme", "k"]);
    await untilEnded(ends, 1);
    assert.deepEqual(
      ran.toSorted((a, b) => Number(a) - Number(b)),
      upTo(14).filter((n) => n !== 13),
    );
    assert.deepEqual(ends, [`${submitted.id} 13 2`], "the row that does not fit and the one that fails");
    const again = await within((tx) => tx.submit(numbers, upTo(14), { key: "k" }));
    assert.deepEqual(again, { id: submitted.id, rows: 15, alreadyThere: 15, created: false });
  });

  test(`${store}: a batch of a transaction that is rolled back was never there`, async (t) => {
    const { numbers, slow } = kinds();
    const { engine, within } = await open(t, [numbers, slow]);
    await assert.rejects(
      within((tx) => tx.submit(numbers, upTo(9), { key: "k" }), true),
      /rolled back/,
    );
    assert.deepEqual(await engine.batches(), []);
    assert.deepEqual((await engine.list()).jobs, []);
  });

  test(`${store}: an open batch with the key gets what is missing, and an empty one ends`, async (t) => {
    const { numbers, slow, ran, ends } = kinds();
    const { engine, within, untilEnded } = await open(t, [numbers, slow]);
    const opened = await engine.openBatch(numbers, { key: "k" });
    await opened.append(upTo(4));
    const submitted = await within((tx) => tx.submit(numbers, upTo(10), { key: "k" }));
    assert.deepEqual(submitted, { id: opened.id, rows: 10, alreadyThere: 4, created: false });
    const empty = await within((tx) => tx.submit(numbers, []));
    await untilEnded(ends, 2);
    assert.deepEqual(
      ran.toSorted((a, b) => Number(a) - Number(b)),
      upTo(10),
    );
    assert.deepEqual(ends.toSorted(), [`${opened.id} 10 0`, `${empty.id} 0 0`].toSorted());
  });

  test(`${store}: what can't be submitted in a transaction is refused, and leaves nothing`, async (t) => {
    const { numbers, slow } = kinds();
    const { engine, within } = await open(t, [numbers, slow]);
    const refused = async (body: (tx: Tx) => Submitted | Promise<Submitted>, ...what: string[]): Promise<void> => {
      const code = what[0] === "stranger" ? "KIND_UNKNOWN" : "INPUT_INVALID";
      await assert.rejects(within(body), says(code, ...what));
      assert.deepEqual(await engine.batches(), []);
    };
    await refused((tx) => tx.submit(numbers, upTo(MAX_ROWS_IN_TRANSACTION + 1)), "10000 rows of numbers");
    await refused((tx) => tx.submit(numbers, [1], { context: 1 }), "it is not a name");
    await refused((tx) => tx.submit(batch("stranger"), [1]), "stranger");
    // Nothing is awaited inside a transaction of SQLite.
    if (store === "sqlite") await refused((tx) => tx.submit(slow, [1]), "asynchronous");
    else assert.equal((await within((tx) => tx.submit(slow, [1]))).rows, 1);
  });
}

test("two submitters of the same key at the same time: each row is added once, and both know how many there are", async (t) => {
  const { numbers, slow } = kinds();
  const { engine } = await STORES["sqlite"]!(t, [numbers, slow]);
  // 500 blocks are 13 appends: each of the two appends some of them.
  const rows = upTo(2_000);
  const both = await Promise.all([1, 2].map(() => engine.submit(numbers, rows, { key: "k" })));
  const info = (await engine.batch(both[0]!.id))!;
  assert.deepEqual([info.state, info.rows.total], ["sealed", 2_000]);
  assert.deepEqual(
    both.map(({ id, rows: total }) => [id, total]),
    [1, 2].map(() => [info.id, 2_000]),
  );
  const added = both.map(({ rows: total, alreadyThere }) => total - alreadyThere);
  assert.equal(added[0]! + added[1]!, 2_000, `each row was added by one of them: ${added.join(" and ")}`);
});

test("a submission whose batch is aborted on the way says so, whether it has a key or not", async (t) => {
  const { numbers, slow } = kinds();
  const { engine } = await STORES["sqlite"]!(t, [numbers, slow]);
  for (const key of [undefined, "k"]) {
    const rows = (async function* () {
      for (const n of upTo(1_000)) {
        if (n === 500) await engine.abortBatch((await engine.batches({ limit: 1 }))[0]!.id);
        yield n;
      }
    })();
    await assert.rejects(
      engine.submit(numbers, rows, key === undefined ? {} : { key }),
      says("WRONG_STATE", /abort(ing|ed), so nothing can be appended/),
    );
  }
});
