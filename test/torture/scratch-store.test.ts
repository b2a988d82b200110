// What is left of a run on a server: nothing, or, if it is to be looked at, all of it.
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { test } from "node:test";
import { scratchStore } from "../../src/torture/scratch-store.ts";
import { freshDatabase, withClient } from "../support/postgres.ts";

for (const { title, isKept, left } of [
  { title: "a schema that was kept when the run was over is left on the server", isKept: true, left: 1 },
  { title: "a schema that nobody kept is dropped", isKept: false, left: 0 },
])
  test(title, async (t) => {
    const url = await freshDatabase(t);
    const { schema, scratch, remove } = await scratchStore(url, { purpose: "torture", keep: false });
    t.after(() => rmSync(scratch.folder, { recursive: true }));
    if (isKept) scratch.keep();
    assert.equal(scratch.isKept, isKept);
    await remove();
    const { rowCount } = await withClient(url, (client) =>
      client.query("SELECT FROM pg_namespace WHERE nspname = $1", [schema]),
    );
    assert.equal(rowCount, left);
  });
