// Handlers that return what can be awaited and is not a promise: query builders run their query when their `then` is called.
import assert from "node:assert/strict";
import { test } from "node:test";
import { batch } from "../../src/index.ts";
import { AT_ONCE, memory } from "../engine/engines.ts";

function thenOf<T>(runs: () => T): PromiseLike<T>["then"] {
  const ran = (): Promise<T> => new Promise<void>((resolve) => setImmediate(resolve)).then(runs);
  return (...heard) => ran().then(...heard);
}

/** As query builders make them. Nothing happens before something waits for it. */
function query<T>(runs: () => T): PromiseLike<T> {
  return { then: thenOf(runs) };
}

/** The same, and a function itself, as some builders are. */
function callable<T>(runs: () => T): PromiseLike<T> {
  return Object.assign(() => {}, { then: thenOf(runs) });
}

for (const [what, make] of [
  ["an object", query],
  ["a function", callable],
] as const)
  test(`a row ends when the query that its handler returned has: ${what} with a \`then\``, async (t) => {
    const inserted: number[] = [];
    const rows = batch("rows", { block: 10, retry: { attempts: 1 } }).handle(
      ({ line }) =>
        make(() => {
          if (line === 2) throw new Error("no such table");
          inserted.push(line);
        }) as Promise<void>,
    );
    const engine = await memory(t, [rows]);
    const { id } = await engine.submit(rows, ["a", "b", "c"]);
    await engine.runUntilIdle();
    assert.deepEqual(inserted, [1, 3]);
    const failed = await Array.fromAsync(engine.batchRows(id, { failed: true }));
    assert.deepEqual(
      failed.map(({ line, error }) => [line, error?.message]),
      [[2, "no such table"]],
    );
  });

test("handleBlock, setUp and done wait for what they return, too", async (t) => {
  const ran: string[] = [];
  const rows = batch("rows", { retry: { attempts: 2, backoff: AT_ONCE } })
    .setUp(() => query(() => "shared") as Promise<string>)
    .handleBlock((_, run) => query(() => void ran.push(`block, ${run.shared}`)) as Promise<void>)
    .done(() => query(() => void ran.push("done")) as Promise<void>);
  const engine = await memory(t, [rows]);
  const { id } = await engine.submit(rows, ["a", "b"]);
  await engine.runUntilIdle();
  assert.deepEqual(ran, ["block, shared", "done"]);
  assert.equal((await engine.batch(id))!.rows.succeeded, 2);
});
