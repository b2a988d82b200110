// Many jobs with keys in one statement: that each waits at its door, and that the time grows with their number and not with its square.
import assert from "node:assert/strict";
import { test } from "node:test";
import { jobKey } from "../../src/job/limits.ts";
import { draft, kind } from "../../src/testing/conformance/fixture.ts";
import { limit } from "../../src/testing/conformance/keys.ts";
import { openStore } from "../conformance/postgres-stores.ts";
import { freshSchema } from "../support/postgres.ts";

/** Before migration 29 a thousand jobs took a hundred times as long as a hundred, if they were of a fair kind more than 4 s. */
const MAX_RATIO = 40;

for (const fair of [false, true])
  test(`1,000 jobs ${fair ? "of a fair kind" : "with a limit"} are added in about ten times the time of 100`, async (t) => {
    const fresh = await freshSchema(t);
    const store = await openStore(fresh);
    t.after(() => store.close());
    await store.declare([kind("mail", { fair, keyed: [limit("tenant", { running: 2 })] })]);
    let added = 0;
    const add = async (count: number): Promise<number> => {
      const drafts = Array.from({ length: count }, () => {
        const key = jobKey("tenant", `t${added}`);
        return draft({ id: `j${added++}`, keys: [key], ...(fair && { fair: key.id }) });
      });
      const at = performance.now();
      await store.enqueue(drafts);
      return performance.now() - at;
    };
    await add(100);
    const few = Math.max(await add(100), await add(100));
    // The fastest of three: a busy machine may hold up one of them, a square grows in each.
    const many = Math.min(await add(1_000), await add(1_000), await add(1_000));
    assert.ok(many < few * MAX_RATIO, `1,000 took ${Math.round(many)} ms, and 100 took ${Math.round(few)} ms`);
    const rows = await fresh.query(
      `SELECT count(*)::int AS n, count(DISTINCT e.door)::int AS doors FROM "${fresh.schema}".jobs j JOIN "${fresh.schema}".extras e ON e.job = j.seq WHERE j.lane = 3 AND e.place = 1`,
    );
    assert.deepEqual(rows, [{ n: added, doors: fair ? 1 : added }]);
  });
