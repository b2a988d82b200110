// The types of a turn's rows name columns of SQL texts, and the compiler can't compare the two: a column with another name would be read as
// undefined, which looks like "no". All forms of the statement must return exactly these columns.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { Connection } from "../../src/stores/postgres/connection.ts";
import { draft, kind, roomFor, SETTLE, TIMEOUT_MS, workerRecord } from "../../src/testing/conformance/fixture.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema, withClient } from "../support/postgres.ts";

type Row = Readonly<Record<string, unknown>>;

const OF_ONE_KIND = ["seq", "id", "fence", "priority", "epoch", "input"];
const OF_SEVERAL = [...OF_ONE_KIND, "kind", "timeout_ms"];
const OF_SUSPECTS = ["seq", "id", "fence", "priority", "kind", "epoch", "timeout_ms", "input"];

for (const { form, inTwoFrom, kinds } of [
  { form: "one statement, one kind", inTwoFrom: 100, kinds: ["mail"] },
  { form: "one statement, several kinds", inTwoFrom: 100, kinds: ["mail", "sms"] },
  { form: "two statements, one kind", inTwoFrom: 1, kinds: ["mail"] },
  { form: "two statements, several kinds", inTwoFrom: 1, kinds: ["mail", "sms"] },
])
  test(`a turn's rows have the columns that their types name: ${form}`, async (t) => {
    const fresh = await freshSchema(t);
    const store = await openStore(fresh, { turnInTwoFrom: inTwoFrom });
    t.after(() => store.close());
    await store.declare([kind("mail"), kind("sms")]);
    await store.register(workerRecord("w"));
    await store.enqueue([draft("a"), draft({ id: "b", priority: 7 }), draft("c")]);
    const first = await store.turn("w", [], roomFor(1, kinds));
    assert.deepEqual(
      first.claimed.map(({ lease }) => lease.jobId),
      ["b"],
    );

    const results = recorded(t);
    const settled = first.claimed.map((job) => SETTLE.succeed(job));
    const { claimed } = await store.turn("w", settled, roomFor(2, kinds));
    assert.equal(claimed.length, 2);

    const { rows } = results.find(({ sql }) => sql.includes("taken AS"))!;
    const isOne = kinds.length === 1;
    for (const row of rows) assert.deepEqual(Object.keys(row), isOne ? OF_ONE_KIND : OF_SEVERAL);
    const [turn, ...others] = rows.filter(({ seq }) => seq === null);
    assert.equal(others.length, 0);
    const { id: times, fence: found, priority: none, epoch, input: cancels } = turn!;
    // Nothing is due, of no key is known when; the timeout that all have in common; all were settled. It is live, and nothing else was found.
    assert.equal(times, `,,${isOne ? TIMEOUT_MS : ""},*`);
    assert.deepEqual(
      { found, none, cancels, epoch: typeof epoch },
      { found: 1, none: null, cancels: null, epoch: "number" },
    );
    const jobs = rows.filter(({ seq }) => seq !== null);
    for (const job of jobs) {
      assert.equal(job["epoch"], null);
      assert.equal(job["timeout_ms"], isOne ? undefined : TIMEOUT_MS);
      assert.equal(typeof job["kind"], isOne ? "undefined" : "number");
    }
    assert.deepEqual(
      jobs
        .map(({ id, fence, priority }) => ({ id, fence, priority }))
        .toSorted((a, b) => (String(a.id) < String(b.id) ? -1 : 1)),
      [
        { id: "a", fence: 1, priority: 0 },
        { id: "c", fence: 1, priority: 0 },
      ],
    );
    const settling = results.filter(({ sql }) => sql.includes("settled AS") && !sql.includes("taken AS"));
    assert.deepEqual(
      settling.map((result) => result.rows),
      inTwoFrom === 1 ? [[{ settled: "*", noted: 0 }]] : [],
    );
  });

test("the rows of claimed suspects have the columns that their type names", async (t) => {
  const fresh = await freshSchema(t);
  const store = await openStore(fresh);
  t.after(() => store.close());
  await store.declare([kind("mail")]);
  await store.register(workerRecord("w"));
  await store.enqueue([draft({ id: "a", priority: 7 })]);
  await withClient(fresh.url, (client) => client.query(`UPDATE "${fresh.schema}".jobs SET lane = 2, crashes = 1`));
  const results = recorded(t);
  const { claimed } = await store.turn("w", [], roomFor(1, ["mail"]));
  assert.deepEqual(
    claimed.map(({ lease }) => lease.jobId),
    ["a"],
  );
  const { rows } = results.find(({ sql }) => sql.includes("free AS"))!;
  assert.deepEqual(
    rows.map((row) => Object.keys(row)),
    [OF_SUSPECTS],
  );
  const { fence, priority, timeout_ms, input } = rows[0]!;
  assert.deepEqual(
    { fence, priority, timeout_ms, input },
    { fence: 1, priority: 7, timeout_ms: TIMEOUT_MS, input: "{}" },
  );
});

/** Every statement of this process that returns rows, and those rows. */
function recorded(t: TestContext): readonly { readonly sql: string; readonly rows: readonly Row[] }[] {
  const results: { readonly sql: string; readonly rows: readonly Row[] }[] = [];
  const { value } = Object.getOwnPropertyDescriptor(Connection.prototype, "rows")!;
  const rowsOf = value as (this: Connection, sql: string, values?: readonly never[]) => Promise<Row[]>;
  t.mock.method(Connection.prototype, "rows", async function (this: Connection, sql: string, values?: never[]) {
    const rows = await rowsOf.call(this, sql, values);
    // The caller takes rows out of its own array.
    results.push({ sql, rows: [...rows] });
    return rows;
  });
  return results;
}
