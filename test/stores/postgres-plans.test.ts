// A worker finds the suspects that it may take by an index, in the order in which it asks for them, however many there are.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LARGEST_FIRST, OLDEST_FIRST } from "../../src/stores/postgres/suspects.ts";
import { freshSchema } from "../support/postgres.ts";

for (const [text, index] of [
  [LARGEST_FIRST, "jobs_suspects_largest"],
  [OLDEST_FIRST, "jobs_suspects_oldest"],
] as const)
  test(`suspects are read by ${index}, and not sorted`, async (t) => {
    const { schema, query } = await freshSchema(t);
    await query(`INSERT INTO "${schema}".kinds (name) VALUES ('mail')`);
    await query(`INSERT INTO "${schema}".jobs (kind, priority, created_at, id, input, lane, crashes, together)
      SELECT 1, n % 3, 1, 'job-' || n, '{}', 2, 1, n % 7 FROM generate_series(1, 5000) AS n`);
    await query(`ANALYZE "${schema}".jobs`);
    const own = text.replaceAll("outlive.", `"${schema}".`).replace("$1::int[]", "'{1}'::int[]").replace("$2", "10");
    const plan = (await query(`EXPLAIN ${own}`)).map((row) => String(row["QUERY PLAN"])).join("\n");
    assert.match(plan, new RegExp(`Index Scan using ${index}`));
    assert.doesNotMatch(plan, /Sort/);
  });
